//! The header of a node.
//!
//! A node image is a header, padded to a multiple of 4 KiB, and its parts, each of which starts at a multiple of
//! 4 KiB and can be read alone. A leaf has one part per basement node, an interior node one per child: the buffer of
//! messages for it. The header holds all a query needs to choose a part, and all that a scan of a wrecked volume
//! needs to know what it found (volume, tree, id, generation, key range).
//!
//! * FMT-5 an interior node has one edge more than pivots, and one part per edge; a leaf has one first key per part.
//! * FMT-6 pivots strictly rise; first keys strictly rise.
//! * FMT-7 parts lie behind the header in their order and do not overlap; an empty buffer has stored length 0,
//!   and a leaf has no empty part.

use std::fmt;

use bytes::Bytes;

use crate::block_table::IMAGE_LENGTH_MAX;
use crate::codec::{BLOCK_LENGTH, Reader, Writer};
use crate::edge::Edge;
use crate::error::{FormatError, Structure};
use crate::head::{self, VolumeId};
use crate::key_codec::{
    decode_bound, decode_height, decode_msn, decode_range, decode_tree, encode_bound, encode_msn,
    encode_range,
};
use crate::part::PartEntry;
use crate::{Bound, KeyRange, Msn, NodeId, Tree};

const NODE: Structure = Structure::NodeHeader;

const LEAF: u8 = 1;
const INTERIOR: u8 = 2;

/// All of a node but the contents of its parts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeHeader {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Which index it belongs to.
    pub tree: Tree,
    /// Its name in the block table.
    pub node: NodeId,
    /// Which writing of the node this is; rises with each.
    pub generation: u64,
    /// 0 for a leaf.
    pub height: u8,
    /// The checkpoint it was written for.
    pub checkpoint: u64,
    /// The newest MSN of any message in it or applied to it.
    pub msn_max: Msn,
    /// The newest MSN when the node came into being.
    pub birth: Msn,
    /// Whole keys it was responsible for when written, nothing lifted; by one of its ways, if it is shared.
    pub range: KeyRange,
    /// Where its parts lie.
    pub parts: Vec<PartEntry>,
    /// What leads to the parts.
    pub body: NodeBody,
}

/// What differs between leaves and interior nodes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NodeBody {
    /// Height 0.
    Leaf {
        /// For each part, a key not above its first and above all of the part before; in the node's own, lifted, keys.
        first_keys: Vec<Bytes>,
    },
    /// Height 1 and up.
    Interior {
        /// Between two edges each, in the node's own, lifted, keys.
        pivots: Vec<Bound>,
        /// To the children.
        edges: Vec<Edge>,
    },
}

impl NodeHeader {
    /// The header's bytes, a multiple of 4 KiB. [`head::stored_checksum`] of them goes into the block table.
    ///
    /// # Panics
    /// If FMT-5, FMT-6, FMT-7 or FMT-24 does not hold.
    pub fn encode(&self) -> Vec<u8> {
        if let Err(error) = self.check(self.first_part_block().unwrap_or(u64::MAX)) {
            panic!("a node header that may not be written: {error}");
        }
        let encoded = self.encode_unchecked();
        let blocks = (encoded.len() / BLOCK_LENGTH) as u64;
        assert!(
            self.first_part_block().is_none_or(|first| first >= blocks),
            "FMT-7: a part inside the header"
        );
        encoded
    }

    /// Length of [`NodeHeader::encode`] in bytes. Independent of where the parts are said to lie, so it can be asked
    /// before they are placed.
    pub fn encoded_length(&self) -> usize {
        self.encode_unchecked().len()
    }

