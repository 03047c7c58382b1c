//! Receiving a snapshot from a stream that [`crate::send`] wrote.
//!
//! What comes is put below a prefix of its own that nothing leads to, on top of a clone of the base; the last batch gives it its name. An entry
//! under [`key::RECEIVING_TAG`] tells of it until then, so that what a crash leaves is deleted at the next mount. A stream that
//! fails is given up at once.

use std::io::{self, Read};

use bytes::Bytes;
use pando_device::complain;
use pando_engine::{Batch, KeyRange, Tree, copy_for_device, join};
use pando_format::send_stream::{
    Begin, Chain, FRAME_HEADER_LENGTH, Frame, FrameHeader, KeyChange, Move, PREAMBLE_LENGTH, SnapshotId,
    decode_preamble,
};

use crate::difference::damaged;
use crate::moves;
use crate::namei::check_name;
use crate::operations::{FileType, InodeNumber, Operations, changing, changing_bytes, waiting};
use crate::schema::{NameRecord, Record, Timestamp, key, number};
use crate::send::{TransferError, Transferred};
use crate::snapshot::{RANGES, Snapshot};
use crate::{Error, FileSystem, Result};

/// A batch is applied when its operations have so many bytes; or fewer, where the log is small.
const BATCH_BYTES: usize = 128 << 10;

/// What is put together with the root directory's record, at most: names, numbers and the like.
const WITH_ROOT_BYTES: usize = 4 << 10;

/// Snapshots without a name, at most. There are as many as are being received, sent and mounted: more are damage, which may show any number.
pub(crate) const MARKS_MAX: usize = 1 << 16;

/// Bytes of a whole block of a file.
const BLOCK: usize = 4096;

impl FileSystem {
    /// Makes a snapshot of a stream, under the name that the stream says or another; it appears whole, or not at all, and is durable when this returns
    /// it. An incremental stream needs its base on this volume, under whatever name. Memory for one frame is used. Waits for the input and the
    /// device.
    ///
    /// What a stream with valid checksums says is believed, as a volume is: it should come from a volume that is trusted.
    pub fn receive_snapshot(
        &self,
        input: &mut dyn Read,
        name: Option<&[u8]>,
    ) -> Result<(Snapshot, Transferred), TransferError> {
        self.check_writable()?;
        let mut stream = Stream { input, chain: Chain::default(), read: Transferred::default() };
        decode_preamble(&stream.bytes(PREAMBLE_LENGTH)?)?;
        let Frame::Begin(begin) = stream.frame()? else {
            return Err(TransferError::Refused("no beginning"));
        };
        let name = name.map_or(begin.name.clone(), Bytes::copy_from_slice);
        check_name(&name)?;
        // Of another nobody could get rid of the snapshot: commands take names as text.
        if std::str::from_utf8(&name).is_err() {
            return Err(TransferError::Refused(
                "a name that is not UTF-8; receive it under another with --name",
            ));
        }
        if waiting(self, |fs| fs.store.get(Tree::Metadata, &key::snapshot_name_key(&name)))?.is_some() {
            return Err(Error::Exists.into());
        }
        let (root, base) = self.begin_receiving(&begin)?;
        let number = root.number;
        let received = self.receive_changes(&mut stream, base.as_ref(), number).and_then(|()| {
            let snapshot = Snapshot {
                name,
                number: InodeNumber(number),
                taken: Timestamp { seconds: begin.snapshot.seconds, nanoseconds: begin.snapshot.nanoseconds }
                    .into(),
                writable: false,
                origin: Some((begin.snapshot.volume, begin.snapshot.number)),
            };
            self.end_receiving(&begin, &root, &snapshot)?;
            Ok(snapshot)
        });
        match received {
            Ok(snapshot) => Ok((snapshot, stream.read)),
            Err(error) => {
                // Where this fails the volume takes no changes any more, and the next mount does it.
                let _ = changing(self, |fs| fs.store.apply(fs.giving_up(number)));
                Err(error)
            }
        }
    }

