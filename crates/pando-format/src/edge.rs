//! Edges between nodes, and gotos: edges inside a message buffer.

use std::fmt;

use bytes::Bytes;

use crate::codec::{Reader, Writer};
use crate::error::FormatError;
use crate::key_codec::{BOUND_LENGTH_MIN, MSN_LENGTH, decode_bound, decode_height, decode_msn, decode_range};
use crate::key_codec::{encode_bound, encode_msn, encode_range};
use crate::{Bound, KeyRange, Msn, NodeId};

/// How keys change on the way down an edge that leads into a node shared under other names (THESIS 4): the first
/// `strip` bytes go, `prepend` comes instead, and only what then lies between `lower` and `upper` passes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xf {
    /// Bytes taken off the front.
    pub strip: u32,
    /// Bytes put there instead.
    pub prepend: Bytes,
    /// First place of the child's keys that can be seen.
    pub lower: Bound,
    /// First place of them that cannot.
    pub upper: Bound,
}

impl Xf {
    const ENCODED_LENGTH_MIN: usize = 8 + 2 * BOUND_LENGTH_MIN;

    fn encode(&self, writer: &mut Writer) {
        writer.u32(self.strip);
        writer.sized_bytes(&self.prepend);
        encode_bound(writer, &self.lower);
        encode_bound(writer, &self.upper);
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let strip = reader.u32()?;
        let prepend = reader.sized_bytes()?;
        Ok(Self { strip, prepend, lower: decode_bound(reader)?, upper: decode_bound(reader)? })
    }
}

/// The way from an interior node to a child.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Edge {
    /// Where it leads; [`NodeId::EMPTY`] to nothing.
    pub child: NodeId,
    /// Lifting: bytes that all keys below share in front and that the child does not store.
    pub strip: u32,
    /// Translation into a shared child's keys, applied behind the lifting.
    pub xf: Option<Xf>,
    /// Bytes below, for quotas and `du`; reserved, 0.
    pub bytes: u64,
    /// Entries below; reserved, 0.
    pub entries: u64,
}

impl Edge {
    pub(crate) const ENCODED_LENGTH_MIN: usize = 32;

    /// An edge without translation.
    pub fn new(child: NodeId, strip: u32) -> Self {
        Self { child, strip, xf: None, bytes: 0, entries: 0 }
    }

    pub(crate) fn encode(&self, writer: &mut Writer) {
        writer.u64(self.child.0);
        writer.u32(self.strip);
        writer.u8(self.xf.is_some().into());
        writer.zeros(3);
        writer.u64(self.bytes);
        writer.u64(self.entries);
        if let Some(xf) = &self.xf {
            xf.encode(writer);
        }
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let child = NodeId(reader.u64()?);
        let strip = reader.u32()?;
        let has_xf = match reader.u8()? {
            0 => false,
            1 => true,
            other => return Err(reader.wrong("xf flag of an edge", other.into(), "0 or 1")),
        };
        reader.skip(3)?;
        let (bytes, entries) = (reader.u64()?, reader.u64()?);
        let xf = if has_xf { Some(Xf::decode(reader)?) } else { None };
        Ok(Self { child, strip, xf, bytes, entries })
    }
}

/// A message that makes the keys of a range lead to another node: a rename or clone on its way down (THESIS 4).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Goto {
    /// The keys it captures, as the node that holds it sees them.
    pub range: KeyRange,
    /// Its place in the order of messages.
    pub msn: Msn,
    /// Where they lead.
    pub target: NodeId,
    /// Height of the target, below that of the holder (BT-3).
    pub height: u8,
    /// From the holder's keys to the target's.
    pub xf: Xf,
}

impl Goto {
    pub(crate) const ENCODED_LENGTH_MIN: usize =
        2 * BOUND_LENGTH_MIN + MSN_LENGTH + 12 + Xf::ENCODED_LENGTH_MIN;

    pub(crate) fn encode(&self, writer: &mut Writer) {
        encode_range(writer, &self.range);
        encode_msn(writer, self.msn);
        writer.u64(self.target.0);
        writer.u8(self.height);
        writer.zeros(3);
        self.xf.encode(writer);
    }

    pub(crate) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let range = decode_range(reader)?;
        let msn = decode_msn(reader)?;
        let target = NodeId(reader.u64()?);
        let height = decode_height(reader)?;
        reader.skip(3)?;
        Ok(Self { range, msn, target, height, xf: Xf::decode(reader)? })
    }
}

impl fmt::Display for Xf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { strip, prepend, lower, upper } = self;
        write!(f, "strip {strip}, prepend \"{}\", between {lower} and {upper}", prepend.escape_ascii())
    }
}

impl fmt::Display for Edge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "edge to node {}, lifts {} bytes", self.child.0, self.strip)?;
        match &self.xf {
            Some(xf) => write!(f, ", xf {xf}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Goto {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { range, msn, target, height, xf } = self;
        write!(f, "goto {msn}: {range} to node {} of height {height}, {xf}", target.0)
    }
}
