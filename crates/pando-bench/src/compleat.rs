//! The compleat suite: the loads that a general purpose file system meets, none of them its favourite. One file a load.

mod random;
mod scale;
mod sequential;
pub mod small_files;
pub mod source_tree;
mod toku;

use crate::row::{Needs, Row, rate};

/// One file larger than what is cached of it.
pub const LARGE_FILE: &[Row] = &[
    Row {
        name: "sequential-write",
        what: "one large file in writes of 1 MiB, fsync",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("sequential-write", "MiB/s")],
        prepare: sequential::remove,
        measure: sequential::write,
    },
    Row {
        name: "cold-read",
        what: "that file, read from its beginning to its end, cold",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("cold-read", "MiB/s")],
        prepare: sequential::ensure,
        measure: sequential::read,
    },
    Row {
        name: "random-4k",
        what: "65536 random overwrites of 4 KiB in that file, one fsync",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("random-4k", "writes/s")],
        prepare: sequential::ensure,
        measure: random::blocks,
    },
    Row {
        name: "random-4b",
        what: "65536 random overwrites of 4 bytes in that file, one fsync",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("random-4b", "writes/s")],
        prepare: sequential::ensure,
        measure: random::words,
    },
];

/// The large file, copied: on a volume of its own, since where its blocks lie decides what it costs to share them.
pub const COPY: &[Row] = &[Row {
    name: "copy-file",
    what: "cp of that file, cold, synced; cp shares the data where the file system can",
    short: true,
    needs: Needs::Nothing,
    lines: &[rate("copy-file", "MiB/s")],
    prepare: sequential::ensure_alone,
    measure: sequential::copy,
}];

/// Many files of a few bytes.
pub const SMALL_FILES: &[Row] = &[Row {
    name: "small-files",
    what: "files of 200 bytes by 4 threads, synced",
    short: true,
    needs: Needs::Nothing,
    lines: &[rate("small-files", "files/s")],
    prepare: small_files::remove,
    measure: small_files::create,
}];

/// TokuBench.
pub const TOKU: &[Row] = &[
    Row {
        name: "tokubench",
        what: "files of 200 bytes in a balanced tree of fan-out 128 by 4 threads, synced",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("tokubench", "files/s")],
        prepare: toku::remove,
        measure: toku::create,
    },
    Row {
        name: "tokubench-rm",
        what: "rm -rf of them, cold, synced",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("tokubench-rm", "files/s")],
        prepare: toku::ensure,
        measure: toku::delete,
    },
];

/// TokuBench, as the number of files grows.
pub const TOKU_SCALE: &[Row] = &[Row {
    name: "scale-tokubench",
    what: "TokuBench with 0.3, 1 and 3 times --many-files files, each on a new volume; the rate of the most, and that over the rate of the fewest",
    short: false,
    needs: Needs::Device,
    lines: &[rate("scale-tokubench", "files/s"), rate("scale-tokubench-kept", "most/fewest")],
    prepare: |_| Ok(()),
    measure: scale::toku,
}];

/// Random overwrites that go on.
pub const RANDOM_SCALE: &[Row] = &[Row {
    name: "scale-random",
    what: "random overwrites of 4 KiB in the large file, a quarter of the device in all, an fsync after each fortieth; the rate, and that of the last quarter over that of the first",
    short: false,
    needs: Needs::Nothing,
    lines: &[rate("scale-random", "writes/s"), rate("scale-random-kept", "last/first")],
    prepare: sequential::ensure,
    measure: scale::random,
}];

/// The Linux source.
pub const SOURCE_TREE: &[Row] = &[
    Row {
        name: "untar",
        what: "the Linux source, unpacked from a tar in memory, synced",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("untar", "files/s")],
        prepare: source_tree::load_archive,
        measure: source_tree::untar,
    },
    Row {
        name: "cold-find",
        what: "find in the Linux source, cold",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("cold-find", "files/s")],
        prepare: source_tree::ensure,
        measure: source_tree::find,
    },
    Row {
        name: "cold-grep",
        what: "grep -r in the Linux source, cold",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("cold-grep", "files/s")],
        prepare: source_tree::ensure,
        measure: source_tree::grep,
    },
    Row {
        name: "cold-tar",
        what: "tar of the Linux source, cold",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("cold-tar", "files/s")],
        prepare: source_tree::ensure,
        measure: source_tree::tar,
    },
    Row {
        name: "rm",
        what: "rm -rf of the Linux source and a copy of it, cold, synced",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("rm", "files/s")],
        prepare: source_tree::ensure_both,
        measure: source_tree::remove_both,
    },
];
