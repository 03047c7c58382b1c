//! Runs the whole benchmark in mount and process namespaces of its own, so that nothing that it mounts is seen outside,
//! and nothing that it starts outlives it.
//!
//! The first process of the namespaces (`first_process.rs`) is told that it is over by the end of its standard input,
//! which is a pipe from here: so it learns of every way in which this process may end, SIGKILL included.

use std::process::{Child, Command, ExitCode, Stdio};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

/// The hidden first argument of the process inside.
pub const FIRST_PROCESS: &str = "--first-process";

/// Runs this program again, inside, and passes on its exit status.
pub fn enter() -> ExitCode {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "pando-bench: needs root, for loop devices and mounts; --on runs in a mounted directory without"
        );
        return ExitCode::from(2);
    }
    // Asked for before there is anything to clean up: a signal may come at any time.
    let signals = Signals::new([SIGINT, SIGTERM, SIGHUP]);
    let (mut signals, mut child) = match signals.and_then(|signals| Ok((signals, start()?))) {
        Ok(started) => started,
        Err(error) => {
            eprintln!("pando-bench: cannot start itself with unshare (util-linux): {error}");
            return ExitCode::FAILURE;
        }
    };
    let pipe = child.stdin.take();
    std::thread::spawn(move || {
        let _held_until_a_signal = pipe;
        signals.forever().next();
        eprintln!("pando-bench: ending: unmounting what is mounted");
    });
    match child.wait() {
        Ok(status) => ExitCode::from(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1)),
        Err(error) => {
            eprintln!("pando-bench: cannot wait for itself: {error}");
            ExitCode::FAILURE
        }
    }
}

fn start() -> std::io::Result<Child> {
    let mut command = Command::new("unshare");
    command.args(["--mount", "--pid", "--fork", "--mount-proc", "--"]);
    command.arg(std::env::current_exe()?).arg(FIRST_PROCESS).args(std::env::args_os().skip(1));
    // A group of its own: ^C of a terminal, or a time-out that kills the group, ends this process alone, and the pipe tells.
    use std::os::unix::process::CommandExt;
    command.stdin(Stdio::piped()).process_group(0).spawn()
}
