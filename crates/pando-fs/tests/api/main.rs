//! The file system by what its crate offers. One program, so that it is linked once.

mod acl;
mod basic;
mod check;
mod clones;
mod common;
mod concurrent;
mod damage;
mod differences;
mod fixtures;
mod forgets;
mod full;
mod links;
mod listing;
mod model;
mod numbers;
mod remount;
mod send;
mod small_volumes;
mod snapshots;
mod threads;
mod usage;
mod whiteouts;
mod writable_snapshots;
