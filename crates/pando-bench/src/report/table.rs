//! The table of rates and of the ratio to the best peer.

use std::fmt::Write;

use super::Results;
use crate::compleat::ROWS;

/// One line a row that was measured, then the reasons of those that failed.
pub fn render(results: &Results) -> String {
    let mut text = String::new();
    let mut line = |cells: &[String]| {
        let (first, rest) = cells.split_first().expect("a line has a first cell");
        write!(text, "{first:<18}").expect("a String takes all that is written to it");
        rest.iter()
            .for_each(|cell| write!(text, "{cell:>13}").expect("a String takes all that is written to it"));
        text.push('\n');
    };
    let mut head = vec!["more is better".to_owned()];
    head.extend(results.file_systems.iter().cloned());
    head.extend(["unit", "best peer", "ratio"].map(str::to_owned));
    line(&head);
    for row in ROWS
        .iter()
        .filter(|row| results.rates.contains_key(row.name) || results.failures.contains_key(row.name))
    {
        let mut cells = vec![row.name.to_owned()];
        cells.extend(results.file_systems.iter().map(|name| cell(results, row.name, name)));
        cells.push(row.unit.to_owned());
        cells.push(results.best_peer(row.name).map_or("-".to_owned(), |(name, _)| name.to_owned()));
        cells.push(results.ratio(row.name).map_or("-".to_owned(), |ratio| format!("{ratio:.2}")));
        line(&cells);
    }
    for (row, failures) in &results.failures {
        for (name, error) in failures {
            writeln!(text, "{row} on {name}: {error}").expect("a String takes all that is written to it");
        }
    }
    text
}

fn cell(results: &Results, row: &str, name: &str) -> String {
    let failed = results.failures.get(row).is_some_and(|failures| failures.contains_key(name));
    match results.median(row, name) {
        Some(rate) if !failed => format!("{rate:.1}"),
        _ if failed => "FAILED".to_owned(),
        _ => "-".to_owned(),
    }
}
