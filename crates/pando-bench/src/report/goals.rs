//! What the project wants to reach, beside what was reached.

mod compleat;

use std::fmt::Write;

use super::statistics::median;
use super::table::number;
use super::{Results, Role};
use crate::row;

/// A goal that could be looked at.
struct Goal {
    reached: bool,
    what: String,
    measured: String,
}

/// Largest share by which a value may rise or fall over a series that is called flat.
const FLAT: f64 = 1.2;

/// One line a goal whose rows were run.
pub fn render(results: &Results) -> String {
    let Some(ours) = results.ours() else { return String::new() };
    let mut text = String::new();
    let checks = [
        compleat::goals(results, ours),
        directories(results, ours),
        files(results, ours),
        clones(results, ours),
        scans(results, ours),
    ];
    for goal in checks.into_iter().flatten() {
        let word = if goal.reached { "reached" } else { "missed " };
        writeln!(text, "{word}  {}: {}", goal.what, goal.measured)
            .expect("a String takes all that is written to it");
    }
    if let Some(sentence) = compleat::at_the_floor(results, ours) {
        writeln!(text, "{sentence}").expect("a String takes all that is written to it");
    }
    text
}

fn at_most_ms(results: &Results, ours: &str, line: &str, what: &str, limit: f64) -> Option<Goal> {
    let value = results.median(line, ours)?;
    let measured = format!("{} ms, at most {}", number(value), number(limit));
    Some(Goal { reached: value <= limit, what: what.to_owned(), measured })
}

fn directories(results: &Results, ours: &str) -> Vec<Goal> {
    let mut goals = Vec::new();
    if let Some(empty) = results.median("settle-empty", ours) {
        let what = "a rename of the Linux source settled, beside twice an empty directory and 1 ms";
        goals.extend(at_most_ms(results, ours, "settle-tree", what, 2.0 * empty + 1.0));
    }
    for (line, of) in
        [("rename-tree", "the Linux source"), ("rename-tree-aged", "a repository on an aged volume")]
    {
        if let Some((own, ext4)) = results.median(line, ours).zip(results.median(line, "ext4")) {
            goals.push(Goal {
                reached: own >= ext4,
                what: format!("renames and fsyncs of {of}, beside ext4"),
                measured: format!("{} a second, at least {}", number(own), number(ext4)),
            });
        }
    }
    goals.extend(at_most_ms(results, ours, "clone-tree", "a clone of the Linux source", 50.0));
    let what = "a snapshot of a volume of --many-files files";
    goals.extend(at_most_ms(results, ours, "snapshot-million", what, 50.0));
    goals
}

/// Over sizes, the rate stays within a factor of two.
fn files(results: &Results, ours: &str) -> Vec<Goal> {
    let goal = |(row, on): (&str, &str)| {
        let series = results.series(row, ours, "renames by size")?;
        let rates: Vec<f64> = series.points.iter().map(|point| point.1).collect();
        let (least, most) = super::statistics::range(&rates);
        Some(Goal {
            reached: 2.0 * least >= most,
            what: format!(
                "renames of files of any size{on}, the slowest at least half as fast as the fastest"
            ),
            measured: format!("{} to {} a second", number(least), number(most)),
        })
    };
    [("rename-files", ""), ("rename-files-aged", " on an aged volume")].into_iter().filter_map(goal).collect()
}

/// Medians of the first and of the last three rounds.
fn ends(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    let values: Vec<f64> = points.iter().map(|point| point.1).collect();
    let (first, last) = (values.get(..3)?, values.get(values.len().checked_sub(3)?..)?);
    Some((median(first), median(last)))
}

fn clones(results: &Results, ours: &str) -> Vec<Goal> {
    let mut goals = Vec::new();
    for (name, what) in [
        ("clone time", "the time of a clone over 9 rounds, at most a fifth more at the end"),
        ("grep time", "the time of a grep over 9 rounds of clones, at most a fifth more at the end"),
    ] {
        let ends = results.series("clone-rounds", ours, name).and_then(|series| ends(&series.points));
        if let Some((first, last)) = ends {
            let measured = format!("{} ms, then {} ms", number(first), number(last));
            goals.push(Goal { reached: last <= FLAT * first, what: what.to_owned(), measured });
        }
    }
    let line = row::lines().find(|line| line.name == "clone-rounds").expect("the row is there");
    if let Some((own, (peer, best))) = results.median(line.name, ours).zip(results.best_peer(line)) {
        goals.push(Goal {
            reached: own < best,
            what: "the time of a clone, below every peer's".to_owned(),
            measured: format!("{} ms, {peer} {} ms", number(own), number(best)),
        });
    }
    goals.extend(each_clone(results, ours));
    goals
}

/// What medians do not show: single rounds.
fn each_clone(results: &Results, ours: &str) -> Vec<Goal> {
    let of = |column: &str| results.series("clone-rounds", column, "clone time").map(|series| series.points);
    let Some(own) = of(ours) else { return Vec::new() };
    let times: Vec<f64> = own.iter().map(|point| point.1).collect();
    let (middle, slowest) = (median(&times), super::statistics::range(&times).1);
    let mut goals = vec![Goal {
        reached: slowest <= 2.0 * middle,
        what: "the slowest clone over 9 rounds, at most twice the median".to_owned(),
        measured: format!("{} ms, {} ms", number(slowest), number(middle)),
    }];
    let peers = results.columns.iter().filter(|column| column.role == Role::Peer);
    let peers: Vec<(f64, f64)> = peers.filter_map(|column| of(&column.name)).flatten().collect();
    if !peers.is_empty() {
        let is_below = |point: &&(f64, f64)| peers.iter().all(|peer| peer.0 != point.0 || point.1 < peer.1);
        let below = own.iter().filter(is_below).count();
        goals.push(Goal {
            reached: below == own.len(),
            what: "the time of a clone, below every peer's in each round".to_owned(),
            measured: format!("in {below} of {}", own.len()),
        });
    }
    goals
}

fn scans(results: &Results, ours: &str) -> Vec<Goal> {
    let Some(original) = results.median("grep-original", ours) else { return Vec::new() };
    let lines = [("grep-renamed", "a renamed tree"), ("grep-cloned", "a cloned tree")];
    let goal = |(line, of): (&str, &str)| {
        let rate = results.median(line, ours)?;
        Some(Goal {
            reached: rate >= 0.85 * original,
            what: format!("a cold grep of {of}, at least 0.85 of the original's"),
            measured: format!("{:.2}", rate / original),
        })
    };
    lines.into_iter().filter_map(goal).collect()
}
