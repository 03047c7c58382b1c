//! Words to the kernel that it did not ask for.

use super::Put;

/// The code of a notification that an inode is no longer as the kernel remembers it.
const INVALIDATE_INODE: i32 = 2;

/// The code of a notification that a name is no longer as the kernel remembers it.
const INVALIDATE_ENTRY: i32 = 3;

/// Makes the kernel forget the attributes of an inode; its pages stay. The whole message.
pub(crate) fn invalidate_attributes(inode: u64) -> Vec<u8> {
    // From a negative offset on: no page.
    invalidate_inode(inode, -1)
}

/// Makes the kernel forget the attributes and all pages of an inode. It waits until pages that were changed have been taken. The
/// whole message.
pub(crate) fn invalidate_contents(inode: u64) -> Vec<u8> {
    invalidate_inode(inode, 0)
}

fn invalidate_inode(inode: u64, offset: i64) -> Vec<u8> {
    let mut out = Vec::with_capacity(40);
    // A header with no request: the number of an error stands for the kind of notification.
    out.u32(40);
    out.u32(INVALIDATE_INODE as u32);
    out.u64(0);
    out.u64(inode);
    out.u64(offset as u64);
    // A length of 0: all from there on.
    out.u64(0);
    out
}

/// Makes the kernel forget what a name is, or that there is none. It takes the directory's lock. The whole message.
pub(crate) fn invalidate_name(directory: u64, name: &[u8]) -> Vec<u8> {
    let length = 32 + name.len() + 1;
    let mut out = Vec::with_capacity(length);
    out.u32(length as u32);
    out.u32(INVALIDATE_ENTRY as u32);
    out.u64(0);
    out.u64(directory);
    out.u32(name.len() as u32);
    out.u32(0);
    out.put(name);
    out.zeros(1);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_says_its_own_length() {
        let bytes = invalidate_attributes(7);
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[..4], 40u32.to_ne_bytes());
        assert_eq!(bytes[16..24], 7u64.to_ne_bytes());
        let bytes = invalidate_name(7, b"name");
        assert_eq!((bytes.len(), &bytes[32..]), (37, &b"name\0"[..]));
        assert_eq!(bytes[..4], 37u32.to_ne_bytes());
        assert_eq!(bytes[24..28], 4u32.to_ne_bytes());
    }
}