    /// Makes what the changes are to be applied to. Returns the record of the root directory, which is put at the end, with the snapshot's number; and
    /// the base, if the stream has one.
    fn begin_receiving(&self, begin: &Begin) -> Result<(Record, Option<Snapshot>), TransferError> {
        if begin.counter > number::COUNTED_END || begin.snapshot.nanoseconds >= 1_000_000_000 {
            return Err(TransferError::Refused("numbers that no volume gives out"));
        }
        let root = Some(&begin.root).filter(|root| root.len() <= BATCH_BYTES);
        let root = root.and_then(|root| Record::decode(root).ok());
        let root = root.filter(|root| root.file_type == FileType::Directory);
        let root = root.ok_or(TransferError::Refused("no root directory"))?;
        // It is put in one record of the log, at the end.
        let most = self.store.engine().record_bytes_max();
        if begin.root.len() + WITH_ROOT_BYTES > most as usize {
            return Err(TransferError::Refused(
                "more attributes of the root directory than this volume's log takes",
            ));
        }
        let base = begin.base.as_ref().map(|base| waiting(self, |fs| fs.received_base(base)));
        let base = base.transpose().map_err(no_base)?;
        let number = changing(self, |fs| fs.numbers.allocate(&fs.store))?;
        let begun = changing(self, |fs| {
            let _epoch = fs.for_change()?;
            let prefix = key::snapshot_prefix(number);
            let mut batch = Batch::new();
            batch.put(Tree::Metadata, key::receiving_key(number), vec![1]);
            if let Some(base) = &base {
                let from = fs.prefix_of(base)?;
                for (tree, range) in RANGES {
                    let ranges = [&from, &prefix].map(|prefix| key::in_snapshot(prefix, range));
                    let [from, to] = ranges;
                    batch.clone_range(tree, from, to);
                }
            }
            fs.store.apply(batch)
        });
        begun.map_err(no_base)?;
        Ok((Record { number, parked: Bytes::new(), ..root }, base))
    }

    fn receive_changes(
        &self,
        stream: &mut Stream<'_>,
        base: Option<&Snapshot>,
        number: u64,
    ) -> Result<(), TransferError> {
        let prefix = key::snapshot_prefix(number);
        loop {
            match stream.frame()? {
                Frame::Begin(_) => return Err(TransferError::Refused("a second beginning")),
                Frame::End(changes) if changes != stream.read.changes => {
                    return Err(TransferError::Refused("fewer changes than it says"));
                }
                Frame::End(_) => return stream.end(),
                Frame::Moves(_) if stream.read.changes > 0 => {
                    return Err(TransferError::Refused("a move behind changes"));
                }
                Frame::Moves(moves) => self.receive_moves(base, &prefix, &moves)?,
                Frame::Changes(changes) => {
                    stream.read.changes += changes.len() as u64;
                    let most = self.received_batch_bytes();
                    let mut batches = Batches { fs: self, most, batch: Batch::new(), bytes: 0, run: None };
                    for change in changes {
                        check_change(&change)?;
                        batches.add(&prefix, change)?;
                    }
                    batches.apply()?;
                }
            }
        }
    }

    /// Brings what has moved from where it is in the base, which is to be there still.
    fn receive_moves(
        &self,
        base: Option<&Snapshot>,
        prefix: &Bytes,
        moves: &[Move],
    ) -> Result<(), TransferError> {
        let base = base.ok_or(TransferError::Refused("a move without a base"))?;
        let is_sound = |moved: &Move| {
            let places = [Some(&moved.to), moved.from.as_ref()];
            places.into_iter().flatten().all(|place| moves::is_place(moved.what, place))
        };
        if !moves.iter().all(is_sound) {
            return Err(TransferError::Refused("a move that makes no sense"));
        }
        for moves in in_batches(moves, self.received_batch_bytes()) {
            changing(self, |fs| {
                let _epoch = fs.for_change()?;
                let base = fs.prefix_of(base)?;
                let mut batch = Batch::new();
                for Move { what, from, to } in moves {
                    let from = from.as_ref().map(|from| moves::ranges(*what, from));
                    for (index, (tree, to)) in moves::ranges(*what, to).into_iter().enumerate() {
                        let to = key::in_snapshot(prefix, &to);
                        match &from {
                            // What is there goes.
                            Some(from) => {
                                batch.clone_range(tree, key::in_snapshot(&base, &from[index].1), to);
                            }
                            None => batch.delete_range(tree, KeyRange::prefix(to)),
                        }
                    }
                }
                fs.store.apply(batch)
            })?;
        }
        Ok(())
    }

