//! Applying a batch: one record in the log, then its messages in the roots.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::log_record::RUN_KEYS_LENGTH_MAX;
use pando_format::operation::Excess;
use pando_format::{KeyRange, Lsn, Msn, Operation, Pending, Tree};
use parking_lot::MutexGuard;

use crate::batch::Terms;
use crate::betree::range_clone::Plan;
use crate::betree::token::Token;
use crate::checkpoint::Occasion;
use crate::log::batch::Record;
use crate::log::redo_log::NotQueued;
use crate::spinning;
use crate::stats::add_up;
use crate::volume::Volume;
use crate::{Batch, Error, Miss, Result};

/// How often a change waits for flushes, with the locks of its caller held.
const ROOT_WAITS_MAX: u32 = 5;

/// Of so many ranges that a batch moves or clones those which are small are read to be copied. Of more, as of a directory with many files that have
/// several links, those are which are in memory.
const READ_RANGES_MAX: usize = 16;

/// What keeps a change out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lack {
    /// Space for it.
    Space,
    /// A root holds more than a flush leaves in it, and free space is in such short runs that it may find no place with the change in it, nor the node below that
    /// takes what waits. It can be made shorter.
    Places,
}

/// True for the operations that take the way of [`Volume::inject_cloning`].
fn clones(operation: &Operation) -> bool {
    range_of(operation).is_some()
}

/// What comes from where to where by such an operation.
fn range_of(operation: &Operation) -> Option<(Tree, &Bytes, &Bytes)> {
    match operation {
        Operation::MoveRange { tree, from, to } | Operation::CloneRange { tree, from, to } => {
            Some((*tree, from, to))
        }
        _ => None,
    }
}

/// Bytes of blocks that it may copy, of those that are left to the batch. What stays where it was had better be shared.
fn movable(operation: &Operation, left: usize) -> usize {
    if matches!(operation, Operation::MoveRange { tree: Tree::Data, .. }) { left } else { 0 }
}

/// What the moves and clones of one batch may still bring into a root.
struct Allowance {
    bytes_left: u64,
    /// They are few enough to read what is not in memory for a copy. A miss begins all of them anew.
    may_read: bool,
}

impl Allowance {
    fn of(operations: &[Operation], bytes: u64) -> Self {
        let ranges = operations.iter().filter(|operation| clones(operation)).take(READ_RANGES_MAX + 1);
        Self { bytes_left: bytes, may_read: ranges.count() <= READ_RANGES_MAX }
    }

    /// True if no more is to be copied, and hardly a message is to come along.
    fn is_used_up(&self) -> bool {
        self.bytes_left == 0
    }

    /// A copy, as `plan` makes it, if there is to be one.
    fn copy(&self, plan: impl FnOnce() -> Result<Option<Plan>>) -> Result<Option<Plan>> {
        if self.is_used_up() {
            return Ok(None);
        }
        match plan() {
            Err(Error::Miss(_)) if !self.may_read => Ok(None),
            copy => copy,
        }
    }

    fn take(&mut self, plan: &Plan) {
        self.bytes_left = self.bytes_left.saturating_sub(plan.bytes());
    }
}

/// The maintenance tokens of both trees. Who has found one taken is woken when they are let go.
struct Tokens<'a> {
    volume: &'a Volume,
    tokens: Option<[Token<'a>; 2]>,
}

impl<'a> Tokens<'a> {
    fn wait(volume: &'a Volume) -> Self {
        let tokens = Tree::ALL.map(|tree| {
            let maintenance = &volume.root(tree).maintenance;
            // Not before it waits for this very token: who pauses for it would find nobody to give it to.
            let _waiting = maintenance.announce_clone();
            maintenance.wait()
        });
        Self { volume, tokens: Some(tokens) }
    }
}

impl Drop for Tokens<'_> {
    fn drop(&mut self) {
        self.tokens = None;
        self.volume.wake_turned_away();
    }
}

