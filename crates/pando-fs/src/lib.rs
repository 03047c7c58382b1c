//! POSIX semantics on keys: paths, inodes, names, files, extended attributes. Knows nothing of FUSE.
#![forbid(unsafe_code)]

pub mod error;
pub mod operations;

pub use error::{Error, Miss};
pub use operations::{InodeNumber, Operations, Result};
