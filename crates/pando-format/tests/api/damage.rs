//! Bytes that are not what was written: every change is found (FMT-2), and nothing makes a decoder panic (FMT-3).

use bytes::Bytes;
use pando_format::head::reseal;
use pando_format::superblock::{BASEMENT_BYTES_MIN, FANOUT_MIN, LOG_LENGTH_MIN, NODE_BYTES};
use pando_format::*;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::common as sample;

type Decode = fn(&Bytes) -> Result<(), FormatError>;

fn sealed() -> Vec<(Structure, Vec<u8>, Decode)> {
    let (_, batch, _) = sample::batch();
    let batch = batch[..log_batch::BATCH_HEADER_LENGTH].to_vec();
    let headers = [sample::leaf_node().0.encode(), sample::interior_node().0.encode()];
    let [leaf, interior] = headers;
    vec![
        (Structure::Superblock, sample::superblock().encode(), |b| Superblock::decode(b).map(drop)),
        (Structure::NodeHeader, leaf, |b| NodeHeader::decode(b).map(drop)),
        (Structure::NodeHeader, interior, |b| NodeHeader::decode(b).map(drop)),
        (Structure::TablePage, sample::table_page().encode(), |b| TablePage::decode(b).map(drop)),
        (Structure::IndexPage, sample::index_page().encode(), |b| IndexPage::decode(b).map(drop)),
        (Structure::LogBatch, batch, |b| BatchHeader::decode(b).map(drop)),
    ]
}

#[test]
fn every_changed_byte_of_a_sealed_structure_is_found() {
    for (structure, bytes, decode) in sealed() {
        assert_eq!(decode(&bytes.clone().into()), Ok(()), "{}", structure.name());
        for at in 0..bytes.len() {
            for mask in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[at] ^= mask;
                assert!(decode(&damaged.into()).is_err(), "{} byte {at} mask {mask:#x}", structure.name());
            }
        }
    }
}

#[test]
fn every_truncation_of_a_sealed_structure_is_found() {
    for (structure, bytes, decode) in sealed() {
        let bytes = Bytes::from(bytes);
        for length in 0..bytes.len() {
            assert!(decode(&bytes.slice(..length)).is_err(), "{} of {length} bytes", structure.name());
        }
    }
}

#[test]
fn every_changed_byte_of_a_log_payload_is_found() {
    let (_, bytes, _) = sample::batch();
    let header = BatchHeader::decode(&bytes.clone().into()).unwrap();
    let end = log_batch::BATCH_HEADER_LENGTH + header.payload_length as usize;
    for at in (0..end).step_by(7) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 0x10;
        assert!(decode_batch(&damaged.into()).is_err(), "byte {at}");
    }
    for length in (0..end).step_by(61) {
        assert!(decode_batch(&Bytes::from(bytes.clone()).slice(..length)).is_err(), "{length} bytes");
    }
}

#[test]
fn every_changed_byte_of_a_stored_part_is_found() {
    for compression in Compression::ALL {
        let part = sample::leaf_part(&sample::entries(0, 8), compression);
        assert_eq!(part.compression, compression);
        let entry = part.entry(1, Msn::default());
        let stored = sample::join(&part.pieces);
        for at in (0..entry.stored_length as usize).step_by(97) {
            let mut damaged = stored.clone();
            damaged[at] ^= 1;
            let error = open_part(Structure::LeafPart, &damaged.into(), &entry).unwrap_err();
            assert!(matches!(error, FormatError::Checksum { .. }), "{error}");
        }
        let short = Bytes::from(stored).slice(..entry.stored_length as usize - 1);
        assert!(matches!(open_part(Structure::LeafPart, &short, &entry), Err(FormatError::Truncated { .. })));
    }
}

/// A part of one kind does not pass for one of the other, even with the same bytes.
#[test]
fn a_leaf_part_is_no_buffer_part() {
    let part = sample::leaf_part(&sample::entries(0, 8), Compression::None);
    let stored = Bytes::from(sample::join(&part.pieces));
    let entry = part.entry(1, Msn::default());
    assert!(open_part(Structure::BufferPart, &stored, &entry).is_err());
    assert!(BufferPart::decode(&open_part(Structure::LeafPart, &stored, &entry).unwrap()).is_err());
}

