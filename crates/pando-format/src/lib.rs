//! Bytes on the device and what they mean: encode and decode, checksums, versions. No I/O and no locks.
//!
//! `docs/on-disk-format.md` is the reference for the layouts.
#![forbid(unsafe_code)]

pub mod compression;
pub mod ids;
pub mod key;
pub mod message;
pub mod operation;

pub use compression::Compression;
pub use ids::{Lsn, Msn, NodeId, Tree};
pub use key::{Bound, KeyRange, Side};
pub use message::{Change, FieldUpdate, Pending};
pub use operation::Operation;
