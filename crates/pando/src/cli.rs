//! The commands and their common text.

use clap::{Parser, Subcommand};

use crate::commands::{cat, cp, format, ls, mkdir, mv, rm, stat};
use crate::failure::{Result, Status};

const AFTER_HELP: &str = "\
Exit status: 0 if all was done; 1 if something failed, and was named on standard error; 2 if the command line was \
wrong. Of 'pando check': 0 clean, 1 problems found, 2 could not run.

A place in a volume is written VOLUME:/path, VOLUME being an image file or a block device.";

/// Make, mount, check and look into PandoFS volumes.
#[derive(Debug, Parser)]
#[command(name = "pando", version, after_help = AFTER_HELP, propagate_version = true, max_term_width = 100)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What `pando` can do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Make a volume.
    Format(format::FormatArgs),
    /// List files in a volume.
    Ls(ls::LsArgs),
    /// Write the contents of files in a volume to standard output.
    Cat(cat::CatArgs),
    /// Copy files and trees into, out of, between and inside volumes.
    Cp(cp::CpArgs),
    /// Make directories in a volume.
    Mkdir(mkdir::MkdirArgs),
    /// Rename or move files inside a volume.
    Mv(mv::MvArgs),
    /// Remove files and trees from a volume.
    Rm(rm::RmArgs),
    /// Show everything about files in a volume.
    Stat(stat::StatArgs),
}

impl Command {
    /// Runs it.
    pub fn run(&self) -> Result<Status> {
        match self {
            Self::Format(args) => format::run(args),
            Self::Ls(args) => ls::run(args),
            Self::Cat(args) => cat::run(args),
            Self::Cp(args) => cp::run(args),
            Self::Mkdir(args) => mkdir::run(args),
            Self::Mv(args) => mv::run(args),
            Self::Rm(args) => rm::run(args),
            Self::Stat(args) => stat::run(args),
        }
    }

    /// The exit status where the command could not run at all.
    pub fn failure_status(&self) -> u8 {
        1
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
