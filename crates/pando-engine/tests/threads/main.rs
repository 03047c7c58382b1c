//! Threads beside the engine's own. A program of its own: where one of them panics it ends, since nobody could pass it on.

#[path = "../api/common/mod.rs"]
#[allow(dead_code, reason = "the other tests use the rest")]
mod common;
mod eviction;
mod moves;
