use super::*;
use crate::trace::summary::{LockWaits, Phase, Summary};

fn column(name: &str, role: Role) -> Column {
    let [format, mount, version] = [String::new(), String::new(), String::new()];
    Column { name: name.to_owned(), role, format, mount, version }
}

fn results(values: &[(&str, &str, &[f64])]) -> Results {
    let mut entries = Vec::new();
    for (row, file_system, values) in values {
        for (index, value) in values.iter().enumerate() {
            entries.push(Entry {
                row: (*row).to_owned(),
                file_system: (*file_system).to_owned(),
                round: index as u64 + 1,
                outcome: Outcome::Measured(Measurement::of(*value)),
                traffic: None,
                trace: None,
                seconds: 1.0,
            });
        }
    }
    Results {
        time_s: 0,
        machine: json::Machine::default(),
        commit: "abc".to_owned(),
        sizes: String::new(),
        columns: vec![
            column("pandofs", Role::Ours),
            column("ext4", Role::Peer),
            column("xfs", Role::Peer),
            column("floor", Role::Reference),
            column("device", Role::Reference),
        ],
        ablations: vec![column("no-read-ahead", Role::Ablation)],
        entries,
    }
}

fn line(name: &str) -> &'static Line {
    row::lines().find(|line| line.name == name).unwrap()
}

#[test]
fn the_ratio_is_between_medians_and_to_the_best_peer() {
    let results = results(&[
        ("untar", "pandofs", &[10.0, 50.0, 20.0]),
        ("untar", "ext4", &[30.0, 50.0]),
        ("untar", "xfs", &[35.0]),
        ("untar", "floor", &[1000.0]),
    ]);
    assert_eq!(results.median("untar", "pandofs"), Some(20.0));
    assert_eq!(results.best_peer(line("untar")), Some(("ext4", 40.0)));
    assert_eq!(results.ratio(line("untar")), Some(0.5));
    assert_eq!(results.ratio(line("rm")), None);
}

#[test]
fn an_ablation_has_a_table_of_its_own() {
    let results = results(&[
        ("untar", "pandofs", &[20.0]),
        ("untar", "no-read-ahead", &[5.0]),
        ("settle-tree", "pandofs", &[4.0]),
        ("settle-tree", "no-read-ahead", &[5.0]),
    ]);
    let table = ablations::render(&results);
    let found =
        |line: &str| table.lines().any(|one| one.split_whitespace().collect::<Vec<_>>().join(" ") == line);
    assert!(found("untar 20.0 files/s 0.25") && found("settle-tree 4.00 ms 0.80"), "{table}");
    assert!(!table::render(&results).contains("no-read-ahead"));
    assert!(html::render(&results).unwrap().contains("no-read-ahead"));
}

#[test]
fn of_costs_the_smallest_is_the_best() {
    let values: &[(&str, &str, &[f64])] = &[
        ("settle-tree", "pandofs", &[4.0]),
        ("settle-tree", "ext4", &[8.0]),
        ("settle-tree", "xfs", &[2.0]),
    ];
    let results = results(values);
    assert_eq!(results.best_peer(line("settle-tree")), Some(("xfs", 2.0)));
    assert_eq!(results.ratio(line("settle-tree")), Some(0.5));
}

#[test]
fn a_series_is_the_median_over_the_rounds() {
    let mut results = results(&[("rename-files", "pandofs", &[1.0, 1.0, 1.0])]);
    for (entry, last) in results.entries.iter_mut().zip([30.0, 10.0, 20.0]) {
        let points = vec![(4.0, 5.0), (16.0, last)];
        entry.outcome = Outcome::Measured(Measurement::of(1.0).with("s", "x", "y", points));
    }
    assert_eq!(results.series("rename-files", "pandofs", "s").unwrap().points, [(4.0, 5.0), (16.0, 20.0)]);
    assert!(results.series("rename-files", "ext4", "s").is_none());
}

#[test]
fn the_table_names_rows_that_failed() {
    let mut results = results(&[("rm", "ext4", &[8.0, 10.0, 12.0]), ("rm", "pandofs", &[1.0])]);
    results.entries[3].outcome = Outcome::Failed("it broke".to_owned());
    let table = table::render(&results);
    assert!(table.contains("rm") && table.contains("FAILED") && table.contains("it broke"), "{table}");
    assert!(table.contains("10.0"), "{table}");
}

#[test]
fn a_row_with_goals_of_its_own_misses_them_when_it_fails() {
    let mut results = results(&[("aging-git", "pandofs", &[1.0]), ("aging-git", "ext4", &[1.0])]);
    assert!(!goals::render(&results).contains("missed"));
    results.entries[0].outcome = Outcome::Failed("it broke".to_owned());
    assert!(goals::render(&results).contains("missed   aging-git without a failure: it broke"));
}

