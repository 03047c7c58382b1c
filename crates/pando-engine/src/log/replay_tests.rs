//! What replay finds after crashes of all kinds.

use std::sync::Arc;

use bytes::Bytes;
use pando_device::simulated::{CrashPoint, Image, Random, SimulatedDevice};
use pando_device::{Buffer, Device, WriteRequest};
use pando_format::log_batch::{BatchHeader, batch_length, encode_batch};
use pando_format::log_record::{
    Binding, BoundPiece, EncodedRecord, RECORD_LENGTH_MAX, bound_checksum, decode_record, encode_binding,
    encode_record_unbound,
};
use pando_format::{Change, Extent, FieldUpdate, KeyRange, LogPosition, Region, Structure};

use super::batch::{Binder, InlineAll, LOG_START, Record};
use super::redo_log::RedoLog;
use super::replay::{LogSource, Replay};
use crate::{Error, Lsn, Operation, Result, Tree};

const VOLUME: [u8; 16] = [9; 16];
const REGION: Region = Region { device: 0, offset: 8192, length: 16 * 4096 };
/// Where the tests' nodes lie.
const NODES: u64 = 1 << 20;
const CAPACITY: u64 = 2 << 20;

/// What a checkpoint wrote into the superblock.
#[derive(Debug, Clone, Copy)]
struct Checkpoint {
    position: LogPosition,
    cut: Lsn,
}

const FORMATTED: Checkpoint = Checkpoint { position: LOG_START, cut: Lsn(0) };

/// The operations of a record: two puts whose contents tell epoch and LSN, 10 to 9000 bytes long.
fn operations(epoch: u64, lsn: u64) -> Vec<Operation> {
    let length = 10 + (lsn * 2741 % 8990) as usize;
    let value = [epoch as u8, lsn as u8].repeat(length / 2).into();
    let key = Bytes::from(format!("key {lsn}"));
    vec![
        Operation::Put { tree: Tree::Metadata, key: key.clone(), value: Bytes::from_static(b"small") },
        Operation::Put { tree: Tree::Data, key, value },
    ]
}

fn record(epoch: u64, lsn: u64) -> Record {
    Record::with_operations(operations(epoch, lsn))
}

fn source(device: Arc<dyn Device>, epoch: u64, checkpoint: Checkpoint) -> LogSource {
    let Checkpoint { position: start, cut } = checkpoint;
    LogSource { device, region: REGION, volume: VOLUME, epoch, start, cut, closed: false }
}

/// Replays and checks that the records are those of the epoch, without gaps. Gives where the log ended, and at which record.
fn replayed(image: &Image, epoch: u64, from: Checkpoint) -> Result<(LogPosition, u64)> {
    let replay = Replay::find(source(Arc::new(SimulatedDevice::from_image(image.clone())), epoch, from))?;
    let mut last = from.cut.0;
    replay.for_each(|lsn, found| {
        assert_eq!(lsn.0, last + 1, "LOG-2");
        last = lsn.0;
        assert_eq!(found, operations(epoch, lsn.0), "record {}", lsn.0);
        Ok(())
    })?;
    assert_eq!(replay.last(), Lsn(last));
    Ok((replay.end(), last))
}

/// A log that is written on a simulated device, and what was promised when.
struct Load {
    device: Arc<SimulatedDevice>,
    log: RedoLog,
    epoch: u64,
    start: Image,
    /// (length of the trace, last durable record, checkpoint).
    promises: Vec<(usize, Lsn, Checkpoint)>,
}

impl Load {
    fn new(image: Image, epoch: u64, checkpoint: Checkpoint, tail: LogPosition, last: Lsn) -> Self {
        let device = Arc::new(SimulatedDevice::from_image(image.clone()));
        let log = RedoLog::open(device.clone(), REGION, VOLUME, epoch, checkpoint.position, tail, last);
        let log = log.expect("nothing fails here");
        Self { device, log, epoch, start: image, promises: vec![(0, last, checkpoint)] }
    }

    fn formatted() -> Self {
        Self::new(SimulatedDevice::new(CAPACITY).image(), 1, FORMATTED, LOG_START, Lsn(0))
    }

