//! What is encoded decodes to itself, whatever it is.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use pando_format::codec::BLOCK_LENGTH;
use pando_format::*;
use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;

use crate::common as sample;

/// Few letters, so that keys share prefixes and bounds meet.
fn key() -> impl Strategy<Value = Bytes> {
    vec(prop_oneof![Just(0_u8), Just(b'a'), Just(0xff), any::<u8>()], 0..12).prop_map(Bytes::from)
}

/// Lengths around those that are treated differently.
fn value() -> impl Strategy<Value = Bytes> {
    let lengths = [0, 1, 1023, 1024, BLOCK_LENGTH - 1, BLOCK_LENGTH, BLOCK_LENGTH + 1];
    let length = prop_oneof![4 => 0..300_usize, 2 => proptest::sample::select(lengths.to_vec())];
    let noise = (length, any::<u64>(), any::<bool>());
    noise.prop_map(|(length, seed, compressible)| {
        let mut state = seed | 1;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            if compressible { b'x' } else { state as u8 }
        };
        (0..length).map(|_| next()).collect::<Vec<u8>>().into()
    })
}

fn compression() -> impl Strategy<Value = Compression> {
    proptest::sample::select(Compression::ALL.to_vec())
}

fn msn() -> impl Strategy<Value = Msn> {
    any::<(u64, u32)>().prop_map(|(lsn, sub)| Msn { lsn, sub })
}

fn bound() -> impl Strategy<Value = Bound> {
    (key(), any::<bool>())
        .prop_map(|(bytes, after)| if after { Bound::after(bytes) } else { Bound::before(bytes) })
}

fn range() -> impl Strategy<Value = KeyRange> {
    (bound(), bound()).prop_map(|(lower, upper)| KeyRange::new(lower, upper))
}

fn change() -> impl Strategy<Value = Change> {
    // FMT-26
    let set = value().prop_map(|bytes| if bytes.is_empty() { Bytes::from_static(b"x") } else { bytes });
    let field = prop_oneof![
        (any::<u16>(), set).prop_map(|(offset, bytes)| FieldUpdate::Set { offset, bytes }),
        any::<(u16, u64)>().prop_map(|(offset, value)| FieldUpdate::Max { offset, value }),
        any::<(u16, u64)>().prop_map(|(offset, value)| FieldUpdate::Add { offset, value }),
    ];
    prop_oneof![
        (0..5000_u32, value()).prop_map(|(offset, bytes)| Change::Patch { offset, bytes }),
        any::<u32>().prop_map(|length| Change::Truncate { length }),
        vec(field, 1..4).prop_map(|fields| Change::Update { fields }),
    ]
}

/// Changes one on top of the other.
fn sum(changes: Vec<Change>) -> Pending {
    let mut one_by_one = changes.into_iter().map(|change| Pending::Changes(vec![change]));
    let first = one_by_one.next().expect("there is at least one");
    one_by_one.fold(first, |mut sum, change| {
        sum.push(change);
        sum
    })
}

fn pending() -> impl Strategy<Value = Pending> {
    prop_oneof![value().prop_map(Pending::Put), Just(Pending::Delete), vec(change(), 1..4).prop_map(sum),]
}

fn xf() -> impl Strategy<Value = Xf> {
    (any::<u32>(), key(), bound(), bound()).prop_map(|(strip, prepend, lower, upper)| Xf {
        strip,
        prepend,
        lower,
        upper,
    })
}

/// Their ranges are those of range deletes: disjoint, rising and not empty (FMT-11).
fn gotos() -> impl Strategy<Value = Vec<Goto>> {
    (ranges(), 1..u64::MAX, 0..=HEIGHT_MAX, xf()).prop_map(|(ranges, target, height, xf)| {
        let goto = |(range, msn)| Goto { range, msn, target: NodeId(target), height, xf: xf.clone() };
        ranges.into_iter().map(goto).collect()
    })
}

/// Disjoint, rising and not empty: neighbours of a sorted set of bounds.
fn ranges() -> impl Strategy<Value = Vec<(KeyRange, Msn)>> {
    (btree_set(bound(), 0..8), msn())
        .prop_map(|(bounds, msn)| disjoint(bounds).map(|range| (range, msn)).collect())
}

fn disjoint(bounds: BTreeSet<Bound>) -> impl Iterator<Item = KeyRange> {
    let bounds: Vec<Bound> = bounds.into_iter().collect();
    (1..bounds.len()).map(move |i| KeyRange::new(bounds[i - 1].clone(), bounds[i].clone()))
}