/// One round of several would do for a value.
#[test]
fn a_row_that_failed_in_a_round_reaches_nothing() {
    let mut results = results(&[
        ("rm", "pandofs", &[20.0, 20.0]),
        ("rm", "ext4", &[10.0]),
        ("untar", "pandofs", &[20.0]),
        ("untar", "ext4", &[10.0]),
    ]);
    results.entries[1].outcome = Outcome::Failed("it broke".to_owned());
    let text = goals::render(&results);
    assert!(text.contains("every row at least 0.85 of the best peer: 1 of 2 rows; not rm 0.00"), "{text}");
    let is_of_rm = |line: &str| line.starts_with("reached") && line.contains(" rm ");
    assert!(!text.lines().any(is_of_rm), "{text}");
    assert_eq!(results.ratio(line("rm")), None);
    assert!(table::render(&results).contains("rm on pandofs, 1 of 2 rounds: it broke"));
    assert!(html::render(&results).unwrap().contains("rm on pandofs, 1 of 2 rounds: it broke"));
}

/// As in a run that was broken off.
#[test]
fn rounds_that_are_missing_are_told() {
    let results = results(&[("rm", "pandofs", &[20.0, 22.0, 24.0]), ("rm", "ext4", &[10.0, 12.0])]);
    assert_eq!(results.ratio(line("rm")), Some(2.0));
    let (table, page) = (table::render(&results), html::render(&results).unwrap());
    assert!(table.contains("20.0-24.0  10.0-12.0, 2 of 3 rounds"), "{table}");
    assert!(page.contains("<small>10.0 to 12.0</small><small>2 of 3 rounds</small>"), "{page}");
    assert!(!page.contains("22.0<small>20.0 to 24.0</small><small>"), "{page}");
}

#[test]
fn goals_are_reached_or_missed_or_not_measured() {
    let text = goals::render(&results(&[
        ("settle-empty", "pandofs", &[3.0]),
        ("settle-tree", "pandofs", &[7.5]),
        ("clone-tree", "pandofs", &[51.0]),
    ]));
    let found = |what: &str| text.lines().find(|line| line.contains(what)).unwrap_or_default().to_owned();
    assert!(found("twice an empty directory").starts_with("missed"), "{text}");
    assert!(found("clone of the Linux source").starts_with("missed"), "{text}");
    assert!(!text.contains("snapshot"), "{text}");
    let text =
        goals::render(&results(&[("settle-empty", "pandofs", &[3.0]), ("settle-tree", "pandofs", &[7.0])]));
    assert!(
        text.lines().any(|line| line.starts_with("reached") && line.contains("twice an empty")),
        "{text}"
    );
}

#[test]
fn renames_on_an_aged_volume_have_goals_of_their_own() {
    let text = |slowest: f64| {
        let mut results = results(&[
            ("rename-tree-aged", "pandofs", &[90.0]),
            ("rename-tree-aged", "ext4", &[100.0]),
            ("rename-files-aged", "pandofs", &[slowest]),
        ]);
        let points = vec![(4.0, 100.0), (16.0, slowest)];
        results.entries[2].outcome =
            Outcome::Measured(Measurement::of(slowest).with("renames by size", "KiB", "renames/s", points));
        goals::render(&results)
    };
    let line = |text: &str, what: &str| text.lines().find(|line| line.contains(what)).unwrap().to_owned();
    assert!(line(&text(50.0), "files of any size on an aged volume").starts_with("reached"));
    assert!(line(&text(49.0), "files of any size on an aged volume").starts_with("missed"));
    assert!(line(&text(50.0), "a repository on an aged volume, beside ext4").starts_with("missed"));
}

#[test]
fn a_single_slow_clone_is_seen() {
    let text = |own: f64| {
        let mut results = results(&[("clone-rounds", "pandofs", &[5.0]), ("clone-rounds", "xfs", &[9.0])]);
        for (entry, second) in results.entries.iter_mut().zip([own, 9.0]) {
            let points = vec![(1.0, 5.0 + entry.round as f64), (2.0, second), (3.0, 6.0), (4.0, 6.5)];
            let points = if entry.file_system == "xfs" { vec![(1.0, 8.0), (2.0, 9.0)] } else { points };
            entry.outcome = Outcome::Measured(Measurement::of(6.0).with("clone time", "round", "ms", points));
        }
        goals::render(&results)
    };
    let line = |text: &str, what: &str| text.lines().find(|line| line.contains(what)).unwrap().to_owned();
    let fast = text(7.0);
    assert!(line(&fast, "the slowest clone").starts_with("reached"), "{fast}");
    assert!(line(&fast, "in each round").starts_with("reached"), "{fast}");
    let slow = text(20.0);
    assert!(line(&slow, "the slowest clone").starts_with("missed"), "{slow}");
    assert!(line(&slow, "in each round").ends_with("in 3 of 4"), "{slow}");
}

