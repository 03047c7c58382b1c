//! Holes and copies: fallocate, lseek for data and holes, copy_file_range.

use pando_engine::{ScanLimit, Tree};

use crate::file::{BLOCK, Edit, SIZE_MAX, check_regular, check_size};
use crate::inode::States;
use crate::operations::{AllocateMode, InodeNumber, Seek};
use crate::schema::key;
use crate::{Error, FileSystem, Result};

/// Most bytes copied by one call.
const COPY_MAX: u64 = 1 << 20;

impl FileSystem {
    pub(crate) fn allocate_range(
        &self,
        number: InodeNumber,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        self.check_writable()?;
        let inode = self.inode(number)?;
        check_regular(&inode)?;
        if length == 0 {
            return Err(Error::Invalid);
        }
        let end = check_size(offset.checked_add(length))?;
        let epoch = self.namespace.read();
        let mut state = inode.write()?;
        let mut edit = Edit::new(state.record.clone(), inode.data_prefix(*epoch, &state.record)?);
        let grows = match mode {
            AllocateMode::Allocate { keep_size } => {
                // Nothing is reserved, but what certainly will not fit is refused.
                let size = state.record.size;
                if end.saturating_sub(offset.max(size)) > self.store.engine().space().available {
                    return Err(Error::NoSpace);
                }
                !keep_size
            }
            AllocateMode::PunchHole => {
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
        let (batch, record) = edit.finish(inode.key(*epoch)?, false);
        self.store.apply(batch)?;
        state.record = record;
        Ok(())
    }

    pub(crate) fn seek_file(&self, number: InodeNumber, offset: u64, what: Seek) -> Result<u64> {
        let inode = self.inode(number)?;
        check_regular(&inode)?;
        let epoch = self.namespace.read();
        let state = inode.read()?;
        let size = state.record.size;
        if offset >= size {
            return Err(Error::NoData);
        }
        if !state.record.is_sparse() {
            return Ok(if what == Seek::Data { offset } else { size });
        }
        let prefix = inode.data_prefix(*epoch, &state.record)?;
        let end = size.div_ceil(BLOCK);
        let mut expected = offset / BLOCK;
        let entries = if what == Seek::Data { 1 } else { 1024 };
        let mut range = Some(key::block_range(&prefix, expected, end));
        while let Some(part) = range {
            let scan = self.store.scan(Tree::Data, &part, ScanLimit { entries, bytes: usize::MAX })?;
            for (data_key, _) in scan.entries {
                let Some(block) = key::block_of(&prefix, &data_key) else { continue };
                match what {
                    Seek::Data => return Ok(offset.max(block * BLOCK)),
                    Seek::Hole if block != expected => return Ok(offset.max(expected * BLOCK)),
                    Seek::Hole => expected += 1,
                }
            }
            range = scan.rest;
        }
        match what {
            Seek::Data => Err(Error::NoData),
            Seek::Hole => Ok(offset.max(expected * BLOCK).min(size)),
        }
    }

    pub(crate) fn copy_file_range(
        &self,
        from: InodeNumber,
        from_offset: u64,
        to: InodeNumber,
        to_offset: u64,
        length: u64,
    ) -> Result<u64> {
        self.check_writable()?;
        let (source, target) = (self.inode(from)?, self.inode(to)?);
        check_regular(&source)?;
        check_regular(&target)?;
        let length = length.min(SIZE_MAX);
        if from == to
            && from_offset < to_offset.saturating_add(length)
            && to_offset < from_offset.saturating_add(length)
        {
            return Err(Error::Invalid);
        }
        let epoch = self.namespace.read();
        let mut states = States::lock([&source, &target]);
        if source.is_detached() || target.is_detached() {
            return Err(Error::Stale);
        }
        let record = states.record(&source);
        let length = length.min(record.size.saturating_sub(from_offset)).min(COPY_MAX);
        check_size(to_offset.checked_add(length))?;
        if length == 0 {
            return Ok(0);
        }
        let pieces = self.pieces(&source.data_prefix(*epoch, record)?, record.size, from_offset, length)?;
        let record = states.record(&target).clone();
        let prefix = target.data_prefix(*epoch, &record)?;
        let mut edit = Edit::new(record, prefix);
        edit.write_pieces(to_offset, pieces);
        edit.touch(self.now());
        let (batch, record) = edit.finish(target.key(*epoch)?, false);
        self.store.apply(batch)?;
        states.set_record(&target, record);
        Ok(length)
    }
}
