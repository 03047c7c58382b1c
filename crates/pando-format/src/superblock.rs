//! The superblock: where everything of a volume is found.
//!
//! Two copies of 4 KiB, 64 KiB from either end of the device, written in turn: a checkpoint overwrites the older one
//! and only after everything it names is durable. The newer of the two that are whole is the volume's state.
//!
//! * FMT-13 the checkpoint with number c is written to slot c mod 2, so two copies never have the same number.
//! * FMT-21 slot 0 says where slot 1 is, also when it is torn: a device may have grown, and hold superblocks of other volumes.

use std::fmt;
use std::ops::{Range, RangeInclusive};

use bytes::Bytes;

use crate::codec::{BLOCK_LENGTH, Reader};
use crate::error::{FormatError, Structure};
use crate::extent::{Pointer, Region};
use crate::head::{self, VolumeId};
use crate::key_codec::decode_height;
use crate::version::Features;
use crate::{Compression, Lsn, NodeId};

const SUPERBLOCK: Structure = Structure::Superblock;

/// Bytes of an encoded superblock.
pub const SUPERBLOCK_LENGTH: usize = BLOCK_LENGTH;
/// Bytes left free at either end of the device, for boot code and for other tools' marks.
pub const MARGIN_LENGTH: u64 = 64 << 10;
/// The longest label, in bytes.
pub const LABEL_LENGTH_MAX: usize = 255;
/// Most regions that nodes may lie in.
pub const NODE_REGIONS_MAX: usize = 8;

/// Bytes that a node may be meant to have. Four nodes' worth may wait at one edge of a root, which is one part.
pub const NODE_BYTES: RangeInclusive<u32> = 4 << 10..=8 << 20;
/// The least that a basement node may be meant to have: of fewer, each key would be one.
pub const BASEMENT_BYTES_MIN: u32 = 256;

/// The least fan-out. Of fewer children two nodes could never be joined without being cut again.
pub const FANOUT_MIN: u32 = 4;

/// The smallest log, in bytes. In one of few blocks no record finds room, and whoever writes waits for ever.
pub const LOG_LENGTH_MIN: u64 = 256 << 10;

/// Bytes of a region in the list of them.
const REGION_LENGTH: usize = 24;

/// Where the capacity lies: behind the features and the label, in the first sector of the block.
const CAPACITY_OFFSET: usize = head::HEAD_LENGTH + 3 * 8 + 1 + LABEL_LENGTH_MAX;

/// What changes from one writing of a volume's superblock to the next: its checksum, whether it is clean, and all from the epoch to the
/// snapshots, next node and generation, when it was written, and the ballast.
const CHANGING: [Range<usize>; 5] = [16..24, 341..342, 376..528, 536..544, 744..752];
const CHECKPOINT_OFFSET: usize = 384;
const NEXT_GENERATION_OFFSET: usize = 520;

/// Where both superblocks of a device of `capacity` bytes lie, in bytes.
pub fn superblock_offsets(capacity: u64) -> [u64; 2] {
    let block = BLOCK_LENGTH as u64;
    [MARGIN_LENGTH, capacity.saturating_sub(MARGIN_LENGTH) / block * block]
}

/// What a slot holds: `E` if it cannot be read.
pub type Slot<E> = Result<Result<Superblock, FormatError>, E>;

/// Both slots of the volume on a device of `length` bytes, with their offsets (FMT-21). `read` gives the block at an offset.
pub fn read_slots<E>(length: u64, mut read: impl FnMut(u64) -> Result<Bytes, E>) -> [(u64, Slot<E>); 2] {
    let [start, end] = superblock_offsets(length);
    let mut block_at = |offset: u64| {
        let is_inside = offset.checked_add(SUPERBLOCK_LENGTH as u64).is_some_and(|end| end <= length);
        if is_inside { read(offset) } else { Ok(Bytes::new()) }
    };
    let block = block_at(start);
    // Also of a torn block: each write of the slot says the same in its first sector.
    let capacity = block.as_ref().ok().and_then(|block| block.get(CAPACITY_OFFSET..)?.first_chunk());
    let said = capacity.map(|bytes| superblock_offsets(u64::from_le_bytes(*bytes))[1]);
    let first = block.map(|block| Superblock::decode(&block));
    let whole = first.as_ref().ok().and_then(|first| first.as_ref().ok());
    let mut second_at =
        |offset| block_at(offset).map(|block| Superblock::decode(&block)?.expect_in_slot_1(offset, whole));
    let second = match said.map(|offset| (offset, second_at(offset))) {
        Some(second) if whole.is_some() || !matches!(second.1, Ok(Err(_))) => second,
        _ => (end, second_at(end)),
    };
    [(start, first), second]
}