impl Volume {
    /// Applies a batch as one record.
    pub(crate) fn apply(&self, batch: Batch) -> Result<Lsn> {
        self.check_writable()?;
        if batch.is_empty() {
            return Ok(*self.sequencer.lock());
        }
        let Batch { operations, mut terms } = batch;
        // Of a file that is damaged the size may be any number.
        terms.frees = terms.frees.min(self.allocator.capacity());
        let bytes: usize = operations.iter().map(Operation::length).sum();
        for operation in &operations {
            operation.check().map_err(|Excess { what, .. }| Error::TooLarge { what })?;
        }
        if operations.iter().map(Operation::run_keys_length).sum::<u64>() > RUN_KEYS_LENGTH_MAX {
            return Err(Error::TooLarge { what: "a batch of operations" });
        }
        let record = Record::new(&operations);
        if record.bytes() > self.log.record_bytes_max() {
            return Err(Error::TooLarge { what: "a batch of operations" });
        }
        let lsn = if operations.iter().any(clones) {
            self.apply_cloning(&operations, bytes as u64, record, terms)?
        } else {
            let (mut sequencer, lsn) = self.sequence(bytes as u64, record, terms)?;
            *sequencer = lsn;
            // Before the deletes, some of which find what they free above the leaves.
            self.ballast.add(terms.frees);
            for (sub, operation) in (0..).zip(operations) {
                self.inject_operation(operation, Msn { lsn: lsn.0, sub });
            }
            lsn
        };
        add_up(&self.dead_bytes, terms.frees);
        self.stats.batches.fetch_add(1, Ordering::Relaxed);
        self.stats.bytes_in.fetch_add(bytes as u64, Ordering::Relaxed);
        self.wake_workers();
        Ok(lsn)
    }

    /// Appends a record of a change of so many bytes; the sequencer, and what it comes to when the change is made.
    fn sequence(&self, bytes: u64, mut record: Record, terms: Terms) -> Result<(MutexGuard<'_, Lsn>, Lsn)> {
        let mut waits = 0;
        loop {
            let sequencer = spinning::lock(&self.sequencer);
            // In the same hold in which the change comes in: what others are let in for is not free any more, and many may have been told at once that there is
            // room in the roots.
            let lack = self.lack(bytes, terms);
            // A flush is sooner done than the checkpoint for which the caller would wait.
            let may_wait = self.options.background == crate::Background::Threads && waits < ROOT_WAITS_MAX;
            if lack == Some(Lack::Places) && may_wait && self.has_space_to_flush() {
                drop(sequencer);
                waits += 1;
                self.check_writable()?;
                self.wait_for_roots(bytes, terms);
                continue;
            }
            if lack.is_some() {
                self.refuse(bytes, terms)?;
            }
            let lsn = Lsn(sequencer.0 + 1);
            record = match self.log.append(lsn, record) {
                Ok(()) => return Ok((sequencer, lsn)),
                Err(NotQueued::NoRoom(record)) => record,
                Err(NotQueued::Failed(error)) => return Err(error),
            };
            drop(sequencer);
            self.check_writable()?;
            self.wait_for_log_room(record.bytes())?;
        }
    }

    /// Applies a record that the log had.
    pub(crate) fn replay_record(&self, lsn: Lsn, operations: Vec<Operation>) -> Result<()> {
        if operations.iter().any(clones) {
            return self.replay_cloning(lsn, &operations);
        }
        let mut sequencer = self.sequencer.lock();
        for (sub, operation) in (0..).zip(operations) {
            self.inject_operation(operation, Msn { lsn: lsn.0, sub });
        }
        *sequencer = lsn;
        Ok(())
    }