    fn append(&self) -> u64 {
        let lsn = self.log.appended_lsn().0 + 1;
        let record = record(self.epoch, lsn);
        assert!(self.log.room_for(record.bytes()), "{} bytes used", self.log.used_bytes());
        self.log.append(Lsn(lsn), record).expect("nothing fails here");
        lsn
    }

    fn write_out(&self, binder: &dyn Binder) {
        self.log.write_out(binder).expect("nothing fails here");
    }

    fn sync(&mut self, binder: &dyn Binder) {
        let durable = self.log.sync_to(self.log.appended_lsn(), binder).expect("nothing fails here");
        let checkpoint = self.promises.last().expect("there is one from the start").2;
        self.promises.push((self.device.trace_length(), durable, checkpoint));
    }

    /// A checkpoint whose trees become durable with the flush.
    fn checkpoint(&mut self) {
        let checkpoint = Checkpoint { position: self.log.cut(), cut: self.log.appended_lsn() };
        self.device.flush().expect("nothing fails here");
        let durable = self.log.durable_lsn().max(checkpoint.cut);
        self.promises.push((self.device.trace_length(), durable, checkpoint));
        self.log.reclaim(checkpoint.position);
    }

    /// Every state of every crash, with what was promised then.
    fn crashes(&self, mut see: impl FnMut(String, Image, Lsn, Checkpoint)) {
        let trace = self.device.trace();
        let torn = REGION.offset..REGION.end();
        for prefix in 0..=trace.len() {
            let (_, durable, checkpoint) = *self
                .promises
                .iter()
                .rev()
                .find(|(length, ..)| *length <= prefix)
                .expect("the first is at 0");
            let point = CrashPoint::after(self.start.clone(), &trace, prefix);
            for choice in point.choices(std::slice::from_ref(&torn), prefix as u64) {
                see(format!("after {prefix} events, {choice:?}"), point.image(&choice), durable, checkpoint);
            }
        }
    }
}

/// Appends, writes out, syncs and checkpoints by seed, over several rounds of the region.
fn random_load(seed: u64) -> Load {
    let mut load = Load::formatted();
    let mut random = Random::new(seed);
    for _ in 0..60 {
        if load.log.used_bytes() > load.log.capacity() / 2 {
            load.checkpoint();
            // What is queued at a cut is still to be written, and only the next cut lets go of it.
            load.sync(&InlineAll);
            load.checkpoint();
        }
        load.append();
        match random.below(6) {
            0 => load.write_out(&InlineAll),
            1 => load.sync(&InlineAll),
            2 => load.checkpoint(),
            _ => {}
        }
    }
    load.write_out(&InlineAll);
    load
}

/// Every crash, torn at every sector: a prefix, no shorter than what was promised, never called damage.
#[test]
fn a_crash_leaves_a_prefix_no_shorter_than_what_was_promised() {
    let (mut states, mut wraps) = (0, 0);
    for seed in 0..4 {
        let load = random_load(seed);
        load.crashes(|what, image, durable, checkpoint| {
            let (end, last) = replayed(&image, 1, checkpoint)
                .unwrap_or_else(|error| panic!("seed {seed}, {what}: {error}"));
            assert!(last >= durable.0, "seed {seed}, {what}: {last} of {}", durable.0);
            assert!(last <= load.log.appended_lsn().0);
            states += 1;
            wraps += usize::from(end.offset < checkpoint.position.offset);
        });
    }
    assert!(states > 1000 && wraps > 100, "{states} states, {wraps} of them wrap around");
}

/// After a crash that left a hole, the next mount writes records of the same numbers and lengths into it.
/// Whatever the next crash leaves, nothing that the first mount wrote behind the hole comes back.
#[test]
fn stale_batches_behind_a_hole_never_revive() {
    let mut first = Load::formatted();
    first.append();
    first.sync(&InlineAll);
    for _ in 0..4 {
        first.append();
        first.write_out(&InlineAll);
    }
    let mut holes = 0;
    first.crashes(|what, image, durable, checkpoint| {
        let (end, last) = replayed(&image, 1, checkpoint).expect("a torn tail is no damage");
        assert!(last >= durable.0);
        holes += usize::from(last < first.log.appended_lsn().0);
        // Behind its opening, which is a checkpoint.
        let opened = Checkpoint { position: end, cut: Lsn(last) };
        let mut second = Load::new(image, 2, opened, end, Lsn(last));
        second.append();
        second.sync(&InlineAll);
        second.append();
        second.write_out(&InlineAll);
        second.crashes(|again, image, durable, checkpoint| {
            let found = replayed(&image, 2, checkpoint);
            let (_, found) = found.unwrap_or_else(|error| panic!("{what}; {again}: {error}"));
            assert!((durable.0..=last + 2).contains(&found), "{what}; {again}: {found}");
        });
    });
    assert!(holes > 50, "{holes}");
}

