//! The FUSE protocol: what the kernel's requests mean and how answers are written down.
//!
//! Version 7 of the protocol as the kernel's `linux/fuse.h` defines it; numbers and layouts are that header's. Requests
//! are parsed here once for every transport: a transport hands over the three pieces that the protocol knows (the
//! header, the fixed part of the body, the rest), since /dev/fuse brings them in one run of bytes and io_uring apart.
//!
//! * PR-1 decoding is total: any bytes give a request or an error, and nothing is allocated that was not sent.
//! * PR-2 a decoded request owns what it needs, so that the receive buffer is free as soon as it is decoded.

mod init;
mod notify;
mod reply;
mod request;
mod wire;

pub(crate) use init::{InitReply, InitRequest, flags};
pub(crate) use notify::{invalidate_attributes, invalidate_contents, invalidate_name};
pub(crate) use reply::{Answer, Inline, Kept, Listing, answer_header, entry_and_file};
pub(crate) use request::{Header, Layout, Malformed, Operation, Write, fixed_bytes, opcode};
pub(crate) use wire::Put;

/// Most bytes of data of one read or write request.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;

/// The unit in which statfs and stat speak of blocks, in bytes.
pub(crate) const BLOCK_BYTES: u32 = 4096;

/// Longest name, in bytes.
pub(crate) const NAME_BYTES_MAX: u32 = 255;

/// How long the kernel may believe names and attributes, in seconds: until we say otherwise, since nobody else changes
/// them. A year.
pub(crate) const FOREVER: u64 = 365 * 24 * 3600;

/// For the fuzz targets: reads any bytes as a request.
#[doc(hidden)]
pub fn decode_anything(bytes: &[u8]) {
    for extended_xattr in [false, true] {
        let Ok((header, body)) = Header::decode(bytes) else { return };
        let layout = Layout { extended_xattr };
        let fixed = fixed_bytes(header.opcode, layout).min(body.len());
        let (fixed, rest) = body.split_at(fixed);
        let _ = Operation::decode(&header, layout, fixed, rest);
        let _ = InitRequest::decode(body);
    }
}
