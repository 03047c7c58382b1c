//! A million random operations on one file, each read compared with what was written: the crate fsx.

use std::fs;
use std::path::Path;

use super::tool::at;
use super::volume::Volume;
use super::{Context, Outcome};

/// A million in `make test-full`; each is a round trip to the daemon, and `make test` has minutes.
const OPERATIONS_FULL: u64 = 1_000_000;
const OPERATIONS: u64 = 250_000;
/// Printed by fsx with every failure; fixed, so that a failure can be run again.
const SEED: u64 = 20_260_101;

/// read(2) and write(2) and everything that changes a file's size or holes.
pub fn without_mmap(context: &Context) -> Outcome {
    run(context, "mapread = 0.0\nmapwrite = 0.0\n")
}

/// The same with reads and writes through shared mappings.
pub fn with_mmap(context: &Context) -> Outcome {
    run(context, "mapread = 1.0\nmapwrite = 1.0\ninvalidate = 0.1\n")
}

fn run(context: &Context, mapping: &str) -> Outcome {
    let volume = Volume::create(context, 1 << 30, &[])?;
    let configuration = context.work.join("fsx.toml");
    // msync after each mapped write would hide what the page cache and the file system do without it.
    // fsync is rare: each waits for the device, and the load is about contents.
    let text = format!(
        "flen = 1048576\nnomsyncafterwrite = true\n[opsize]\nmin = 1\nmax = 65536\n[weights]\n{mapping}read = 1.0\nwrite = 1.0\ntruncate = 0.5\n\
         fsync = 0.005\nfdatasync = 0.005\nposix_fallocate = 0.2\npunch_hole = 0.2\nsendfile = 0.1\n\
         posix_fadvise = 0.1\ncopy_file_range = 0.1\nclose_open = 0.1\n"
    );
    at("cannot write", &configuration, fs::write(&configuration, text))?;
    let (operations, seed) =
        (if context.full { OPERATIONS_FULL } else { OPERATIONS }.to_string(), SEED.to_string());
    let file = volume.root.join("fsx");
    let arguments = [
        Path::new("-f"),
        &configuration,
        Path::new("-N"),
        operations.as_ref(),
        Path::new("-S"),
        seed.as_ref(),
        Path::new("-P"),
        &context.work,
        &file,
    ];
    context.run("fsx", arguments)?;
    volume.finish()
}
