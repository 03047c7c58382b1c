//! The FUSE side of PandoFS: mounts a file system given as [`pando_fs::Operations`] and serves it to the kernel.
//!
//! The way of a request: a receiving thread (one a core, [`transport`]) reads it from /dev/fuse, [`dispatch`] makes the
//! call on that same thread, and the answer goes back before the next request is read. Only a request that must wait
//! for the device, since something is not in memory or since there is no room for changes, goes to a thread of the
//! [`pool`]. [`errno`] is the one place where an error becomes a number; [`mount_point`] attaches and detaches.
//!
//! Invariants:
//!
//! * FU-1 a receiving thread never waits for the device.
//! * FU-2 every request is answered exactly once, except forgets, which are never answered.
//! * FU-3 an inode reference is counted by the file system if and only if the kernel was told of the entry.
//! * FU-4 no notification is sent from within a request that holds what the notification needs.
#![forbid(unsafe_code)]

mod dispatch;
mod errno;
pub mod mount_point;
mod pool;
mod session;
mod transport;

pub use mount_point::{MountEntry, MountError, VfsOption};
pub use session::{MountOptions, Session, Unmounter};
