//! Series as vector graphics: one line for each file system.

use plotters::coord::Shift;
use plotters::coord::ranged1d::{AsRangedCoord, Ranged, ValueFormatter};
use plotters::prelude::*;

use super::text_error;
use crate::error::Error;
use crate::row::Series;

const SIZE: (u32, u32) = (620, 340);
/// Distinguishable also by those who see few colours, and on white.
const COLOURS: [RGBColor; 8] = [
    RGBColor(213, 94, 0),
    RGBColor(0, 114, 178),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(86, 180, 233),
    RGBColor(230, 159, 0),
    RGBColor(90, 90, 90),
    RGBColor(0, 0, 0),
];

/// The colour of a column by its number, in notation of CSS.
pub fn colour(index: usize) -> String {
    let RGBColor(red, green, blue) = COLOURS[index % COLOURS.len()];
    format!("#{red:02x}{green:02x}{blue:02x}")
}

/// A plot of series over the same axes, each with the number of its column. Sizes go up in powers on both axes.
pub fn draw(series: &[(usize, Series)]) -> Result<String, Error> {
    let points = || series.iter().flat_map(|(_, one)| &one.points);
    let Some((_, first)) = series.first().filter(|_| points().next().is_some()) else {
        return Ok(String::new());
    };
    let bounds = |pick: fn(&(f64, f64)) -> f64| {
        let values: Vec<f64> = points().map(pick).collect();
        super::statistics::range(&values)
    };
    let (x, y) = (bounds(|point| point.0), bounds(|point| point.1));
    let mut text = String::new();
    let area = SVGBackend::with_string(&mut text, SIZE).into_drawing_area();
    let by_powers = x.0 > 0.0 && x.1 / x.0 >= 64.0;
    let wide = y.0 > 0.0 && y.1 / y.0 >= 20.0;
    // An axis needs some length, and lines need some air above them.
    let (x_end, y_end) = (x.1.max(x.0 + 1e-9), (y.1 * 1.08).max(1e-6));
    let drawn = match (by_powers, wide) {
        (true, true) => {
            chart(&area, (x.0..x_end).log_scale(), (y.0 * 0.8..y_end).log_scale(), (first, wide), series)
        }
        (true, false) => chart(&area, (x.0..x_end).log_scale(), 0.0..y_end, (first, wide), series),
        (false, true) => chart(&area, x.0..x_end, (y.0 * 0.8..y_end).log_scale(), (first, wide), series),
        (false, false) => chart(&area, x.0..x_end, y.0.min(0.0)..y_end, (first, wide), series),
    };
    drawn.and_then(|()| area.present().map_err(Box::from)).map_err(|error| text_error("a plot", &error))?;
    drop(area);
    Ok(text)
}

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

fn chart<X, Y>(
    area: &Area<'_>,
    x: X,
    y: Y,
    (labels, wide): (&Series, bool),
    series: &[(usize, Series)],
) -> Result<(), Box<dyn std::error::Error>>
where
    X: AsRangedCoord<Value = f64>,
    Y: AsRangedCoord<Value = f64>,
    X::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
    Y::CoordDescType: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
    area.fill(&WHITE)?;
    let mut builder = ChartBuilder::on(area);
    builder.margin(8).margin_right(22).x_label_area_size(38).y_label_area_size(64);
    let mut chart = builder.build_cartesian_2d(x, y)?;
    let x_label = &|value: &f64| short(*value);
    // Labels of all multiples would stand on top of each other.
    let y_label = &|value: &f64| if wide && !is_round(*value) { String::new() } else { short(*value) };
    let mut mesh = chart.configure_mesh();
    mesh.x_desc(labels.x.as_str()).y_desc(labels.y.as_str()).light_line_style(TRANSPARENT);
    mesh.label_style(("sans-serif", 13)).axis_desc_style(("sans-serif", 13));
    mesh.x_label_formatter(x_label).y_label_formatter(y_label).draw()?;
    for (column, one) in series {
        let colour = COLOURS[column % COLOURS.len()];
        chart.draw_series(LineSeries::new(one.points.iter().copied(), colour.stroke_width(2)))?;
        if one.points.len() <= 24 {
            chart.draw_series(one.points.iter().map(|point| Circle::new(*point, 3, colour.filled())))?;
        }
    }
    Ok(())
}

/// Whether a number is 1, 2 or 5 times a power of ten.
fn is_round(value: f64) -> bool {
    let mantissa = value / 10_f64.powf(value.log10().floor());
    [1.0, 2.0, 5.0, 10.0].iter().any(|round| (mantissa - round).abs() < 1e-6)
}

/// A number for an axis.
fn short(value: f64) -> String {
    let (value, unit) = match value.abs() {
        size if size >= 1e9 => (value / 1e9, "G"),
        size if size >= 1e6 => (value / 1e6, "M"),
        size if size >= 1e4 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{value:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_series_is_a_line_and_nothing_is_no_plot() {
        let series =
            |points| Series { name: "s".to_owned(), x: "KiB".to_owned(), y: "ms".to_owned(), points };
        for points in [
            vec![(4.0, 1.0), (4096.0, 900.0)],
            vec![(4.0, 1.0), (4096.0, 2.0)],
            vec![(1.0, 0.0)],
            vec![(1.0, -2.0), (2.0, 5.0)],
        ] {
            let text = draw(&[(0, series(points.clone())), (1, series(points))]).unwrap();
            assert!(text.starts_with("<svg") && text.matches("<polyline").count() >= 2, "{text}");
        }
        assert_eq!(draw(&[]).unwrap(), "");
        assert_eq!(draw(&[(0, series(Vec::new()))]).unwrap(), "");
    }

    #[test]
    fn round_numbers_are_labels_of_wide_axes() {
        assert!([0.02, 1.0, 5.0, 1000.0, 2e6].iter().all(|value| is_round(*value)));
        assert!([3.0, 0.9, 700.0].iter().all(|value| !is_round(*value)));
    }

    #[test]
    fn axes_have_short_numbers() {
        assert_eq!([4.0, 0.25, 16384.0, 4.2e6, 0.0].map(short), ["4", "0.25", "16.38k", "4.2M", "0"]);
    }
}