/// A batch that was durable is damaged: reported if a later batch knows that it was durable.
#[test]
fn rot_below_what_a_later_batch_calls_durable_is_damage() {
    let mut load = Load::formatted();
    for _ in 0..3 {
        load.append();
        load.sync(&InlineAll);
    }
    let image = load.device.image();
    let (end, _) = replayed(&image, 1, FORMATTED).expect("nothing is damaged");
    let writes: Vec<_> = load
        .device
        .trace()
        .into_iter()
        .filter_map(|event| match event {
            pando_device::simulated::Event::Write { offset, bytes } => Some((offset, bytes)),
            _ => None,
        })
        .collect();
    assert_eq!(writes.len(), 3);
    for (i, (offset, bytes)) in writes.iter().enumerate() {
        let device = SimulatedDevice::from_image(image.clone());
        // A bit of the header: one of the padding would be no damage.
        let mut buffer = Buffer::zeroed(4096);
        buffer.copy_from_slice(&bytes[..4096]);
        buffer[100] ^= 1;
        device
            .write(&[WriteRequest { offset: *offset, pieces: vec![buffer.freeze()] }])
            .expect("nothing fails here");
        match replayed(&device.image(), 1, FORMATTED) {
            Err(Error::Damaged { what }) => {
                assert!(i < 2 && what.contains(&format!("record {} is missing", i + 1)), "batch {i}: {what}");
            }
            Err(error) => panic!("batch {i}: {error}"),
            // Nothing was written after the sync of the last batch that could tell.
            Ok((found, last)) => {
                assert!(i == 2 && last == 2, "batch {i}: {last}");
                assert_ne!(found, end);
            }
        }
    }
}

/// The batch that is gone was as long as one can be: the next, which knows that it was durable, is looked for as far away as that.
#[test]
fn rot_of_the_longest_batch_is_damage() {
    let behind = batch_length(RECORD_LENGTH_MAX);
    let region = Region { length: behind + (1 << 20), ..REGION };
    let device = SimulatedDevice::new(region.offset + region.length);
    let sequence = LOG_START.sequence + 1;
    let next = BatchHeader { sequence, first_lsn: Lsn(2), durable_lsn: Lsn(1), ..first_header() };
    let pieces = vec![batch_of(next, b"never looked at")];
    device.write(&[WriteRequest { offset: region.offset + behind, pieces }]).expect("nothing fails here");
    let log = LogSource { region, ..source(Arc::new(device), 1, FORMATTED) };
    let Err(Error::Damaged { what }) = Replay::find(log) else { panic!("it was taken for an empty log") };
    assert!(what.contains("record 1 is missing"), "{what}");
}

/// Writes the bytes of every put in the data tree to a node of their own, compressed or not, and binds them.
struct BindAll<'a> {
    device: &'a dyn Device,
}

impl Binder for BindAll<'_> {
    fn bind(&self, first: Lsn, records: &[Record]) -> Result<Vec<Binding>> {
        let mut bindings = Vec::new();
        for (lsn, record) in (first.0..).zip(records) {
            for (i, operation) in (0..).zip(record.operations()) {
                let Operation::Put { tree: Tree::Data, value, .. } = operation else { continue };
                let mut pieces = Vec::new();
                let half = value.len() / 2;
                for (n, part) in [value.slice(..half), value.slice(half..)].into_iter().enumerate() {
                    let mut buffer = Buffer::zeroed(part.len());
                    buffer[..part.len()].copy_from_slice(&part);
                    let offset = NODES + (lsn * 2 + n as u64) * 3 * 4096;
                    let extent = Extent { device: 0, offset, length: buffer.len() as u32 };
                    self.device.write(&[WriteRequest { offset, pieces: vec![buffer.freeze()] }])?;
                    let length = part.len() as u32;
                    pieces.push(BoundPiece {
                        start: (n * half) as u32,
                        length,
                        extent,
                        checksum: bound_checksum(&[part]),
                    });
                }
                // The order is free.
                pieces.reverse();
                bindings.push(Binding { lsn: Lsn(lsn), operation: i, pieces });
            }
        }
        Ok(bindings)
    }
}

