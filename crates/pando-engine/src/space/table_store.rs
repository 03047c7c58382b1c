//! The block table on the device: a radix tree of pages, copy on write.
//!
//! A checkpoint writes the table pages that changed, level by level the index pages above them, and gets the
//! pointer to the topmost page, which goes into the superblock. Old pages are freed with that checkpoint
//! (CP-1).

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::{Buffer, Device, ReadRequest, WriteRequest};
use pando_format::block_table::{ENTRIES_PER_PAGE, IndexPage, PAGE_LENGTH_MAX, POINTERS_PER_PAGE, TablePage};
use pando_format::{Extent, FormatError, Pointer, TableRoot, VolumeId, stored_checksum};

use super::allocator::Allocator;
use super::block_table::{Next, Pages, Version};
use crate::{Error, Result};

/// Pages read or written at once.
const GROUP_PAGES: usize = 256;

/// More levels than ids of 64 bits need.
const LEVELS_MAX: u8 = 9;

/// What is on the device.
#[derive(Clone, Default)]
pub(super) struct Stored {
    /// As they were written.
    pub pages: Pages,
    /// Where the pages of each level are; level 0 are the table pages. `None` for pages without an entry
    /// below them, which are not written.
    levels: Vec<Vec<Option<Pointer>>>,
}

impl Stored {
    /// Writes what differs in a version.
    pub fn write(
        &self,
        volume: VolumeId,
        version: &Version,
        allocator: &Allocator,
        device: &dyn Device,
        checkpoint: u64,
    ) -> Result<(Self, TableRoot)> {
        let mut writer =
            PageWriter { allocator, device, written: Vec::new(), requests: Vec::new(), waiting: 0 };
        let new = self.write_levels(&mut writer, volume, version, checkpoint);
        match new.and_then(|new| writer.submit().map(|()| new)) {
            Ok(new) => {
                let old = self.levels.iter().enumerate().flat_map(|(level, pointers)| {
                    pointers
                        .iter()
                        .enumerate()
                        .filter_map(move |(number, old)| old.map(|old| (level, number, old)))
                });
                for (level, number, old) in old {
                    if new.pointer(level, number) != Some(old) {
                        allocator.free_with(version.interval(), old.extent);
                    }
                }
                let root = new.root();
                Ok((new, root))
            }
            Err(error) => {
                writer.written.into_iter().for_each(|extent| allocator.give_back(extent));
                Err(error)
            }
        }
    }

    fn write_levels(
        &self,
        writer: &mut PageWriter<'_>,
        volume: VolumeId,
        version: &Version,
        checkpoint: u64,
    ) -> Result<Self> {
        let pages = version.pages().clone();
        let address = |pages: &Pages, number| pages.page(number).map(Arc::as_ptr);
        let is_stored = |number: &usize| address(&self.pages, *number) == address(&pages, *number);
        let changed: Vec<usize> = (0..pages.0.len()).filter(|number| !is_stored(number)).collect();
        let mut pointers = self.old_level(0, pages.0.len());
        writer.write(&changed, &mut pointers, |number| {
            let page = pages.page(number).filter(|page| page.entries.iter().any(Option::is_some));
            page.map(|page| TablePage { checkpoint, ..TablePage::clone(page) }.encode())
        })?;
        let (mut levels, mut changed) = (vec![pointers], changed);
        while levels.last().is_some_and(|below| below.len() > 1) {
            let level = levels.len();
            let below = &levels[level - 1];
            let mut pointers = self.old_level(level, below.len().div_ceil(POINTERS_PER_PAGE));
            // On a level that was not there before, all pages have a changed one below them: the table grows
            // at its end.
            changed.iter_mut().for_each(|number| *number /= POINTERS_PER_PAGE);
            changed.dedup();
            writer.write(&changed, &mut pointers, |number| {
                let mut page = IndexPage { checkpoint, ..IndexPage::new(volume, level as u8, number as u64) };
                let children = below.iter().skip(number * POINTERS_PER_PAGE);
                page.children.iter_mut().zip(children).for_each(|(place, child)| *place = *child);
                page.children.iter().any(Option::is_some).then(|| page.encode())
            })?;
            levels.push(pointers);
        }
        Ok(Self { pages, levels })
    }

    fn old_level(&self, level: usize, length: usize) -> Vec<Option<Pointer>> {
        let mut pointers = self.levels.get(level).cloned().unwrap_or_default();
        pointers.resize(length, None);
        pointers
    }

    fn pointer(&self, level: usize, number: usize) -> Option<Pointer> {
        *self.levels.get(level)?.get(number)?
    }

    fn root(&self) -> TableRoot {
        let levels = self.levels.len().saturating_sub(1);
        TableRoot { levels: levels as u8, page: self.pointer(levels, 0) }
    }
}

struct PageWriter<'a> {
    allocator: &'a Allocator,
    device: &'a dyn Device,
    written: Vec<Extent>,
    requests: Vec<WriteRequest>,
    /// Pages in `requests`.
    waiting: usize,
}