    /// Bytes of operations that are applied at once.
    fn received_batch_bytes(&self) -> usize {
        let most = self.store.engine().record_bytes_max() / 2;
        BATCH_BYTES.min(most as usize)
    }

    /// The base of a stream as it is known here. `Stale` if it is not there.
    fn received_base(&self, base: &SnapshotId) -> Result<Snapshot> {
        let volume = self.store.engine().superblock().volume;
        let mut all = self.snapshots()?.into_iter();
        all.find(|snapshot| !snapshot.writable && snapshot.id(volume) == *base).ok_or(Error::Stale)
    }

    /// What the keys of a base begin with. `Stale` if it is not there any more. The name space lock is held.
    fn prefix_of(&self, base: &Snapshot) -> Result<Bytes> {
        match self.snapshot(&base.name) {
            Ok(now) if now.number == base.number => Ok(key::snapshot_prefix(base.number.0)),
            Ok(_) | Err(Error::NotFound) => Err(Error::Stale),
            Err(error) => Err(error),
        }
    }

    /// Gives a snapshot that has been received its root directory and its name.
    fn end_receiving(&self, begin: &Begin, root: &Record, snapshot: &Snapshot) -> Result<()> {
        changing(self, |fs| {
            let _epoch = fs.for_change_alone()?;
            let name_key = key::snapshot_name_key(&snapshot.name);
            if fs.store.get(Tree::Metadata, &name_key)?.is_some() {
                return Err(Error::Exists);
            }
            // Going back to it makes its numbers those of this volume. The delta comes of a number that the sender has not had: in a copy of
            // this volume's image he may have made, of any other, deltas that would cancel it.
            fs.numbers.allocate_from(&fs.store, begin.counter, |fresh| {
                let root = Record { delta: fs.fresh_deltas(fresh), ..root.clone() };
                let mut batch = Batch::new();
                batch.put(Tree::Metadata, key::snapshot_prefix(root.number), root.encode());
                batch.put(Tree::Metadata, name_key, snapshot.encode());
                batch.delete(Tree::Metadata, key::receiving_key(root.number));
                batch
            })?;
            fs.note_snapshots_changed();
            Ok(())
        })?;
        self.sync()
    }

    /// The numbers of snapshots that are being received, or are frozen. Waits for the device.
    pub(crate) fn unnamed_snapshots(&self) -> Result<Vec<u64>> {
        self.marked_snapshots()?.ok_or_else(too_many_marks)
    }

    /// The same; `None` if there are more than [`MARKS_MAX`].
    fn marked_snapshots(&self) -> Result<Option<Vec<u64>>> {
        let (mut numbers, mut marks) = (Vec::new(), 0);
        let mut range = Some(KeyRange::prefix(vec![key::RECEIVING_TAG]));
        while let Some(part) = range {
            let scan = waiting(self, |fs| fs.store.scan(Tree::Metadata, &part, crate::difference::CHUNK))?;
            marks += scan.entries.len();
            if marks > MARKS_MAX {
                return Ok(None);
            }
            let found = scan.entries.iter().filter_map(|(own, _)| own[1..].try_into().ok());
            numbers.extend(found.map(u64::from_be_bytes));
            range = scan.rest;
        }
        Ok(Some(numbers))
    }

    /// Deletes what was being received when the volume was last used. Waits for the device.
    pub(crate) fn give_up_receiving(&self) -> Result<()> {
        let Some(numbers) = self.marked_snapshots()? else {
            complain(format_args!("what was being received is not deleted: {}", too_many_marks()));
            return Ok(());
        };
        for number in numbers {
            changing(self, |fs| fs.store.apply(fs.giving_up(number)))?;
        }
        Ok(())
    }

