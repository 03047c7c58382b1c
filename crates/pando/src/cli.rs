//! The commands and their common text.

use clap::{Parser, Subcommand};

use crate::commands::{
    cat, check, clone, completions, cp, dump, format, info, ls, man, mkdir, mount, mv, receive, rm, send,
    snapshot, stat, stats, umount,
};
use crate::failure::{Result, Status};

const ABOUT: &str = "\
PandoFS is a file system for Linux in user space on one write-optimized tree. It lives in an image file or on a block \
device. A volume is made with 'pando format', used through 'pando mount' as any file system, or without mounting, root \
or FUSE through 'pando ls', 'cat', 'cp', 'mkdir', 'mv', 'rm' and 'stat'. A place in such a volume is written \
VOLUME:/path.";

const AFTER_HELP: &str = "\
Exit status:
  0  all was done
  1  something failed, and was named on standard error
  2  the command line was wrong
  141  who reads standard output has closed it
  'pando check': 0 clean, 1 problems found and listed, 2 could not run to its end

Examples:
  pando format --size 4G disk.img
  pando cp -a ~/src disk.img:/
  pando mount disk.img /mnt
  pando umount /mnt
  pando check disk.img";

/// Make, mount, check and look into PandoFS volumes.
#[derive(Debug, Parser)]
#[command(name = "pando", version, propagate_version = true, max_term_width = 100)]
#[command(long_about = ABOUT, after_help = AFTER_HELP)]
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
    /// Mount a volume on a directory.
    Mount(mount::MountArgs),
    /// Unmount a volume, and wait until everything is on its device.
    Umount(umount::UmountArgs),
    /// Verify a volume that is not mounted.
    Check(check::CheckArgs),
    /// Show what a volume is: its size, how full it is, its label, its state.
    Info(info::InfoArgs),
    /// Show what a mounted volume has done since it was mounted.
    Stats(stats::StatsArgs),
    /// Show the structures on a device: superblocks, block table, nodes, log.
    Dump(dump::DumpArgs),
    /// List files in a volume.
    Ls(ls::LsArgs),
    /// Write the contents of files in a volume to standard output.
    Cat(cat::CatArgs),
    /// Copy files and trees into, out of, between and inside volumes.
    Cp(cp::CpArgs),
    /// Clone files and trees inside a volume, mounted or not, at once.
    Clone(clone::CloneArgs),
    /// Keep a whole volume as it is now, and go back to it.
    Snapshot(snapshot::SnapshotArgs),
    /// Write a snapshot as a stream for another volume.
    Send(send::SendArgs),
    /// Make a snapshot of a stream from another volume.
    Receive(receive::ReceiveArgs),
    /// Make directories in a volume.
    Mkdir(mkdir::MkdirArgs),
    /// Rename or move files inside a volume.
    Mv(mv::MvArgs),
    /// Remove files and trees from a volume.
    Rm(rm::RmArgs),
    /// Show everything about files in a volume.
    Stat(stat::StatArgs),
    /// Write completions for a shell to standard output.
    Completions(completions::CompletionsArgs),
    /// Write the manual pages to a directory.
    Man(man::ManArgs),
}

impl Command {
    /// Runs it.
    pub fn run(&self) -> Result<Status> {
        match self {
            Self::Format(args) => format::run(args),
            Self::Mount(args) => mount::run(args),
            Self::Umount(args) => umount::run(args),
            Self::Check(args) => check::run(args),
            Self::Info(args) => info::run(args),
            Self::Stats(args) => stats::run(args),
            Self::Dump(args) => dump::run(args),
            Self::Ls(args) => ls::run(args),
            Self::Cat(args) => cat::run(args),
            Self::Cp(args) => cp::run(args),
            Self::Clone(args) => clone::run(args),
            Self::Snapshot(args) => snapshot::run(args),
            Self::Send(args) => send::run(args),
            Self::Receive(args) => receive::run(args),
            Self::Mkdir(args) => mkdir::run(args),
            Self::Mv(args) => mv::run(args),
            Self::Rm(args) => rm::run(args),
            Self::Stat(args) => stat::run(args),
            Self::Completions(args) => completions::run(args),
            Self::Man(args) => man::run(args),
        }
    }

    /// The exit status where the command could not run at all.
    pub fn failure_status(&self) -> u8 {
        match self {
            Self::Check(_) => 2,
            _ => 1,
        }
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
