//! Mounts of a file system in memory. One program, so that it is linked once.
#![forbid(unsafe_code)]

mod common;
mod listings;
mod mount;
mod syncs;
