//! The block table in memory: node id to place, in versions.
//!
//! Pages of 64 entries are shared between the live table, the version of a checkpoint that is being written,
//! and the copy that remembers what is on the device ([`super::table_store`]). Changing a shared page copies
//! it, so a snapshot copies pointers only, and a page has changed since it was written if it is no longer the
//! same one in memory.
//!
//! The table frees the extents that it stops naming, so that every extent has one owner (SP-2). Three ways
//! lead there: a node is written while no checkpoint needs the old image ([`BlockTable::record_write`]), a
//! node is written for the version of a cut ([`BlockTable::record_checkpoint_write`]), a node is removed
//! ([`BlockTable::remove`]).
//!
//! * SP-3 before the first cut of a recovery no binding names a place, and no table on the device one that the recovery has written: what it
//!   replaces of its own is free at once. A recovery with a small cache may write a leaf many times, and has no checkpoint in between.
//! * BT-7 a node that is in a version being written keeps its id to itself until that checkpoint is durable.
//!
//! Lock order: `live`, then the allocator's mutex. No I/O is done under either.

use std::ops::Range;
use std::sync::Arc;

use pando_device::Device;
use pando_format::block_table::{ENTRIES_PER_PAGE, TablePage};
use pando_format::{BlockEntry, NodeId, TableRoot, Tree, VolumeId};
use parking_lot::{Mutex, RwLock};

use super::allocator::{Allocator, Interval};
use super::free_map::Run;
use super::table_store::{self, Lost, Stored};
use crate::Result;

/// The table of an open volume.
pub(crate) struct BlockTable {
    volume: VolumeId,
    allocator: Arc<Allocator>,
    live: RwLock<Live>,
    /// What is on the device. Only a checkpoint uses it.
    stored: Mutex<Stored>,
    /// Of pages that could not be read, what is wrong with them.
    lost: Vec<String>,
}

struct Live {
    pages: Pages,
    /// The least id never used.
    next: u64,
    /// Ids that can be used again. Ranges, since a superblock may say that there were many more than there are nodes.
    free: Vec<Range<u64>>,
    /// Ids that were freed since the last cut.
    freed: Vec<NodeId>,
    /// The least generation that is written from the opening to its first cut (SP-3); none is, behind that.
    recovered_from: u64,
}

/// The table as it was at a cut, on its way to the device.
pub(crate) struct Version {
    pages: Pages,
    next: u64,
    freed: Vec<NodeId>,
    interval: Interval,
}

/// The least never used, as the superblock says.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Next {
    pub node: NodeId,
    pub generation: u64,
}

/// All table pages, by number; `None` for one that was not needed yet.
#[derive(Clone, Default)]
pub(crate) struct Pages(pub(super) Vec<Option<Arc<TablePage>>>);

impl BlockTable {
    /// The table of a new volume.
    pub fn new(volume: VolumeId, allocator: Arc<Allocator>) -> Self {
        Self::from_stored(
            volume,
            allocator,
            Stored::default(),
            Next { node: NodeId(1), generation: u64::MAX },
        )
    }

    /// Reads the table of a volume and reserves, in an allocator that is all free, what its nodes and pages
    /// occupy.
    ///
    /// # Errors
    /// [`crate::Error::Damaged`] if a page is not what its pointer says, or two structures share a block.
    pub fn load(
        volume: VolumeId,
        allocator: Arc<Allocator>,
        device: &dyn Device,
        root: TableRoot,
        next: Next,
    ) -> Result<Self> {
        let stored = table_store::load(volume, &allocator, device, root, next, None)?;
        Ok(Self::from_stored(volume, allocator, stored, next))
    }

    /// The same without the pages that cannot be read, for who will not write: nodes that are entered there are as if there were none.
    pub fn load_in_part(
        volume: VolumeId,
        allocator: Arc<Allocator>,
        device: &dyn Device,
        root: TableRoot,
        next: Next,
    ) -> Result<Self> {
        let mut lost = Vec::new();
        let stored = table_store::load(volume, &allocator, device, root, next, Some(&mut lost))?;
        let mut table = Self::from_stored(volume, allocator, stored, next);
        if !lost.is_empty() {
            // Something may lead to any that seems to be free.
            table.live.get_mut().free.clear();
        }
        let sentence = |Lost { ids, error }| {
            let (first, last) = (ids.start, ids.end.min(next.node.0) - 1);
            format!("nodes {first} to {last} are lost, as far as there are any: {error}")
        };
        table.lost = lost.into_iter().map(sentence).collect();
        Ok(table)
    }

    /// What is wrong with the pages that could not be read: one sentence each.
    pub fn lost(&self) -> &[String] {
        &self.lost
    }

    fn from_stored(volume: VolumeId, allocator: Arc<Allocator>, stored: Stored, next: Next) -> Self {
        let (next, recovered_from) = (next.node.0, next.generation);
        let pages = stored.pages.clone();
        let used = pages.entries().map(|(id, _)| id.0).chain([next]);
        let between = used.scan(1, |from, id| Some(std::mem::replace(from, id + 1)..id));
        let mut free: Vec<_> = between.filter(|ids| !ids.is_empty()).collect();
        // The last is taken first: low ids are used again first.
        free.reverse();
        let live = RwLock::new(Live { pages, next, free, freed: Vec::new(), recovered_from });
        Self { volume, allocator, live, stored: Mutex::new(stored), lost: Vec::new() }
    }

