//! Nodes from the cache to the device: serialize, place, write.
//!
//! Every write of a node goes to new space (copy on write). The device is written with no lock held; afterwards the node
//! learns where its parts lie now, by the identity of the parts, since it may have changed in the meantime.

use std::collections::HashMap;
use std::iter::Peekable;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_device::{BLOCK_SIZE, WriteRequest, complain};
use pando_format::part::PART_LENGTH_MAX;
use pando_format::{
    BlockEntry, BufferPartWriter, Edge, EncodedPart, Extent, IMAGE_LENGTH_MAX, LeafPartWriter, NodeBody,
    NodeHeader, PartEntry, Structure, stored_checksum, verify_part,
};

use crate::betree::leaf::Basement;
use crate::betree::message_buffer::MessageBuffer;
use crate::betree::node::{Body, Image, Node, NodeRef};
use crate::betree::part::Part;
use crate::volume::Volume;
use crate::{Error, Result};

/// As much as is serialized before it is given to the device, if more is to follow: the device then works meanwhile.
pub(super) const OVERLAPPED_BYTES: u32 = 1 << 20;

/// Requests of a device that it is given then at the latest; what many more are queued up waits until the rest is serialized.
const OVERLAPPED_REQUESTS: usize = 32;

/// Why a node is written, for the counters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cause {
    /// A checkpoint.
    Checkpoint,
    /// Room in memory.
    Eviction,
    /// A run of blocks that the log binds to its place in the node.
    Binding,
}

/// A node image that is on the device but not in any block table yet.
pub(crate) struct Written {
    pub(crate) entry: BlockEntry,
    pub(crate) parts: Vec<PartEntry>,
}

/// Work while the last of the images are under way, given where they will lie.
pub(crate) type Meanwhile<'a> = &'a mut dyn FnMut(&[Written]);

impl Volume {
    /// Writes an image to new space. On an error nothing refers to what may have been written.
    pub(crate) fn write_image(&self, image: &Image, cause: Cause) -> Result<Written> {
        let mut written = self.write_images(std::iter::once(image), cause)?;
        Ok(written.pop().expect("one image was written"))
    }

