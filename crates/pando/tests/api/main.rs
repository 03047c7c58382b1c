//! The program from outside: its commands, mounts included. One test program, so that it is linked once.
#![forbid(unsafe_code)]

mod arguments;
mod commands;
mod common;
mod counting;
mod mount;
mod mounted;
mod remount;
mod round_trip;
mod snapshot_mounts;
mod taken_for;
mod transfer;
mod volumes;
