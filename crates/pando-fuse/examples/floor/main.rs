//! What FUSE alone costs: a file system in memory behind the transport of PandoFS, with the same options and the same helper that reads files ahead.
//!
//! A load that runs no faster here than on PandoFS has nothing left to gain but requests that are not sent.
//! `floor MOUNTPOINT [uring|dev]` serves until it is unmounted.
#![forbid(unsafe_code)]

mod memory;

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use pando_fuse::{MountOptions, Session, Transport, files_ahead};
use rustix::process::{Signal, set_parent_process_death_signal};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    if arguments.first().is_some_and(|name| name == files_ahead::NAME) {
        return help(&arguments);
    }
    let transport = match &arguments[..] {
        [_, _] => Some(Transport::Automatic),
        [_, _, name] => Transport::parse(name),
        _ => None,
    };
    let Some(transport) = transport else {
        eprintln!("usage: floor MOUNTPOINT [auto|uring|dev]");
        return ExitCode::from(2);
    };
    let mut options = MountOptions::new(PathBuf::from("floor"));
    options.transport = transport;
    options.files_ahead = Some(PathBuf::from("/proc/self/exe"));
    let session = match Session::mount(Arc::new(memory::Memory::new()), Path::new(&arguments[1]), &options) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("floor: cannot mount on {}: {error}", arguments[1]);
            return ExitCode::FAILURE;
        }
    };
    match session.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("floor: the connection to the kernel broke: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Reads files ahead, as `pando-files-ahead -- MOUNTPOINT DEVICE` of PandoFS does. Nobody reads what it would say.
fn help(arguments: &[String]) -> ExitCode {
    let [_, _, mountpoint, device] = arguments else { return ExitCode::from(2) };
    match files_ahead::run(io::stdin().as_fd(), killed().ok(), Path::new(mountpoint), device) {
        Ok(()) => ExitCode::SUCCESS,
        Err(_) => ExitCode::FAILURE,
    }
}

/// What can be read once the thread that started this process has ended.
fn killed() -> io::Result<UnixStream> {
    let (killed, tells) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGUSR1, tells)?;
    set_parent_process_death_signal(Some(Signal::USR1))?;
    Ok(killed)
}
