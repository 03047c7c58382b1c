//! What the tests of this crate share: a file system in memory, and mounts that never outlive their test.

pub mod memory_fs;
pub mod mounted;