/// A tree: its root and how high it stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Root {
    /// Never [`NodeId::EMPTY`] on a device: an empty tree is a leaf.
    pub node: NodeId,
    /// 0 if the root is a leaf.
    pub height: u8,
}

/// One pair in the table of roots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RootPair {
    /// Root of the metadata index.
    pub metadata: Root,
    /// Root of the data index.
    pub data: Root,
}

/// Where replay starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogPosition {
    /// Byte offset in the log region, a multiple of 4 KiB.
    pub offset: u64,
    /// Sequence of the batch expected there.
    pub sequence: u64,
    /// Checksum of the batch before it: what the batch there must name as its predecessor.
    pub chain: u64,
}

/// The root of the block table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TableRoot {
    /// Levels of index pages above the table pages: 0 if `page` is a table page.
    pub levels: u8,
    /// The topmost page; `None` for an empty table.
    pub page: Option<Pointer>,
}

/// All that a superblock says.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Superblock {
    /// Names the volume.
    pub volume: VolumeId,
    /// What it uses.
    pub features: Features,
    /// Name for people, at most [`LABEL_LENGTH_MAX`] bytes.
    pub label: String,
    /// Bytes of the device the volume uses.
    pub capacity: u64,
    /// Most bytes of a leaf.
    pub node_bytes: u32,
    /// Bytes of a basement node.
    pub basement_bytes: u32,
    /// Most children of an interior node.
    pub fanout: u32,
    /// How parts are compressed that are written from now on.
    pub compression: Compression,
    /// The log was empty and everything in the trees when this was written.
    pub clean: bool,
    /// Which device of the volume this is: 0.
    pub device: u16,
    /// How many devices the volume has: 1.
    pub device_count: u16,
    /// The log.
    pub log: Region,
    /// Where nodes and pages of the block table lie; at most [`NODE_REGIONS_MAX`].
    pub node_regions: Vec<Region>,
    /// Counts the times the volume was opened for writing; each batch of the log carries it.
    pub epoch: u64,
    /// Counts the checkpoints.
    pub checkpoint: u64,
    /// Every record up to this one is in the trees.
    pub cut: Lsn,
    /// Where replay starts: not later than the first record behind the cut.
    pub replay: LogPosition,
    /// The block table.
    pub table: TableRoot,
    /// The live trees.
    pub live: RootPair,
    /// Table of the snapshots' roots; reserved, `None`.
    pub snapshots: Option<Pointer>,
    /// The least node id never used.
    pub next_node: u64,
    /// Above all node generations used up to this checkpoint, with a margin above those used until the next.
    pub next_generation: u64,
    /// When the volume was formatted: nanoseconds since 1970 UTC.
    pub created: u64,
    /// When this checkpoint was written: nanoseconds since 1970 UTC.
    pub written: u64,
    /// Bytes of values in leaves that deletes above them have deleted, about: a hint.
    pub ballast: u64,
}

impl Superblock {
    /// Which of the two places this one goes to (FMT-13).
    pub fn slot(&self) -> usize {
        (self.checkpoint % 2) as usize
    }

