//! Aging (FAST17 5 to 7): loads that change a tree step by step, and after some steps the cost of a cold grep over it, per GiB,
//! beside that of a copy of it on a volume that was formatted for the copy.

mod filled;
mod grep_cost;
mod interfile;
mod intrafile;
mod mail;
pub mod pulls;

use crate::row::{Line, Measure, Needs, Prepare, Row, cost, rate};

/// A row that reports how the cost of a fresh copy stands to that of the aged tree, and the latter.
const fn row(
    name: &'static str,
    what: &'static str,
    lines: &'static [Line],
    prepare: Prepare,
    measure: Measure,
) -> Row {
    Row { name, what, short: false, needs: Needs::TwoDevices, lines, prepare, measure }
}

macro_rules! lines {
    ($name:literal) => {
        &[rate($name, "fresh/aged"), cost(concat!($name, "-cost"), "s/GiB")]
    };
}

const GIT: &str = "20 git pulls (--full: 60) into a repository, each of a commit that changes a tenth of its files; grep cost of a fresh copy over that of the last";

/// Commits pulled one by one.
pub const PULLS: &[Row] = &[row("aging-git", GIT, lines!("aging-git"), grep_cost::nothing, pulls::run)];

/// The same, without garbage collection.
pub const PULLS_KEPT: &[Row] = &[row(
    "aging-git-nogc",
    "the same with git's garbage collection off",
    lines!("aging-git-nogc"),
    grep_cost::nothing,
    pulls::run_without_collection,
)];

/// Mail delivered and deleted.
pub const MAIL: &[Row] = &[row(
    "aging-mail",
    "20 days of 500 deliveries and deletions (--full: 2000) in 16 mailboxes of 200 messages (--full: 500) of up to 32 KiB; grep cost of a fresh copy over that of the last",
    lines!("aging-mail"),
    grep_cost::nothing,
    mail::run,
)];

/// Files that grow side by side.
pub const INTRAFILE: &[Row] = &[row(
    "aging-intrafile",
    "10 files of 400 KiB, of which a growing part is appended in turns, 4 KiB at a time, each synced; grep cost of a fresh copy over that of the last",
    lines!("aging-intrafile"),
    grep_cost::nothing,
    intrafile::run,
)];

/// Files that are created out of order.
pub const INTERFILE: &[Row] = &[row(
    "aging-interfile",
    "files of 4 KiB named as in six directories of the Linux source, of which a growing part is created out of order; grep cost of a fresh copy over that of the last",
    lines!("aging-interfile"),
    grep_cost::nothing,
    interfile::run,
)];

const FULL: &str = "the same on a volume that is 80 % full";

/// All of them on one volume that is 80 % full.
pub const FULL_VOLUME: &[Row] = &[
    row("aging-git-full", FULL, lines!("aging-git-full"), filled::ensure, pulls::run),
    row(
        "aging-git-nogc-full",
        FULL,
        lines!("aging-git-nogc-full"),
        filled::ensure,
        pulls::run_without_collection,
    ),
    row("aging-mail-full", FULL, lines!("aging-mail-full"), filled::ensure, mail::run),
    row("aging-intrafile-full", FULL, lines!("aging-intrafile-full"), filled::ensure, intrafile::run),
    row("aging-interfile-full", FULL, lines!("aging-interfile-full"), filled::ensure, interfile::run),
];