    /// Writes images to new space, all of them or none. On an error nothing refers to what may have been written.
    pub(crate) fn write_images<'a>(
        &self,
        images: impl Iterator<Item = &'a Image>,
        cause: Cause,
    ) -> Result<Vec<Written>> {
        self.write_images_meanwhile(images, cause, None)
    }

    /// The same, with other work meanwhile, which is left out if an error comes before.
    pub(crate) fn write_images_meanwhile<'a>(
        &self,
        images: impl Iterator<Item = &'a Image>,
        cause: Cause,
        work: Option<Meanwhile<'_>>,
    ) -> Result<Vec<Written>> {
        let mut written = Vec::new();
        if let Err(error) = self.write_rest(&mut images.peekable(), &mut written, work) {
            for extent in written.into_iter().flat_map(|one| one.entry.extents) {
                self.allocator.give_back(extent);
            }
            return Err(error);
        }
        written.iter().for_each(|one| self.stats.count_written(cause, u64::from(one.entry.length)));
        Ok(written)
    }

    /// Writes some of the images, and meanwhile the rest: what comes next is serialized while the device works on what was.
    fn write_rest<'a>(
        &self,
        images: &mut Peekable<impl Iterator<Item = &'a Image>>,
        written: &mut Vec<Written>,
        work: Option<Meanwhile<'_>>,
    ) -> Result<()> {
        let mut requests = Vec::new();
        let mut bytes = 0;
        while bytes < OVERLAPPED_BYTES
            && requests.len() < OVERLAPPED_REQUESTS
            && let Some(image) = images.next()
        {
            let (more, one) = self.lay_out(image)?;
            bytes += one.entry.length;
            requests.extend(more);
            written.push(one);
        }
        if images.peek().is_none() && work.is_none() {
            return self.device.write(&requests).map_err(|error| self.poison(&error));
        }
        if requests.is_empty() {
            work.into_iter().for_each(|work| work(written));
            return Ok(());
        }
        let mut rest = Ok(());
        let mut work = Some(work);
        let mut write_rest = || rest = self.write_rest(images, written, work.take().flatten());
        let result = self.device.write_meanwhile(&requests, &mut write_rest);
        result.map_err(|error| self.poison(&error)).and(rest)
    }

    /// Serializes an image, and finds space for it.
    fn lay_out(&self, image: &Image) -> Result<(Vec<WriteRequest>, Written)> {
        let (parts, body) = self.encode_body(image)?;
        let mut header = NodeHeader {
            volume: self.volume_id,
            tree: image.tree,
            node: image.id,
            generation: self.next_generation.fetch_add(1, Ordering::Relaxed),
            height: image.height,
            checkpoint: image.checkpoint,
            msn_max: image.newest(),
            birth: image.born,
            range: image.key_range.clone(),
            parts: vec![PartEntry::default(); parts.len()],
            body,
        };
        let header_length = header.encoded_length();
        let mut position = header_length;
        let mut borders = Vec::with_capacity(parts.len());
        for (index, part) in parts.iter().enumerate() {
            if part.entry.stored_length > 0 {
                borders.push(position as u64);
            }
            header.parts[index] = part.entry((position / BLOCK_SIZE) as u32);
            position += part.length();
        }
        let length = position;
        let raw: usize = header.parts.iter().map(|part| part.raw_length as usize).sum();
        self.expect_length("a node", length.max(raw), IMAGE_LENGTH_MAX)?;
        let extents = self.allocator.allocate(length as u64, &borders);
        // A long message buffer is one part, and on a full volume longer than every run of free space.
        let extents = extents.or_else(|| self.allocator.allocate_scattered(length as u64));
        let Some(extents) = extents else { return Err(Error::NoSpace) };
        let encoded = header.encode();
        let header_checksum = stored_checksum(&encoded);
        let mut pieces = vec![Bytes::from(encoded)];
        pieces.extend(parts.iter().flat_map(|part| part.pieces.iter().cloned()));
        let requests = cut_into_extents(&extents, pieces);
        let entry = BlockEntry {
            generation: header.generation,
            extents,
            second_copy: Vec::new(),
            length: length as u32,
            header_length: header_length as u32,
            header_checksum,
            references: 1,
            pending_reclamation: false,
            height: image.height,
            tree: image.tree,
        };
        Ok((requests, Written { entry, parts: header.parts }))
    }

    fn encode_body(&self, image: &Image) -> Result<(Vec<OutPart>, NodeBody)> {
        match &image.body {
            Body::Leaf(leaf) => {
                let mut parts = Vec::with_capacity(leaf.basements.len());
                for slot in &leaf.basements {
                    parts.push(match slot.part.get() {
                        Some(basement) => OutPart::new(self.encode_basement(basement)?, slot.msn),
                        None => self.copy_part(image, &slot.part)?,
                    });
                }
                let first_keys = leaf.basements.iter().map(|slot| slot.first_key.clone()).collect();
                Ok((parts, NodeBody::Leaf { first_keys }))
            }
            Body::Interior(interior) => {
                let mut parts = Vec::with_capacity(interior.children.len());
                let mut edges = Vec::with_capacity(interior.children.len());
                for child in &interior.children {
                    parts.push(match child.buffer.get() {
                        Some(buffer) => OutPart::new(self.encode_buffer(buffer)?, child.buffer_msn),
                        None => self.copy_part(image, &child.buffer)?,
                    });
                    let mut edge = Edge::new(child.id, child.strip);
                    edge.xf = child.xf.clone();
                    edges.push(edge);
                }
                Ok((parts, NodeBody::Interior { pivots: interior.pivots.clone(), edges }))
            }
        }
    }

    fn encode_basement(&self, basement: &Basement) -> Result<EncodedPart> {
        let mut writer = LeafPartWriter::new();
        for (key, value) in basement.entries.iter() {
            writer.push(key, value);
        }
        self.expect_length("a part of a node", writer.raw_length(), PART_LENGTH_MAX)?;
        Ok(writer.finish(self.compression))
    }

    fn encode_buffer(&self, buffer: &MessageBuffer) -> Result<EncodedPart> {
        if buffer.is_empty() {
            return Ok(EncodedPart::default());
        }
        let mut writer = BufferPartWriter::new();
        for (key, msn, pending) in buffer.keyed() {
            writer.push(key, msn, pending);
        }
        for (range, msn) in buffer.ranges() {
            writer.push_range(range, *msn);
        }
        buffer.gotos().iter().for_each(|goto| writer.push_goto(goto));
        self.expect_length("a part of a node", writer.raw_length(), PART_LENGTH_MAX)?;
        Ok(writer.finish(self.compression))
    }

    /// The tree splits nodes and their parts long before they are too long. One that is cannot be written, so the volume takes no changes any more.
    fn expect_length(&self, what: &str, length: usize, most: u32) -> Result<()> {
        if length <= most as usize {
            return Ok(());
        }
        Err(self.poison(&format_args!("{what} would take {length} bytes, more than {most}")))
    }

    /// A part that is not in memory goes along as it lies on the device. What a read got wrong would be wrong for good then, so it is verified. It
    /// keeps its checksum, so damage stays known as damage, and costs what is in that part alone.
    fn copy_part<T: Clone>(&self, image: &Image, part: &Part<T>) -> Result<OutPart> {
        let entry = part.stored().expect("a part that is not in memory is on the device").clone();
        let place = image.place.as_ref().expect("a node with stored parts has a place");
        let structure = match image.body {
            Body::Leaf(_) => Structure::LeafPart,
            Body::Interior(_) => Structure::BufferPart,
        };
        let read = || self.read_image(place, entry.offset as usize * BLOCK_SIZE, entry.padded_length());
        let mut stored = read()?;
        if verify_part(structure, &stored, &entry).is_err() {
            stored = read()?;
            if let Err(error) = verify_part(structure, &stored, &entry)
                && self.cache.lost.is_news(image.id)
            {
                let error = Error::damaged_node(Some(image.tree), image.id, error);
                complain(format_args!("a damaged part of the volume goes along as it is: {error}"));
            }
        }
        Ok(OutPart { pieces: vec![stored], entry })
    }

    /// Enters the present image of a node, written outside of a checkpoint, into the block table. The caller has held the
    /// eviction token since it took the image.
    pub(crate) fn place_written(&self, node: &NodeRef, image: &Image, written: &Written) {
        let mut state = node.state.write();
        if state.dropped {
            self.finish_image(&mut state);
            written.entry.extents.iter().for_each(|extent| self.allocator.free_later(*extent));
            return;
        }
        self.table.record_write(node.id, &written.entry);
        self.place_parts(&mut state, image, written);
    }

    /// Tells a node where the parts of an image of it lie now.
    pub(crate) fn place_parts(&self, state: &mut Node, image: &Image, written: &Written) {
        self.finish_image(state);
        if state.dropped {
            return;
        }
        state.place = Some(written.entry.clone());
        match (&mut state.body, &image.body) {
            (Body::Leaf(now), Body::Leaf(then)) => {
                let then: Vec<_> = then.basements.iter().map(|slot| &slot.part).collect();
                place_each(now.basements.iter_mut().map(|slot| &mut slot.part), &then, &written.parts);
            }
            (Body::Interior(now), Body::Interior(then)) => {
                let then: Vec<_> = then.children.iter().map(|child| &child.buffer).collect();
                place_each(now.children.iter_mut().map(|child| &mut child.buffer), &then, &written.parts);
            }
            _ => unreachable!("BT-3: a node never changes its height"),
        }
        self.account(state);
    }

    /// Takes the image of a dirty node to be written; it is clean from then on, unless it changes again.
    pub(crate) fn take_image(&self, node: &NodeRef, state: &mut Node) -> Image {
        debug_assert!(state.frozen.is_none() && !state.writing && state.dirty.is_some());
        let image = state.image(node.id, node.tree);
        state.dirty = None;
        state.writing = true;
        self.count_image(state);
        self.account(state);
        image
    }
}