/// Compressed bytes whose checksum is right but whose directory entry lies about their length.
#[test]
fn a_wrong_raw_length_is_found_without_trusting_it() {
    for compression in [Compression::Lz4, Compression::Zstd] {
        let part = sample::leaf_part(&sample::entries(0, 8), compression);
        let stored = Bytes::from(sample::join(&part.pieces));
        let entry = part.entry(1, Msn::default());
        for raw_length in [0, entry.raw_length - 1, entry.raw_length + 1, part::PART_LENGTH_MAX, u32::MAX] {
            let lying = PartEntry { raw_length, ..entry.clone() };
            assert!(open_part(Structure::LeafPart, &stored, &lying).is_err(), "{compression} {raw_length}");
        }
    }
}

/// Whoever reads parts of a leaf in order relies on that each is there.
#[test]
fn a_leaf_with_a_part_that_is_not_stored_is_damaged() {
    let mut bytes = sample::leaf_node().0.encode();
    let part = &sample::leaf_node().0.parts[0];
    let checksum = part.checksum.to_le_bytes();
    let at = bytes.windows(8).position(|window| window == checksum).unwrap();
    // The stored length, the raw length and the compression stand before the checksum.
    bytes[at - 12..at - 3].fill(0);
    reseal(Structure::NodeHeader, &mut bytes);
    let error = NodeHeader::decode(&bytes.into()).unwrap_err();
    assert!(error.to_string().contains("stored length of a leaf's part"), "{error}");
}

#[test]
fn a_superblock_that_cannot_be_worked_with_is_damaged() {
    let sound = sample::superblock();
    let short = Region { length: LOG_LENGTH_MIN - 4096, ..sound.log };
    let tall = Root { height: HEIGHT_MAX + 1, ..sound.live.data };
    let elsewhere = |region: Region| Region { device: 1, ..region };
    let replay = LogPosition { offset: 0, ..sound.replay };
    for (wrong, why) in [
        (Superblock { log: short, replay, ..sound.clone() }, "length of the log region"),
        (Superblock { fanout: FANOUT_MIN - 1, ..sound.clone() }, "fan-out"),
        (Superblock { node_bytes: NODE_BYTES.end() + 1, ..sound.clone() }, "node bytes"),
        (Superblock { node_bytes: 1024, basement_bytes: 256, ..sound.clone() }, "node bytes"),
        (Superblock { basement_bytes: BASEMENT_BYTES_MIN - 1, ..sound.clone() }, "basement bytes"),
        (Superblock { basement_bytes: sound.node_bytes / 2 + 1, ..sound.clone() }, "basement bytes"),
        (Superblock { live: RootPair { data: tall, ..sound.live }, ..sound.clone() }, "height"),
        (Superblock { log: elsewhere(sound.log), ..sound.clone() }, "device of a region"),
        (
            Superblock { node_regions: vec![elsewhere(sound.node_regions[0])], device: 1, ..sound.clone() },
            "device of a region",
        ),
    ] {
        let error = Superblock::decode(&wrong.encode().into()).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
}

#[test]
fn another_version_is_named() {
    for (structure, mut bytes, decode) in sealed() {
        bytes[8..10].copy_from_slice(&2_u16.to_le_bytes());
        reseal(structure, &mut bytes);
        let expected = FormatError::Version { structure, found: 2, supported: version::FORMAT_VERSION };
        assert_eq!(decode(&bytes.into()), Err(expected));
    }
}

fn mutations() -> impl Strategy<Value = Vec<(prop::sample::Index, u8)>> {
    vec((any::<prop::sample::Index>(), prop_oneof![Just(0), Just(0xff), any::<u8>()]), 1..6)
}

fn mutate(bytes: &mut [u8], mutations: &[(prop::sample::Index, u8)]) {
    for (at, value) in mutations {
        // Half of them in the first 400 bytes, where the fields of long structures are.
        let reach = if value % 2 == 0 { bytes.len() } else { bytes.len().min(400) };
        bytes[at.index(reach)] = *value;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2048, ..ProptestConfig::default() })]

    /// Wrong fields under a right checksum, as an attacker or a bug of ours would make them.
    #[test]
    fn no_decoder_of_sealed_bytes_panics(which in 0..6_usize, mutations in mutations()) {
        let (structure, mut bytes, decode) = sealed().swap_remove(which);
        mutate(&mut bytes, &mutations);
        reseal(structure, &mut bytes);
        let _ = decode(&bytes.into());
    }

    #[test]
    fn no_decoder_of_parts_and_records_panics(mutations in mutations(), cut in any::<prop::sample::Index>()) {
        let leaf = sample::leaf_part(&sample::entries(0, 8), Compression::None);
        let buffer = sample::buffer_part().encode(Compression::None);
        let record = encode_record(&sample::operations());
        let binding = encode_binding(&sample::binding());
        for (bytes, length) in [
            (sample::join(&leaf.pieces), leaf.raw_length as usize),
            (sample::join(&buffer.pieces), buffer.raw_length as usize),
            (sample::bytes_of(&record), record.length()),
            (sample::bytes_of(&binding), binding.length()),
        ] {
            let mut bytes = bytes[..length].to_vec();
            mutate(&mut bytes, &mutations);
            let bytes = Bytes::from(bytes);
            for bytes in [bytes.clone(), bytes.slice(..cut.index(bytes.len()))] {
                let _ = decode_leaf_part(&bytes);
                let _ = BufferPart::decode(&bytes);
                let _ = log_record::decode_record(&bytes, Lsn(1));
                let _ = log_record::decode_records(&bytes, Lsn(u64::MAX));
            }
        }
    }

    #[test]
    fn no_decoder_panics_on_noise(bytes in vec(any::<u8>(), 0..600)) {
        let bytes = Bytes::from(bytes);
        for (_, _, decode) in sealed() {
            prop_assert!(decode(&bytes).is_err());
        }
        let _ = decode_leaf_part(&bytes);
        let _ = BufferPart::decode(&bytes);
        let _ = log_record::decode_records(&bytes, Lsn(1));
        for compression in Compression::ALL {
            let stored_length = bytes.len() as u32;
            let checksum = checksum::checksum(Structure::LeafPart, &bytes);
            let entry = PartEntry { stored_length, raw_length: 5000, compression, checksum, ..PartEntry::default() };
            let _ = open_part(Structure::LeafPart, &bytes, &entry);
        }
    }
}

