//! What single techniques give (EUROSYS22 table 3): ours, and how it does with each of them left out.

use super::Results;
use super::table::{align, number};
use crate::row::{Better, Line};

/// A table with our value and, for each ablation, what remains of it: 1 where it changes nothing, less where it costs
/// something, whether more or less is better. Empty if there is none.
pub fn render(results: &Results) -> String {
    let Some(ours) = results.ours().filter(|_| !results.ablations.is_empty()) else { return String::new() };
    let mut head = vec!["what remains".to_owned(), ours.to_owned(), "unit".to_owned()];
    head.extend(results.ablations.iter().map(|column| column.name.clone()));
    let mut cells = vec![head];
    for line in results.rows().flat_map(|row| row.lines) {
        let Some(own) = results.median(line.name, ours) else { continue };
        let mut one = vec![line.name.to_owned(), number(own), line.unit.to_owned()];
        one.extend(results.ablations.iter().map(|column| {
            let value = results.median(line.name, &column.name);
            value
                .and_then(|value| remains(line, own, value))
                .map_or("-".to_owned(), |share| format!("{share:.2}"))
        }));
        cells.push(one);
    }
    align(&cells)
}

fn remains(line: &Line, own: f64, value: f64) -> Option<f64> {
    let share = match line.better {
        Better::More => value / own,
        Better::Less => own / value,
    };
    Some(share).filter(|share| share.is_finite())
}
