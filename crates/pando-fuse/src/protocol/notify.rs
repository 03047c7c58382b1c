//! Words to the kernel that it did not ask for.

use super::{Inline, Put};

/// The code of a notification that an inode is no longer as the kernel remembers it.
const INVALIDATE_INODE: i32 = 2;

/// Makes the kernel forget the attributes of an inode; its pages stay. The whole message.
pub(crate) fn invalidate_attributes(inode: u64) -> Inline {
    let mut out = Inline::default();
    // A header with no request: the number of an error stands for the kind of notification.
    out.u32(40);
    out.u32(INVALIDATE_INODE as u32);
    out.u64(0);
    out.u64(inode);
    // From a negative offset on: no page.
    out.u64(-1i64 as u64);
    out.u64(0);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_says_its_own_length() {
        let message = invalidate_attributes(7);
        let bytes = message.as_bytes();
        assert_eq!(bytes.len(), 40);
        assert_eq!(bytes[..4], 40u32.to_ne_bytes());
        assert_eq!(bytes[16..24], 7u64.to_ne_bytes());
    }
}
