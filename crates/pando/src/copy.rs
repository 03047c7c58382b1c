//! Copying trees between the host and volumes.
//!
//! [`tree`] says what a directory and a file are, wherever they are; [`host`] and [`inside`] are the two places they can
//! be in; [`copier`] walks one and builds the other. Memory is bounded whatever the size of the tree: one piece of a
//! listing for each level of directories, and one piece of a file.

pub mod copier;
pub mod host;
pub mod inside;
mod links;
pub mod tree;

pub use copier::{Copier, CopyOptions, Target, Which};
pub use tree::Directory;