    /// The same of one that moves or clones ranges. What was in memory when it was first applied may have become unreadable since: it is
    /// moved or cloned unread.
    fn replay_cloning(&self, lsn: Lsn, operations: &[Operation]) -> Result<()> {
        let mut lost = Vec::new();
        loop {
            let miss = {
                let _tokens = Tokens::wait(self);
                let mut sequencer = self.sequencer.lock();
                match self.plan(operations, None, &lost) {
                    Ok(plans) => {
                        self.inject_cloning(operations, plans, lsn);
                        *sequencer = lsn;
                        return Ok(());
                    }
                    Err(Error::Miss(miss)) => miss,
                    Err(Error::TooLarge { what }) => {
                        return Err(Error::Damaged {
                            what: format!("log record {}: {what} is too large", lsn.0),
                        });
                    }
                    Err(error) => return Err(error),
                }
            };
            self.stats.misses.fetch_add(1, Ordering::Relaxed);
            match self.fetch(miss) {
                Err(error) if error.is_unreadable() => lost.push(miss),
                done => done?,
            }
        }
    }

    /// Keeps memory within its budget between two records of a replay.
    pub(crate) fn make_room_for_replay(&self) -> Result<()> {
        while !self.has_memory(0) && self.tree_step()? {}
        Ok(())
    }

    /// The messages of an operation, in the caller's hold of the sequencer.
    fn inject_operation(&self, operation: Operation, msn: Msn) {
        let mut delete_waits = false;
        match operation {
            Operation::Put { tree, key, value } => self.inject(tree, key, msn, Pending::Put(value)),
            Operation::PutRun { tree, prefix, first, bytes } => {
                self.inject_run(tree, &prefix, first, bytes, msn)
            }
            Operation::Delete { tree, key } => {
                self.inject(tree, key, msn, Pending::Delete);
                delete_waits = true;
            }
            Operation::Change { tree, key, change } => {
                self.inject(tree, key, msn, Pending::Changes(vec![change]));
            }
            Operation::DeleteRange { tree, range } => {
                let deleted = self.inject_range(tree, &range, msn);
                self.ballast.shed(deleted.bytes as u64);
                delete_waits = deleted.waits;
            }
            Operation::MoveRange { .. } | Operation::CloneRange { .. } => {
                unreachable!("a batch that clones takes the way of inject_cloning")
            }
        }
        // Once it is there: who looks for deletes from now on finds it.
        if delete_waits {
            self.deletes_wait.store(true, Ordering::Release);
        }
    }

    /// Applies a batch that moves or clones ranges. [`Error::Miss`] if something it needs is not in memory: a root may be higher than before
    /// then, and nothing else has happened.
    fn apply_cloning(
        &self,
        operations: &[Operation],
        bytes: u64,
        mut record: Record,
        terms: Terms,
    ) -> Result<Lsn> {
        let mut large = None;
        loop {
            // Which nodes there are must not change between plan and surgery (TREE-2).
            let tokens = large.is_some().then(|| Tokens::wait(self));
            let mut sequencer = self.sequencer.lock();
            let plans = match large {
                Some(large) => self.plan(operations, Some(large), &[])?,
                None => match self.plan_copies(operations, self.blocks_max(terms.reclaims))? {
                    Ok(plans) => plans,
                    Err(_) if terms.copies_only => return Err(Error::NotCopied),
                    Err(index) => {
                        large = Some(index);
                        continue;
                    }
                },
            };
            let bytes = bytes + plans.iter().map(Plan::bytes).sum::<u64>();
            if self.lack(bytes, terms).is_some() {
                self.refuse(bytes, terms)?;
            }
            let lsn = Lsn(sequencer.0 + 1);
            record = match self.log.append(lsn, record) {
                Ok(()) => {
                    *sequencer = lsn;
                    self.ballast.add(terms.frees);
                    self.inject_cloning(operations, plans, lsn);
                    return Ok(lsn);
                }
                Err(NotQueued::NoRoom(record)) => record,
                Err(NotQueued::Failed(error)) => return Err(error),
            };
            drop(plans);
            drop(sequencer);
            drop(tokens);
            self.check_writable()?;
            self.wait_for_log_room(record.bytes())?;
        }
    }

