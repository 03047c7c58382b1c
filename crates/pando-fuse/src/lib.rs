//! The FUSE side of PandoFS: mounts a file system given as [`pando_fs::Operations`] and serves it to the kernel.
//!
//! The way of a request: a receiving thread (one a core, [`transport`]) has it from the kernel, [`protocol`] says what it
//! means, [`serve`] what that is to the file system, and [`dispatch`] makes the call on that same thread; the answer goes
//! back before the next request is read. Only a request that must wait for the device, since something is not in memory
//! or since there is no room for changes, goes to a thread of the [`pool`], and one for attributes of a file that grows ([`growth`]); syncs go there together ([`syncs`]), and changes that are answered when they are durable. [`negotiate`] is what both sides agree on at
//! the start; [`errno`] is the one place where an error becomes a number; [`files_ahead`] has the kernel read what a
//! program will ask for next, and [`interest`] knows whose attributes it will; [`kernel_cache`] is what the kernel must not go on to
//! remember, pages among it ([`direct_writes`]), and [`later`] sends answers that wait for that; [`processes`] tells of who calls; [`mount_point`] attaches and detaches, and [`mount_table`] tells what is mounted.
//!
//! Invariants:
//!
//! * FU-1 a receiving thread never waits for the device, but for a short sync of its only caller as long as the device is quick ([`patience`]).
//! * FU-2 every request is answered exactly once, except forgets, which are never answered.
//! * FU-3 an inode reference is counted by the file system if and only if the kernel was told of the entry; or if what was made could not be
//!   made durable for the answer (`-o dirsync`): then the volume takes no changes any more, and the inode stays in memory.
//! * FU-4 no notification is sent from within a request that holds what the notification needs.
#![deny(unsafe_code)]

mod askers;
mod convert;
mod direct_writes;
mod dispatch;
mod errno;
pub mod files_ahead;
mod growth;
mod interest;
pub mod ioctl;
mod kernel_cache;
mod later;
pub mod mount_point;
pub mod mount_table;
mod negotiate;
mod notifier;
mod patience;
mod pool;
mod processes;
mod protocol;
mod recent;
mod serve;
mod session;
mod slots;
mod syncs;
mod transport;

#[doc(hidden)]
pub use protocol::decode_anything;

pub use mount_point::{MountError, VfsOption};
pub use mount_table::MountEntry;
pub use notifier::Notifier;
pub use session::{MountOptions, Session, Transport, Unmounted, Unmounter};
