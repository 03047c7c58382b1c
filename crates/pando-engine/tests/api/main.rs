//! The engine by what its crate offers. One program, so that it is linked once.

mod common;
mod compare;
mod crafted;
mod damage;
mod failing_writes;
mod features;
mod full;
mod healing;
mod height;
mod limits;
mod log_interval;
mod long_keys;
mod moving_back;
mod opening;
mod panics;
mod pruning;
mod read_only;
mod room;
mod small_checkpoints;
mod streams;
mod superblocks;
mod techniques;
mod together;