/// A part on its way to the device.
struct OutPart {
    pieces: Vec<Bytes>,
    entry: PartEntry,
}

impl OutPart {
    fn new(part: EncodedPart, msn: pando_format::Msn) -> Self {
        let entry = part.entry(0, msn);
        Self { pieces: part.pieces, entry }
    }

    fn length(&self) -> usize {
        self.pieces.iter().map(Bytes::len).sum()
    }

    fn entry(&self, block: u32) -> PartEntry {
        PartEntry { offset: if self.entry.stored_length == 0 { 0 } else { block }, ..self.entry.clone() }
    }
}

fn place_each<'a, T: Clone + 'a>(
    now: impl Iterator<Item = &'a mut Part<T>>,
    then: &[&Part<T>],
    entries: &[PartEntry],
) {
    let mut by_contents = HashMap::new();
    let mut by_place = HashMap::new();
    for (part, entry) in then.iter().zip(entries) {
        if let Some(contents) = part.get() {
            by_contents.insert(std::sync::Arc::as_ptr(contents), entry);
        }
        if let Some(stored) = part.stored().filter(|stored| stored.stored_length > 0) {
            by_place.insert(stored.offset, entry);
        }
    }
    for part in now {
        let by_contents = part.get().and_then(|contents| by_contents.get(&std::sync::Arc::as_ptr(contents)));
        let entry = by_contents.or_else(|| by_place.get(&part.stored()?.offset)).copied();
        if let Some(entry) = entry {
            part.set_stored(entry.clone());
        }
    }
}

/// Lays pieces out over extents; where a border of extents falls inside a piece, it is cut.
fn cut_into_extents(extents: &[Extent], pieces: Vec<Bytes>) -> Vec<WriteRequest> {
    let mut pieces = pieces.into_iter();
    let mut piece = Bytes::new();
    let mut requests = Vec::with_capacity(extents.len());
    for extent in extents {
        let mut room = extent.length as usize;
        let mut inside = Vec::new();
        while room > 0 {
            if piece.is_empty() {
                match pieces.next() {
                    Some(next) => piece = next,
                    None => break,
                }
                continue;
            }
            let taken = piece.split_to(piece.len().min(room));
            room -= taken.len();
            inside.push(taken);
        }
        requests.push(WriteRequest { offset: extent.offset, pieces: inside });
    }
    requests
}
