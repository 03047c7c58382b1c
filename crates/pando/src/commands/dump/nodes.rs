//! The block table and the nodes it leads to.

use std::fmt;

use bytes::{Bytes, BytesMut};
use pando_format::block_table::POINTERS_PER_PAGE;
use pando_format::{
    BlockEntry, BufferPart, IndexPage, NodeBody, NodeHeader, PartEntry, Pointer, Structure, TablePage, Tree,
    VolumeId, decode_leaf_part, open_part, stored_checksum,
};
use pando_fs::schema::NameRecord;
use serde_json::json;

use crate::commands::dump::Dump;
use crate::failure::{Result, complain};
use crate::raw::{RawError, RawVolume};

/// Bytes of a block of the device.
const BLOCK_BYTES: u64 = 4096;

/// Bytes of a value that are shown.
const VALUE_BYTES_SHOWN: usize = 64;

/// What is done with each entry of the block table.
type Visit<'a> = dyn FnMut(&mut Dump, u64, &BlockEntry) -> Result<()> + 'a;

impl Dump {
    /// Walks the block table from its root, in the order of node ids. Pages are printed if `shown`, and those that cannot be read the first
    /// time. True if there are none of these.
    pub(super) fn table(&mut self, visit: &mut Visit<'_>, shown: bool) -> Result<bool> {
        let mut is_whole = true;
        let root = self.newest.table;
        let mut waiting: Vec<Place> = Vec::new();
        waiting.extend(root.page.map(|pointer| Place { level: root.levels, number: Some(0), pointer }));
        while let Some(place) = waiting.pop() {
            let Place { level, pointer, .. } = place;
            let offset = pointer.extent.offset;
            match read_page(&self.raw, &place, &self.newest.volume) {
                Ok(Page::Index(page)) => {
                    if shown {
                        self.item(
                            "index page",
                            offset,
                            json!({ "level": level, "number": page.number }),
                            &*page,
                        )?;
                    }
                    let first = page.number.checked_mul(POINTERS_PER_PAGE as u64);
                    let below = page.children.iter().enumerate().rev();
                    waiting.extend(below.filter_map(|(i, child)| {
                        let number = first.map(|first| first + i as u64);
                        child.map(|pointer| Place { level: level - 1, number, pointer })
                    }));
                }
                Ok(Page::Table(page)) => {
                    if shown {
                        self.item("table page", offset, json!({ "number": page.number }), &*page)?;
                    }
                    for (i, entry) in page.entries.iter().enumerate() {
                        if let Some(entry) = entry {
                            visit(self, page.node(i).0, entry)?;
                        }
                    }
                }
                Err(error) => {
                    is_whole = false;
                    if !self.table_shown {
                        self.damage(if level == 0 { "table page" } else { "index page" }, offset, &error)?;
                    }
                }
            }
        }
        Ok(is_whole)
    }

    /// Headers of all nodes or of one, with what is in them if `contents`.
    pub(super) fn nodes(&mut self, only: Option<u64>, contents: bool) -> Result<()> {
        let mut found = false;
        let mut visit = |dump: &mut Self, id: u64, entry: &BlockEntry| match only {
            Some(only) if only != id => Ok(()),
            _ => {
                found = true;
                dump.node(id, entry, contents)
            }
        };
        let is_whole = self.table(&mut visit, false)?;
        if let Some(only) = only.filter(|_| is_whole && !found) {
            complain(format_args!("the block table has no node {only}"));
            self.damaged = true;
        }
        Ok(())
    }

    fn node(&mut self, id: u64, entry: &BlockEntry, contents: bool) -> Result<()> {
        let offset = entry.extents.first().map_or(0, |extent| extent.offset);
        let header = read_image(&self.raw, entry, 0, entry.header_length.into())
            .and_then(|bytes| node_header(&bytes, id, entry, &self.newest.volume));
        let header = match header {
            Ok(header) => header,
            Err(error) => return self.damage(&format!("node {id}"), offset, &error),
        };
        let fields = json!({ "node": id, "height": header.height, "parts": header.parts.len() });
        self.item("node", offset, fields, &header)?;
        if !contents {
            return Ok(());
        }
        for (i, part) in header.parts.iter().enumerate().filter(|(_, part)| part.stored_length > 0) {
            let fields = json!({ "node": id, "part": i, "entries": part.entry_count });
            match read_part(&self.raw, entry, &header, part) {
                Ok(text) => self.item("part", offset, fields, &format!("part {i} of node {id}\n{text}"))?,
                Err(error) => self.damage(&format!("part {i} of node {id}"), offset, &error)?,
            }
        }
        Ok(())
    }
}