fn bound_load() -> Load {
    let mut load = Load::formatted();
    let device = load.device.clone();
    let binder = BindAll { device: &*device };
    for n in 0..6 {
        load.append();
        if n % 2 == 0 { load.sync(&binder) } else { load.write_out(&binder) }
    }
    load
}

/// Late binding: the values are not in the log, and replay finds them all the same. A crash may lose a node
/// that a batch names if nobody was promised it; then the log ends there.
#[test]
fn bound_values_are_replayed_or_the_log_ends_before_them() {
    let load = bound_load();
    let logged: usize = load
        .device
        .trace()
        .iter()
        .map(|event| match event {
            pando_device::simulated::Event::Write { offset, bytes } if *offset < NODES => bytes.len(),
            _ => 0,
        })
        .sum();
    assert_eq!(logged, 6 * 4096, "a batch has no more than keys and bindings");
    let (mut states, mut cut_off) = (0, 0);
    load.crashes(|what, image, durable, checkpoint| {
        let (_, last) = replayed(&image, 1, checkpoint).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert!(last >= durable.0, "{what}: {last} of {}", durable.0);
        states += 1;
        cut_off += usize::from(last < 6);
    });
    assert!(states > 100 && cut_off > 100, "{cut_off} of {states}");
}

#[test]
fn bound_values_that_were_durable_and_are_gone_are_damage() {
    let load = bound_load();
    let device = SimulatedDevice::from_image(load.device.image());
    device.discard(NODES + 2 * 3 * 4096, 4096).expect("nothing fails here");
    let result = replayed(&device.image(), 1, FORMATTED);
    let Err(Error::Damaged { what }) = result else { panic!("{result:?}") };
    assert!(what.contains("record 1"), "{what}");
    assert!(what.contains(Structure::BoundBytes.name()), "{what}");
}

/// Each key that stayed in a leaf kept up to 4 MiB of the log in memory, beside the cache's budget.
#[test]
fn what_is_replayed_keeps_nothing_that_was_read_around_it() {
    let bytes = |text: &'static str| Bytes::from_static(text.as_bytes());
    let (tree, key) = (Tree::Data, bytes("key"));
    let fields = vec![FieldUpdate::Set { offset: 1, bytes: bytes("field") }];
    let operations = vec![
        Operation::Put { tree, key: key.clone(), value: vec![1; 5000].into() },
        Operation::Put { tree: Tree::Metadata, key: key.clone(), value: bytes("small") },
        Operation::PutRun { tree, prefix: bytes("run"), first: 0, bytes: vec![2; 9000].into() },
        Operation::Delete { tree, key: key.clone() },
        Operation::Change {
            tree,
            key: key.clone(),
            change: Change::Patch { offset: 3, bytes: bytes("patch") },
        },
        Operation::Change { tree, key, change: Change::Update { fields } },
        Operation::DeleteRange { tree, range: KeyRange::prefix("range") },
        Operation::CloneRange { tree, from: bytes("from"), to: bytes("to") },
    ];
    let mut load = Load::formatted();
    let device = load.device.clone();
    load.log.append(Lsn(1), Record::with_operations(operations.clone())).expect("there is room");
    load.sync(&BindAll { device: &*device });
    let replay = Replay::find(source(device, 1, FORMATTED)).expect("the log is whole");
    assert_eq!(replay.bound_runs(), 1);
    let mut records = 0;
    let found = replay.for_each(|_, mut found| {
        assert_eq!(found, operations);
        for bytes in found.iter_mut().flat_map(Operation::bytes_mut) {
            // The beginning of a buffer for the device, which nothing in the middle of the log is.
            let is_own_buffer = bytes.as_ptr().addr().is_multiple_of(4096);
            assert!(bytes.is_unique() || is_own_buffer, "{}", bytes.escape_ascii());
        }
        records += 1;
        Ok(())
    });
    assert_eq!((found, records), (Ok(()), 1));
}