    fn encode_unchecked(&self) -> Vec<u8> {
        let mut writer = head::start(NODE, &self.volume);
        writer.u64(self.node.0);
        writer.u64(self.generation);
        writer.u8(self.tree as u8);
        writer.u8(self.height);
        writer.u8(match self.body {
            NodeBody::Leaf { .. } => LEAF,
            NodeBody::Interior { .. } => INTERIOR,
        });
        writer.zeros(5);
        writer.u64(self.checkpoint);
        encode_msn(&mut writer, self.msn_max);
        encode_msn(&mut writer, self.birth);
        writer.zeros(32);
        encode_range(&mut writer, &self.range);
        writer.length(self.parts.len());
        for part in &self.parts {
            part.encode(&mut writer);
        }
        self.body.encode(&mut writer);
        head::seal(NODE, writer, BLOCK_LENGTH)
    }

    /// How many bytes the header of a node has, from its first block.
    pub fn length_from_first_block(block: &[u8]) -> Result<u32, FormatError> {
        let length = head::claimed_length(NODE, block)?;
        if !(length as usize).is_multiple_of(BLOCK_LENGTH) {
            let expected = "a multiple of 4096";
            return Err(FormatError::Field {
                structure: NODE,
                field: "length",
                found: length.into(),
                expected,
            });
        }
        Ok(length)
    }

    /// The header at the front of `bytes`, verified. Keys are shared with `bytes`.
    pub fn decode(bytes: &Bytes) -> Result<Self, FormatError> {
        let bytes = head::unseal(NODE, bytes)?;
        Self::length_from_first_block(&bytes)?;
        let (mut reader, volume) = head::fields(NODE, &bytes)?;
        let node = NodeId(reader.u64()?);
        let generation = reader.u64()?;
        let tree = decode_tree(&mut reader)?;
        let height = decode_height(&mut reader)?;
        let kind = reader.u8()?;
        reader.skip(5)?;
        let checkpoint = reader.u64()?;
        let msn_max = decode_msn(&mut reader)?;
        let birth = decode_msn(&mut reader)?;
        reader.skip(32)?;
        let range = decode_range(&mut reader)?;
        let count = reader.count(PartEntry::ENCODED_LENGTH)?;
        let mut parts = Vec::with_capacity(count);
        for _ in 0..count {
            parts.push(PartEntry::decode(&mut reader)?);
        }
        let body = NodeBody::decode(&mut reader, kind, count)?;
        let header =
            Self { volume, tree, node, generation, height, checkpoint, msn_max, birth, range, parts, body };
        header.check((bytes.len() / BLOCK_LENGTH) as u64)?;
        Ok(header)
    }

    /// Bytes of the whole image, from the header's first byte to the end of the last part.
    pub fn image_length(&self, header_length: u32) -> u64 {
        let parts = self.parts.iter().map(|part| part.end_block() * BLOCK_LENGTH as u64);
        parts.fold(header_length.into(), u64::max)
    }

    /// What its edges lead to, which may be nothing.
    pub fn children(&self) -> impl Iterator<Item = NodeId> {
        let edges = match &self.body {
            NodeBody::Leaf { .. } => &[][..],
            NodeBody::Interior { edges, .. } => edges,
        };
        edges.iter().map(|edge| edge.child)
    }

    fn first_part_block(&self) -> Option<u64> {
        self.parts.iter().find(|part| part.stored_length > 0).map(|part| part.offset.into())
    }