    /// The block's bytes.
    ///
    /// # Panics
    /// If the label or the list of regions is too long.
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.label.len() <= LABEL_LENGTH_MAX, "a label is at most 255 bytes");
        assert!(self.node_regions.len() <= NODE_REGIONS_MAX, "at most 8 node regions");
        let mut writer = head::start(SUPERBLOCK, &self.volume);
        writer.u64(self.features.compatible);
        writer.u64(self.features.read_only_compatible);
        writer.u64(self.features.incompatible);
        writer.u8(self.label.len() as u8);
        writer.raw(self.label.as_bytes());
        writer.zeros(LABEL_LENGTH_MAX - self.label.len());
        writer.u64(self.capacity);
        writer.u32(self.node_bytes);
        writer.u32(self.basement_bytes);
        writer.u32(self.fanout);
        writer.u8(self.compression as u8);
        writer.u8(self.clean.into());
        writer.u16(self.device);
        writer.u16(self.device_count);
        writer.zeros(6);
        self.log.encode(&mut writer);
        writer.u64(self.epoch);
        writer.u64(self.checkpoint);
        writer.u64(self.cut.0);
        writer.u64(self.replay.offset);
        writer.u64(self.replay.sequence);
        writer.u64(self.replay.chain);
        writer.u8(self.table.levels);
        writer.zeros(7);
        Pointer::encode(self.table.page.as_ref(), &mut writer);
        for root in [&self.live.metadata, &self.live.data] {
            writer.u64(root.node.0);
            writer.u8(root.height);
            writer.zeros(7);
        }
        Pointer::encode(self.snapshots.as_ref(), &mut writer);
        writer.u64(self.next_node);
        writer.u64(self.next_generation);
        writer.u64(self.created);
        writer.u64(self.written);
        writer.length(self.node_regions.len());
        writer.zeros(4);
        self.node_regions.iter().for_each(|region| region.encode(&mut writer));
        writer.zeros((NODE_REGIONS_MAX - self.node_regions.len()) * REGION_LENGTH);
        writer.u64(self.ballast);
        head::seal(SUPERBLOCK, writer, SUPERBLOCK_LENGTH)
    }

    /// The superblock in a block, verified. Whether this version may use the volume is said by
    /// [`Features::access`], not here.
    pub fn decode(bytes: &Bytes) -> Result<Self, FormatError> {
        let bytes = head::unseal(SUPERBLOCK, bytes)?;
        let (mut reader, volume) = head::fields(SUPERBLOCK, &bytes)?;
        if bytes.len() != SUPERBLOCK_LENGTH {
            return Err(reader.wrong("length", bytes.len() as u64, "4096"));
        }
        let superblock = Self::decode_fields(&mut reader, volume)?;
        superblock.check(&reader)?;
        Ok(superblock)
    }

    fn decode_fields(reader: &mut Reader<'_>, volume: VolumeId) -> Result<Self, FormatError> {
        Ok(Self {
            volume,
            features: Features {
                compatible: reader.u64()?,
                read_only_compatible: reader.u64()?,
                incompatible: reader.u64()?,
            },
            label: decode_label(reader)?,
            capacity: reader.u64()?,
            node_bytes: reader.u32()?,
            basement_bytes: reader.u32()?,
            fanout: reader.u32()?,
            compression: decode_compression(reader)?,
            clean: decode_flag(reader)?,
            device: reader.u16()?,
            device_count: {
                let count = reader.u16()?;
                reader.skip(6)?;
                count
            },
            log: Region::decode(reader)?,
            epoch: reader.u64()?,
            checkpoint: reader.u64()?,
            cut: Lsn(reader.u64()?),
            replay: LogPosition { offset: reader.u64()?, sequence: reader.u64()?, chain: reader.u64()? },
            table: {
                let levels = reader.u8()?;
                reader.skip(7)?;
                TableRoot { levels, page: Pointer::decode(reader)? }
            },
            live: RootPair { metadata: decode_root(reader)?, data: decode_root(reader)? },
            snapshots: Pointer::decode(reader)?,
            next_node: reader.u64()?,
            next_generation: reader.u64()?,
            created: reader.u64()?,
            written: reader.u64()?,
            node_regions: decode_regions(reader)?,
            ballast: reader.u64()?,
        })
    }

    /// What a writer never writes, whatever the checksum says: places outside the device would be read and written.
    fn check(&self, reader: &Reader<'_>) -> Result<(), FormatError> {
        if !NODE_BYTES.contains(&self.node_bytes) {
            return Err(reader.wrong("node bytes", self.node_bytes.into(), "4 KiB to 8 MiB"));
        }
        if !(BASEMENT_BYTES_MIN..=self.node_bytes / 2).contains(&self.basement_bytes) {
            let expected = "256 to half of the node's bytes";
            return Err(reader.wrong("basement bytes", self.basement_bytes.into(), expected));
        }
        if self.fanout < FANOUT_MIN {
            return Err(reader.wrong("fan-out", self.fanout.into(), "at least 4"));
        }
        // Counting on from here must not come to an end.
        for (field, counter) in [
            ("epoch", self.epoch),
            ("checkpoint", self.checkpoint),
            ("cut", self.cut.0),
            ("replay sequence", self.replay.sequence),
            ("next node id", self.next_node),
            ("next generation", self.next_generation),
        ] {
            if counter >= 1 << 63 {
                return Err(reader.wrong(field, counter, "below 2^63"));
            }
        }
        if self.log.length < LOG_LENGTH_MIN {
            return Err(reader.wrong("length of the log region", self.log.length, "at least 256 KiB"));
        }
        let mut regions: Vec<_> = self.node_regions.iter().chain([&self.log]).collect();
        regions.sort_unstable_by_key(|region| region.offset);
        if let Some(region) = regions.iter().find(|region| region.device != 0) {
            return Err(reader.wrong("device of a region", region.device.into(), "0: a volume has one"));
        }
        if let Some(region) = regions.iter().find(|region| region.end() > self.capacity) {
            return Err(reader.wrong("end of a region", region.end(), "inside the device"));
        }
        let overlap = regions.windows(2).find(|pair| pair[0].end() > pair[1].offset);
        if let Some(pair) = overlap {
            return Err(reader.wrong("offset of a region", pair[1].offset, "behind the region before"));
        }
        for offset in superblock_offsets(self.capacity) {
            let end = offset + SUPERBLOCK_LENGTH as u64;
            if let Some(region) = regions.iter().find(|region| region.offset < end && offset < region.end()) {
                return Err(reader.wrong("offset of a region", region.offset, "clear of the superblocks"));
            }
        }
        if !self.replay.offset.is_multiple_of(BLOCK_LENGTH as u64) || self.replay.offset > self.log.length {
            return Err(reader.wrong("replay offset", self.replay.offset, "a block of the log region"));
        }
        Ok(())
    }

    /// FMT-21: it must lie where its capacity puts it, and slot 0, if that is whole, be of the same volume.
    fn expect_in_slot_1(self, offset: u64, slot_0: Option<&Self>) -> Result<Self, FormatError> {
        let wrong =
            |field, found, expected| FormatError::Field { structure: SUPERBLOCK, field, found, expected };
        if superblock_offsets(self.capacity)[1] != offset {
            return Err(wrong("capacity", self.capacity, "one that puts it where it lies"));
        }
        if slot_0.is_some_and(|slot_0| slot_0.volume != self.volume) {
            let id = u128::from_be_bytes(self.volume);
            return Err(wrong("volume id", (id >> 64) as u64, "that of slot 0"));
        }
        Ok(self)
    }

    /// Whether what lies in the other slot, and is no superblock, may be what a crash has left while it was written (DEV-3): sectors of the next
    /// superblock, and of the one before this. What was overwritten is not taken for that, and what has rotted seldom.
    pub fn may_be_torn_beside(&self, block: &[u8]) -> bool {
        // The first of a volume: the other slot has never been written to its end.
        if self.checkpoint == 1 {
            return true;
        }
        let mut expected = self.encode();
        if block.len() != expected.len() {
            return false;
        }
        CHANGING.into_iter().for_each(|range| expected[range.clone()].copy_from_slice(&block[range]));
        let u64_at =
            |offset: usize| block[offset..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes));
        // Only two sectors ever change. One is of a newer state than this, and one is not; generations may be as they were.
        let generation = u64_at(NEXT_GENERATION_OFFSET);
        let is_first_newer = u64_at(CHECKPOINT_OFFSET) > self.checkpoint;
        let is_second_newer = generation > self.next_generation;
        expected == block && (is_first_newer != is_second_newer || generation == self.next_generation)
    }

    /// The state of the volume, given what both slots hold: the newer of those that are whole.
    /// Fails with the error of the first slot if neither is.
    pub fn newest<E>(slots: [Result<Self, E>; 2]) -> Result<Self, E> {
        match slots {
            [Ok(a), Ok(b)] => Ok(if b.checkpoint > a.checkpoint { b } else { a }),
            [Ok(one), Err(_)] | [Err(_), Ok(one)] => Ok(one),
            [Err(error), Err(_)] => Err(error),
        }
    }
}

