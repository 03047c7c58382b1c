//! The table of medians and of the ratio to the best peer.

use std::fmt::Write;

use super::device;
use super::statistics::range;
use super::{Column, Results};
use crate::row::Line;

/// One line for each line of the rows that were run, then series, then the reasons of what failed.
pub fn render(results: &Results) -> String {
    let mut cells = Vec::new();
    let mut head = vec!["median".to_owned()];
    head.extend(results.columns.iter().map(|column| column.name.clone()));
    head.extend(["unit", "best peer", "ratio"].map(str::to_owned));
    cells.push(head);
    for row in results.rows() {
        cells.extend(row.lines.iter().map(|line| values(results, row.name, line)));
    }
    let mut text = if cells.len() > 1 { align(&cells) } else { String::new() };
    if results.machine.caches == "warm" {
        text.push_str("\nthe caches were warm: only root may drop them\n");
    }
    let spread = spread(results);
    if !spread.is_empty() {
        text.push_str("\nsmallest and largest of the rounds\n");
        text.push_str(&align(&spread));
    }
    for table in series(results) {
        text.push('\n');
        text.push_str(&table);
    }
    text.push_str(&counted(results));
    for (row, column, why) in results.failures() {
        let rounds = results.rounds(row, column).map_or(String::new(), |rounds| format!(", {rounds}"));
        writeln!(text, "{row} on {column}{rounds}: {why}").expect("a String takes all that is written to it");
    }
    text
}

/// The tables of what was counted.
fn counted(results: &Results) -> String {
    let mut text = String::new();
    let mut put = |title: &str, table: device::Table| {
        if !table.lines.is_empty() {
            let head = table.head.iter().map(|name| (*name).to_owned()).collect();
            text.push_str(title);
            text.push_str(&align(&std::iter::once(head).chain(table.lines).collect::<Vec<_>>()));
        }
    };
    put(
        "\nwhat rows did to the device, in MiB (requests); erase blocks written to; layout scores of reads\n",
        device::flash(results),
    );
    put("\nserving threads that waited for locks\n", device::lock_waits(results));
    let mut trips = device::round_trips(results).lines;
    if !trips.is_empty() {
        text.push_str("\nrequests to daemons\n");
        // Lists are too long for a column.
        let lists: Vec<_> = trips.iter_mut().filter_map(Vec::pop).collect();
        for (line, list) in align(&trips).lines().zip(lists) {
            writeln!(text, "{line}: {list}").expect("a String takes all that is written to it");
        }
    }
    text
}

fn values(results: &Results, row: &str, line: &Line) -> Vec<String> {
    let mut cells = vec![line.name.to_owned()];
    for column in &results.columns {
        let median = results.median(line.name, &column.name);
        cells.push(match (median, results.failure(row, &column.name)) {
            (_, Some(_)) => "FAILED".to_owned(),
            (Some(value), None) => number(value),
            (None, None) => "-".to_owned(),
        });
    }
    cells.push(line.unit.to_owned());
    cells.push(results.best_peer(line).map_or("-".to_owned(), |(name, _)| name.to_owned()));
    cells.push(results.ratio(line).map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
    cells
}

fn spread(results: &Results) -> Vec<Vec<String>> {
    let mut table = Vec::new();
    for (row, line) in results.rows().flat_map(|row| row.lines.iter().map(move |line| (row, line))) {
        let values = |column: &Column| results.values(line.name, &column.name);
        if results.columns.iter().any(|column| values(column).len() > 1) {
            let cell =
                |column: &Column| match (range(&values(column)), results.rounds(row.name, &column.name)) {
                    _ if values(column).is_empty() => "-".to_owned(),
                    ((least, most), None) => format!("{}-{}", number(least), number(most)),
                    ((least, most), Some(rounds)) => format!("{}-{}, {rounds}", number(least), number(most)),
                };
            let mut cells = vec![line.name.to_owned()];
            cells.extend(results.columns.iter().map(cell));
            table.push(cells);
        }
    }
    table
}

/// The names of a row's series, from whoever has them.
pub fn series_names(results: &Results, row: &str) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for column in &results.columns {
        for one in results.all_series(row, &column.name) {
            if !names.contains(&one.name) {
                names.push(one.name.clone());
            }
        }
    }
    names
}

fn series(results: &Results) -> Vec<String> {
    let mut tables = Vec::new();
    for row in results.rows_of_any_kind() {
        for name in series_names(results, row.name) {
            let all: Vec<_> = results
                .columns
                .iter()
                .filter_map(|column| Some((&column.name, results.series(row.name, &column.name, &name)?)))
                .collect();
            let Some((_, first)) = all.first() else { continue };
            // Long ones are for plots.
            if first.points.len() > 24 {
                continue;
            }
            let mut cells = Vec::new();
            let mut head = vec![first.x.clone()];
            head.extend(all.iter().map(|(column, _)| (*column).clone()));
            cells.push(head);
            for (index, point) in first.points.iter().enumerate() {
                let mut line = vec![format!("{}", point.0)];
                let value =
                    |points: &[(f64, f64)]| points.get(index).map_or("-".to_owned(), |one| number(one.1));
                line.extend(all.iter().map(|(_, series)| value(&series.points)));
                cells.push(line);
            }
            tables.push(format!("{}: {name}, {}\n{}", row.name, first.y, align(&cells)));
        }
    }
    tables
}

/// Three or more digits that mean something.
pub fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 1000.0 => format!("{value:.0}"),
        size if size >= 10.0 || size == 0.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// Columns as wide as their widest cell; the first to the left, the others to the right.
pub fn align(lines: &[Vec<String>]) -> String {
    let columns = lines.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut text = String::new();
    for line in lines {
        for (column, (cell, width)) in line.iter().zip(&widths).enumerate() {
            let written = match column {
                0 => write!(text, "{cell:<width$}"),
                _ => write!(text, "  {cell:>width$}"),
            };
            written.expect("a String takes all that is written to it");
        }
        text.push('\n');
    }
    text
}
