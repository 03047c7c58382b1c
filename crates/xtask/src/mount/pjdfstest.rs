//! POSIX semantics, call by call: the Rust rewrite of pjdfstest. What fails must be listed, with its reason, in
//! tests/pjdfstest-expected.txt, and what is listed must fail.

use std::fs;

use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Failure, Outcome};

/// Fewer tests than these are not the suite: one feature that is not found skips many of them.
const PASSED_MIN: u64 = 350;
const EROFS_MIN: u64 = 10;

/// Runs the whole suite on a new volume.
pub fn run(context: &Context) -> Outcome {
    let volume = Volume::create(context, 1 << 30, &[])?;
    // Tests of EXDEV need a second file system; the directory around the mount point is one.
    let secondary = volume.root.with_file_name("secondary");
    tool::create_directory(&secondary)?;

    let list = context.source.join("tests/pjdfstest-expected.txt");
    let list = at("cannot read", &list, fs::read_to_string(&list))?;
    // The list is about PandoFS.
    let expected = if volume.is_pando() { expected_failures(&list)? } else { Vec::new() };
    // What remounting is to show is EROFS, not which helper mount(8) finds on this machine; hence its option -i.
    let programs = context.work.join("bin");
    tool::create_directory(&programs)?;
    tool::shell(&programs, "printf '#!/bin/sh\\nexec /bin/mount -i \"$@\"\\n' > mount; chmod 755 mount")?;
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap_or_default());

    let mut wrong = Vec::new();
    // The tests of EROFS remount, which the files that other tests leave open would forbid.
    for (remount, patterns, passed_min) in [(false, &[][..], PASSED_MIN), (true, &["erofs"], EROFS_MIN)] {
        let configuration = context.work.join("pjdfstest.toml");
        at("cannot write", &configuration, fs::write(&configuration, render(&expected, remount)))?;
        let mut command = context.program("pjdfstest");
        command
            .arg("-c")
            .arg(&configuration)
            .arg("-p")
            .arg(&volume.root)
            .arg("-s")
            .arg(&secondary)
            .args(patterns);
        let result = tool::output(command.env("NO_COLOR", "1").env("PATH", &path), "");
        let text = match &result {
            Ok(text) => text.clone(),
            Err(failure) => failure.to_string(),
        };
        println!("{text}");
        let bad =
            text.lines().filter(|line| line.ends_with("FAILED") || line.ends_with("PASSED UNEXPECTEDLY"));
        wrong.extend(bad.map(str::to_owned));
        if result.is_err() && wrong.is_empty() {
            return result.map(drop);
        }
        let passed = passed(&text)
            .ok_or_else(|| Failure::Wrong("pjdfstest does not say how many tests passed".to_owned()))?;
        if wrong.is_empty() && passed < passed_min {
            return Err(Failure::Wrong(format!(
                "only {passed} tests of {patterns:?} passed, fewer than {passed_min}: were they run?"
            )));
        }
    }
    if !wrong.is_empty() {
        let list = wrong.join("\n");
        return Err(Failure::Wrong(format!("{list}\n{} tests behaved otherwise than expected", wrong.len())));
    }
    volume.finish()
}

/// How many tests passed, as the last line says.
fn passed(text: &str) -> Option<u64> {
    let summary = text.lines().rev().find_map(|line| line.strip_prefix("Summary: "))?;
    summary.split(", ").find_map(|part| part.strip_suffix(" passed")?.parse().ok())
}

/// The names in the list; each line must give a reason.
fn expected_failures(list: &str) -> Result<Vec<&str>, Failure> {
    let lines = list.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let entry = |line: &'_ str| -> Result<usize, Failure> {
        line.find("  ")
            .ok_or_else(|| Failure::Wrong(format!("pjdfstest-expected.txt gives no reason for {line}")))
    };
    lines.map(|line| entry(line).map(|end| &line[..end])).collect()
}

fn render(expected: &[&str], remount: bool) -> String {
    let names: Vec<String> = expected.iter().map(|name| format!("    \"{name}\",\n")).collect();
    // These users and groups exist on every Debian. Times have nanoseconds, so a short nap tells them apart; the
    // kernel's coarse clock ticks every 4 ms or 10 ms.
    format!(
        "[features]\nposix_fallocate = {{}}\nrename_ctime = {{}}\nstat_st_birthtime = {{}}\nutime_now = {{}}\nutimensat = {{}}\n\n\
         [settings]\nnaptime = 0.02\nallow_remount = {remount}\nexpected_failures = [\n{}]\n\n\
         [dummy_auth]\nentries = [[\"nobody\", \"nogroup\"], [\"daemon\", \"daemon\"]]\n",
        names.concat()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_tells_how_many_passed() {
        let text =
            "open::a  ok\n\nSummary: 0 failed, 13 skipped, 399 passed, 0 expected failures, 412 total\n";
        assert_eq!(passed(text), Some(399));
        assert_eq!(passed("open::a  ok\n"), None);
    }

    #[test]
    fn a_listed_failure_needs_a_reason() {
        assert_eq!(expected_failures("# comment\nlink::eperm  no hard links\n").unwrap(), ["link::eperm"]);
        assert!(expected_failures("link::eperm\n").is_err());
    }
}
