//! Data of regular files: read, write, and the edits they share with truncate, fallocate and copies.
//!
//! A block's value holds at most 4096 bytes and no padding: bytes it does not hold, and blocks without a key, are
//! zeros. No value reaches behind the file's size, and no block lies behind it (FS-1), so a file grows without a read.

use bytes::{Bytes, BytesMut};
use pando_engine::{BOUND_BYTES_MIN, Batch, Bound, KeyRange, Scan, ScanLimit, Tree};

use crate::inode::{Inode, State};
use crate::operations::{FileType, InodeNumber, WriteMode};
use crate::schema::record::FLAG_SPARSE;
use crate::schema::{Record, Timestamp, key};
use crate::space::Unit;
use crate::xattr::delete_lost_values;
use crate::{Error, FileSystem, Result};

/// Bytes in a block.
pub(crate) const BLOCK: u64 = 4096;
/// Largest size of a file.
pub(crate) const SIZE_MAX: u64 = i64::MAX as u64;

/// Keys in the record of a write: of the blocks at both ends and those between, of the file, and of an attribute that the write takes off.
const WRITE_KEYS_MAX: u64 = 5;

/// What holes are read from.
static ZEROS: [u8; 64 * 1024] = [0; 64 * 1024];

/// The extended attribute with the capabilities of a program.
pub(crate) const SECURITY_CAPABILITY: &[u8] = b"security.capability";

const SET_USER_ID: u32 = 0o4000;
pub(crate) const SET_GROUP_ID: u32 = 0o2000;
const GROUP_EXECUTE: u32 = 0o0010;

/// A stretch of a file.
pub(crate) enum Piece {
    Data(Bytes),
    /// So many zeros.
    Hole(u64),
}

/// `IsADirectory` or `Invalid` for all but regular files.
pub(crate) fn check_regular(inode: &Inode) -> Result<()> {
    match inode.file_type {
        FileType::Regular => Ok(()),
        FileType::Directory => Err(Error::IsADirectory),
        _ => Err(Error::Invalid),
    }
}

/// After so many blocks of a hole that is looked through for one that is there, beside damage, the damage is the answer.
const SINGLE_BLOCKS_MAX: usize = 1024;

impl FileSystem {
    pub(crate) fn read_file(&self, number: InodeNumber, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        let inode = self.inode(number)?;
        check_regular(&inode)?;
        let epoch = self.namespace.read();
        let state = inode.read()?;
        let prefix = inode.data_prefix(*epoch, &state.record)?;
        let mut out = Vec::new();
        for piece in self.pieces(&prefix, state.record.size, offset, length as u64)? {
            match piece {
                Piece::Data(bytes) => out.push(bytes),
                Piece::Hole(mut length) => {
                    while length > 0 {
                        let part = length.min(ZEROS.len() as u64);
                        out.push(Bytes::from_static(&ZEROS[..part as usize]));
                        length -= part;
                    }
                }
            }
        }
        Ok(out)
    }

    /// Data and holes of a range, cut at the file's size, back to back. The state of the file is locked.
    pub(crate) fn pieces(&self, prefix: &[u8], size: u64, offset: u64, length: u64) -> Result<Vec<Piece>> {
        let end = offset.saturating_add(length).min(size);
        let mut out = Vec::new();
        if offset >= end {
            return Ok(out);
        }
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let limit = ScanLimit { entries: (last - first) as usize, bytes: usize::MAX };
        let mut at = offset;
        let mut range: Option<KeyRange> = Some(key::block_range(prefix, first, last));
        while let Some(part) = range {
            let scan = self.scan_blocks(prefix, &part, limit)?;
            for (data_key, value) in scan.entries {
                let Some(block) = key::block_of(prefix, &data_key) else { continue };
                let start = (block * BLOCK).max(at);
                let stop = (block * BLOCK + value.len() as u64).min(end);
                if start < stop {
                    if at < start {
                        out.push(Piece::Hole(start - at));
                    }
                    let skip = (start - block * BLOCK) as usize;
                    out.push(Piece::Data(value.slice(skip..skip + (stop - start) as usize)));
                    at = stop;
                }
            }
            // A scan that ends because it has enough does not know that nothing more is there.
            range = scan.rest.filter(|_| at < end);
        }
        if at < end {
            out.push(Piece::Hole(end - at));
        }
        Ok(out)
    }

