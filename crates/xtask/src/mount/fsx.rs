//! A million random operations on one file, half of them among maps, each read compared with what was written: the crate fsx. With `--full` a
//! million of each.

use std::fs;

use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Outcome};

const OPERATIONS: u64 = 500_000;
const OPERATIONS_FULL: u64 = 1_000_000;
const OPERATIONS_A_RUN: u64 = 10_000;
/// fsx keeps what it has mapped for reading and grows slower with every mapping, on any file system; many short runs of
/// different seeds do not.
const OPERATIONS_A_RUN_WITH_MMAP: u64 = 2500;
/// Of the first run. fsx prints the seed with every failure; fixed, so that a failure can be run again.
const SEED: u64 = 20_260_101;

/// read(2) and write(2) and everything that changes a file's size or holes.
pub fn without_mmap(context: &Context) -> Outcome {
    run(context, "mapread = 0.0\nmapwrite = 0.0\n", OPERATIONS_A_RUN, &["-o", "transport=dev"])
}

/// The same with reads and writes through shared mappings.
pub fn with_mmap(context: &Context) -> Outcome {
    run(context, "mapread = 1.0\nmapwrite = 1.0\ninvalidate = 0.1\n", OPERATIONS_A_RUN_WITH_MMAP, &[])
}

fn run(context: &Context, mapping: &str, operations_a_run: u64, options: &[&str]) -> Outcome {
    let volume = Volume::create(context, 1 << 30, options)?;
    let configuration = context.work.join("fsx.toml");
    // msync after each mapped write would hide what the page cache and the file system do without it.
    // fsync is rare: each waits for the device, and the load is about contents.
    let text = format!(
        "flen = 1048576\nnomsyncafterwrite = true\n[opsize]\nmin = 1\nmax = 65536\n[weights]\n{mapping}read = 1.0\nwrite = 1.0\ntruncate = 0.5\n\
         fsync = 0.005\nfdatasync = 0.005\nposix_fallocate = 0.2\npunch_hole = 0.2\nsendfile = 0.1\n\
         posix_fadvise = 0.1\ncopy_file_range = 0.1\nclose_open = 0.1\n"
    );
    at("cannot write", &configuration, fs::write(&configuration, text))?;
    let operations = operations_a_run.to_string();
    let file = volume.root.join("fsx");
    let all = if context.full { OPERATIONS_FULL } else { OPERATIONS };
    for run in 0..all / operations_a_run {
        let seed = (SEED + run).to_string();
        let mut command = context.program("fsx");
        command.arg("-f").arg(&configuration).args(["-N", &operations, "-S", &seed]);
        tool::run(command.arg("-P").arg(&context.work).arg(&file))?;
    }
    volume.finish()
}