fn decode_label(reader: &mut Reader<'_>) -> Result<String, FormatError> {
    let length = usize::from(reader.u8()?);
    let bytes = reader.bytes(LABEL_LENGTH_MAX)?;
    String::from_utf8(bytes[..length].to_vec())
        .map_err(|error| reader.wrong("label", error.utf8_error().valid_up_to() as u64, "UTF-8"))
}

fn decode_compression(reader: &mut Reader<'_>) -> Result<Compression, FormatError> {
    let number = reader.u8()?;
    Compression::from_number(number).ok_or_else(|| reader.wrong("compression", number.into(), "0 to 2"))
}

fn decode_flag(reader: &mut Reader<'_>) -> Result<bool, FormatError> {
    match reader.u8()? {
        0 => Ok(false),
        1 => Ok(true),
        other => Err(reader.wrong("clean flag", other.into(), "0 or 1")),
    }
}

fn decode_root(reader: &mut Reader<'_>) -> Result<Root, FormatError> {
    let node = NodeId(reader.u64()?);
    let height = decode_height(reader)?;
    reader.skip(7)?;
    Ok(Root { node, height })
}

fn decode_regions(reader: &mut Reader<'_>) -> Result<Vec<Region>, FormatError> {
    let count = reader.u32()?;
    reader.skip(4)?;
    if count as usize > NODE_REGIONS_MAX {
        return Err(reader.wrong("node regions", count.into(), "at most 8"));
    }
    let regions = (0..count).map(|_| Region::decode(reader)).collect();
    reader.skip((NODE_REGIONS_MAX - count as usize) * REGION_LENGTH)?;
    regions
}