enum Page {
    Index(Box<IndexPage>),
    Table(Box<TablePage>),
}

/// Where a page is.
struct Place {
    level: u8,
    /// `None` where no page can be.
    number: Option<u64>,
    pointer: Pointer,
}

fn read_page(raw: &RawVolume, place: &Place, volume: &VolumeId) -> Result<Page, RawError> {
    let bytes = raw.read_extent(&place.pointer.extent)?;
    let (page, of, level, number) = if place.level == 0 {
        let page = TablePage::decode(&bytes)?;
        let (of, number) = (page.volume, page.number);
        (Page::Table(Box::new(page)), of, 0, number)
    } else {
        let page = IndexPage::decode(&bytes)?;
        let (of, level, number) = (page.volume, page.level, page.number);
        (Page::Index(Box::new(page)), of, level, number)
    };
    if of != *volume || stored_checksum(&bytes) != place.pointer.checksum {
        return Err(RawError::Unexpected("it is not the page that was written last"));
    }
    // A page of several places could lead around in circles, or to more pages than anybody waits for.
    if level != place.level || Some(number) != place.number {
        return Err(RawError::Unexpected("its level and number are not those of its place"));
    }
    Ok(page)
}

/// The header of the node that the block table means, and not of an older image or another node (FMT-4).
fn node_header(
    bytes: &Bytes,
    id: u64,
    entry: &BlockEntry,
    volume: &VolumeId,
) -> Result<NodeHeader, RawError> {
    let header = NodeHeader::decode(bytes)?;
    let is_meant = stored_checksum(bytes) == entry.header_checksum
        && header.volume == *volume
        && header.node.0 == id
        && header.generation == entry.generation
        && header.height == entry.height
        && header.tree == entry.tree;
    if is_meant {
        Ok(header)
    } else {
        Err(RawError::Unexpected("its header is not the one that the block table names"))
    }
}

/// Bytes of a node's image, gathered from its extents.
fn read_image(raw: &RawVolume, entry: &BlockEntry, start: u64, length: u64) -> Result<Bytes, RawError> {
    let mut pieces = BytesMut::new();
    let (mut skip, mut rest) = (start, length);
    for extent in &entry.extents {
        let available = u64::from(extent.length).saturating_sub(skip);
        let take = available.min(rest);
        if take > 0 {
            pieces.extend_from_slice(&raw.read(extent.offset + skip, take)?);
            rest -= take;
        }
        skip = skip.saturating_sub(extent.length.into());
    }
    if rest > 0 {
        Err(RawError::Unexpected("it ends behind the extents of its node"))
    } else {
        Ok(pieces.freeze())
    }
}

fn read_part(
    raw: &RawVolume,
    entry: &BlockEntry,
    header: &NodeHeader,
    part: &PartEntry,
) -> Result<String, RawError> {
    let start = u64::from(part.offset) * BLOCK_BYTES;
    let stored = read_image(raw, entry, start, part.padded_length() as u64)?;
    Ok(match header.body {
        NodeBody::Leaf { .. } => {
            let bytes = open_part(Structure::LeafPart, &stored, part)?;
            LeafText { tree: header.tree, entries: decode_leaf_part(&bytes)? }.to_string()
        }
        NodeBody::Interior { .. } => {
            let bytes = open_part(Structure::BufferPart, &stored, part)?;
            BufferPart::decode(&bytes)?.to_string()
        }
    })
}

/// Keys as they lie in the leaf, without what the tree has lifted off them, and what the values mean: records are read, of
/// others the beginning is shown.
struct LeafText {
    tree: Tree,
    entries: Vec<(Bytes, Bytes)>,
}

impl fmt::Display for LeafText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (key, value) in &self.entries {
            if self.tree == Tree::Metadata
                && let Ok(record) = NameRecord::decode(value)
            {
                writeln!(f, "  \"{}\": {record}", key.escape_ascii())?;
                continue;
            }
            let start = &value[..value.len().min(VALUE_BYTES_SHOWN)];
            let more = if start.len() < value.len() { "..." } else { "" };
            writeln!(
                f,
                "  \"{}\": {} bytes \"{}\"{more}",
                key.escape_ascii(),
                value.len(),
                start.escape_ascii()
            )?;
        }
        Ok(())
    }
}