impl PageWriter<'_> {
    /// Takes pages of one level to be written and sets their pointers; `None` for those that `encode` leaves out.
    fn write(
        &mut self,
        numbers: &[usize],
        pointers: &mut [Option<Pointer>],
        encode: impl Fn(usize) -> Option<Vec<u8>>,
    ) -> Result<()> {
        for group in numbers.chunks(GROUP_PAGES) {
            let mut images = Vec::with_capacity(group.len());
            for &number in group {
                pointers[number] = None;
                images.extend(encode(number).map(|image| (number, Bytes::from(image))));
            }
            let from = self.written.len();
            self.allocate(&images.iter().map(|(_, image)| image.len() as u64).collect::<Vec<_>>())?;
            if self.waiting + images.len() > GROUP_PAGES {
                self.submit()?;
            }
            self.waiting += images.len();
            let mut end = None;
            for ((number, image), &extent) in images.into_iter().zip(&self.written[from..]) {
                pointers[number] = Some(Pointer { extent, checksum: stored_checksum(&image) });
                match self.requests.last_mut().filter(|_| end == Some(extent.offset)) {
                    Some(request) => request.pieces.push(image),
                    None => self.requests.push(WriteRequest { offset: extent.offset, pieces: vec![image] }),
                }
                end = Some(extent.end());
            }
        }
        Ok(())
    }

    /// Writes what waits. Few pages of several levels go to the device together.
    fn submit(&mut self) -> Result<()> {
        self.waiting = 0;
        let requests = std::mem::take(&mut self.requests);
        if !requests.is_empty() {
            self.device.write(&requests)?;
        }
        Ok(())
    }

    /// Adds one extent for each length to `written`, one behind the other where there is room for that.
    fn allocate(&mut self, lengths: &[u64]) -> Result<()> {
        let total: u64 = lengths.iter().sum();
        if total == 0 {
            return Ok(());
        }
        let borders: Vec<u64> = lengths
            .iter()
            .scan(0, |end, length| {
                *end += length;
                Some(*end)
            })
            .collect();
        let Some(runs) = self.allocator.allocate(total, &borders[..borders.len() - 1]) else {
            if lengths.len() == 1 {
                return Err(Error::NoSpace);
            }
            let (front, back) = lengths.split_at(lengths.len() / 2);
            self.allocate(front)?;
            return self.allocate(back);
        };
        let mut runs = runs.into_iter();
        let mut rest = Extent::default();
        for &length in lengths {
            if rest.length == 0 {
                rest = runs.next().expect("the runs have room for every page");
            }
            let length = length.try_into().expect("a page is short");
            self.written.push(Extent { length, ..rest });
            rest = Extent { offset: rest.offset + u64::from(length), length: rest.length - length, ..rest };
        }
        Ok(())
    }
}

/// A page that cannot be read.
pub(super) struct Lost {
    /// The nodes that are entered in it, or below it.
    pub ids: Range<u64>,
    pub error: Error,
}

/// Reads a table and reserves what it occupies. Pages that cannot be read are left out if there is a list for them.
pub(super) fn load(
    volume: VolumeId,
    allocator: &Allocator,
    device: &dyn Device,
    root: TableRoot,
    next: Next,
    mut lost: Option<&mut Vec<Lost>>,
) -> Result<Stored> {
    let blocks = allocator.capacity() / pando_device::BLOCK_SIZE as u64;
    // Ids are reused, so there are about as many as nodes. The bound keeps a wrong superblock from choosing
    // how much memory the table takes: 40 bytes for 64 ids, and pages only for those that are read.
    let ids = next.node.0;
    if ids == 0 || ids > 2 * blocks + (1 << 20) || root.levels > LEVELS_MAX {
        let what = format!("superblock: {ids} node ids and {} table levels cannot be", root.levels);
        return Err(Error::Damaged { what });
    }
    let page_count = (ids as usize).div_ceil(ENTRIES_PER_PAGE);
    let lengths: Vec<usize> = std::iter::successors(Some(page_count), |below| {
        (*below > 1).then(|| below.div_ceil(POINTERS_PER_PAGE))
    })
    .collect();
    if root.page.is_some() && lengths.len() != usize::from(root.levels) + 1 {
        let what = format!("superblock: {ids} node ids do not make {} table levels", root.levels);
        return Err(Error::Damaged { what });
    }
    let mut levels: Vec<Vec<Option<Pointer>>> = lengths.iter().map(|length| vec![None; *length]).collect();
    if let Some(top) = levels.last_mut().and_then(|top| top.first_mut()) {
        *top = root.page;
    }
    let mut pages = Pages(vec![None; page_count]);
    for level in (0..levels.len()).rev() {
        let numbers: Vec<(usize, Pointer)> = levels[level]
            .iter()
            .enumerate()
            .filter_map(|(number, pointer)| pointer.map(|p| (number, p)))
            .collect();
        for group in numbers.chunks(GROUP_PAGES) {
            reserve_pages(allocator, level, group)?;
            let images: Vec<Result<Bytes>> = match read_pages(device, group) {
                Ok(images) => images.into_iter().map(Ok).collect(),
                Err(error) if lost.is_none() => return Err(error),
                Err(_) => group.iter().map(|page| Ok(read_pages(device, &[*page])?.remove(0))).collect(),
            };
            for (&(number, pointer), image) in group.iter().zip(images) {
                let at = Place { level, number, pointer };
                let loaded = image.and_then(|image| match level.checked_sub(1) {
                    Some(below) => load_index(&at, volume, &image, &mut levels[below]),
                    None => {
                        let page = load_table(&at, volume, &image, allocator, next)?;
                        pages.0[number] = Some(Arc::new(page));
                        Ok(())
                    }
                });
                match (loaded, &mut lost) {
                    (Err(error), Some(lost)) => lost.push(Lost { ids: at.ids(), error }),
                    (loaded, _) => loaded?,
                }
            }
        }
    }
    Ok(Stored { pages, levels })
}

