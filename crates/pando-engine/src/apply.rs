//! Applying a batch: one record in the log, then its messages in the roots.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::key::KEY_LENGTH_MAX;
use pando_format::{KeyRange, Lsn, Msn, Operation, Pending, Tree};

use crate::log::batch::Record;
use crate::volume::Volume;
use crate::{Batch, Direction, Error, Result, ScanLimit};

/// How much of a range is moved between two looks at the room in memory.
const MOVE_STEP: ScanLimit = ScanLimit { entries: 4096, bytes: 1 << 20 };

impl Volume {
    /// Applies a batch as one record.
    pub(crate) fn apply(&self, batch: Batch) -> Result<Lsn> {
        self.check_writable()?;
        if batch.is_empty() {
            return Ok(*self.sequencer.lock());
        }
        let bytes: usize = batch.operations.iter().map(Operation::length).sum();
        for operation in &batch.operations {
            check_keys(operation)?;
        }
        if !batch.reclaims {
            self.admit(bytes as u64)?;
        }
        let moves: Vec<(Tree, Bytes, Bytes)> = batch
            .operations
            .iter()
            .filter_map(|operation| match operation {
                Operation::MoveRange { tree, from, to } => Some((*tree, from.clone(), to.clone())),
                _ => None,
            })
            .collect();
        let operations: Arc<[Operation]> = batch.operations.into();
        let record = Record::new(operations.clone());
        if record.bytes() > self.log.record_bytes_max() {
            return Err(Error::TooLarge { what: "a batch of operations" });
        }
        let lsn = if moves.is_empty() {
            let mut sequencer = self.sequencer_with_room(record.bytes())?;
            let lsn = Lsn(sequencer.0 + 1);
            self.log.append(lsn, record)?;
            *sequencer = lsn;
            for (sub, operation) in (0..).zip(operations.iter()) {
                self.inject_operation(operation, Msn { lsn: lsn.0, sub });
            }
            lsn
        } else {
            // Found out before anything is promised: whether all of it can be read, and whether it fits twice.
            let mut moved = 0;
            for (tree, from, to) in &moves {
                moved += self.measure(*tree, from, to)?;
            }
            self.admit(moved)?;
            let _moves = self.moves.read();
            let lsn = {
                let mut sequencer = self.sequencer_with_room(record.bytes())?;
                let lsn = Lsn(sequencer.0 + 1);
                self.log.append(lsn, record)?;
                *sequencer = lsn;
                lsn
            };
            self.inject_moving(&operations, lsn).map_err(|error| {
                self.log.fail(&error);
                self.set_torn();
                self.poison(&format_args!("a move was cut short: {error}"))
            })?;
            lsn
        };
        self.stats.batches.fetch_add(1, Ordering::Relaxed);
        self.stats.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        self.wake_workers();
        Ok(lsn)
    }

