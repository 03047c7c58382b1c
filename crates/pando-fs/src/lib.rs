//! POSIX semantics on keys: paths, inodes, names, files, extended attributes. Knows nothing of FUSE.
//!
//! [`Operations`] is what this layer serves, [`FileSystem`] serves it from a volume. The way of a request: `file_system`
//! takes it, `namei` finds names, `create`, `link`, `unlink`, `rename`, `clone`, `file`, `attributes`, `xattr`, `acl` turn it into
//! one batch for the engine. `schema` says what the batches mean, `locks` in which order anything is locked.
#![forbid(unsafe_code)]

mod acl;
mod attributes;
pub mod check;
pub mod clock;
mod clone;
mod clone_links;
mod create;
pub mod difference;
mod dir;
pub mod error;
mod file;
mod file_system;
mod frozen;
mod hash;
mod homecoming;
mod inode;
mod last_time;
mod leaving;
mod link;
mod locks;
mod moves;
mod namei;
mod names;
mod numbers;
pub mod operations;
mod orphan;
mod places;
mod receive;
mod rename;
mod renames;
mod rollback;
pub mod schema;
pub mod send;
mod snapshot;
mod snapshot_files;
mod space;
mod store;
mod table;
mod unlink;
mod usage;
mod view;
mod xattr;

pub use error::{Error, Miss};
pub use file_system::FileSystem;
pub use link::LINKS_MAX;
pub use operations::{InodeNumber, ListAttributes, Operations, Result};
pub use pando_engine::{FormatOptions, Options, copy_for_device, join};
pub use rollback::Vanished;
pub use snapshot::{HeldSnapshot, Snapshot};
pub use snapshot_files::SnapshotFiles;
pub use usage::Usage;