fn reserve_pages(allocator: &Allocator, level: usize, group: &[(usize, Pointer)]) -> Result<()> {
    for &(number, pointer) in group {
        if pointer.extent.length as usize > PAGE_LENGTH_MAX {
            let at = Place { level, number, pointer };
            return Err(at.damaged("its pointer claims more bytes than a page has"));
        }
        allocator.reserve(pointer.extent)?;
    }
    Ok(())
}

fn read_pages(device: &dyn Device, group: &[(usize, Pointer)]) -> Result<Vec<Bytes>> {
    let request = |&(_, Pointer { extent, .. }): &(usize, Pointer)| {
        let buffer = Buffer::for_overwrite(extent.length as usize);
        ReadRequest { offset: extent.offset, buffer }
    };
    let mut requests: Vec<_> = group.iter().map(request).collect();
    device.read(&mut requests)?;
    Ok(requests.into_iter().map(|request| request.buffer.freeze()).collect())
}

/// Enters what an index page points at in the level below.
fn load_index(at: &Place, volume: VolumeId, image: &Bytes, below: &mut [Option<Pointer>]) -> Result<()> {
    let page = IndexPage::decode(image).map_err(|error| at.unreadable(&error))?;
    at.check(image, usize::from(page.level), page.number, page.volume == volume)?;
    let first = at.number * POINTERS_PER_PAGE;
    for (i, child) in page.children.iter().enumerate().filter(|(_, child)| child.is_some()) {
        *below.get_mut(first + i).ok_or_else(|| at.damaged("it points at ids never used"))? = *child;
    }
    Ok(())
}

fn load_table(
    at: &Place,
    volume: VolumeId,
    image: &Bytes,
    allocator: &Allocator,
    next: Next,
) -> Result<TablePage> {
    let page = TablePage::decode(image).map_err(|error| at.unreadable(&error))?;
    at.check(image, 0, page.number, page.volume == volume)?;
    for (i, entry) in page.entries.iter().enumerate() {
        let Some(entry) = entry else { continue };
        let node = page.node(i);
        if node.is_empty() || node >= next.node {
            return Err(at.damaged(&format!("it has an entry for node {}, which was never used", node.0)));
        }
        if entry.generation >= next.generation {
            let (generation, next) = (entry.generation, next.generation);
            return Err(at.damaged(&format!(
                "node {} has generation {generation}, and the superblock says that {next} was never used",
                node.0
            )));
        }
        if (entry.references == 0) != entry.pending_reclamation {
            let (node, references) = (node.0, entry.references);
            let what = format!(
                "node {node}, which {references} names lead to, does or does not wait for reclamation (BT-4)"
            );
            return Err(at.damaged(&what));
        }
        for extent in entry.extents.iter().chain(&entry.second_copy) {
            allocator.reserve(*extent)?;
        }
    }
    Ok(page)
}

/// Which page is being read.
struct Place {
    level: usize,
    number: usize,
    pointer: Pointer,
}

impl Place {
    /// The nodes that are entered in the page, or below it.
    fn ids(&self) -> Range<u64> {
        let count = (0..self.level).fold(ENTRIES_PER_PAGE as u64, |ids, _| ids * POINTERS_PER_PAGE as u64);
        let first = self.number as u64 * count;
        first..first + count
    }

    /// The page must be the one that the pointer meant: an older one in the same place is whole, too.
    fn check(&self, image: &Bytes, level: usize, number: u64, is_same_volume: bool) -> Result<()> {
        if stored_checksum(image) != self.pointer.checksum {
            return Err(self.damaged("it is not the page that its pointer means"));
        }
        if level != self.level || number != self.number as u64 || !is_same_volume {
            return Err(self
                .damaged(&format!("page {number} of level {level}, or of another volume, is in its place")));
        }
        Ok(())
    }

    fn unreadable(&self, error: &FormatError) -> Error {
        self.damaged(&error.to_string())
    }

    fn damaged(&self, what: &str) -> Error {
        let Self { level, number, pointer } = self;
        Error::Damaged {
            what: format!("block table, page {number} of level {level} at {}: {what}", pointer.extent),
        }
    }
}
