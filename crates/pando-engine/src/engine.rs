//! The engine as its users see it.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;

use bytes::Bytes;
use pando_device::{BLOCK_SIZE, Device};
use pando_format::Superblock;
use parking_lot::Mutex;

use crate::checkpoint::Occasion;
use crate::stats::Stats;
use crate::volume::Volume;
use crate::{
    Batch, Comparison, FormatOptions, KeyRange, Lsn, Miss, Options, Refusals, Result, Scan, ScanLimit, Tree,
    background, recovery,
};

/// Checkpoints of a volume that is closed while much of it is dead, at most.
const LAST_CHECKPOINTS_MAX: usize = 4;

/// An open volume. All methods may be called from any thread.
///
/// Queries never wait for the device: where something is not in memory they answer [`crate::Error::Miss`]. Hold no lock
/// while you [`Engine::fetch`] it, then ask again.
pub struct Engine {
    volume: Arc<Volume>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl Engine {
    /// Makes an empty volume on the device; whatever was there is gone. Durable when it returns.
    pub fn format(device: Arc<dyn Device>, options: &FormatOptions) -> Result<()> {
        recovery::format(device, options)
    }

    /// Opens a volume and brings it to the newest state that its log proves.
    pub fn open(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        let volume = recovery::open(device, options)?;
        let threads = background::start(&volume)
            .map_err(|error| crate::Error::Invalid { what: format!("no thread can be started: {error}") })?;
        Ok(Self { volume, threads: Mutex::new(threads) })
    }

    /// Applies a batch as one record. Visible to queries when it returns, durable with the next sync.
    ///
    /// Conflicting batches (same keys) must be kept apart by the caller; others may run at the same time. May wait
    /// for log space, or for flushes where space is short, never with a lock of its own held; call [`Engine::make_room`] before taking locks.
    ///
    /// # Errors
    /// [`crate::Error::Busy`] if there is no space before the next checkpoint, [`crate::Error::NoSpace`] if the volume is full, [`crate::Error::TooLarge`], [`crate::Error::ReadOnly`]. Nothing has changed then.
    pub fn apply(&self, batch: Batch) -> Result<Lsn> {
        self.volume.apply(batch)
    }

    /// True if a change of so many bytes may come without waiting for memory, log or space.
    pub fn has_room(&self, bytes: u64) -> bool {
        self.volume.has_room(bytes)
    }

    /// Waits until there is memory and log space for a change of so many bytes, and what space can be released is
    /// released: behind an [`crate::Error::Busy`] that is a whole checkpoint. Call it with no lock held.
    pub fn make_room(&self, bytes: u64) -> Result<()> {
        self.volume.make_room(bytes)
    }

    /// Makes a change that this thread may wait for: makes room for its bytes, fetches what it misses, and tries again as
    /// long as it is answered [`crate::Error::Busy`] and [`Refusals`] allow. Call it with no lock held.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] for what does not fit, and whatever else the change answers.
    pub fn changing<T>(&self, bytes: u64, mut change: impl FnMut() -> Result<T>) -> Result<T> {
        let mut refusals = Refusals::default();
        loop {
            self.make_room(bytes)?;
            match self.waiting(&mut change) {
                Err(crate::Error::Busy) if refusals.may_wait() => {}
                Err(crate::Error::Busy) => return Err(crate::Error::NoSpace),
                other => return other,
            }
        }
    }

    /// The value of a key, or [`crate::Error::Miss`].
    pub fn get(&self, tree: Tree, key: &[u8]) -> Result<Option<Bytes>> {
        self.volume.get(tree, key)
    }

    /// A piece of a range, or [`crate::Error::Miss`]. Values are shared, not copied.
    pub fn scan(&self, tree: Tree, range: &KeyRange, limit: ScanLimit) -> Result<Scan> {
        self.volume.scan(tree, range, limit)
    }

    /// A piece of what differs between the keys below the prefix `old` and those below `new`, or [`crate::Error::Miss`]. `range` lies
    /// among the keys without the prefixes. What the two share, as a clone and its source do, is not read.
    ///
    /// Each piece is of one moment. Where either side changes between two pieces, each is compared as it is by then. The limit is
    /// passed by what one basement node holds at most. Unlike those of a scan, values are copies, which can be kept for as long as it takes.
    pub fn compare(
        &self,
        tree: Tree,
        old: &Bytes,
        new: &Bytes,
        range: &KeyRange,
        limit: ScanLimit,
    ) -> Result<Comparison> {
        self.volume.compare(tree, [old, new], range, limit)
    }

    /// Reads what a query missed. Blocks on the device.
    pub fn fetch(&self, miss: Miss) -> Result<()> {
        self.volume.stats.misses.fetch_add(1, Ordering::Relaxed);
        self.volume.fetch_for_query(miss)?;
        if self.volume.wants_eviction() {
            self.volume.wake_maintenance();
            // Reads alone can fill the cache as well.
            if self.volume.cache.memory() > self.volume.options.cache_bytes {
                // What was read is there, also where nothing can be written: background work meets the same failure.
                let _ = self.volume.evict_for_query();
            }
        }
        Ok(())
    }

    /// Runs a query until nothing it needs is missing. Blocks on the device.
    pub fn waiting<T>(&self, mut query: impl FnMut() -> Result<T>) -> Result<T> {
        loop {
            match query() {
                Err(crate::Error::Miss(miss)) => self.fetch(miss)?,
                other => return other,
            }
        }
    }

    /// Makes everything applied so far durable; returns the LSN reached.
    pub fn sync(&self) -> Result<Lsn> {
        self.volume.check_writable()?;
        self.volume.stats.syncs.fetch_add(1, Ordering::Relaxed);
        let lsn = *self.volume.sequencer.lock();
        self.volume.log.sync_to(lsn, &*self.volume)
    }

    /// True if a sync now would write little, and nothing but the log, and would not have to wait for others first: it takes about as long
    /// as the device needs for a flush, and for what it was given to write before.
    pub fn sync_is_short(&self) -> bool {
        self.volume.log.little_waits()
    }

    /// Writes a checkpoint: all nodes of the present state, then the superblock. Durable when it returns.
    pub fn checkpoint(&self) -> Result<()> {
        self.volume.checkpoint(Occasion::Running)
    }

    /// Checkpoints and stops the background work. Later changes answer [`crate::Error::ReadOnly`].
    pub fn close(&self) -> Result<()> {
        self.stop();
        if self.volume.options.read_only || self.volume.is_closed() {
            return Ok(());
        }
        // Nothing may follow the record at which the last checkpoint is cut: it says that the log ends there (FMT-17).
        self.volume.log.close();
        // On a volume that was full, one checkpoint frees the room in which the next brings the other deletes down.
        for _ in 0..LAST_CHECKPOINTS_MAX {
            self.volume.checkpoint(Occasion::Closing)?;
            if !self.volume.much_is_dead() {
                break;
            }
        }
        self.volume.set_closed();
        Ok(())
    }

    /// True once it has been closed.
    pub fn is_closed(&self) -> bool {
        self.volume.is_closed()
    }

    fn stop(&self) {
        background::stop(&self.volume, &mut self.threads.lock());
    }

    /// With [`crate::Background::Manual`]: does one piece of background work; false if there is none.
    pub fn background_step(&self) -> Result<bool> {
        self.volume.background_step()
    }

    /// Bytes of the volume and what they are used for, for statfs.
    pub fn space(&self) -> Space {
        let counters = self.volume.allocator.counters();
        let pending = self.volume.cache.bytes_to_be_written().min(counters.free);
        let free = counters.free + counters.deferred - pending;
        let scraps = counters.free - counters.usable;
        let available = free.saturating_sub(scraps + self.volume.space_reserve());
        // Each basement node needs a block for its keys beside those of a file.
        let basement_bytes = self.volume.shape.basement_bytes as u64;
        let keys = available / (basement_bytes.div_ceil(BLOCK_SIZE as u64) + 1);
        Space { capacity: counters.capacity, free, available: available - keys }
    }

    /// Whether a user can still write so many bytes into a large file. Nothing is reserved.
    ///
    /// # Errors
    /// [`crate::Error::Busy`] if he may be able to behind the next checkpoint: call [`Engine::make_room`] and ask again, as behind
    /// an [`Engine::apply`] that was refused. [`crate::Error::NoSpace`] if not.
    pub fn admit(&self, bytes: u64) -> Result<()> {
        let volume = &self.volume;
        // Before what is available: whatever leaves this count has come to that one by then.
        let dead = volume.dead_bytes.load(Ordering::Relaxed);
        let coming = dead.saturating_add(volume.cache.bytes_to_be_written());
        let available = self.space().available;
        if bytes <= available {
            return Ok(());
        }
        if bytes > available.saturating_add(coming) {
            return Err(crate::Error::NoSpace);
        }
        // Else deletes stay where they are on a volume that is not nearly full.
        volume.reclaiming.store(true, Ordering::Relaxed);
        volume.signals.await_checkpoint();
        Err(crate::Error::Busy)
    }

    /// Counters since the volume was opened.
    pub fn stats(&self) -> Stats {
        let volume = &self.volume;
        let mut stats = volume.stats.read();
        stats.nodes_doomed = volume.doomed.lock().len() as u64;
        stats.cache_bytes = volume.cache.memory() as u64;
        stats.cache_bytes_max = volume.options.cache_bytes as u64;
        stats.dirty_bytes = volume.cache.dirty_bytes();
        stats.last_lsn = volume.log.appended_lsn().0;
        stats.durable_lsn = volume.log.durable_lsn().0;
        stats.log_used_bytes = volume.log.used_bytes();
        stats.log_capacity_bytes = volume.log.capacity();
        stats.log_bytes = volume.log.written_bytes();
        stats
    }

    /// The superblock of the last checkpoint: sizes, label, features.
    pub fn superblock(&self) -> Superblock {
        self.volume.superblock.lock().clone()
    }

    /// Bytes of the largest batch that can be applied, with its keys.
    pub fn record_bytes_max(&self) -> u64 {
        self.volume.log.record_bytes_max()
    }

    /// Why the volume takes no changes any more, if something failed.
    pub fn failure(&self) -> Option<String> {
        self.volume.failure()
    }

    /// What is behind the interface, for the modules of this crate that look at all of it.
    pub(crate) fn volume(&self) -> &Arc<Volume> {
        &self.volume
    }
}

impl Drop for Engine {
    /// Without [`Engine::close`] the volume is left as a crash would leave it.
    fn drop(&mut self) {
        self.stop();
    }
}

/// How full a volume is, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// What nodes and their block table can take in all.
    pub capacity: u64,
    /// Not used by the present state.
    pub free: u64,
    /// What a user can still write into a large file: free less the reserve and what the keys take.
    pub available: u64,
}
