//! Snapshots and clones of what was written through memory maps that are there still, and what else is done with writable snapshots.

use std::path::Path;
use std::process::Command;

use super::tool::{self, at};
use super::volume::{Kind, SCRATCH, Volume};
use super::{Context, Failure, Outcome};

/// Runs the program beside this file.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("there are no snapshots on another file system".to_owned()));
    }
    let volume = Volume::create(context, 8 << 30, &[])?;
    let program = context.work.join("mapped.py");
    at("cannot write", &program, std::fs::write(&program, include_str!("mapped.py")))?;
    let mut python = Command::new("python3");
    python.arg(program).arg(context.programs.join("pando")).arg(volume.image()).arg(&volume.root);
    python.arg(Path::new(SCRATCH).join("snapshot")).arg(if context.full { "10" } else { "5" });
    tool::run(&mut python)?;
    volume.finish()
}
