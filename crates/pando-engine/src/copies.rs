//! Copies of bytes, for memory that the device can take as it is.

use bytes::Bytes;
use pando_device::{BLOCK_SIZE, Buffer, nontemporal};

/// A copy of bytes that is to be written: from a block up in memory that the device can take as it is, so that it is the
/// only copy on the way there.
pub fn copy_for_device(bytes: &[u8]) -> Bytes {
    if bytes.len() < BLOCK_SIZE {
        return Bytes::copy_from_slice(bytes);
    }
    let mut buffer = Buffer::for_overwrite(bytes.len());
    nontemporal::copy(&mut buffer[..bytes.len()], bytes);
    let padding = buffer.len() - bytes.len();
    buffer[bytes.len()..].fill(0);
    let whole = buffer.freeze();
    whole.slice(..whole.len() - padding)
}

/// One piece of memory out of many, for whoever needs all bytes in one place. From a block up it is memory that is used
/// again and again: fresh memory costs more than the copy.
pub fn join(pieces: &[Bytes]) -> Bytes {
    if let [piece] = pieces {
        return piece.clone();
    }
    let length = pieces.iter().map(Bytes::len).sum();
    if length < BLOCK_SIZE {
        return pieces.concat().into();
    }
    let mut buffer = Buffer::for_overwrite(length);
    let rest = pieces.iter().fold(&mut buffer[..], |rest, piece| {
        let (here, rest) = rest.split_at_mut(piece.len());
        here.copy_from_slice(piece);
        rest
    });
    rest.fill(0);
    buffer.freeze().slice(..length)
}