/// A binding that takes more bytes than the value is not used: there is room for the value only.
#[test]
fn a_value_shorter_than_its_binding_stays_in_the_log() {
    struct BindShort;
    impl Binder for BindShort {
        fn bind(&self, first: Lsn, _: &[Record]) -> Result<Vec<Binding>> {
            let piece = |start| BoundPiece {
                start,
                length: 1,
                extent: Extent { device: 0, offset: NODES, length: 4096 },
                checksum: 0,
            };
            Ok(vec![Binding { lsn: first, operation: 0, pieces: (0..5).map(piece).collect() }])
        }
    }
    let mut load = Load::formatted();
    load.append();
    load.sync(&BindShort);
    assert_eq!(replayed(&load.device.image(), 1, FORMATTED).map(|(_, last)| last), Ok(1));
}

/// What is found in a log of one record, whose value of 5000 bytes is bound to these places: of the value, by offset and length, and of the device.
fn bound_to(pieces: &[(u32, u32, u64)]) -> Result<Replay> {
    let key = Bytes::from_static(b"key");
    let put = Operation::Put { tree: Tree::Data, key, value: Bytes::from(vec![7; 5000]) };
    let piece = |&(start, length, offset): &(u32, u32, u64)| BoundPiece {
        start,
        length,
        extent: Extent { device: 0, offset, length: length.next_multiple_of(4096) },
        checksum: bound_checksum(&[Bytes::from(vec![7; length as usize])]),
    };
    let binding = Binding { lsn: Lsn(1), operation: 0, pieces: pieces.iter().map(piece).collect() };
    let records = [encode_record_unbound(&[put], |_| true), encode_binding(&binding)];
    let payload = records.iter().flat_map(EncodedRecord::pieces).collect::<Vec<_>>().concat();
    let device = SimulatedDevice::new(CAPACITY);
    let value = Bytes::from([vec![7; 5000], vec![0; 3192]].concat());
    for (offset, bytes) in [(REGION.offset, batch_of(first_header(), &payload)), (NODES, value)] {
        device.write(&[WriteRequest { offset, pieces: vec![bytes] }]).expect("nothing fails here");
    }
    Replay::find(source(Arc::new(device), 1, FORMATTED))
}

/// No writer binds more bytes than a value has. How many there are is seen before any is read, or the bindings would say how much
/// memory a value takes.
#[test]
fn bindings_of_more_bytes_than_the_value_has_are_not_read() {
    let last = |pieces: &[_]| bound_to(pieces).expect("nothing outside is read").last();
    assert_eq!(last(&[(0, 5000, NODES)]), Lsn(1));
    // What lies outside the device cannot be read.
    assert_eq!(last(&[(0, 5000, NODES), (5000, 1, CAPACITY)]), Lsn(0), "the log ends before the batch");
}

/// It would be read as often as it is named.
#[test]
fn a_place_that_is_bound_twice_is_damage() {
    let found = bound_to(&[(0, 4096, NODES), (4096, 904, NODES)]).map(|replay| replay.last());
    let Err(Error::Damaged { what }) = found else { panic!("{found:?}") };
    assert!(what.contains("which overlap"), "{what}");
}

/// The header of a new log's first batch, of one record.
fn first_header() -> BatchHeader {
    BatchHeader {
        volume: VOLUME,
        epoch: 1,
        sequence: LOG_START.sequence,
        previous: LOG_START.chain,
        first_lsn: Lsn(1),
        record_count: 1,
        ..BatchHeader::default()
    }
}

/// A batch with this payload.
fn batch_of(header: BatchHeader, payload: &[u8]) -> Bytes {
    let mut out = vec![0xee; batch_length(payload.len()) as usize];
    encode_batch(header, [payload], &mut out);
    out.into()
}

