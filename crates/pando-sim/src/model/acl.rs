//! An access control list as a map: tag and number of the user or group, and what they may do.
//!
//! The tags are those of the kernel's representation: 1 the owner, 2 a user, 4 the group, 8 another group, 16 the mask, 32
//! all others. Tags that name nobody have [`NOBODY`] as number.

use std::collections::BTreeMap;

/// The number beside a tag that names nobody.
pub const NOBODY: u32 = u32::MAX;

/// The list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Acl(pub BTreeMap<(u16, u32), u16>);

impl Acl {
    /// The extended attribute.
    pub fn bytes(&self) -> Vec<u8> {
        let mut bytes = vec![2, 0, 0, 0];
        for ((tag, number), permissions) in &self.0 {
            bytes.extend([tag.to_le_bytes(), permissions.to_le_bytes()].concat());
            bytes.extend(number.to_le_bytes());
        }
        bytes
    }

    /// The entries that the three digits of a mode stand for, the highest digit first.
    fn digits(&self) -> [(u16, u32); 3] {
        let group = if self.0.contains_key(&(16, NOBODY)) { 16 } else { 4 };
        [(1, NOBODY), (group, NOBODY), (32, NOBODY)]
    }

    /// The permission bits that say what it says of owner, group and others.
    pub fn mode(&self) -> u32 {
        self.digits().iter().fold(0, |mode, entry| mode * 8 + u32::from(self.0[entry]))
    }

    /// chmod.
    pub fn set_mode(&mut self, mode: u32) {
        for (entry, shift) in self.digits().into_iter().zip([6, 3, 0]) {
            self.0.insert(entry, (mode >> shift) as u16 % 8);
        }
    }

    /// True if a mode can say as much.
    pub fn is_mode(&self) -> bool {
        self.0.len() == 3
    }
}
