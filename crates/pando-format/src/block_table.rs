//! The block table: from node ids to places on the device.
//!
//! Table pages hold the entries of 64 consecutive ids each; index pages of 128 pointers stand above them. Pages are
//! written by copy on write: a checkpoint writes the table pages that changed and the index pages above them, and the
//! superblock points at the topmost. A page's length varies, in units of 4 KiB; its pointer says how long it is.
//!
//! * FMT-18 the extents of an entry add up to the length of its node's image, in the image's order.
//! * FMT-24 an image has at most 1 GiB, also before it is compressed.
//! * FMT-19 node id n is in table page n / 64; the page above page p is p / 128, on every level.

use std::fmt;

use bytes::Bytes;

use crate::codec::{BLOCK_LENGTH, Reader, Writer};
use crate::error::{FormatError, Structure};
use crate::extent::{Extent, Pointer};
use crate::head::{self, VolumeId};
use crate::key_codec::{decode_height, decode_tree};
use crate::{NodeId, Tree};

/// Node ids in a table page.
pub const ENTRIES_PER_PAGE: usize = 64;
/// Pointers in an index page.
pub const POINTERS_PER_PAGE: usize = 128;
/// Most extents of one node image.
pub const EXTENTS_MAX: usize = 8;
/// The longest page, in bytes: what a pointer to one may claim.
pub const PAGE_LENGTH_MAX: usize = {
    let entry = ENTRY_LENGTH_MIN + 2 * EXTENTS_MAX * Extent::ENCODED_LENGTH;
    (head::HEAD_LENGTH + PAGE_FIELDS_LENGTH + ENTRIES_PER_PAGE * entry).next_multiple_of(BLOCK_LENGTH)
};

/// Level, reserved bytes, page number, checkpoint, and the bitmap of a table page.
const PAGE_FIELDS_LENGTH: usize = 8 + 8 + 8 + 8;
const ENTRY_LENGTH_MIN: usize = 36;

const RECLAIM: u16 = 1;

/// Where a node lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockEntry {
    /// Which writing of the node; its header must say the same.
    pub generation: u64,
    /// Where the image lies, one extent behind the other, cut at borders of parts.
    pub extents: Vec<Extent>,
    /// A second copy of the image; reserved, empty.
    pub second_copy: Vec<Extent>,
    /// Bytes of the image.
    pub length: u32,
    /// Bytes of the header in front of it.
    pub header_length: u32,
    /// [`head::stored_checksum`] of the header.
    pub header_checksum: u64,
    /// Edges, gotos and roots that name the node (BT-4).
    pub references: u32,
    /// Nothing names the node any more, but its children still have to be counted down (BT-4).
    pub pending_reclamation: bool,
    /// The node's height.
    pub height: u8,
    /// The index it belongs to.
    pub tree: Tree,
}

impl BlockEntry {
    fn encode(&self, writer: &mut Writer) {
        writer.u64(self.generation);
        writer.u64(self.header_checksum);
        writer.u32(self.length);
        writer.u32(self.header_length);
        writer.u32(self.references);
        writer.u16(if self.pending_reclamation { RECLAIM } else { 0 });
        writer.u8(self.height);
        writer.u8(self.tree as u8);
        writer.u8(self.extents.len() as u8);
        writer.u8(self.second_copy.len() as u8);
        writer.u16(0);
        self.extents.iter().chain(&self.second_copy).for_each(|extent| extent.encode(writer));
    }

    fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (generation, header_checksum) = (reader.u64()?, reader.u64()?);
        let (length, header_length, references) = (reader.u32()?, reader.u32()?, reader.u32()?);
        let flags = reader.u16()?;
        if flags & !RECLAIM != 0 {
            return Err(reader.wrong("flags of a block entry", flags.into(), "0 or 1"));
        }
        let (height, tree) = (decode_height(reader)?, decode_tree(reader)?);
        let (count, second) = (reader.u8()?, reader.u8()?);
        reader.skip(2)?;
        let extents = decode_extents(reader, count)?;
        let second_copy = decode_extents(reader, second)?;
        let entry = Self {
            generation,
            extents,
            second_copy,
            length,
            header_length,
            header_checksum,
            references,
            pending_reclamation: flags & RECLAIM != 0,
            height,
            tree,
        };
        entry.check(reader)?;
        Ok(entry)
    }

    /// FMT-18, FMT-24, and a header inside the image.
    fn check(&self, reader: &Reader<'_>) -> Result<(), FormatError> {
        if self.length > IMAGE_LENGTH_MAX {
            return Err(reader.wrong("length of a node", self.length.into(), "at most 1 GiB (FMT-24)"));
        }
        let sum = |extents: &[Extent]| extents.iter().map(|extent| u64::from(extent.length)).sum::<u64>();
        let second_fits = self.second_copy.is_empty() || sum(&self.second_copy) == u64::from(self.length);
        if sum(&self.extents) != u64::from(self.length) || !second_fits {
            return Err(reader.wrong("length of a node", self.length.into(), "that of its extents (FMT-18)"));
        }
        let header = self.header_length;
        let fits = header > 0 && header <= self.length.min(head::SEALED_LENGTH_MAX);
        if !fits || !(header as usize).is_multiple_of(BLOCK_LENGTH) {
            return Err(reader.wrong(
                "header length of a node",
                header.into(),
                "blocks of the image, at most 64 MiB",
            ));
        }
        Ok(())
    }
}

/// Bytes of a node's image, at most (FMT-24).
pub const IMAGE_LENGTH_MAX: u32 = 1 << 30;

fn decode_extents(reader: &mut Reader<'_>, count: u8) -> Result<Vec<Extent>, FormatError> {
    if usize::from(count) > EXTENTS_MAX {
        return Err(reader.wrong("extents of a node", count.into(), "at most 8"));
    }
    let mut extents = Vec::with_capacity(count.into());
    for _ in 0..count {
        let extent = Extent::decode(reader)?;
        if extent.length == 0 {
            return Err(reader.wrong("extent length", 0, "above 0"));
        }
        extents.push(extent);
    }
    Ok(extents)
}

/// The entries of 64 consecutive node ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TablePage {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// Which ids: from 64 times this number on.
    pub number: u64,
    /// The checkpoint it was written for.
    pub checkpoint: u64,
    /// One place per id; `None` for a free one.
    pub entries: Box<[Option<BlockEntry>; ENTRIES_PER_PAGE]>,
}

impl TablePage {
    /// A page of free ids.
    pub fn new(volume: VolumeId, number: u64) -> Self {
        Self { volume, number, checkpoint: 0, entries: Box::new([const { None }; ENTRIES_PER_PAGE]) }
    }

    /// The page's bytes, a multiple of 4 KiB. [`head::stored_checksum`] of them goes into the pointer.
    ///
    /// # Panics
    /// If FMT-18 does not hold, or an entry has more than [`EXTENTS_MAX`] extents.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer = start_page(Structure::TablePage, &self.volume, 0, self.number, self.checkpoint);
        let present =
            |bitmap, (i, entry): (usize, &Option<BlockEntry>)| bitmap | u64::from(entry.is_some()) << i;
        writer.u64(self.entries.iter().enumerate().fold(0, present));
        for entry in self.entries.iter().flatten() {
            assert!(
                entry.extents.len() <= EXTENTS_MAX && entry.second_copy.len() <= EXTENTS_MAX,
                "too many extents"
            );
            let check = entry.check(&Reader::new(Structure::TablePage, &Bytes::new()));
            assert!(check.is_ok(), "an entry that may not be written: {check:?}");
            entry.encode(&mut writer);
        }
        head::seal(Structure::TablePage, writer, BLOCK_LENGTH)
    }

    /// The page at the front of `bytes`, verified.
    pub fn decode(bytes: &Bytes) -> Result<Self, FormatError> {
        let bytes = head::unseal(Structure::TablePage, bytes)?;
        let (mut reader, volume) = head::fields(Structure::TablePage, &bytes)?;
        let (level, number, checkpoint) = decode_page_fields(&mut reader)?;
        if level != 0 {
            return Err(reader.wrong("level of a table page", level.into(), "0"));
        }
        if number > u64::MAX / ENTRIES_PER_PAGE as u64 {
            return Err(reader.wrong("number of a table page", number, "below 2^58"));
        }
        let bitmap = reader.u64()?;
        let mut page = Self { checkpoint, ..Self::new(volume, number) };
        for (i, entry) in page.entries.iter_mut().enumerate() {
            if bitmap & (1 << i) != 0 {
                *entry = Some(BlockEntry::decode(&mut reader)?);
            }
        }
        Ok(page)
    }

    /// The id of the entry in place `i`.
    pub fn node(&self, i: usize) -> NodeId {
        NodeId(self.number * ENTRIES_PER_PAGE as u64 + i as u64)
    }
}