    /// A piece of the blocks in a range. Where damage is in the way of a scan, which needs what lies there whatever waits above, the next block alone: of
    /// one that was written since, messages say all. Of a hole they say it block by block, and one may have any number.
    pub(crate) fn scan_blocks(&self, prefix: &[u8], range: &KeyRange, limit: ScanLimit) -> Result<Scan> {
        let error = match self.store.scan(Tree::Data, range, limit) {
            Err(Error::Engine(error)) if error.is_unreadable() => error,
            scan => return scan,
        };
        let Some(first) = key::block_behind(prefix, &range.lower) else { return Err(error.into()) };
        for block in (first..=u64::MAX).take(SINGLE_BLOCKS_MAX) {
            let block_key = key::block_key(prefix, block);
            if !range.contains(&block_key) {
                return Ok(Scan::default());
            }
            if let Some(value) = self.store.get(Tree::Data, &block_key)? {
                let rest = KeyRange::new(Bound::after(block_key.clone()), range.upper.clone());
                return Ok(Scan {
                    entries: vec![(block_key, value)],
                    rest: (!rest.is_empty()).then_some(rest),
                });
            }
        }
        Err(error.into())
    }

    pub(crate) fn write_file(
        &self,
        number: InodeNumber,
        offset: u64,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<()> {
        let inode = self.writable_inode(number)?;
        check_regular(&inode)?;
        let epoch = self.for_change()?;
        let mut state = inode.write()?;
        check_size(offset.checked_add(bytes.len() as u64))?;
        if bytes.is_empty() {
            return Ok(());
        }
        let keys = inode.key_and_data_prefix(*epoch, &state.record)?;
        let most = self.write_bytes_max(&keys.1);
        let (mut at, mut rest) = (offset, bytes);
        loop {
            let length = most - at % BLOCK;
            if rest.len() as u64 <= length {
                return self.write_piece(keys, &mut state, at, rest, mode);
            }
            self.write_piece(keys.clone(), &mut state, at, rest.split_to(length as usize), mode)?;
            at += length;
        }
    }

    fn write_piece(
        &self,
        (key, prefix): (Bytes, Bytes),
        state: &mut State,
        offset: u64,
        bytes: Bytes,
        mode: WriteMode,
    ) -> Result<()> {
        let mut edit = Edit::new(state.record.clone(), prefix);
        edit.write(offset, bytes);
        match mode.keep_modified {
            // Also if the clock has not gone on since: by this alone is the change seen.
            true => edit.record.changed = self.now().max(edit.record.changed.next()),
            false => edit.touch(self.now()),
        }
        let replace = mode.kill_set_id && edit.kill_privileges();
        let (batch, record) = edit.finish(key, replace);
        self.store.apply(batch).map_err(Error::of_one_path)?;
        state.set_record(record);
        Ok(())
    }

    /// Bytes that go into one batch, whole blocks: a record of the log, of which a small volume takes short ones alone, holds them and the keys,
    /// which begin so. A write of more is several operations.
    pub(crate) fn write_bytes_max(&self, data_prefix: &[u8]) -> u64 {
        let most = self.store.engine().record_bytes_max();
        let bytes = (most / 2).min(most.saturating_sub(keys_bytes(data_prefix)));
        (bytes / BLOCK * BLOCK).max(BLOCK)
    }

    /// Runs of data and holes that go into one batch with as many bytes.
    pub(crate) fn write_runs_max(&self, data_prefix: &[u8]) -> u64 {
        (self.store.engine().record_bytes_max() / 2 / keys_bytes(data_prefix)).max(1)
    }
}

/// Of the keys in the record of a write, or of a hole, at most.
fn keys_bytes(data_prefix: &[u8]) -> u64 {
    WRITE_KEYS_MAX * (data_prefix.len() + key::NAME_LENGTH_MAX) as u64
}

/// `TooBig` where a size overflows or is larger than a file may be.
pub(crate) fn check_size(size: Option<u64>) -> Result<u64> {
    size.filter(|size| *size <= SIZE_MAX).ok_or(Error::TooBig)
}

/// Takes off what a write by an unprivileged user takes off: set-user-id, set-group-id of an executable, and the
/// capabilities of the file. True if there was something.
pub(crate) fn kill_privileges(record: &mut Record) -> bool {
    let capabilities = record.xattrs.len();
    record.xattrs.retain(|xattr| xattr.name != SECURITY_CAPABILITY);
    let killed = kill_set_id_bits(record);
    killed || capabilities != record.xattrs.len()
}

/// Takes off set-user-id, and set-group-id of an executable. True if one was set.
pub(crate) fn kill_set_id_bits(record: &mut Record) -> bool {
    let before = record.mode;
    record.mode &= !SET_USER_ID;
    if record.mode & GROUP_EXECUTE != 0 {
        record.mode &= !SET_GROUP_ID;
    }
    before != record.mode
}

/// Changes to the data and the record of one file, collected in a batch.
pub(crate) struct Edit {
    pub(crate) batch: Batch,
    pub(crate) record: Record,
    pub(crate) prefix: Bytes,
}

impl Edit {
    pub(crate) fn new(record: Record, prefix: Bytes) -> Self {
        Self { batch: Batch::new(), record, prefix }
    }