#[test]
fn goals_are_held_against_peers_the_device_and_the_floor() {
    let mut results = results(&[
        ("random-4b", "pandofs", &[90.0]),
        ("random-4b", "xfs", &[10.0]),
        ("cold-grep", "pandofs", &[34.0]),
        ("cold-grep", "ext4", &[10.0]),
        ("rm", "pandofs", &[2.0]),
        ("rm", "ext4", &[10.0]),
        ("rm", "floor", &[2.1]),
        ("cold-tar", "pandofs", &[24.0]),
        ("cold-tar", "floor", &[20.0]),
        ("sequential-write", "pandofs", &[91.0]),
        ("sequential-write", "device", &[100.0]),
        ("aging-git", "pandofs", &[0.93]),
        ("latency", "pandofs", &[49.0]),
        ("scale-random", "pandofs", &[9.0]),
    ]);
    for (entry, values) in [(11, vec![0.93, 5.0]), (12, vec![49.0, 501.0]), (13, vec![9.0, 0.74])] {
        results.entries[entry].outcome = Outcome::Measured(Measurement { values, ..Measurement::default() });
    }
    let text = goals::render(&results);
    let found = |what: &str| text.lines().find(|line| line.contains(what)).unwrap_or_default().to_owned();
    for reached in ["random-4b beside", "sequential-write beside fio", "latency-p99.9"] {
        assert!(found(reached).starts_with("reached"), "{reached}: {text}");
    }
    for missed in [
        "cold-grep beside",
        "rm beside",
        "aging-git,",
        "latency-max",
        "scale-random-kept",
        "no row below 0.3",
    ] {
        assert!(found(missed).starts_with("missed"), "{missed}: {text}");
    }
    assert!(found("every row at least").contains("2 of 3 rows; not rm 0.20"), "{text}");
    assert!(found("of the floor").ends_with(": rm"), "{text}");
}

#[test]
fn results_survive_json() {
    let results = results(&[("rm", "ext4", &[8.0]), ("settle-tree", "pandofs", &[4.0])]);
    let text = serde_json::to_string(&results).unwrap();
    let back: Results = serde_json::from_str(&text).unwrap();
    assert_eq!(back.entries, results.entries);
    assert_eq!(back.columns, results.columns);
}

/// They stood under the names of cold rows.
#[test]
fn warm_caches_are_told() {
    let mut results = results(&[("rm", "ext4", &[8.0])]);
    results.machine.caches = "warm".to_owned();
    assert!(html::render(&results).unwrap().contains("; warm caches; commit abc"));
    assert!(table::render(&results).contains("the caches were warm"));
    let mut before = serde_json::to_value(&results).unwrap();
    before["machine"].as_object_mut().unwrap().remove("caches").unwrap();
    let before: Results = serde_json::from_value(before).unwrap();
    assert!(!html::render(&before).unwrap().contains("caches;"));
}

#[test]
fn the_page_is_coloured_by_the_share_of_the_best_and_needs_no_network() {
    let mut results = results(&[
        ("untar", "pandofs", &[90.0]),
        ("untar", "ext4", &[100.0]),
        ("untar", "xfs", &[29.0]),
        ("untar", "floor", &[1000.0]),
    ]);
    results.columns[1].version = "<script>".to_owned();
    let page = html::render(&results).unwrap();
    assert!(page.contains("<td class=\"good\">90.0</td>"), "{page}");
    assert!(page.contains("<td class=\"bad\">29.0</td>"), "{page}");
    assert!(!page.contains("<script") && !page.contains("http:") && !page.contains("https:"), "{page}");
}

#[test]
fn what_was_counted_is_shown_and_is_no_measurement() {
    let mut results = results(&[("rm", "ext4", &[8.0]), ("untar", "pandofs", &[1.0])]);
    let phase = Phase { name: "load".to_owned(), written_bytes: 3 << 20, writes: 7, ..Phase::default() };
    let trace = Summary {
        phases: vec![Phase::default(), phase],
        load_bytes: 1 << 20,
        round_trips: [("MKNOD".to_owned(), 12)].into(),
        lock_waits: Some(LockWaits { count: 5, waited_us: 1500, watched_us: 4000 }),
        ..Summary::default()
    };
    results.entries[1].round = crate::trace::round::ROUND;
    results.entries[1].trace = Some(trace);
    assert_eq!(results.median("untar", "pandofs"), None);
    let rows: Vec<_> = results.rows().map(|row| row.name).collect();
    assert_eq!(rows, ["rm"]);
    for text in [table::render(&results), html::render(&results).unwrap()] {
        assert!(
            text.contains("3.00 (7)")
                && text.contains("mknod 12")
                && text.contains("0.375")
                && !text.contains("FAILED"),
            "{text}"
        );
    }
    results.entries[1].outcome = Outcome::Failed("it broke".to_owned());
    assert!(html::render(&results).unwrap().contains("untar on pandofs: it broke"));
}

#[test]
fn stored_results_are_read_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("results.json");
    let stored = results(&[("rm", "ext4", &[8.0])]);
    std::fs::write(&path, serde_json::json!({ "results": stored }).to_string()).unwrap();
    assert_eq!(json::load(&path).unwrap().entries, stored.entries);
    std::fs::write(&path, "{}").unwrap();
    assert!(json::load(&path).is_err());
}
