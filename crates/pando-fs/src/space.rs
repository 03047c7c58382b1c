//! Holes and copies: fallocate, lseek for data and holes, copy_file_range.

use bytes::Bytes;
use pando_engine::{Batch, Bound, ScanLimit};

use crate::file::{BLOCK, Edit, SIZE_MAX, check_regular, check_size};
use crate::inode::{State, States};
use crate::operations::{AllocateMode, InodeNumber, Seek};
use crate::schema::{Record, key};
use crate::{Error, FileSystem, Result};

/// Most bytes copied by one call.
const COPY_MAX: u64 = 1 << 20;

/// Fewest bytes that are shared instead of copied.
const SHARED_MIN: u64 = 16 << 10;

/// Most units that one call shares.
const UNITS_MAX: usize = 16;

/// Stretches of a file whose block numbers, and no others, begin with so many bytes: what can be shared with the same stretch of
/// another file by one clone of a range of keys.
const UNITS: [(usize, u64); 3] = [(5, BLOCK << 24), (6, BLOCK << 16), (7, BLOCK << 8)];

/// A stretch of a file that is shared, up to `end`.
pub(crate) struct Unit {
    /// What its block numbers begin with.
    pub(crate) prefix: Bytes,
    end: u64,
}

impl Unit {
    /// Where it ends in the file.
    pub(crate) fn end(&self) -> u64 {
        self.end
    }
}

/// The units from `offset` on that make up as much as possible of the range. `to_the_end` if nothing that is to stay lies
/// behind it in either file. None where a copy is better.
fn units(offset: u64, end: u64, to_the_end: bool) -> Vec<Unit> {
    let mut units: Vec<Unit> = Vec::new();
    let (mut at, mut least) = (offset, 0);
    while at < end && units.len() < UNITS_MAX {
        // Not smaller than the one before: the next call goes on at a border of large ones.
        let fits = |(_, bytes): &&(usize, u64)| {
            at.is_multiple_of(*bytes) && (at + bytes <= end || to_the_end) && *bytes >= least
        };
        let Some((length, bytes)) = UNITS.iter().find(fits) else { break };
        least = *bytes;
        let prefix = Bytes::copy_from_slice(&(at / BLOCK).to_be_bytes()[..*length]);
        at = (at + bytes).min(end);
        units.push(Unit { prefix, end: at });
    }
    units
}

/// Bytes from `offset` to where the next unit can begin, one call's worth at most: the next call shares from there.
fn to_next_unit(offset: u64) -> u64 {
    let least = UNITS.map(|(_, bytes)| bytes).into_iter().min().unwrap_or(COPY_MAX);
    (least - offset % least).min(COPY_MAX)
}

/// Bytes that a range of a file lacks at least: what lies behind its end, and what its blocks, all of them in the range, would leave of the rest.
fn missing(record: &Record, offset: u64, end: u64) -> u64 {
    let behind = end.saturating_sub(offset.max(record.size));
    if !record.is_sparse() {
        return behind;
    }
    let inside = end.min(record.size).div_ceil(BLOCK).saturating_sub(offset / BLOCK);
    behind.saturating_add(inside.saturating_sub(record.blocks).saturating_mul(BLOCK))
}

impl FileSystem {
    pub(crate) fn allocate_range(
        &self,
        number: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
        kill_set_id: bool,
    ) -> Result<()> {
        let inode = self.writable_inode(number)?;
        check_regular(&inode)?;
        if length == 0 {
            return Err(Error::Invalid);
        }
        let end = check_size(offset.checked_add(length))?;
        let epoch = self.for_change()?;
        let mut state = inode.write()?;
        let (key, prefix) = inode.key_and_data_prefix(*epoch, &state.record)?;
        let mut edit = Edit::new(state.record.clone(), prefix);
        let grows = match mode {
            AllocateMode::Allocate { keep_size } => {
                // Nothing is reserved, but what certainly will not fit is refused.
                self.store.admit(missing(&state.record, offset, end))?;
                !keep_size
            }
            AllocateMode::PunchHole => {
                // Zeros in a part of a block may take space.
                if end >= state.record.size || end.is_multiple_of(BLOCK) {
                    edit.batch = Batch::reclaiming();
                }
                edit.punch(offset, end);
                false
            }
            AllocateMode::ZeroRange { keep_size } => {
                edit.punch(offset, end);
                !keep_size
            }
        };
        if grows && end > edit.record.size {
            edit.set_size(end);
        }
        edit.touch(self.now());
        let replace = kill_set_id && edit.kill_privileges();
        let (batch, record) = edit.finish(key, replace);
        self.store.apply(batch).map_err(Error::of_one_path)?;
        state.set_record(record);
        Ok(())
    }