    /// Sets the times of a change of the contents.
    pub(crate) fn touch(&mut self, now: Timestamp) {
        (self.record.modified, self.record.changed) = (now, now);
    }

    /// As [`kill_privileges`], for the file: if it is true, the whole record is to be replaced.
    pub(crate) fn kill_privileges(&mut self) -> bool {
        let before = self.record.has_large_xattrs().then(|| self.record.clone());
        let killed = kill_privileges(&mut self.record);
        if let Some(before) = before
            && before.xattrs.len() != self.record.xattrs.len()
        {
            delete_lost_values(&mut self.batch, &self.prefix, &before, &self.record);
        }
        killed
    }

    /// The batch with the record's change, and the record. `replace` if more than its hot part has changed.
    pub(crate) fn finish(mut self, metadata_key: Bytes, replace: bool) -> (Batch, Record) {
        if replace {
            self.batch.put(Tree::Metadata, metadata_key, self.record.encode());
        } else {
            self.batch.update(Tree::Metadata, metadata_key, self.record.hot_update());
        }
        (self.batch, self.record)
    }

    /// Writes bytes, blindly: whole blocks are put, parts of blocks patched. Bytes that reach to the end of the file
    /// replace its last block, whatever it held.
    pub(crate) fn write(&mut self, offset: u64, bytes: Bytes) {
        let end = offset + bytes.len() as u64;
        self.account_write(offset, end);
        let within = offset % BLOCK;
        let mut rest = bytes;
        let mut block = offset / BLOCK;
        if within != 0 {
            let head = rest.split_to(rest.len().min((BLOCK - within) as usize));
            self.batch.patch(Tree::Data, key::block_key(&self.prefix, block), within as u32, head);
            block += 1;
        }
        let tail = rest.len() % BLOCK as usize;
        let run = if end >= self.record.size { rest.len() } else { rest.len() - tail };
        let tail = rest.split_off(run);
        let blocks = (run as u64).div_ceil(BLOCK);
        self.put_blocks(block, rest);
        if !tail.is_empty() {
            self.batch.patch(Tree::Data, key::block_key(&self.prefix, block + blocks), 0, tail);
        }
        self.record.size = self.record.size.max(end);
    }

    /// Puts blocks of which only the last one may be short: that one by itself behind many, since the engine leaves long runs of whole blocks
    /// out of its log.
    fn put_blocks(&mut self, first: u64, mut bytes: Bytes) {
        let whole = bytes.len() as u64 / BLOCK;
        let split = (whole * BLOCK) as usize;
        if split >= BOUND_BYTES_MIN && split < bytes.len() {
            let short = bytes.split_off(split);
            self.batch.put(Tree::Data, key::block_key(&self.prefix, first + whole), short);
        }
        match (bytes.len() as u64).div_ceil(BLOCK) {
            0 => {}
            1 => self.batch.put(Tree::Data, key::block_key(&self.prefix, first), bytes),
            _ => self.batch.put_run(Tree::Data, self.prefix.clone(), first, bytes),
        }
    }

    /// A file becomes sparse when a write leaves a hole in front of it. From then on `blocks` is an upper limit: it
    /// cannot be told without a read whether a write fills a hole.
    fn account_write(&mut self, offset: u64, end: u64) {
        let record = &mut self.record;
        let (first, last) = (offset / BLOCK, end.div_ceil(BLOCK));
        let before = record.size.div_ceil(BLOCK);
        if record.is_sparse() {
            record.blocks = record.blocks.saturating_add(last - first).min(before.max(last));
        } else if first > before {
            record.flags |= FLAG_SPARSE;
            record.blocks = before + (last - first);
        }
    }

    /// Cuts the file, or lets it grow by a hole.
    pub(crate) fn set_size(&mut self, size: u64) {
        let (old_blocks, new_blocks) = (self.record.size.div_ceil(BLOCK), size.div_ceil(BLOCK));
        if size < self.record.size {
            self.delete_to_end(size);
            self.record.blocks = self.record.blocks.min(new_blocks);
        } else if new_blocks > old_blocks && !self.record.is_sparse() {
            self.record.flags |= FLAG_SPARSE;
            self.record.blocks = old_blocks;
        }
        if size == 0 {
            self.record.flags &= !FLAG_SPARSE;
            self.record.blocks = 0;
        }
        self.record.size = size;
    }