/// A root so high, with more edges than it should have, was given another above it.
#[test]
fn heights_that_no_tree_has_are_damage() {
    let mut node = sample::interior_node().0;
    node.height = HEIGHT_MAX + 1;
    let mut page = sample::table_page();
    page.entries.iter_mut().flatten().for_each(|entry| entry.height = HEIGHT_MAX + 1);
    let errors = [
        NodeHeader::decode(&node.encode().into()).map(drop),
        TablePage::decode(&page.encode().into()).map(drop),
    ];
    for error in errors {
        let error = error.unwrap_err();
        assert!(error.to_string().contains("height"), "{error}");
    }
}

/// Whoever counted on from there overflowed.
#[test]
fn counters_near_their_end_are_damage() {
    let end = 1 << 63;
    let changes: [fn(&mut Superblock, u64); 6] = [
        |superblock, end| superblock.epoch = end,
        |superblock, end| superblock.checkpoint = end,
        |superblock, end| superblock.cut = Lsn(end),
        |superblock, end| superblock.replay.sequence = end,
        |superblock, end| superblock.next_node = end,
        |superblock, end| superblock.next_generation = end,
    ];
    for change in changes {
        let mut superblock = sample::superblock();
        change(&mut superblock, end - 1);
        assert!(Superblock::decode(&superblock.encode().into()).is_ok());
        change(&mut superblock, end);
        let error = Superblock::decode(&superblock.encode().into()).unwrap_err();
        assert!(error.to_string().contains("below 2^63"), "{error}");
    }
}

/// A log of pieces of one byte, each in 64 MiB that were read and summed for it, was replayed without end.
#[test]
fn a_bound_piece_is_as_long_as_what_is_read_for_it() {
    let whole = sample::bytes_of(&encode_binding(&sample::binding()));
    assert!(log_record::decode_records(&whole.clone().into(), Lsn(1)).is_ok());
    // More bytes than a record has, in as many blocks.
    let mut long = whole.clone();
    for offset in [4, 12, 24, 40] {
        long[24 + offset..24 + offset + 4].copy_from_slice(&(65_u32 << 20).to_le_bytes());
    }
    let error = log_record::decode_records(&long.into(), Lsn(1)).unwrap_err();
    assert!(error.to_string().contains("bytes of a bound piece"), "{error}");
    // Offsets in the first piece, behind the record's head, its LSN and the number of the operation.
    for (offset, name) in
        [(12, "extent"), (24, "stored length"), (28, "compression"), (40, "raw length"), (44, "raw start")]
    {
        let mut changed = whole.clone();
        // Extents are whole blocks.
        changed[24 + offset + usize::from(name == "extent")] ^= 0x10;
        let error = log_record::decode_records(&changed.into(), Lsn(1)).unwrap_err();
        assert!(error.to_string().contains(&format!("{name} of a bound piece")), "{name}: {error}");
    }
}
