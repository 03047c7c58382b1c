//! The key-value engine: two write-optimized trees, one log, one checkpoint.
//!
//! Nothing here knows what an inode or a path is. See ARCHITECTURE.md for the way of an operation through it.
#![forbid(unsafe_code)]

mod apply;
mod background;
mod batch;
mod betree;
mod cache;
mod check;
mod checkpoint;
#[cfg(test)]
mod checkpoint_tests;
mod checkpoint_turns;
mod copies;
mod engine;
mod error;
pub(crate) mod log;
mod options;
mod recovery;
mod room;
mod scan;
#[cfg(test)]
mod small_volume;
pub(crate) mod space;
mod spinning;
pub mod stats;
mod superblocks;
mod usage;
mod volume;

pub use batch::Batch;
pub use check::{CheckReport, PROBLEMS_MAX, Sizes};
pub use copies::{copy_for_device, join};
pub use engine::{Engine, Space};
pub use error::{Error, Miss, Refusals, Result};
pub use log::late_binding::BOUND_BYTES_MIN;
pub use options::{Background, Compression, FormatOptions, Options};
pub use pando_format::{Bound, Change, FieldUpdate, KeyRange, Lsn, Operation, Side, Tree, VolumeId};
pub use scan::{Comparison, Difference, Scan, ScanLimit};
pub use superblocks::read_superblock;
pub use usage::{OwnerUsage, Usage};
