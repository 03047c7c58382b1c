//! The command `pando`: makes, mounts, checks and shows volumes, and works on their files without mounting.
//!
//! Each command is a file of [`commands`]: its arguments, its text for `--help` and the manual page, and `run`. What
//! several of them need stands beside it: [`volume`] opens volumes, [`files`] and [`path`] reach the files in them,
//! [`copy`] copies, [`output`] prints, [`failure`] says how errors read. [`daemon`] serves a mounted volume, and
//! [`control`] is how the other commands talk to it; [`helpers`] are what mount(8) and umount(8) call, and [`files_ahead`] what
//! the daemon starts.
#![forbid(unsafe_code)]

mod attributes;
mod cli;
mod commands;
mod control;
mod copy;
mod daemon;
mod failure;
mod files;
mod files_ahead;
mod helpers;
mod location;
mod memory;
mod mount_options;
mod mounts;
mod output;
mod path;
mod probe;
mod raw;
mod size;
mod snapshots;
mod time;
mod usage;
mod volume;
mod write_out;

use std::ffi::OsStr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::{Failure, Status, complain, stop_on_panic};

#[global_allocator]
static ALLOCATOR: pando_device::Allocator = pando_device::Allocator::new();

/// What a shell reports for a process that wrote to a closed pipe.
const EXIT_OUTPUT_CLOSED: u8 = 128 + 13;

fn main() -> ExitCode {
    memory::use_small_pages();
    stop_on_panic(|sentence| complain(sentence));
    // The helpers that mount(8) and umount(8) call are links to this program; the daemon gives its own another name.
    let program = std::env::args_os().next().map(PathBuf::from).unwrap_or_default();
    match program.file_name().and_then(OsStr::to_str) {
        Some("mount.fuse.pando" | "mount.fuseblk.pando") => return helpers::run_mount(std::env::args_os()),
        Some("umount.fuse.pando" | "umount.fuseblk.pando") => return helpers::run_umount(std::env::args_os()),
        Some(pando_fuse::files_ahead::NAME) => return files_ahead::run(std::env::args_os()),
        _ => {}
    }
    let command = Cli::parse().command;
    match command.run() {
        Ok(Status::Success) => ExitCode::SUCCESS,
        Ok(Status::Problems) => ExitCode::FAILURE,
        Err(Failure::OutputClosed) => ExitCode::from(EXIT_OUTPUT_CLOSED),
        Err(Failure::Sentence(sentence)) => {
            complain(sentence);
            ExitCode::from(command.failure_status())
        }
    }
}
