//! Numbers that must not be mixed up.

use std::fmt;

/// Position of a record in the log: 1 for the first record of a volume, one more for each that follows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// Order of a message in the trees. A message's MSN is the LSN of its record, and its sub-order the place of its
/// operation in that record. All messages of one operation share it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Msn {
    /// The record's LSN.
    pub lsn: u64,
    /// The operation's place in the record.
    pub sub: u32,
}

impl fmt::Display for Msn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.lsn, self.sub)
    }
}

/// Height of a root, at most (FMT-23): with the smallest fan-out no device has room for the leaves of such a tree.
pub const HEIGHT_MAX: u8 = 64;

/// A vertex of a tree: an index into the block table. 0 names no node: an edge to it is an empty subtree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct NodeId(pub u64);

impl NodeId {
    /// The empty subtree: it holds no key and has no node on the device.
    pub const EMPTY: Self = Self(0);

    /// True for an edge that leads to nothing.
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }
}

/// One of the two indexes of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Tree {
    /// Names, inode records, redirects, orphans.
    Metadata = 0,
    /// Blocks of files and large extended attributes.
    Data = 1,
}

impl Tree {
    /// Both indexes.
    pub const ALL: [Self; 2] = [Self::Metadata, Self::Data];

    /// The tree with this number on the device.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|tree| *tree as u8 == number)
    }
}
