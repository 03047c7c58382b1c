//! What the engine, and the file system above it, must do, in the simplest form that does it.

pub mod acl;
mod history;
mod map;

pub mod posix;

pub use history::History;
pub use map::{Digest, Map};
