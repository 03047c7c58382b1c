//! Snapshots on a mount: roll back under those who use it, writable ones, and snapshots mounted on their own.

use super::tool;
use super::volume::{self, Kind};
use super::{Context, Failure, Outcome};

/// Runs the script beside this file.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("there are no snapshots on another file system".to_owned()));
    }
    let mounts = volume::SCRATCH;
    let (work, pando) = (context.work.display(), context.programs.join("pando"));
    let head = format!("WORK='{work}'\nMOUNTS='{mounts}'\nPANDO='{}'\n", pando.display());
    tool::shell(&context.work, &[&head, include_str!("snapshots.sh")].concat())
}
