//! Runs the whole benchmark in mount and process namespaces of its own: whatever ends it, ^C included, the kernel
//! then ends the daemons it started and drops its mounts.

use std::process::{Command, ExitCode};

const MARK: &str = "PANDO_BENCH_ISOLATED";

/// Whether this process is already inside.
pub fn inside() -> bool {
    std::env::var_os(MARK).is_some()
}

/// Runs this program again, inside, and passes on its exit status.
pub fn enter() -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        eprintln!("pando-bench: needs root, for loop devices and mounts");
        return ExitCode::from(2);
    }
    let own = match std::env::current_exe() {
        Ok(own) => own,
        Err(error) => {
            eprintln!("pando-bench: cannot find itself: {error}");
            return ExitCode::FAILURE;
        }
    };
    let mut command = Command::new("setpriv");
    command.args([
        "--pdeathsig",
        "KILL",
        "--",
        "unshare",
        "--mount",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
    ]);
    // The shell is the first process of the namespace: it reaps daemons, whose parent has gone.
    command.args(["--", "sh", "-c", "\"$0\" \"$@\"; exit $?"]).arg(own).args(std::env::args_os().skip(1));
    match command.env(MARK, "1").status() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("pando-bench: setpriv and unshare (util-linux) cannot be started: {error}");
            ExitCode::FAILURE
        }
    }
}
