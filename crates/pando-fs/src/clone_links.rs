//! The files with several links that have names below the source of a clone: which they are, the numbers of their copies, and how their data come along.
//!
//! Data lie by number, as those of neighbours do in one range. A batch of an operation for each of very many files is slow to plan, and leaves as many edges; so neighbours are
//! cloned together, to numbers that are neighbours again, where nothing else lies between them.

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_engine::{Batch, Bound, KeyRange, ScanLimit, Tree};

use crate::difference::damaged;
use crate::schema::{Record, key};
use crate::view::View;
use crate::{Error, FileSystem, Result, store};

/// Entries of the list, or records of linked files, asked of the engine at once.
const CHUNK: ScanLimit = ScanLimit { entries: 64, bytes: 1 << 18 };

/// How many numbers there are that differ in their last byte alone.
const NEIGHBOURS: u64 = 256;

/// Fewer files are cloned one by one.
const TOGETHER_MIN: usize = 4;

/// A file with several links that has names below the source.
pub(crate) struct Linked {
    /// Its number, as stored.
    number: u64,
    pub(crate) record: Record,
    /// Its names: their keys, without what they share with the source.
    pub(crate) names: Vec<Bytes>,
}

/// Such files whose numbers differ in their last byte alone, in rising order. What the keys of their data begin with but for that is a range.
pub(crate) struct Neighbours {
    pub(crate) files: Vec<Linked>,
    /// The range holds nothing else, and is cloned in place of the data of each.
    go_together: bool,
}

impl FileSystem {
    /// The number that each of these files gets in a clone: those of neighbours that go together are neighbours, too.
    pub(crate) fn fresh_links(&self, linked: &[Neighbours], target: &View) -> Result<Vec<u64>> {
        let rows = linked.iter().filter(|neighbours| neighbours.go_together).count() as u64;
        let mut first = match rows {
            0 => 0,
            rows => self.numbers.allocate_row(&self.store, NEIGHBOURS, rows * NEIGHBOURS)?,
        };
        let mut fresh = Vec::new();
        for Neighbours { files, go_together } in linked {
            if *go_together {
                // Stored, it ends as the old one does.
                let last = |old: u64| (old ^ target.linked_number(first)) % NEIGHBOURS;
                fresh.extend(files.iter().map(|file| first + last(file.number)));
                first += NEIGHBOURS;
            } else {
                for _ in files {
                    fresh.push(self.numbers.allocate(&self.store)?);
                }
            }
        }
        Ok(fresh)
    }

    /// The files with several links that have names below `subtree` of a tree. The name space lock is held exclusively, so
    /// their records in the tree are the truth. `TooBig` if there are more names than a record takes below `to`.
    pub(crate) fn linked_below(&self, view: &View, subtree: &[u8], to: &[u8]) -> Result<Vec<Neighbours>> {
        let prefix = view.link_name_key(subtree);
        let mut names: BTreeMap<u64, Vec<Bytes>> = BTreeMap::new();
        let mut bytes = 0;
        let mut range = Some(KeyRange::prefix(prefix.clone()));
        while let Some(part) = range {
            let scan = self.store.scan(Tree::Metadata, &part, CHUNK)?;
            for (list_key, value) in scan.entries {
                let number = <[u8; 8]>::try_from(&value[..]).map(u64::from_le_bytes);
                let number = number.map_err(|_| damaged("FS-6: the list of redirects", &list_key))?;
                let name = list_key.slice(prefix.len()..);
                // Its key is put twice: once in the list.
                bytes += 2 * (to.len() + name.len()) as u64;
                names.entry(number).or_default().push(name);
            }
            if bytes > self.store.engine().record_bytes_max() {
                return Err(Error::TooBig);
            }
            range = scan.rest;
        }
        let names: Vec<_> = names.into_iter().collect();
        let mut linked = Vec::new();
        // Their numbers lie close together as a rule: one scan finds many.
        let mut chunk = BTreeMap::new();
        for row in names.chunk_by(|a, b| a.0 / NEIGHBOURS == b.0 / NEIGHBOURS) {
            let key_of = |number| key::in_snapshot(&view.prefix, &key::linked_key(number));
            let mut are_alone = false;
            if row.len() >= TOGETHER_MIN {
                let prefix = row_of(&key_of(row[0].0));
                chunk = self.records_up_to(row.len(), KeyRange::prefix(prefix.clone()))?;
                are_alone = chunk.len() == row.len() && self.parked.keys_below(&prefix).is_empty();
            }
            let mut files = Vec::with_capacity(row.len());
            for (number, names) in row {
                let own = key_of(*number);
                if !chunk.contains_key(&own) {
                    chunk = self.linked_records(&own)?;
                }
                let value =
                    chunk.get(&own).ok_or_else(|| damaged("FS-5: names lead to what is not there", &own))?;
                let record = store::decode(&own, value)?;
                files.push(Linked { number: *number, record, names: names.clone() });
            }
            let have_data = files.iter().filter(|file| file.record.has_data()).count() >= TOGETHER_MIN;
            linked.push(Neighbours { files, go_together: are_alone && have_data });
        }
        Ok(linked)
    }

    /// The records of metadata in a range; only some, and more than `most`, if it has more. Of a damaged volume it may have any number.
    fn records_up_to(&self, most: usize, range: KeyRange) -> Result<BTreeMap<Bytes, Bytes>> {
        let mut records = BTreeMap::new();
        let mut rest = Some(range);
        while let Some(part) = rest.filter(|_| records.len() <= most) {
            let scan = self.store.scan(Tree::Metadata, &part, CHUNK)?;
            records.extend(scan.entries);
            rest = scan.rest;
        }
        Ok(records)
    }

    /// Some records of files with several links, from this key on.
    fn linked_records(&self, from: &Bytes) -> Result<BTreeMap<Bytes, Bytes>> {
        // Without the number.
        let tag = from.slice(..from.len() - 8);
        let all = KeyRange::new(Bound::before(from.clone()), Bound::after(tag));
        let mut range = Some(all);
        while let Some(part) = range {
            let scan = self.store.scan(Tree::Metadata, &part, CHUNK)?;
            if !scan.entries.is_empty() {
                return Ok(scan.entries.into_iter().collect());
            }
            range = scan.rest;
        }
        Ok(BTreeMap::new())
    }
}

/// Clones the data of neighbours to the numbers that a clone shows for them.
pub(crate) fn clone_data(
    batch: &mut Batch,
    (view, neighbours): (&View, &Neighbours),
    (target, fresh): (&View, &[u64]),
) {
    let old_key = |number: u64| key::in_snapshot(&view.prefix, &key::linked_key(number));
    let Neighbours { files, go_together } = neighbours;
    if *go_together {
        let keys = [old_key(files[0].number), target.linked_key(fresh[0])];
        let [from, to] = keys.map(|key| row_of(&key));
        batch.clone_range(Tree::Data, from, to);
        return;
    }
    for (file, number) in files.iter().zip(fresh) {
        if file.record.has_data() {
            let own = key::data_prefix(&target.linked_key(*number));
            batch.clone_range(Tree::Data, key::data_prefix(&old_key(file.number)), own);
        }
    }
}

/// What the key of a file with several links has in common with those of its neighbours.
fn row_of(key: &Bytes) -> Bytes {
    key.slice(..key.len() - 1)
}
