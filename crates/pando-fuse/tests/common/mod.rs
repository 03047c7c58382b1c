//! What the tests of this crate share: a file system in memory, and mounts that never outlive their test.
#![allow(dead_code, reason = "each test file uses its part")]

pub mod memory_fs;
pub mod mounted;
