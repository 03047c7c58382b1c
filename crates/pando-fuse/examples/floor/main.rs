//! What FUSE alone costs: a file system in memory behind the transport of PandoFS, with the same options.
//!
//! A load that runs no faster here than on PandoFS has nothing left to gain but requests that are not sent.
//! `floor MOUNTPOINT [uring|dev]` serves until it is unmounted.
#![forbid(unsafe_code)]

mod memory;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use pando_fuse::{MountOptions, Session, Transport};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let transport = match &arguments[..] {
        [_] => Some(Transport::Automatic),
        [_, name] => Transport::parse(name),
        _ => None,
    };
    let Some(transport) = transport else {
        eprintln!("usage: floor MOUNTPOINT [auto|uring|dev]");
        return ExitCode::from(2);
    };
    let mut options = MountOptions::new(PathBuf::from("floor"));
    options.transport = transport;
    let session = match Session::mount(Arc::new(memory::Memory::new()), Path::new(&arguments[0]), &options) {
        Ok(session) => session,
        Err(error) => {
            eprintln!("floor: cannot mount on {}: {error}", arguments[0]);
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
