//! What a compleat file system must reach (EUROSYS22 1), and one that does not age (FAST17): ratios to the best peer, and limits.

use super::super::Results;
use super::super::table::number;
use super::Goal;
use crate::bare;
use crate::row::{self, Line, Row};

/// Every row of general use: at least this share of the best peer, and none below the other.
const NEAR: f64 = 0.85;
const FAR: f64 = 0.3;
/// Rows that a write-optimized tree should win, and the hard one: ratio to the best peer.
const RATIOS: [(&str, f64); 8] = [
    ("random-4b", 8.0),
    ("cold-grep", 3.5),
    ("cold-tar", 3.5),
    ("cold-find", 1.0),
    ("rm", 1.0),
    ("tokubench", 1.0),
    ("tokubench-rm", 1.0),
    ("untar", NEAR),
];
/// Of what fio reaches on the device itself.
const OF_THE_DEVICE: f64 = 0.9;
/// An aged tree may cost so much more than a fresh copy.
const AGED: f64 = 1.05;
/// A rate keeps so much of itself as data grows.
const SCALED: f64 = 0.75;
/// Of single operations while others write, in milliseconds: lines, limits.
const LATENCIES: [(&str, f64); 2] = [("latency-p99.9", 50.0), ("latency-max", 500.0)];
/// What is so near to an empty file system in memory can win only by fewer round trips. What is far above it is not bounded by it.
const AT_THE_FLOOR: std::ops::RangeInclusive<f64> = 0.85..=1.15;
const FLOOR: &str = "floor";
/// Beginnings of names of rows that have goals of their own, and no ratio that matters.
const OF_THEIR_OWN: [&str; 4] = ["aging-", "scale-", "latency-", "natural-"];

/// All that can be looked at.
pub fn goals(results: &Results, ours: &str) -> Vec<Goal> {
    let mut goals = near_the_best(results, ours);
    for (name, least) in RATIOS {
        let ratio = line(name).and_then(|line| results.ratio(line));
        goals.extend(ratio.map(|ratio| Goal {
            reached: ratio >= least,
            what: format!("{name} beside the best peer"),
            measured: format!("{ratio:.2}, at least {least}"),
        }));
    }
    goals.extend(
        ["sequential-write", "cold-read"].into_iter().filter_map(|name| of_the_device(results, ours, name)),
    );
    goals.extend(row::lines().filter_map(|line| aged(results, ours, line)));
    goals.extend(row::lines().filter_map(|line| scaled(results, ours, line)));
    for (name, limit_ms) in LATENCIES {
        goals.extend(results.median(name, ours).map(|value| Goal {
            reached: value < limit_ms,
            what: format!("{name} under a mixed load"),
            measured: format!("{} ms, less than {limit_ms}", number(value)),
        }));
    }
    goals.extend(row::rows().filter_map(|row| failed(results, ours, row)));
    goals
}

/// Rows that are within 15 % of an in-memory file system behind the same transport, in a sentence.
pub fn at_the_floor(results: &Results, ours: &str) -> Option<String> {
    let near = |line: &&Line| {
        let share = share(results, line, ours, FLOOR);
        share.is_some_and(|share| AT_THE_FLOOR.contains(&share))
    };
    let names: Vec<&str> =
        row::lines().filter(|line| general(line)).filter(near).map(|line| line.name).collect();
    (!names.is_empty())
        .then(|| format!("within 15 % of the floor, only fewer round trips can help: {}", names.join(", ")))
}

fn line(name: &str) -> Option<&'static Line> {
    row::lines().find(|line| line.name == name)
}

fn general(line: &Line) -> bool {
    !OF_THEIR_OWN.iter().any(|beginning| line.name.starts_with(beginning))
}

/// How ours stands to another column: above one is better.
fn share(results: &Results, line: &Line, ours: &str, other: &str) -> Option<f64> {
    let (own, other) = (results.median(line.name, ours)?, results.median(line.name, other)?);
    let share = match line.better {
        row::Better::More => own / other,
        row::Better::Less => other / own,
    };
    Some(share).filter(|share| share.is_finite())
}

/// Each row that has peers, at 0.85 of the best, and none below 0.3. One that has failed for us counts as 0.
fn near_the_best(results: &Results, ours: &str) -> Vec<Goal> {
    let with_ratio = |row: &'static Row, line: &'static Line| match results.failure(row.name, ours) {
        Some(_) => Some((line.name, 0.0)),
        None => Some((line.name, results.ratio(line)?)),
    };
    let ratios_of = |row: &'static Row| {
        row.lines.iter().filter(|line| general(line)).filter_map(move |line| with_ratio(row, line))
    };
    let ratios: Vec<_> = row::rows().flat_map(ratios_of).collect();
    if ratios.is_empty() {
        return Vec::new();
    }
    let goal = |least: f64, what: &str| {
        let below: Vec<_> = ratios.iter().filter(|(_, ratio)| *ratio < least).collect();
        let names: Vec<_> = below.iter().map(|(name, ratio)| format!("{name} {ratio:.2}")).collect();
        let rest = if names.is_empty() { String::new() } else { format!("; not {}", names.join(", ")) };
        let measured = format!("{} of {} rows{rest}", ratios.len() - below.len(), ratios.len());
        Goal { reached: below.is_empty(), what: what.to_owned(), measured }
    };
    vec![
        goal(NEAR, "every row at least 0.85 of the best peer"),
        goal(FAR, "no row below 0.3 of the best peer"),
    ]
}

/// A row with goals of its own that has failed has no value to hold against them. Those of the others are in [`near_the_best`].
fn failed(results: &Results, ours: &str, row: &Row) -> Option<Goal> {
    if row.lines.iter().any(general) {
        return None;
    }
    let why = results.failure(row.name, ours)?;
    Some(Goal { reached: false, what: format!("{} without a failure", row.name), measured: why.to_owned() })
}

fn of_the_device(results: &Results, ours: &str, name: &str) -> Option<Goal> {
    let (own, device) = (results.median(name, ours)?, results.median(name, bare::NAME)?);
    Some(Goal {
        reached: own >= OF_THE_DEVICE * device,
        what: format!("{name} beside fio on the bare device, at least {OF_THE_DEVICE} of it"),
        measured: format!("{} of {} MiB/s, {:.2}", number(own), number(device), own / device),
    })
}

/// Lines of aging give the cost of a fresh copy over that of the aged tree.
fn aged(results: &Results, ours: &str, line: &Line) -> Option<Goal> {
    if !line.name.starts_with("aging-") || line.unit != "fresh/aged" {
        return None;
    }
    let ratio = results.median(line.name, ours)?;
    Some(Goal {
        reached: ratio * AGED >= 1.0,
        what: format!("{}, an aged tree at most 5 % dearer than its fresh copy", line.name),
        measured: format!("{:.2} of the copy's cost", 1.0 / ratio),
    })
}

/// Lines of scale give a rate at the end over that at the beginning.
fn scaled(results: &Results, ours: &str, line: &Line) -> Option<Goal> {
    if !(line.name.starts_with("scale-") && line.name.ends_with("-kept")) {
        return None;
    }
    let kept = results.median(line.name, ours)?;
    Some(Goal {
        reached: kept > SCALED,
        what: format!("{}, a rate that falls by less than 25 % as data grows", line.name),
        measured: format!("{kept:.2} of it, more than {SCALED}"),
    })
}