fn buffer_part() -> impl Strategy<Value = BufferPart> {
    (btree_map(key(), (msn(), pending()), 0..12), ranges(), gotos()).prop_map(|(keyed, ranges, gotos)| {
        let keyed = keyed.into_iter().map(|(key, (msn, pending))| (key, msn, pending)).collect();
        BufferPart { keyed, ranges, gotos }
    })
}

fn operation() -> impl Strategy<Value = Operation> {
    let tree = || proptest::sample::select(Tree::ALL.to_vec());
    prop_oneof![
        (tree(), key(), value()).prop_map(|(tree, key, value)| Operation::Put { tree, key, value }),
        (tree(), key(), any::<u64>(), value()).prop_map(|(tree, prefix, first, bytes)| Operation::PutRun {
            tree,
            prefix,
            first,
            bytes
        }),
        (tree(), key()).prop_map(|(tree, key)| Operation::Delete { tree, key }),
        (tree(), key(), change()).prop_map(|(tree, key, change)| Operation::Change { tree, key, change }),
        (tree(), range()).prop_map(|(tree, range)| Operation::DeleteRange { tree, range }),
        (tree(), key(), key()).prop_map(|(tree, from, to)| Operation::MoveRange { tree, from, to }),
        (tree(), key(), key()).prop_map(|(tree, from, to)| Operation::CloneRange { tree, from, to }),
    ]
}

/// What a reader gets: the blocks of a part, padding included.
fn stored(part: &EncodedPart) -> Bytes {
    let stored = sample::join(&part.pieces);
    assert!(stored.len().is_multiple_of(BLOCK_LENGTH));
    assert!(part.pieces.iter().all(|piece| piece.len().is_multiple_of(BLOCK_LENGTH)));
    assert_eq!(stored.len(), part.entry(1, Msn::default()).padded_length());
    stored.into()
}

