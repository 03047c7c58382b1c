//! What the daemon tells its helper: one file, by its path from the root of the mount, and where above it the program's walk began.

use bytes::Bytes;

/// Bytes of the longest message; a file whose path is longer is read as ever.
pub(super) const BYTES_MAX: usize = 4096;

/// A file that was read.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Read {
    /// Names from the root of the mount to the directory in which the walk began.
    pub(super) depth: usize,
    /// The file, without a slash in front.
    pub(super) path: Vec<u8>,
}

/// The names come from the root on. `None` if they are too long.
pub(super) fn encode(depth: usize, names: &[Bytes]) -> Option<Vec<u8>> {
    let depth = u16::try_from(depth).ok()?.to_le_bytes();
    let message = [&depth[..], &names.join(&b'/')].concat();
    (message.len() <= BYTES_MAX).then_some(message)
}

/// `None` for what no daemon of ours sends.
pub(super) fn decode(message: &[u8]) -> Option<Read> {
    let (depth, path) = message.split_first_chunk()?;
    let depth = usize::from(u16::from_le_bytes(*depth));
    let names = || path.split(|&byte| byte == b'/');
    let is_file = depth < names().count() && names().all(|name| !name.is_empty());
    is_file.then(|| Read { depth, path: path.to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_and_no_other_does() {
        let names = [&b"a"[..], b"b c", b"\xff"].map(Bytes::from_static);
        for depth in 0..3 {
            let read = Read { depth, path: b"a/b c/\xff".to_vec() };
            assert_eq!(decode(&encode(depth, &names).unwrap()), Some(read));
        }
        let bad: [&[u8]; 7] = [b"", b"\0", b"\0\0", b"\0\0/a", b"\0\0a//b", b"\0\0a/", b"\x03\0a/b/c"];
        for message in bad {
            assert_eq!(decode(message), None, "{message:?}");
        }
        let long = vec![Bytes::from(vec![b'x'; 255]); 16];
        assert_eq!(encode(0, &long), None);
    }
}