/// Pointers to 128 pages of the level below.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexPage {
    /// The volume it belongs to.
    pub volume: VolumeId,
    /// 1 if the pages below are table pages.
    pub level: u8,
    /// Which pages are below: from 128 times this number on.
    pub number: u64,
    /// The checkpoint it was written for.
    pub checkpoint: u64,
    /// One place per page below; `None` where all its ids are free.
    pub children: Box<[Option<Pointer>; POINTERS_PER_PAGE]>,
}

impl IndexPage {
    /// A page that points nowhere.
    pub fn new(volume: VolumeId, level: u8, number: u64) -> Self {
        Self { volume, level, number, checkpoint: 0, children: Box::new([None; POINTERS_PER_PAGE]) }
    }

    /// The page's bytes: one block of 4 KiB.
    pub fn encode(&self) -> Vec<u8> {
        let mut writer =
            start_page(Structure::IndexPage, &self.volume, self.level, self.number, self.checkpoint);
        self.children.iter().for_each(|child| Pointer::encode(child.as_ref(), &mut writer));
        head::seal(Structure::IndexPage, writer, BLOCK_LENGTH)
    }

    /// The page at the front of `bytes`, verified.
    pub fn decode(bytes: &Bytes) -> Result<Self, FormatError> {
        let bytes = head::unseal(Structure::IndexPage, bytes)?;
        let (mut reader, volume) = head::fields(Structure::IndexPage, &bytes)?;
        let (level, number, checkpoint) = decode_page_fields(&mut reader)?;
        if level == 0 {
            return Err(reader.wrong("level of an index page", 0, "above 0"));
        }
        let mut page = Self { checkpoint, ..Self::new(volume, level, number) };
        for child in page.children.iter_mut() {
            *child = Pointer::decode(&mut reader)?;
            if let Some(pointer) = child.filter(|pointer| pointer.extent.length as usize > PAGE_LENGTH_MAX) {
                return Err(reader.wrong("length of a page", pointer.extent.length.into(), "that of a page"));
            }
        }
        Ok(page)
    }
}

fn start_page(structure: Structure, volume: &VolumeId, level: u8, number: u64, checkpoint: u64) -> Writer {
    let mut writer = head::start(structure, volume);
    writer.u8(level);
    writer.zeros(7);
    writer.u64(number);
    writer.u64(checkpoint);
    writer
}

fn decode_page_fields(reader: &mut Reader<'_>) -> Result<(u8, u64, u64), FormatError> {
    let level = reader.u8()?;
    reader.skip(7)?;
    Ok((level, reader.u64()?, reader.u64()?))
}

impl fmt::Display for BlockEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { generation, length, header_length, references, height, tree, .. } = self;
        write!(
            f,
            "{tree:?} height {height} generation {generation}, {length} bytes ({header_length} header), "
        )?;
        write!(f, "{references} references")?;
        if self.pending_reclamation {
            write!(f, ", pending reclamation")?;
        }
        self.extents.iter().try_for_each(|extent| write!(f, ", {extent}"))
    }
}

impl fmt::Display for TablePage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "block table page {}, checkpoint {}", self.number, self.checkpoint)?;
        for (i, entry) in self.entries.iter().enumerate() {
            if let Some(entry) = entry {
                writeln!(f, "  node {}: {entry}", self.node(i).0)?;
            }
        }
        Ok(())
    }
}

impl fmt::Display for IndexPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { level, number, checkpoint, .. } = self;
        writeln!(f, "block table index page {number} of level {level}, checkpoint {checkpoint}")?;
        for (i, child) in self.children.iter().enumerate() {
            if let Some(child) = child {
                writeln!(f, "  {i}: {child}")?;
            }
        }
        Ok(())
    }
}