    /// FMT-5 to FMT-7 and FMT-24, with a header of so many blocks.
    fn check(&self, header_blocks: u64) -> Result<(), FormatError> {
        let wrong =
            |field, found, expected| Err(FormatError::Field { structure: NODE, field, found, expected });
        if self.node.is_empty() {
            return wrong("node id", 0, "above 0");
        }
        let raw: u64 = self.parts.iter().map(|part| u64::from(part.raw_length)).sum();
        if raw > IMAGE_LENGTH_MAX.into() {
            return wrong("raw length of all parts", raw, "at most 1 GiB (FMT-24)");
        }
        let mut end = header_blocks;
        for part in self.parts.iter().filter(|part| part.stored_length > 0) {
            if u64::from(part.offset) < end {
                return wrong(
                    "offset of a part",
                    part.offset.into(),
                    "behind the header and the part before (FMT-7)",
                );
            }
            end = part.end_block();
        }
        match &self.body {
            NodeBody::Leaf { first_keys } => {
                if self.height != 0 {
                    return wrong("height of a leaf", self.height.into(), "0");
                }
                if first_keys.len() != self.parts.len() {
                    return wrong("first keys", first_keys.len() as u64, "one per part (FMT-5)");
                }
                if self.parts.iter().any(|part| part.stored_length == 0) {
                    return wrong("stored length of a leaf's part", 0, "above 0 (FMT-7)");
                }
                if let Some(at) = first_fall(first_keys) {
                    return wrong("first key", at, "above the one before (FMT-6)");
                }
            }
            NodeBody::Interior { pivots, edges } => {
                if self.height == 0 {
                    return wrong("height of an interior node", 0, "above 0");
                }
                if edges.len() != self.parts.len() || edges.len() != pivots.len() + 1 {
                    return wrong("edges", edges.len() as u64, "one per part, one more than pivots (FMT-5)");
                }
                if let Some(at) = first_fall(pivots) {
                    return wrong("pivot", at, "above the one before (FMT-6)");
                }
            }
        }
        Ok(())
    }
}

/// Place of the first item that is not above the one before.
fn first_fall<T: Ord>(items: &[T]) -> Option<u64> {
    items.windows(2).position(|pair| pair[0] >= pair[1]).map(|at| at as u64 + 1)
}

impl NodeBody {
    fn encode(&self, writer: &mut Writer) {
        match self {
            Self::Leaf { first_keys } => first_keys.iter().for_each(|key| writer.sized_bytes(key)),
            Self::Interior { pivots, edges } => {
                pivots.iter().for_each(|pivot| encode_bound(writer, pivot));
                edges.iter().for_each(|edge| edge.encode(writer));
            }
        }
    }

    /// The number of keys, pivots and edges follows from that of the parts (FMT-5).
    fn decode(reader: &mut Reader<'_>, kind: u8, parts: usize) -> Result<Self, FormatError> {
        match kind {
            LEAF => {
                reader.check_count(parts as u32, 4)?;
                let mut first_keys = Vec::with_capacity(parts);
                for _ in 0..parts {
                    first_keys.push(reader.sized_bytes()?);
                }
                Ok(Self::Leaf { first_keys })
            }
            INTERIOR => {
                if parts == 0 {
                    return Err(reader.wrong("edges", 0, "at least one"));
                }
                reader.check_count(parts as u32, Edge::ENCODED_LENGTH_MIN)?;
                let mut pivots = Vec::with_capacity(parts - 1);
                for _ in 1..parts {
                    pivots.push(decode_bound(reader)?);
                }
                let mut edges = Vec::with_capacity(parts);
                for _ in 0..parts {
                    edges.push(Edge::decode(reader)?);
                }
                Ok(Self::Interior { pivots, edges })
            }
            other => Err(reader.wrong("kind of node", other.into(), "1 or 2")),
        }
    }
}

impl fmt::Display for NodeHeader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { node, generation, tree, height, checkpoint, .. } = self;
        writeln!(f, "node {} generation {generation} of the {tree:?} tree, height {height}", node.0)?;
        writeln!(
            f,
            "  written for checkpoint {checkpoint}, newest message {}, born {}",
            self.msn_max, self.birth
        )?;
        writeln!(f, "  keys {}", self.range)?;
        match &self.body {
            NodeBody::Leaf { first_keys } => {
                for (part, key) in self.parts.iter().zip(first_keys) {
                    writeln!(f, "  from \"{}\": {part}", key.escape_ascii())?;
                }
            }
            NodeBody::Interior { pivots, edges } => {
                for (i, (part, edge)) in self.parts.iter().zip(edges).enumerate() {
                    if i > 0 {
                        writeln!(f, "  pivot {}", pivots[i - 1])?;
                    }
                    writeln!(f, "  {edge}")?;
                    writeln!(f, "    {part}")?;
                }
            }
        }
        Ok(())
    }
}
