//! Runs in which nothing can be measured.
#![forbid(unsafe_code)]

use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pando-bench");

fn run_in(directory: &Path, command: &mut Command, arguments: &[&str]) -> Output {
    command.args(arguments).arg("--directory").arg(directory).current_dir(directory).output().unwrap()
}

/// Each row of a group formatted anew and wrote the large file up to where the space had ended before.
#[test]
fn what_could_not_be_made_for_a_row_is_not_tried_for_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    // Its limit, 4 MiB at most, is smaller than the file.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 4096; exec \"$@\"", "sh", PROGRAM]);
    let on = directory.path().to_str().unwrap();
    let ran =
        run_in(directory.path(), &mut shell, &["--on", on, "--size", "8M", "--rows", "cold-read,random-4k"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    let failures: Vec<_> = said.lines().filter_map(|line| line.split_once(" FAILED: ")).collect();
    let [(_, first), (row, second)] = failures[..] else { panic!("{said}") };
    assert!(first.contains("File too large"), "{said}");
    assert!(row.contains("random-4k") && second == "what it needs could not be made for cold-read", "{said}");
}

#[test]
fn a_run_that_measured_nothing_stores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let ran = run_in(
        directory.path(),
        Command::new(PROGRAM).arg("--inside"),
        &[
            "--file-system",
            "other=true;true;true",
            "--fs",
            "other",
            "--device",
            "/dev/null",
            "--erase-device",
            "--rows",
            "rm",
        ],
    );
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("/dev/null is not a block device"), "{said}");
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}
