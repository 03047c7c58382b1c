//! The key-value engine: two write-optimized trees, one log, one checkpoint.
//!
//! Nothing here knows what an inode or a path is. See ARCHITECTURE.md for the way of an operation through it.
#![forbid(unsafe_code)]

pub mod batch;
pub mod engine;
pub mod error;
#[allow(dead_code, reason = "the trees are not there yet")]
pub(crate) mod log;
pub mod options;
pub mod scan;
#[allow(dead_code, reason = "the trees are not there yet")]
pub(crate) mod space;

pub use batch::Batch;
pub use engine::{Engine, Space};
pub use error::{Error, Miss, Result};
pub use options::{Background, Compression, FormatOptions, Options};
pub use pando_format::{Bound, Change, FieldUpdate, KeyRange, Lsn, Operation, Side, Tree};
pub use scan::{Direction, Scan, ScanLimit};