fn check_leaf(entries: &BTreeMap<Bytes, Bytes>, compression: Compression) {
    let mut writer = LeafPartWriter::new();
    entries.iter().for_each(|(key, value)| writer.push(key, value));
    let raw_length = writer.raw_length();
    let part = writer.finish(compression);
    assert_eq!(part.entry_count as usize, entries.len());
    assert_eq!(part.live_bytes as usize, entries.iter().map(|(k, v)| k.len() + v.len()).sum::<usize>());
    if !entries.is_empty() {
        assert_eq!(part.raw_length as usize, raw_length);
    }
    if part.compression != Compression::None {
        assert!(part.padded_length() + BLOCK_LENGTH <= raw_length.next_multiple_of(BLOCK_LENGTH), "FMT-9");
    }
    let raw = open_part(Structure::LeafPart, &stored(&part), &part.entry(1, Msn::default())).unwrap();
    let decoded = decode_leaf_part(&raw).unwrap();
    assert!(decoded.iter().map(|(k, v)| (k, v)).eq(entries));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 512, ..ProptestConfig::default() })]

    #[test]
    fn leaf_parts(entries in btree_map(key(), value(), 0..24), compression in compression()) {
        check_leaf(&entries, compression);
    }

    #[test]
    fn buffer_parts(part in buffer_part(), compression in compression()) {
        let encoded = part.encode(compression);
        let raw = open_part(Structure::BufferPart, &stored(&encoded), &encoded.entry(1, Msn::default())).unwrap();
        prop_assert_eq!(BufferPart::decode(&raw).unwrap(), part);
    }

    #[test]
    fn records(operations in vec(operation(), 0..8), mask in any::<u8>(), lsn in 1..u64::MAX / 2) {
        let puts = |i: usize| matches!(operations[i], Operation::Put { .. } | Operation::PutRun { .. });
        let unbound = |i: usize| mask & (1 << i) != 0 && puts(i);
        let record = encode_record_unbound(&operations, unbound);
        let bytes = Bytes::from(sample::bytes_of(&record));
        prop_assert_eq!(bytes.len(), record.length());
        let expected = operations.iter().enumerate().map(|(i, operation)| match operation.clone() {
            Operation::Put { tree, key, value } if unbound(i) => {
                LoggedOperation::UnboundPut { tree, key, length: value.len() as u32 }
            }
            Operation::PutRun { tree, prefix, first, bytes } if unbound(i) => {
                LoggedOperation::UnboundPutRun { tree, prefix, first, length: bytes.len() as u32 }
            }
            operation => LoggedOperation::Whole(operation),
        });
        let expected = LogRecord::Operations { lsn: Lsn(lsn), operations: expected.collect() };
        prop_assert_eq!(log_record::decode_record(&bytes, Lsn(lsn)).unwrap(), expected);
    }

    #[test]
    fn batches(records in vec(vec(operation(), 0..4), 0..5), first in 1..1000_u64) {
        let header = BatchHeader {
            volume: sample::VOLUME,
            first_lsn: Lsn(first),
            record_count: records.len() as u32,
            ..BatchHeader::default()
        };
        let encoded: Vec<_> = records.iter().map(|record| encode_record(record)).collect();
        let (batch, _) = sample::batch_of(header, &encoded);
        let length = batch.len();
        prop_assert!(length.is_multiple_of(BLOCK_LENGTH));
        let (header, decoded) = decode_batch(&batch.into()).unwrap();
        prop_assert_eq!(header.batch_length(), length as u64);
        prop_assert_eq!(header.next_lsn(), Lsn(first + records.len() as u64));
        let expected = records.into_iter().zip(first..).map(|(operations, lsn)| LogRecord::Operations {
            lsn: Lsn(lsn),
            operations: operations.into_iter().map(LoggedOperation::Whole).collect(),
        });
        prop_assert!(decoded.into_iter().eq(expected));
    }

    #[test]
    fn interior_headers(
        pivots in btree_set(bound(), 0..8),
        range in range(),
        edge in (any::<(u64, u32, u64, u64)>(), proptest::option::of(xf())),
        numbers in any::<(u64, u64, u64)>(),
        msns in (msn(), msn()),
    ) {
        let ((child, strip, bytes, entries), xf) = edge;
        let edge = Edge { child: NodeId(child), strip, xf, bytes, entries };
        let edges: Vec<Edge> = (0..=pivots.len()).map(|_| edge.clone()).collect();
        let header = NodeHeader {
            volume: sample::VOLUME,
            tree: Tree::Metadata,
            node: NodeId(numbers.0.max(1)),
            generation: numbers.1,
            height: 1,
            checkpoint: numbers.2,
            msn_max: msns.0,
            birth: msns.1,
            range,
            parts: vec![PartEntry::default(); edges.len()],
            body: NodeBody::Interior { pivots: pivots.into_iter().collect(), edges },
        };
        let encoded = header.encode();
        prop_assert_eq!(encoded.len(), header.encoded_length());
        prop_assert_eq!(NodeHeader::length_from_first_block(&encoded[..BLOCK_LENGTH]), Ok(encoded.len() as u32));
        prop_assert_eq!(NodeHeader::decode(&encoded.into()).unwrap(), header);
    }

    #[test]
    fn table_pages(places in btree_map(0..64_usize, (1..=8_usize, (any::<u64>(), any::<u32>(), 0..=HEIGHT_MAX, any::<bool>())), 0..64)) {
        let mut page = TablePage::new(sample::VOLUME, 9);
        for (i, (extents, (generation, references, height, pending_reclamation))) in places {
            page.entries[i] = Some(BlockEntry {
                generation,
                extents: vec![Extent { device: 0, offset: 4096 * (generation % (1 << 28)), length: 4096 }; extents],
                second_copy: Vec::new(),
                length: 4096 * extents as u32,
                header_length: 4096,
                header_checksum: generation,
                references,
                pending_reclamation,
                height,
                tree: Tree::Data,
            });
        }
        let encoded = page.encode();
        prop_assert!(encoded.len() <= block_table::PAGE_LENGTH_MAX);
        prop_assert_eq!(TablePage::decode(&encoded.into()).unwrap(), page);
    }
}

/// A payload is summed up in stretches while it is copied: those that end inside a value, with one, and long behind both.
#[test]
fn long_batches_have_the_checksum_of_all_their_bytes() {
    for lengths in [vec![10, 65_515, 1], vec![70_000, 3, 300_000], vec![65_536, 65_536, 2000, 2000]] {
        let put = |(number, length): (usize, &usize)| Operation::Put {
            tree: Tree::Data,
            key: vec![b'k', number as u8].into(),
            value: vec![number as u8; *length].into(),
        };
        let operations: Vec<_> = lengths.iter().enumerate().map(put).collect();
        let records: Vec<_> = operations.chunks(1).map(encode_record).collect();
        let header = BatchHeader { record_count: records.len() as u32, ..sample::batch().0 };
        let (batch, _) = sample::batch_of(header, &records);
        let (_, decoded) = decode_batch(&batch.into()).expect("it is whole");
        let whole = |record| match record {
            LogRecord::Operations { operations, .. } => operations,
            LogRecord::Binding(_) => Vec::new(),
        };
        let expected = operations.into_iter().map(LoggedOperation::Whole);
        assert!(decoded.into_iter().flat_map(whole).eq(expected), "{lengths:?}");
    }
}