impl fmt::Display for Superblock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let volume = u128::from_be_bytes(self.volume);
        writeln!(f, "superblock of volume {volume:032x}, label \"{}\"", self.label.escape_debug())?;
        writeln!(f, "  features: {}", self.features)?;
        writeln!(f, "  capacity {} bytes, device {} of {}", self.capacity, self.device, self.device_count)?;
        let Self { node_bytes, basement_bytes, fanout, compression, .. } = self;
        writeln!(
            f,
            "  nodes {node_bytes} bytes, basement nodes {basement_bytes} bytes, fan-out {fanout}, {compression}"
        )?;
        writeln!(f, "  checkpoint {}, epoch {}, cut at record {}", self.checkpoint, self.epoch, self.cut.0)?;
        writeln!(
            f,
            "  created {} ns, written {} ns since 1970, clean {}",
            self.created, self.written, self.clean
        )?;
        writeln!(f, "  log region {}", self.log)?;
        let LogPosition { offset, sequence, chain } = self.replay;
        writeln!(f, "  replay from byte {offset:#x}, batch {sequence}, behind {chain:#018x}")?;
        for region in &self.node_regions {
            writeln!(f, "  node region {region}")?;
        }
        match &self.table.page {
            Some(page) => writeln!(f, "  block table at {page}, {} index levels", self.table.levels)?,
            None => writeln!(f, "  block table empty")?,
        }
        for (name, root) in [("metadata", self.live.metadata), ("data", self.live.data)] {
            writeln!(f, "  {name} root: node {} of height {}", root.node.0, root.height)?;
        }
        if let Some(snapshots) = &self.snapshots {
            writeln!(f, "  snapshots at {snapshots}")?;
        }
        writeln!(f, "  next node {}, next generation {}", self.next_node, self.next_generation)?;
        writeln!(f, "  deleted above leaves that still hold it: {} bytes", self.ballast)
    }
}

/// The fields end far before the block does; what is left is for later versions.
const _: () = {
    let fixed = head::HEAD_LENGTH
        + 24
        + 1
        + LABEL_LENGTH_MAX
        + 8
        + 12
        + 12
        + 24
        + 6 * 8
        + 8
        + 24
        + 32
        + 24
        + 32
        + 8
        + 8;
    assert!(fixed + NODE_REGIONS_MAX * REGION_LENGTH <= SUPERBLOCK_LENGTH);
};
