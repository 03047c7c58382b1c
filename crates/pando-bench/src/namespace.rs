//! The namespace as one operation: renames, clones, snapshots and unlinks by size (THESIS 6.1.2, FAST16 figures 6 and 7).

mod clone_rounds;
mod directories;
mod files_by_size;
mod many_files;
mod scan;

use crate::row::{Needs, Row, cost, rate};

/// Directories, empty and full.
pub const DIRECTORIES: &[Row] = &[
    Row {
        name: "rename-empty",
        what: "an empty directory, moved to another directory and back 200 times, an fsync of the directory after each",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("rename-empty", "renames/s")],
        prepare: directories::make_empty,
        measure: directories::rename_empty,
    },
    Row {
        name: "rename-tree",
        what: "the Linux source, moved so",
        short: true,
        needs: Needs::Nothing,
        lines: &[rate("rename-tree", "renames/s")],
        prepare: directories::make_tree,
        measure: directories::rename_tree,
    },
    Row {
        name: "settle-empty",
        what: "a directory of 8 empty ones: rename, fsync, checkpoint, a file written in each of the 8; median of 5",
        short: true,
        needs: Needs::Checkpoint,
        lines: &[cost("settle-empty", "ms")],
        prepare: directories::make_empty,
        measure: directories::settle_empty,
    },
    Row {
        name: "settle-tree",
        what: "the Linux source: rename, fsync, checkpoint, a file written in each of 8 of its directories; median of 5",
        short: true,
        needs: Needs::Checkpoint,
        lines: &[cost("settle-tree", "ms")],
        prepare: directories::make_tree,
        measure: directories::settle_tree,
    },
    Row {
        name: "clone-tree",
        what: "a clone of the Linux source, all metadata kept; median of 3",
        short: true,
        needs: Needs::Clone,
        lines: &[cost("clone-tree", "ms")],
        prepare: directories::make_tree,
        measure: directories::clone_tree,
    },
];

/// Files from 4 KiB to the size of the large file, in steps of four.
pub const FILES_BY_SIZE: &[Row] = &[
    Row {
        name: "rename-files",
        what: "100 renames of a file, an fsync of the directory after each; the slowest size, and how it depends on the size",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("rename-files", "renames/s")],
        prepare: files_by_size::ensure,
        measure: files_by_size::rename,
    },
    Row {
        name: "unlink-sizes",
        what: "the unlink of a file, cold, an fsync of the directory after it; the slowest size, and how it depends on the size",
        short: false,
        needs: Needs::Nothing,
        lines: &[cost("unlink-sizes", "ms")],
        prepare: files_by_size::ensure,
        measure: files_by_size::unlink,
    },
];

/// Renames on a volume that has aged by git pulls. The directory first: the files are in it.
pub const AGED: &[Row] = &[
    Row {
        name: "rename-tree-aged",
        what: "a repository that has aged by 20 git pulls (--full: 60), moved to another directory and back 50 times, an fsync of the directory after each",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("rename-tree-aged", "renames/s")],
        prepare: directories::make_aged,
        measure: directories::rename_aged,
    },
    Row {
        name: "rename-files-aged",
        what: "in such a repository, 100 renames of a file, an fsync of the directory after each; the slowest size, and how it depends on the size",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("rename-files-aged", "renames/s")],
        prepare: files_by_size::ensure_aged,
        measure: files_by_size::rename_aged,
    },
];

/// What a rename and a clone do to later reads.
pub const SCAN: &[Row] = &[
    Row {
        name: "grep-original",
        what: "grep -r in the Linux source, cold; median of 3",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("grep-original", "files/s")],
        prepare: scan::ensure,
        measure: scan::original,
    },
    Row {
        name: "grep-cloned",
        what: "the same in a clone of it",
        short: false,
        needs: Needs::Clone,
        lines: &[rate("grep-cloned", "files/s")],
        prepare: scan::make_clone,
        measure: scan::cloned,
    },
    Row {
        name: "grep-renamed",
        what: "the same after the Linux source was renamed",
        short: false,
        needs: Needs::Nothing,
        lines: &[rate("grep-renamed", "files/s")],
        prepare: scan::rename,
        measure: scan::renamed,
    },
];

/// Clones of clones.
pub const CLONE_ROUNDS: &[Row] = &[Row {
    name: "clone-rounds",
    what: "8 directories of 8 files of 4 MiB: clone the last clone, sync, write 16 bytes to each file, sync, grep cold; medians of 9 rounds",
    short: false,
    needs: Needs::Clone,
    lines: &[
        cost("clone-rounds", "ms"),
        cost("clone-rounds-write", "ms"),
        cost("clone-rounds-grep", "ms"),
        cost("clone-rounds-space", "MiB"),
    ],
    prepare: clone_rounds::ensure,
    measure: clone_rounds::run,
}];

/// A volume of many files.
pub const MANY_FILES: &[Row] = &[Row {
    name: "snapshot-million",
    what: "a snapshot of a volume of many small files; median of 5",
    short: false,
    needs: Needs::Snapshot,
    lines: &[cost("snapshot-million", "ms")],
    prepare: many_files::ensure,
    measure: many_files::snapshot,
}];