    /// What deletes a snapshot that is being received, or is frozen.
    pub(crate) fn giving_up(&self, number: u64) -> Batch {
        let mut batch = Batch::reclaiming();
        for tree in Tree::ALL {
            batch.delete_range(tree, KeyRange::prefix(key::snapshot_prefix(number)));
        }
        batch.delete(Tree::Metadata, key::receiving_key(number));
        batch.note_freed(self.freed_by_a_tree());
        batch
    }
}

fn no_base(error: Error) -> TransferError {
    match error {
        Error::Stale => TransferError::NoBase,
        error => error.into(),
    }
}

fn too_many_marks() -> Error {
    damaged("FS-8: more snapshots than ever were are being received", &[key::RECEIVING_TAG])
}

/// Moves of a record. A directory is three clones, and a tree is healed after eight: more at once would hold up everybody else.
const MOVES_AT_ONCE: usize = 2;

/// Moves in pieces that a record holds.
fn in_batches(mut moves: &[Move], most: usize) -> impl Iterator<Item = &[Move]> {
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |moved: &&Move| {
            // A directory is three ranges, each with its places and what they lie in.
            bytes += 3 * (moved.length() + 64);
            bytes <= most
        };
        let count = moves.iter().take(MOVES_AT_ONCE).take_while(fits).count().max(1).min(moves.len());
        let (now, later) = moves.split_at(count);
        moves = later;
        (!now.is_empty()).then_some(now)
    })
}

/// Refuses what is no key of anything in a snapshot, and values that cannot be read.
fn check_change(change: &KeyChange) -> Result<(), TransferError> {
    let KeyChange { tree, key, value } = change;
    let is_inside = RANGES.iter().any(|(other, range)| other == tree && key.starts_with(range));
    if !is_inside || !key::fits_snapshot(*tree, key) {
        return Err(TransferError::Refused("a key that cannot be in a snapshot"));
    }
    // What is deleted need not be anything.
    let Some(value) = value else { return Ok(()) };
    let is_sound = match (tree, key[0]) {
        (Tree::Data, _) => key::is_data_key(key),
        (Tree::Metadata, key::LINK_NAME_TAG) => value.len() == 8 && key::split_path_key(&key[1..]).is_some(),
        (Tree::Metadata, key::LINKED_TAG) => {
            key::is_linked_key(key) && Record::decode(value).and_then(Record::in_tree).is_ok()
        }
        (Tree::Metadata, _) => {
            let name = NameRecord::decode(value).and_then(NameRecord::in_tree);
            name.is_ok() && key::split_path_key(key).is_some()
        }
    };
    if is_sound { Ok(()) } else { Err(TransferError::Refused("an entry that makes no sense")) }
}

/// Gathers changes to batches.
struct Batches<'a> {
    fs: &'a FileSystem,
    /// Bytes of a batch, unless one change has more.
    most: usize,
    batch: Batch,
    bytes: usize,
    run: Option<Run>,
}

/// Blocks of a file that follow each other: the front of their keys, the first one's number, and the blocks.
struct Run {
    prefix: Bytes,
    first: u64,
    blocks: Vec<Bytes>,
}