    /// Where a node lies; `None` for an id that is not in use. A node that was never written has no extents.
    pub fn lookup(&self, id: NodeId) -> Option<BlockEntry> {
        self.live.read().pages.get(id).cloned()
    }

    /// Which writing of a node is the present one; `None` for an id that is not in use.
    pub fn generation(&self, id: NodeId) -> Option<u64> {
        self.live.read().pages.get(id).map(|entry| entry.generation)
    }

    /// The tree that a node belongs to; `None` for an id that is not in use.
    pub fn tree(&self, id: NodeId) -> Option<Tree> {
        self.live.read().pages.get(id).map(|entry| entry.tree)
    }

    /// The table as it is now.
    pub fn pages(&self) -> Pages {
        self.live.read().pages.clone()
    }

    /// How many nodes there are.
    pub fn count(&self) -> u64 {
        self.live.read().pages.entries().count() as u64
    }

    /// The table of the last checkpoint.
    pub fn stored(&self) -> Pages {
        self.stored.lock().pages.clone()
    }

    /// All nodes that wait for reclamation, and their heights.
    pub fn pending_reclamation(&self) -> Vec<(NodeId, u8)> {
        let live = self.live.read();
        let entries = live.pages.entries().filter(|(_, entry)| entry.pending_reclamation);
        entries.map(|(id, entry)| (id, entry.height)).collect()
    }

    /// An id for a new node, with one reference and no place.
    pub fn insert_new(&self, tree: Tree, height: u8) -> NodeId {
        let mut live = self.live.write();
        let id = live.take_free().unwrap_or_else(|| {
            live.next += 1;
            NodeId(live.next - 1)
        });
        let entry = BlockEntry {
            generation: 0,
            extents: Vec::new(),
            second_copy: Vec::new(),
            length: 0,
            header_length: 0,
            header_checksum: 0,
            references: 1,
            pending_reclamation: false,
            height,
            tree,
        };
        let slot = live.pages.slot(self.volume, id);
        assert!(slot.is_none(), "BT-7: a new node's id is free");
        *slot = Some(entry);
        id
    }

    /// How many edges, gotos and roots name a node; 0 for an id that is not in use.
    pub fn references(&self, id: NodeId) -> u32 {
        self.live.read().pages.get(id).map_or(0, |entry| entry.references)
    }

    /// Changes how many edges, gotos and roots name a node, and gives their number; at 0 it waits for reclamation (BT-4). `None`, and
    /// nothing is changed, for a count that cannot be: where more names go than there were, or one comes to a node that had none.
    pub fn change_references(&self, id: NodeId, change: i64) -> Option<u32> {
        let mut live = self.live.write();
        let before = live.pages.get(id)?.references;
        let references = u32::try_from(i64::from(before) + change).ok().filter(|_| before > 0)?;
        let entry = live.pages.slot(self.volume, id).as_mut()?;
        (entry.references, entry.pending_reclamation) = (references, references == 0);
        Some(references)
    }

    /// Records where the present image of a node was written. Its old place is freed in the current interval.
    /// References are not taken from `place`.
    ///
    /// # Panics
    /// If the node is not there, or its generation does not rise.
    pub fn record_write(&self, id: NodeId, place: &BlockEntry) {
        let mut live = self.live.write();
        let entry =
            live.pages.slot(self.volume, id).as_mut().expect("a node that is written is in the table");
        let old = move_to(entry, place);
        self.free(&live, &old);
    }

    /// Records where the image that a node had at a cut was written. The live table takes the place over,
    /// too, unless the node was written again or removed since; then the place is freed in the current
    /// interval, since only this version names it.
    ///
    /// # Panics
    /// If the node is not in the version, or its generation does not rise.
    pub fn record_checkpoint_write(&self, version: &mut Version, id: NodeId, place: &BlockEntry) {
        let mut live = self.live.write();
        let number = page_number(id);
        let same_page =
            live.pages.page(number).zip(version.pages.page(number)).is_some_and(|(a, b)| Arc::ptr_eq(a, b));
        let entry =
            version.pages.slot(self.volume, id).as_mut().expect("a node that is written is in the version");
        let generation = entry.generation;
        let old = move_to(entry, place);
        if same_page {
            // Stays one page, so that the next checkpoint need not write it again.
            live.pages.0[number] = version.pages.0[number].clone();
        } else {
            match live.pages.slot(self.volume, id) {
                Some(entry) if entry.generation == generation => drop(move_to(entry, place)),
                // Whoever replaced the old place in the live table has freed it.
                _ => return self.free(&live, place),
            }
        }
        for extent in old.extents.iter().chain(&old.second_copy) {
            self.allocator.free_with(version.interval, *extent);
        }
    }