/// Blocks are neither copied on the way out nor on the way in.
#[test]
fn block_values_travel_by_reference() {
    let block = sample::block(9);
    let mut writer = LeafPartWriter::new();
    writer.push(b"k", &block);
    let part = writer.finish(Compression::None);
    assert_eq!(part.pieces[1].as_ptr(), block.as_ptr());
    let stored = stored(&part);
    let raw = open_part(Structure::LeafPart, &stored, &part.entry(1, Msn::default())).unwrap();
    assert_eq!(decode_leaf_part(&raw).unwrap()[0].1.as_ptr(), stored[BLOCK_LENGTH..].as_ptr());

    let operation = Operation::Put { tree: Tree::Data, key: Bytes::from_static(b"k"), value: block.clone() };
    assert!(encode_record(&[operation]).pieces().any(|piece| piece.as_ptr() == block.as_ptr()));
}

/// A table page whose nodes have one extent each fits one block: what a checkpoint of a fresh volume writes.
#[test]
fn a_full_table_page_of_single_extents_is_one_block() {
    let mut page = TablePage::new(sample::VOLUME, 0);
    let entry = sample::table_page().entries[0].clone();
    page.entries.fill(entry);
    assert_eq!(page.encode().len(), BLOCK_LENGTH);
}

/// Whoever copies a node into another place allocates that much.
#[test]
#[should_panic(expected = "FMT-24")]
fn no_node_is_longer_than_a_gib() {
    let mut page = sample::table_page();
    let entry = page.entries[0].as_mut().unwrap();
    entry.length = (1 << 30) + 4096;
    entry.extents[0].length = entry.length;
    page.encode();
}

/// Nor is what its parts hold once they are no longer compressed: whoever opens a volume has its roots in memory whole.
#[test]
fn no_node_holds_more_than_a_gib() {
    let parts = |count: u32| {
        let (mut header, _) = sample::leaf_node();
        header.body = NodeBody::Leaf { first_keys: (0..count as u8).map(|i| vec![i].into()).collect() };
        let part = PartEntry { compression: Compression::Zstd, ..header.parts[2].clone() };
        let long = |i| PartEntry { offset: 4 + i, stored_length: 4000, raw_length: 64 << 20, ..part.clone() };
        header.parts = (0..count).map(long).collect();
        header
    };
    let longest = parts(16);
    assert_eq!(NodeHeader::decode(&longest.encode().into()), Ok(longest));
    let refused = std::panic::catch_unwind(|| parts(17).encode()).unwrap_err();
    assert!(refused.downcast_ref::<String>().unwrap().contains("FMT-24"));
}

#[test]
fn the_newer_whole_superblock_wins() {
    let older = sample::superblock();
    let newer = Superblock { checkpoint: older.checkpoint + 1, ..older.clone() };
    let bad =
        || Superblock::decode(&Bytes::from_static(b"x")).map(|_| unreachable!("one byte is no superblock"));
    assert_eq!(Superblock::newest::<()>([Ok(older.clone()), Ok(newer.clone())]), Ok(newer.clone()));
    assert_eq!(Superblock::newest::<()>([Ok(newer.clone()), Ok(older.clone())]), Ok(newer.clone()));
    assert_eq!(Superblock::newest([bad(), Ok(older.clone())]), Ok(older));
    assert!(Superblock::newest([bad(), bad()]).is_err());
    assert_ne!(newer.slot(), sample::superblock().slot());
}

#[test]
fn every_structure_prints_itself() {
    let text = [
        sample::superblock().to_string(),
        sample::leaf_node().0.to_string(),
        sample::interior_node().0.to_string(),
        sample::buffer_part().to_string(),
        sample::table_page().to_string(),
        sample::index_page().to_string(),
        sample::batch().0.to_string(),
        sample::records().iter().map(ToString::to_string).collect(),
    ];
    for (text, word) in text.iter().zip([
        "01234567",
        "name00010",
        "pivot",
        "goto",
        "pending",
        "+0x1000",
        "epoch 7",
        "unbound",
    ]) {
        assert!(text.contains(word), "{word} in {text}");
    }
}
