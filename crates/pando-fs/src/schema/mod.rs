//! What pando-fs keeps in the two indexes: keys, inode records, time stamps.
//!
//! `docs/internals/file-system-schema.md` is the reference; the numbered invariants are these:
//!
//! * FS-1 keys of the data index lie only under the metadata keys of live inodes and of orphans, and no block of a file
//!   lies at or behind its size. Only the data of orphans lie under other keys than their own.
//! * FS-2 the parent of every path key is the record of a directory.
//! * FS-3 a directory's record counts its children exactly, and has 2 + its subdirectories links.
//! * FS-4 no two inodes show the same number ([`number`]), none shows 0 or a number that the persistent counter will give
//!   out.
//! * FS-5 the record of a file with several links says as many links as there are redirects to it, at least one, and
//!   each redirect leads to such a record and says its type.
//! * FS-6 the list of redirects has the names of all redirects and no others, each with the right inode number.
//! * FS-7 access control lists are valid, lie in the record and agree with the mode (`acl.rs`).
//! * FS-8 every snapshot has a root directory and exactly one name; in it the others hold as in the live tree.

pub mod key;
pub mod number;
pub mod record;
pub mod redirect;
pub mod time;

pub use record::{Record, RecordError, TARGET_LENGTH_MAX, Xattr, XattrValue};
pub use redirect::{NameRecord, Redirect};
pub use time::Timestamp;