    /// Removes a node and frees its place in the current interval. The id is not used again before the
    /// checkpoint of the next cut is durable. False if there is no such node.
    pub fn remove(&self, id: NodeId) -> bool {
        let mut live = self.live.write();
        let Some(entry) = live.pages.slot(self.volume, id).take() else { return false };
        live.freed.push(id);
        self.free(&live, &entry);
        true
    }

    /// Frees the place of an image in the current interval, or at once (SP-3).
    fn free(&self, live: &Live, image: &BlockEntry) {
        for extent in image.extents.iter().chain(&image.second_copy) {
            if image.generation >= live.recovered_from {
                self.allocator.give_back(*extent);
            } else {
                self.allocator.free_later(*extent);
            }
        }
    }

    /// The table of a cut. Ends the allocator's interval in the same instant, so that what is freed later
    /// belongs to the next checkpoint.
    pub fn snapshot(&self) -> Version {
        let mut live = self.live.write();
        let interval = self.allocator.cut();
        live.recovered_from = u64::MAX;
        let freed = std::mem::take(&mut live.freed);
        Version { pages: live.pages.clone(), next: live.next, freed, interval }
    }

    /// Writes what differs from the version that was written last, by copy on write; nothing is flushed. On
    /// an error the table on the device is still the old one.
    ///
    /// # Errors
    /// [`crate::Error::NoSpace`] if the pages find no place; [`crate::Error::Device`].
    ///
    /// # Panics
    /// If the version has a node that was never written.
    pub fn write(&self, version: &Version, device: &dyn Device, checkpoint: u64) -> Result<TableRoot> {
        let old = self.stored.lock().clone();
        let (new, root) = old.write(self.volume, version, &self.allocator, device, checkpoint)?;
        *self.stored.lock() = new;
        Ok(root)
    }

    /// Makes free what the version's checkpoint, which is durable now, no longer needs: extents, after
    /// `discard` has seen them, and ids.
    pub fn release(&self, version: Version, discard: impl FnMut(Run)) {
        self.allocator.release(version.interval, discard);
        self.live.write().free.extend(version.freed.into_iter().map(|id| id.0..id.0 + 1));
    }
}

impl Live {
    fn take_free(&mut self) -> Option<NodeId> {
        let id = self.free.last_mut()?.next();
        self.free.pop_if(|ids| ids.is_empty());
        id.map(NodeId)
    }
}

impl Version {
    /// The least id never used: what the superblock keeps.
    pub fn next(&self) -> NodeId {
        NodeId(self.next)
    }

    /// The interval that the cut ended.
    pub fn interval(&self) -> Interval {
        self.interval
    }

    /// Where a node lies.
    pub fn lookup(&self, id: NodeId) -> Option<&BlockEntry> {
        self.pages.get(id)
    }

    /// All nodes, by id.
    #[cfg(test)]
    pub fn iter(&self) -> impl Iterator<Item = (NodeId, &BlockEntry)> {
        self.pages.entries()
    }

    pub(super) fn pages(&self) -> &Pages {
        &self.pages
    }
}

impl Pages {
    /// A number above all ids.
    pub fn end(&self) -> u64 {
        self.0.len() as u64 * ENTRIES_PER_PAGE as u64
    }

    /// All nodes, by id.
    pub fn entries(&self) -> impl Iterator<Item = (NodeId, &BlockEntry)> {
        self.0.iter().flatten().flat_map(|page| {
            let entries = page.entries.iter().enumerate();
            entries.filter_map(|(i, entry)| entry.as_ref().map(|entry| (page.node(i), entry)))
        })
    }

    /// The page with this number.
    pub(super) fn page(&self, number: usize) -> Option<&Arc<TablePage>> {
        self.0.get(number)?.as_ref()
    }

    /// Where a node lies.
    pub fn get(&self, id: NodeId) -> Option<&BlockEntry> {
        self.page(page_number(id))?.entries[slot_number(id)].as_ref()
    }

    /// The place for an id's entry, in a page that is not shared with another version.
    fn slot(&mut self, volume: VolumeId, id: NodeId) -> &mut Option<BlockEntry> {
        let number = page_number(id);
        self.0.resize(self.0.len().max(number + 1), None);
        let page = self.0[number].get_or_insert_with(|| Arc::new(TablePage::new(volume, number as u64)));
        &mut Arc::make_mut(page).entries[slot_number(id)]
    }
}

fn page_number(id: NodeId) -> usize {
    (id.0 / ENTRIES_PER_PAGE as u64) as usize
}

fn slot_number(id: NodeId) -> usize {
    (id.0 % ENTRIES_PER_PAGE as u64) as usize
}

/// Gives an entry a new place, but not its references; returns it as it was.
fn move_to(entry: &mut BlockEntry, place: &BlockEntry) -> BlockEntry {
    assert!(place.generation > entry.generation, "a node's generation rises with each writing");
    let (references, pending_reclamation) = (entry.references, entry.pending_reclamation);
    std::mem::replace(entry, BlockEntry { references, pending_reclamation, ..place.clone() })
}