/// What a log of one batch with this payload is answered with.
fn written(payload: Vec<u8>) -> Error {
    let batch = batch_of(first_header(), &payload);
    let device = SimulatedDevice::new(CAPACITY);
    let request = WriteRequest { offset: REGION.offset, pieces: vec![batch] };
    device.write(&[request]).expect("nothing fails here");
    match Replay::find(source(Arc::new(device), 1, FORMATTED)) {
        Ok(replay) => panic!("it goes on to record {:?}", replay.last()),
        Err(error) => error,
    }
}

/// A batch that is whole is no torn tail, whatever it holds: the log was shortened before it, or what its records came to had no bounds.
#[test]
fn a_whole_batch_that_no_writer_writes_is_damage() {
    let tree = Tree::Data;
    let bytes = |length| Bytes::from(vec![7; length]);
    let run = |prefix, first, length| {
        let (prefix, bytes) = (bytes(prefix), bytes(length));
        Operation::PutRun { tree, prefix, first, bytes }
    };
    let put = |key, value| Operation::Put { tree, key: bytes(key), value: bytes(value) };
    let joined = |record: EncodedRecord| record.pieces().collect::<Vec<_>>().concat();
    let unbound = |operations: &[Operation]| joined(encode_record_unbound(operations, |_| true));
    let whole = |operation| joined(encode_record_unbound(&[operation], |_| false));
    // Its length is a lie: so much would not be bound anywhere.
    let lies = |mut record: Vec<u8>, length: u32| {
        let end = record.len();
        record[end - 4..].copy_from_slice(&length.to_le_bytes());
        record
    };
    let patch = Change::Patch { offset: 16 << 20, bytes: bytes(1) };
    let mut garbage = whole(put(3, 3));
    garbage[4] = 77;
    for (payload, expected) in [
        (garbage, "kind of a record is 77"),
        (whole(put((1 << 18) + 1, 3)), "a key is 262145"),
        (whole(run((1 << 18) - 7, 0, 3)), "a key is 262145"),
        (whole(run(3, u64::MAX, 4097)), "the first number of a run is"),
        (lies(unbound(&[run(3, u64::MAX - 9, 3)]), 11 * 4096), "the first number of a run is"),
        (lies(unbound(&[put(3, 3)]), (16 << 20) + 1), "a value is 16777217"),
        (lies(unbound(&[run(3, 0, 3)]), 64 << 20), "length of a record with its unbound bytes is"),
        (lies(unbound(&[run(100_000, 0, 3)]), 32 << 20), "bytes of the keys of runs is"),
        (whole(Operation::Change { tree, key: bytes(3), change: patch }), "end of a patch is"),
    ] {
        // A log of 64 KiB holds no longer batch.
        let is_decoded = payload.len() > REGION.length as usize;
        let what = if is_decoded {
            decode_record(&payload.into(), Lsn(1)).expect_err("no writer writes it").to_string()
        } else {
            let Error::Damaged { what } = written(payload) else { panic!("{expected}") };
            assert!(what.starts_with("log batch 1 cannot be replayed: "), "{what}");
            what
        };
        assert!(what.contains(expected), "{what}");
    }
}

/// How long a batch is was believed before it was read.
#[test]
fn a_batch_longer_than_any_is_damage() {
    let header = BatchHeader { payload_length: (64 << 20) + 1, ..first_header() };
    let device = SimulatedDevice::new(CAPACITY);
    let pieces = vec![Bytes::from([header.encode(), vec![0; 4096 - 128]].concat())];
    device.write(&[WriteRequest { offset: REGION.offset, pieces }]).expect("nothing fails here");
    let found = Replay::find(source(Arc::new(device), 1, FORMATTED)).map(|replay| replay.last());
    let Err(Error::Damaged { what }) = found else { panic!("{found:?}") };
    assert!(what.contains("payload length is 67108865"), "{what}");
}

#[test]
fn another_volumes_log_is_not_replayed() {
    let mut load = Load::formatted();
    load.append();
    load.sync(&InlineAll);
    let device = Arc::new(SimulatedDevice::from_image(load.device.image()));
    let other = LogSource { volume: [1; 16], ..source(device.clone(), 1, FORMATTED) };
    assert_eq!(Replay::find(other).expect("it is empty").last(), Lsn(0));
    let later = source(device, 2, FORMATTED);
    assert_eq!(Replay::find(later).expect("it is empty").end(), LOG_START);
}