    /// Takes away all data from `start` to the end of the file.
    fn delete_to_end(&mut self, start: u64) {
        let first = start.div_ceil(BLOCK);
        if first < self.record.size.div_ceil(BLOCK) {
            self.batch.delete_range(Tree::Data, key::blocks_from(&self.prefix, first));
            self.batch.note_freed(self.record.data_bytes().min(self.record.size - first * BLOCK));
        }
        self.cut_block(start);
    }

    /// Takes away the data from `start` to the end of its block.
    fn cut_block(&mut self, start: u64) {
        if !start.is_multiple_of(BLOCK) {
            let block = key::block_key(&self.prefix, start / BLOCK);
            self.batch.truncate(Tree::Data, block, (start % BLOCK) as u32);
        }
    }

    /// Makes a hole of a range, as far as it lies inside the file.
    pub(crate) fn punch(&mut self, start: u64, end: u64) {
        let size = self.record.size;
        let end = end.min(size);
        if start >= end {
            return;
        }
        let first = start.div_ceil(BLOCK);
        let last = if end == size { size.div_ceil(BLOCK) } else { end / BLOCK };
        if end == size {
            self.delete_to_end(start);
        } else if start / BLOCK == end / BLOCK {
            self.zero_part(start, end);
        } else {
            self.cut_block(start);
            if first < last {
                self.batch.delete_range(Tree::Data, key::block_range(&self.prefix, first, last));
                self.batch.note_freed(self.record.data_bytes().min((last - first) * BLOCK));
            }
            self.zero_part(last * BLOCK, end);
        }
        // What the file had before says how much that frees.
        self.account_punch(first, last, end);
    }

    /// The blocks from `first` up to `last` are empty. How many of them were there is not known of a sparse file, but no more can be left than there
    /// are outside of them.
    fn account_punch(&mut self, first: u64, last: u64, end: u64) {
        let record = &mut self.record;
        let left = record.size.div_ceil(BLOCK) - last.saturating_sub(first);
        if record.is_sparse() {
            // Zeros in a part of a block may come to be in a hole.
            let zeros = u64::from(end < record.size && !end.is_multiple_of(BLOCK));
            record.blocks = record.blocks.saturating_add(zeros).min(left);
        } else if first < last {
            record.flags |= FLAG_SPARSE;
            record.blocks = left;
        }
    }

    /// Zeros inside one block.
    fn zero_part(&mut self, start: u64, end: u64) {
        if start < end {
            let zeros = Bytes::from_static(&ZEROS[..(end - start) as usize]);
            let block = key::block_key(&self.prefix, start / BLOCK);
            self.batch.patch(Tree::Data, block, (start % BLOCK) as u32, zeros);
        }
    }

    /// Makes the units, which begin at `offset`, those of another file, whose data lie under `from`.
    pub(crate) fn share(&mut self, offset: u64, units: &[Unit], source: &Record, from: &[u8]) {
        let Some(end) = units.last().map(|unit| unit.end()) else { return };
        self.account_write(offset, end);
        for unit in units {
            let (from, to) = ([from, &unit.prefix].concat(), [&self.prefix[..], &unit.prefix].concat());
            self.batch.clone_range(Tree::Data, from, to);
        }
        let record = &mut self.record;
        record.size = record.size.max(end);
        if source.is_sparse() {
            if !record.is_sparse() {
                record.flags |= FLAG_SPARSE;
                record.blocks = record.size.div_ceil(BLOCK);
            }
            if offset == 0 && end == record.size {
                record.blocks = record.blocks.min(source.blocks);
            }
        }
    }

    /// Writes pieces of another file, holes as holes, but no more than so many runs of data and holes. Returns how many bytes it has written.
    pub(crate) fn write_pieces(&mut self, offset: u64, pieces: Vec<Piece>, runs_max: u64) -> u64 {
        let (mut at, mut runs) = (offset, 0);
        let mut data = BytesMut::new();
        for piece in pieces {
            match piece {
                Piece::Data(bytes) => data.extend_from_slice(&bytes),
                Piece::Hole(length) => {
                    runs += u64::from(!data.is_empty());
                    at = self.write_collected(at, &mut data);
                    if runs < runs_max {
                        self.punch(at, at + length);
                        at += length;
                        runs += 1;
                    }
                    if runs >= runs_max {
                        break;
                    }
                }
            }
        }
        at = self.write_collected(at, &mut data);
        if at > self.record.size {
            self.set_size(at);
        }
        at - offset
    }

    fn write_collected(&mut self, offset: u64, data: &mut BytesMut) -> u64 {
        let length = data.len() as u64;
        if length > 0 {
            self.write(offset, data.split().freeze());
        }
        offset + length
    }
}
