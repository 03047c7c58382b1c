//! Aging (FAST17 5 to 7): loads that change a tree step by step, and after some steps the cost of a cold grep over it, per GiB,
//! beside that of a copy of it on a volume that was formatted for the copy.

mod grep_cost;
mod intrafile;
mod mail;
mod pulls;

use crate::row::{Line, Needs, Row, cost, rate};

const fn lines(ratio: &'static str, aged: &'static str) -> [Line; 2] {
    [rate(ratio, "fresh/aged"), cost(aged, "s/GiB")]
}

/// Commits pulled one by one.
pub const PULLS: &[Row] = &[Row {
    name: "aging-git",
    what: "40 git pulls into a repository, each of a commit that changes a tenth of its files; grep cost of a fresh copy over that of the last",
    short: false,
    needs: Needs::Device,
    lines: &lines("aging-git", "aging-git-cost"),
    prepare: grep_cost::nothing,
    measure: pulls::run,
}];

/// Mail delivered and deleted.
pub const MAIL: &[Row] = &[Row {
    name: "aging-mail",
    what: "20 days of 2000 deliveries and deletions in 16 mailboxes of 500 messages of up to 32 KiB; grep cost of a fresh copy over that of the last",
    short: false,
    needs: Needs::Device,
    lines: &lines("aging-mail", "aging-mail-cost"),
    prepare: grep_cost::nothing,
    measure: mail::run,
}];

/// Files that grow side by side.
pub const INTRAFILE: &[Row] = &[Row {
    name: "aging-intrafile",
    what: "10 files of 400 KiB, of which a growing part is appended in turns, 4 KiB at a time, each synced; grep cost of a fresh copy over that of the last",
    short: false,
    needs: Needs::Device,
    lines: &lines("aging-intrafile", "aging-intrafile-cost"),
    prepare: grep_cost::nothing,
    measure: intrafile::run,
}];