    /// The sequencer, with room in the log for a record of so many bytes.
    fn sequencer_with_room(&self, bytes: u64) -> Result<parking_lot::MutexGuard<'_, Lsn>> {
        loop {
            let sequencer = self.sequencer.lock();
            if self.log.room_for(bytes) {
                return Ok(sequencer);
            }
            drop(sequencer);
            self.check_writable()?;
            self.wait_for_log_room()?;
        }
    }

    /// Applies a record that the log had.
    pub(crate) fn replay_record(&self, lsn: Lsn, operations: &[Operation]) -> Result<()> {
        if operations.iter().any(|operation| matches!(operation, Operation::MoveRange { .. })) {
            self.inject_moving(operations, lsn)?;
            *self.sequencer.lock() = lsn;
            return Ok(());
        }
        let mut sequencer = self.sequencer.lock();
        for (sub, operation) in (0..).zip(operations) {
            self.inject_operation(operation, Msn { lsn: lsn.0, sub });
        }
        *sequencer = lsn;
        Ok(())
    }

    /// Keeps memory within its budget between two records of a replay.
    pub(crate) fn make_room_for_replay(&self) -> Result<()> {
        while !self.has_memory() && self.tree_step()? {}
        Ok(())
    }

    /// The messages of an operation, in the caller's hold of the sequencer.
    fn inject_operation(&self, operation: &Operation, msn: Msn) {
        match operation {
            Operation::Put { tree, key, value } => {
                self.inject(*tree, key.clone(), msn, Pending::Put(value.clone()))
            }
            Operation::PutRun { tree, prefix, first, bytes } => {
                self.inject_run(*tree, prefix, *first, bytes, msn)
            }
            Operation::Delete { tree, key } => self.inject(*tree, key.clone(), msn, Pending::Delete),
            Operation::Change { tree, key, change } => {
                self.inject(*tree, key.clone(), msn, Pending::Changes(vec![change.clone()]));
            }
            Operation::DeleteRange { tree, range } => self.inject_range(*tree, range, msn),
            Operation::MoveRange { .. } => unreachable!("a batch that moves takes the way of inject_moving"),
        }
    }

    /// The messages of a record that moves ranges. Other records go on meanwhile; none touches these keys.
    fn inject_moving(&self, operations: &[Operation], lsn: Lsn) -> Result<()> {
        for (sub, operation) in (0..).zip(operations) {
            let msn = Msn { lsn: lsn.0, sub };
            let Operation::MoveRange { tree, from, to } = operation else {
                let _sequencer = self.sequencer.lock();
                self.inject_operation(operation, msn);
                continue;
            };
            {
                let _sequencer = self.sequencer.lock();
                self.inject_range(*tree, &KeyRange::prefix(to.clone()), msn);
            }
            let mut rest = Some(KeyRange::prefix(from.clone()));
            while let Some(range) = rest {
                let piece = self.waiting(|| self.scan(*tree, &range, Direction::Forward, MOVE_STEP))?;
                {
                    let _sequencer = self.sequencer.lock();
                    for (key, value) in piece.entries {
                        let key = [&to[..], &key[from.len()..]].concat();
                        self.inject(*tree, key.into(), msn, Pending::Put(value));
                    }
                }
                while !self.has_memory() && self.tree_step()? {}
                rest = piece.rest;
            }
            let _sequencer = self.sequencer.lock();
            self.inject_range(*tree, &KeyRange::prefix(from.clone()), msn);
        }
        Ok(())
    }

    /// Reads everything that is to be moved; returns the bytes of its keys and values.
    fn measure(&self, tree: Tree, from: &Bytes, to: &Bytes) -> Result<u64> {
        let mut rest = Some(KeyRange::prefix(from.clone()));
        let mut bytes = 0;
        while let Some(range) = rest {
            let piece = self.waiting(|| self.scan(tree, &range, Direction::Forward, MOVE_STEP))?;
            let longest = piece.entries.iter().map(|(key, _)| key.len()).max().unwrap_or(0);
            if longest - from.len().min(longest) + to.len() > KEY_LENGTH_MAX {
                return Err(Error::TooLarge { what: "a key" });
            }
            bytes += piece.entries.iter().map(|(key, value)| (key.len() + value.len()) as u64).sum::<u64>();
            rest = piece.rest;
            while !self.has_memory() && self.tree_step()? {}
        }
        Ok(bytes)
    }

    /// Runs a query until nothing it needs is missing.
    pub(crate) fn waiting<T>(&self, mut query: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match query() {
                Err(Error::Miss(miss)) => {
                    self.stats.misses.fetch_add(1, Ordering::Relaxed);
                    self.fetch(miss)?;
                }
                other => return other,
            }
        }
    }

    /// SP-1: lets a change through only if the space holds it beside everything that is still to be written.
    fn admit(&self, bytes: u64) -> Result<()> {
        let fits = || {
            let free = self.allocator.counters().free;
            free >= self.space_needed() + bytes + bytes / 8
        };
        if fits() {
            return Ok(());
        }
        Err(Error::NoSpace)
    }

    /// Bytes that must stay free: what copy on write of all dirty nodes takes, and a reserve for what reclaiming space
    /// needs itself.
    pub(crate) fn space_needed(&self) -> u64 {
        self.cache.dirty_bytes() + self.space_reserve()
    }

    /// The part of the volume that only reclaiming may use.
    pub(crate) fn space_reserve(&self) -> u64 {
        // At 95 % of the space in use, large nodes still find places of a few extents each.
        4 * self.shape.node_bytes as u64 + self.allocator.counters().capacity / 20
    }

    fn wait_for_log_room(&self) -> Result<()> {
        self.want_checkpoint();
        match self.options.background {
            crate::Background::Manual => self.checkpoint(false),
            crate::Background::Threads => {
                self.wait_for_progress();
                Ok(())
            }
        }
    }
}

fn check_keys(operation: &Operation) -> Result<()> {
    let longest = match operation {
        Operation::Put { key, .. } | Operation::Delete { key, .. } | Operation::Change { key, .. } => {
            key.len()
        }
        Operation::PutRun { prefix, .. } => prefix.len() + 8,
        Operation::DeleteRange { range, .. } => range.lower.bytes.len().max(range.upper.bytes.len()),
        Operation::MoveRange { from, to, .. } => from.len().max(to.len()),
    };
    if longest > KEY_LENGTH_MAX {
        return Err(Error::TooLarge { what: "a key" });
    }
    Ok(())
}
