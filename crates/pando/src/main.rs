//! The command `pando`: makes, mounts, checks and shows volumes, and works on their files without mounting.
//!
//! Each command is a file of [`commands`]: its arguments, its text for `--help` and the manual page, and `run`. What
//! several of them need stands beside it: [`volume`] opens volumes, [`files`] and [`path`] reach the files in them,
//! [`copy`] copies, [`output`] prints, [`failure`] says how errors read.
#![forbid(unsafe_code)]

mod attributes;
mod cli;
mod commands;
mod copy;
mod failure;
mod files;
mod location;
mod mounts;
mod output;
mod path;
mod probe;
mod raw;
mod size;
mod time;
mod volume;

use std::process::ExitCode;

use clap::Parser;

use crate::cli::Cli;
use crate::failure::{Failure, Status, complain};

/// What a shell reports for a process that wrote to a closed pipe.
const EXIT_OUTPUT_CLOSED: u8 = 128 + 13;

fn main() -> ExitCode {
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