    /// What the moves and clones among the operations come down to if each is a copy, for which nobody has to keep the nodes as they
    /// are; else the first that is not, by its place among the operations.
    fn plan_copies(
        &self,
        operations: &[Operation],
        blocks_max: usize,
    ) -> Result<std::result::Result<Vec<Plan>, usize>> {
        let mut allowance = Allowance::of(operations, self.moved_together());
        let mut blocks_left = blocks_max;
        let mut plans = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            if let Some((tree, from, to)) = range_of(operation) {
                let copy = allowance.copy(|| self.plan_copy(tree, from, to, movable(operation, blocks_left)));
                match copy? {
                    Some(plan) => {
                        allowance.take(&plan);
                        blocks_left = blocks_left.saturating_sub(plan.copied().unwrap_or(0));
                        plans.push(plan);
                    }
                    None => return Ok(Err(index)),
                }
            }
        }
        Ok(Ok(plans))
    }

    /// What the moves and clones among the operations come down to, in their order, copies of few bytes or gotos. One of them may be known to
    /// be large. What is `lost` cannot be read, and nothing that needs it is copied.
    fn plan(&self, operations: &[Operation], large: Option<usize>, lost: &[Miss]) -> Result<Vec<Plan>> {
        let mut allowance = Allowance::of(operations, self.moved_together());
        let mut plans = Vec::new();
        for (index, operation) in operations.iter().enumerate() {
            if let Some((tree, from, to)) = range_of(operation) {
                let copy = if large == Some(index) {
                    None
                } else {
                    match allowance.copy(|| self.plan_copy(tree, from, to, 0)) {
                        Err(Error::Miss(miss)) if lost.contains(&miss) => None,
                        copy => copy?,
                    }
                };
                let plan = match copy {
                    Some(plan) => plan,
                    None => self.plan_gotos(tree, from, to, allowance.is_used_up(), lost)?,
                };
                allowance.take(&plan);
                plans.push(plan);
            }
        }
        Ok(plans)
    }

    /// Bytes of blocks that a batch may move by copy: none where space is short, since a goto takes nearly none, and none of what is to
    /// free space, which comes in without being asked for it.
    pub(crate) fn blocks_max(&self, reclaims: bool) -> usize {
        let most = self.copied_blocks();
        let counters = self.allocator.counters();
        // What they leave is free only once deletes are down, which is seen to before a volume is full.
        let margin = counters.capacity / 64 + space_for(most as u64);
        let has_space = counters.usable >= self.space_needed() + margin;
        if has_space && !reclaims { most } else { 0 }
    }

    /// The messages of a record that moves or clones ranges, in the caller's hold of the sequencer and, unless all are copies, of both
    /// maintenance tokens.
    fn inject_cloning(&self, operations: &[Operation], plans: Vec<Plan>, lsn: Lsn) {
        // What the plans lead to must outlive what goes before they are carried out.
        let held: Vec<_> = plans.iter().flat_map(Plan::targets).collect();
        self.settle([], held.iter().copied());
        let copied: Vec<_> = plans.iter().map(Plan::copied).collect();
        let mut plans = plans.into_iter();
        let mut emptied = false;
        for (sub, operation) in (0..).zip(operations) {
            let msn = Msn { lsn: lsn.0, sub };
            if !clones(operation) {
                self.inject_operation(operation.clone(), msn);
                continue;
            }
            if !emptied {
                emptied = true;
                for (operation, copied) in operations.iter().filter(|at| clones(at)).zip(&copied) {
                    if let Operation::MoveRange { tree, from, .. } = operation {
                        let from = KeyRange::prefix(from.clone());
                        // Before the delete, which finds the rest of it in leaves, where it comes down later.
                        self.ballast.add(copied.unwrap_or(0) as u64);
                        let met = self.inject_range(*tree, &from, msn).bytes;
                        let mut wounds = self.root(*tree).wounds.lock();
                        if let Some(bytes) = copied {
                            wounds.add_copied(from);
                            self.ballast.shed(met.min(*bytes) as u64);
                        } else {
                            self.ballast.moved();
                            wounds.add(from);
                        }
                    }
                }
            }
            self.carry_out(plans.next().expect("there is a plan for each"), msn);
        }
        self.settle(held, []);
        // What has moved left a delete, and what was cloned may hold some.
        self.deletes_wait.store(true, Ordering::Release);
    }

    /// SP-1: what keeps a change out. The space must hold it beside everything that is still to be written, and the roots with it. What frees
    /// space comes in without being asked for it.
    fn lack(&self, bytes: u64, terms: Terms) -> Option<Lack> {
        if terms.reclaims {
            return None;
        }
        let counters = self.allocator.counters();
        if counters.usable < self.space_needed() + space_for(bytes) {
            return Some(Lack::Space);
        }
        let is_short = counters.usable < counters.capacity / 2;
        (is_short && !self.roots_take(bytes)).then_some(Lack::Places)
    }

    /// The answer to a change that lacks something; it may have come by now. Where a
    /// checkpoint would release some space, the volume is not full: flushes alone can use up what was free a moment ago, and
    /// leave it behind them for the next checkpoint, which shortens roots, too.
    fn refuse(&self, bytes: u64, terms: Terms) -> Result<()> {
        if terms.copies_only {
            // It may as well be left: nobody is to wait for its sake.
            return Err(Error::NoSpace);
        }
        let waits = || self.signals.checkpoint_runs() || self.checkpoint_releases();
        // Looked at on both sides of a count: a checkpoint may end in between, or a flush.
        let waited = waits();
        let lack = self.lack(bytes, terms);
        if lack.is_none() {
            return Ok(());
        }
        if waited || lack == Some(Lack::Places) || waits() {
            self.signals.await_checkpoint();
            return Err(Error::Busy);
        }
        Err(Error::NoSpace)
    }

    /// Bytes that must stay free: what is to be written, and a reserve for what reclaiming space needs itself.
    pub(crate) fn space_needed(&self) -> u64 {
        self.space_to_be_written() + self.space_reserve()
    }

    /// What copy on write of all dirty nodes and of what a checkpoint still has to write takes, and what a recovery writes beside it.
    pub(crate) fn space_to_be_written(&self) -> u64 {
        self.cache.bytes_to_be_written() + self.bound_bytes.load(Ordering::Relaxed)
    }

    /// The part of the volume that only reclaiming may use.
    pub(crate) fn space_reserve(&self) -> u64 {
        // At 95 % of the space in use, large nodes still find places of a few extents each.
        4 * self.shape.node_bytes as u64 + self.allocator.capacity() / 20
    }

    /// Waits until a root may have become shorter.
    fn wait_for_roots(&self, bytes: u64, terms: Terms) {
        let rounds = self.signals.rounds();
        // What it has heard of them may be what they were.
        Tree::ALL.into_iter().for_each(|tree| self.root(tree).look(&self.damaged));
        if self.lack(bytes, terms) == Some(Lack::Places) {
            self.wake_maintenance();
            self.wait_for_progress(rounds);
        }
    }

    /// Waits, or helps, until there may be room in the log for a record of so many bytes.
    fn wait_for_log_room(&self, bytes: u64) -> Result<()> {
        self.signals.want_checkpoint();
        match self.options.background {
            crate::Background::Manual => {
                // What is queued is behind the cut.
                self.log.write_out(self)?;
                self.checkpoint(Occasion::Running)
            }
            crate::Background::Threads => {
                let rounds = self.signals.rounds();
                if !self.log.room_for(bytes) {
                    self.wait_for_progress(rounds);
                }
                Ok(())
            }
        }
    }
}

/// Bytes of the device that a change of so many bytes may take.
pub(crate) fn space_for(bytes: u64) -> u64 {
    bytes.saturating_add(bytes / 8)
}
