//! The project's own tools: `tidy` keeps source and documents true to each other, `mount` runs the tests that need a
//! real mount. Both print one line a test, `ok NAME`, `SKIPPED NAME: reason` or `FAILED NAME`, which scripts/test counts.

#![forbid(unsafe_code)]

mod mount;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
usage: xtask tidy
       xtask mount [--full] [--fs pando|ext4] [--verbose] [--keep] [--list] [TEST...]";

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let command = arguments.next();
    let rest: Vec<String> = arguments.collect();
    match command.as_deref() {
        Some("tidy") if rest.is_empty() => tidy::run(),
        Some("mount") => mount::run(&rest),
        // Started by `mount` only: one test inside its namespaces, and the writer that is killed together with the daemon's volume.
        Some("mount-one") => mount::run_one(&rest),
        Some("mount-witness") => mount::run_witness(&rest),
        _ => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}