impl Batches<'_> {
    fn add(&mut self, snapshot: &Bytes, change: KeyChange) -> Result<()> {
        let KeyChange { tree, key, value } = change;
        let key = key::in_snapshot(snapshot, &key);
        let bytes = key.len() + value.as_ref().map_or(0, Bytes::len) + 64;
        if self.bytes > 0 && self.bytes + bytes > self.most {
            self.apply()?;
        }
        self.bytes += bytes;
        match value {
            Some(value) if tree == Tree::Data && value.len() == BLOCK => self.add_block(key, value),
            Some(value) => {
                self.end_run();
                // Not as a part of the frame, which it would keep in memory.
                self.batch.put(tree, key, Bytes::copy_from_slice(&value));
            }
            None => {
                self.end_run();
                self.batch.delete(tree, key);
            }
        }
        Ok(())
    }

    fn add_block(&mut self, key: Bytes, block: Bytes) {
        // A large extended attribute can have this length too, and a name that ends so; to put it is all the same.
        let split = key.len() - 8;
        let mut number = [0; 8];
        number.copy_from_slice(&key[split..]);
        let number = u64::from_be_bytes(number);
        let prefix = key.slice(..split);
        if let Some(run) = &mut self.run
            && run.prefix == prefix
            && run.first.checked_add(run.blocks.len() as u64) == Some(number)
        {
            run.blocks.push(block);
            return;
        }
        self.end_run();
        self.run = Some(Run { prefix, first: number, blocks: vec![block] });
    }

    fn end_run(&mut self) {
        let Some(Run { prefix, first, blocks }) = self.run.take() else { return };
        let bytes = if let [block] = &blocks[..] { copy_for_device(block) } else { join(&blocks) };
        self.batch.put_run(Tree::Data, prefix, first, bytes);
    }

    fn apply(&mut self) -> Result<()> {
        self.end_run();
        let bytes = std::mem::take(&mut self.bytes);
        let batch = std::mem::take(&mut self.batch);
        changing_bytes(self.fs, bytes as u64, |fs| {
            // A stream may go on for hours: from when changes are refused it has no more.
            let _epoch = fs.for_change()?;
            fs.store.apply(batch.clone())
        })
    }
}

/// Reads frames.
struct Stream<'a> {
    input: &'a mut dyn Read,
    chain: Chain,
    read: Transferred,
}

impl Stream<'_> {
    fn bytes(&mut self, length: usize) -> Result<Bytes, TransferError> {
        let mut bytes = vec![0; length];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Err(TransferError::CutOff),
            Err(error) => return Err(TransferError::Input(error)),
        }
        self.read.bytes += length as u64;
        Ok(bytes.into())
    }

    fn frame(&mut self) -> Result<Frame, TransferError> {
        let header = FrameHeader::decode(&self.bytes(FRAME_HEADER_LENGTH)?)?;
        let payload = self.bytes(header.payload_length as usize)?;
        Ok(Frame::decode(&header, &payload, &mut self.chain)?)
    }

    /// Makes sure that nothing follows.
    fn end(&mut self) -> Result<(), TransferError> {
        match self.bytes(1) {
            Err(TransferError::CutOff) => Ok(()),
            Ok(_) => Err(TransferError::GoesOn),
            Err(error) => Err(error),
        }
    }
}

#[cfg(test)]
mod tests {
    use pando_format::send_stream::Moved;

    use super::*;

    fn batches(moves: &[(usize, usize)]) -> Vec<usize> {
        let made = |&(from, to): &(usize, usize)| Move {
            what: Moved::Directory,
            from: (from > 0).then(|| Bytes::from(vec![1; from])),
            to: Bytes::from(vec![2; to]),
        };
        let moves: Vec<Move> = moves.iter().map(made).collect();
        in_batches(&moves, BATCH_BYTES).map(<[Move]>::len).collect()
    }

    #[test]
    fn moves_come_a_few_at_a_time() {
        assert_eq!(batches(&[(10, 10); 5]), [2, 2, 1]);
        assert_eq!(batches(&[(0, 10); 3]), [2, 1]);
        assert!(batches(&[]).is_empty());
        // Two of such places are more than a batch; one that is more goes alone.
        let long = BATCH_BYTES / 8;
        assert_eq!(batches(&[(long, long), (long, long), (10, 10)]), [1, 2]);
        assert_eq!(batches(&[(BATCH_BYTES, 10), (10, 10), (10, 10)]), [1, 2]);
        let short = |to: usize| Move { what: Moved::File, from: None, to: vec![2; to].into() };
        let of_a_small_log =
            |moves: &[Move]| in_batches(moves, 8 << 10).map(<[Move]>::len).collect::<Vec<_>>();
        assert_eq!(of_a_small_log(&[short(2000), short(2000), short(10)]), [1, 2]);
    }
}
