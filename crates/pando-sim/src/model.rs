//! What the engine must do, in the simplest form that does it.

mod history;
mod map;

pub use history::History;
pub use map::{Digest, Map};