    pub(crate) fn seek_file(&self, number: InodeNumber, offset: u64, what: Seek) -> Result<u64> {
        let inode = self.inode(number)?;
        check_regular(&inode)?;
        let epoch = self.namespace.read();
        let mut state = inode.write()?;
        let size = state.record.size;
        if offset >= size {
            return Err(Error::NoData);
        }
        if !state.record.is_sparse() {
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let prefix = inode.data_prefix(*epoch, &state.record)?;
        match what {
            Seek::Data => self.seek_data(&prefix, offset, &mut state),
            Seek::Hole => {
                let hole = self.seek_hole(&prefix, offset / BLOCK, &mut state)?;
                Ok(offset.max(hole * BLOCK).min(size))
            }
        }
    }

    fn seek_data(&self, prefix: &[u8], offset: u64, state: &mut State) -> Result<u64> {
        let first = offset / BLOCK;
        let from = state.searches.start(Seek::Data, first);
        let mut range = Some(key::block_range(prefix, from, state.record.size.div_ceil(BLOCK)));
        while let Some(part) = range {
            let scan = self.scan_blocks(prefix, &part, ScanLimit { entries: 1, bytes: 1 })?;
            let found = scan.entries.first().and_then(|(data_key, _)| key::block_of(prefix, data_key));
            if let Some(block) = found {
                return Ok(offset.max(block * BLOCK));
            }
            range = scan.rest;
            if let Some(next) = range.as_ref().and_then(|rest| key::block_behind(prefix, &rest.lower)) {
                state.searches.note(Seek::Data, first..next.max(from));
            }
        }
        Err(Error::NoData)
    }

    /// The first block from `first` on that is not there.
    fn seek_hole(&self, prefix: &[u8], first: u64, state: &mut State) -> Result<u64> {
        let mut expected = state.searches.start(Seek::Hole, first);
        let mut range = Some(key::block_range(prefix, expected, state.record.size.div_ceil(BLOCK)));
        while let Some(part) = range {
            let scan = self.scan_blocks(prefix, &part, ScanLimit { entries: 1024, bytes: usize::MAX })?;
            for (data_key, _) in &scan.entries {
                if key::block_of(prefix, data_key) != Some(expected) {
                    return Ok(expected);
                }
                expected += 1;
            }
            state.searches.note(Seek::Hole, first..expected);
            range = scan.rest;
            // Nothing is there up to where the rest begins, and what is behind it says nothing more.
            let border = Bound::before(key::block_key(prefix, expected));
            if range.as_ref().is_some_and(|rest| rest.lower > border) {
                return Ok(expected);
            }
        }
        Ok(expected)
    }

    pub(crate) fn copy_file_range(
        &self,
        from: InodeNumber,
        from_offset: u64,
        to: InodeNumber,
        to_offset: u64,
        length: u64,
        kill_set_id: bool,
    ) -> Result<u64> {
        let (source, target) = (self.inode(from)?, self.writable_inode(to)?);
        check_regular(&source)?;
        check_regular(&target)?;
        let length = length.min(SIZE_MAX);
        if from == to
            && from_offset < to_offset.saturating_add(length)
            && to_offset < from_offset.saturating_add(length)
        {
            return Err(Error::Invalid);
        }
        let epoch = self.for_change()?;
        let mut states = States::lock([&source, &target]);
        states.check_attached(&source)?;
        states.check_attached(&target)?;
        let record = states.record(&source);
        let length = length.min(record.size.saturating_sub(from_offset));
        let is_in_place = from_offset == to_offset && length >= SHARED_MIN;
        let whole = if is_in_place {
            let end = from_offset + length;
            units(from_offset, end, end == record.size && states.record(&target).size <= end)
        } else {
            Vec::new()
        };
        let from = source.data_prefix(*epoch, record)?;
        let old = states.record(&target).clone();
        let (key, to) = target.key_and_data_prefix(*epoch, &old)?;
        let mut edit = Edit::new(old, to);
        let length = if let Some(last) = whole.last() {
            edit.share(from_offset, &whole, record, &from);
            last.end - from_offset
        } else {
            let most = if is_in_place { to_next_unit(from_offset) } else { COPY_MAX };
            let length = length.min(most).min(self.write_bytes_max(&edit.prefix));
            check_size(to_offset.checked_add(length))?;
            if length == 0 {
                return Ok(0);
            }
            let runs_max = self.write_runs_max(&edit.prefix);
            edit.write_pieces(to_offset, self.pieces(&from, record.size, from_offset, length)?, runs_max)
        };
        edit.touch(self.now());
        let replace = kill_set_id && edit.kill_privileges();
        let (batch, record) = edit.finish(key, replace);
        self.store.apply(batch).map_err(Error::of_one_path)?;
        states.set_record(&target, record);
        Ok(length)
    }
}
