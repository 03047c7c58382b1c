//! Holes of a file that is changed through a map meanwhile.

use std::process::Command;

use super::tool::{self, at};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

/// Runs the program beside this file, over both transports.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("transports are ours".to_owned()));
    }
    let program = context.work.join("holes.py");
    at("cannot write", &program, std::fs::write(&program, include_str!("holes.py")))?;
    for transport in ["transport=auto", "transport=dev"] {
        let volume = Volume::create_named(context, transport, 1 << 30, &["-o", transport])?;
        tool::run(Command::new("python3").arg(&program).arg(volume.root.join("file")))?;
        volume.finish()?;
    }
    Ok(())
}
