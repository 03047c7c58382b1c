//! Images of every structure as the first version wrote them, in `fixtures/format-1`. They find a format that drifts
//! without a change of its version, and are the seeds of the fuzz targets (one folder each).
//!
//! `PANDO_WRITE_FIXTURES=1 cargo test -p pando-format --test api fixtures` writes them anew; do that only together with a
//! change of the format's version, into a new folder.

use std::path::PathBuf;

use bytes::Bytes;
use pando_format::*;

use crate::common as sample;

fn path(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/format-1").join(name)
}

/// The bytes of a fixture.
fn stored(name: &str) -> Bytes {
    let path = path(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).into()
}

/// The bytes of a fixture. `encoded` is what this version makes of the same sample.
fn fixture(name: &str, encoded: &[u8]) -> Bytes {
    if std::env::var_os("PANDO_WRITE_FIXTURES").is_some() {
        let path = path(name);
        std::fs::create_dir_all(path.parent().expect("a fixture lies in a folder")).unwrap();
        std::fs::write(path, encoded).unwrap();
    }
    stored(name)
}

/// A fixture that is encoded today to the very same bytes.
fn exact(name: &str, encoded: &[u8]) -> Bytes {
    let bytes = fixture(name, encoded);
    assert!(bytes == encoded, "{name} is encoded differently today");
    bytes
}

#[test]
fn superblock() {
    let bytes = exact("superblock/full.bin", &sample::superblock().encode());
    assert_eq!(Superblock::decode(&bytes), Ok(sample::superblock()));
    let later = Superblock { ballast: 77 << 20, ..sample::superblock() };
    assert_eq!(Superblock::decode(&exact("superblock/ballast.bin", &later.encode())), Ok(later));
}

#[test]
fn nodes_and_their_parts() {
    for (name, (header, image)) in [("leaf", sample::leaf_node()), ("interior", sample::interior_node())] {
        // A new release of a compressor may give other bytes for the same data, so images are only decoded.
        let bytes = fixture(&format!("node_header/{name}.bin"), &image);
        let decoded = NodeHeader::decode(&bytes).unwrap();
        let same_places = decoded.parts.iter().zip(&header.parts).all(|(a, b)| {
            (a.raw_length, a.compression, a.msn, a.entry_count)
                == (b.raw_length, b.compression, b.msn, b.entry_count)
        });
        assert!(same_places, "{decoded}");
        assert_eq!(decoded.body, header.body);
        assert_eq!(NodeHeader { parts: header.parts.clone(), ..decoded.clone() }, header);
        assert_eq!(NodeHeader::length_from_first_block(&bytes[..4096]), Ok(4096));
        for (i, part) in decoded.parts.iter().enumerate() {
            let stored = bytes.slice(part.offset as usize * 4096..);
            if decoded.height == 0 {
                let raw = open_part(Structure::LeafPart, &stored, part).unwrap();
                assert_eq!(decode_leaf_part(&raw).unwrap(), sample::entries(10 * i as u32, 8), "part {i}");
            } else {
                let raw = open_part(Structure::BufferPart, &stored, part).unwrap();
                let messages = BufferPart::decode(&raw).unwrap();
                let expected = if i == 0 { sample::buffer_part() } else { messages.clone() };
                assert_eq!(messages, expected);
                assert_eq!(messages.keyed.len(), [4, 0, 300][i]);
            }
        }
    }
}

#[test]
fn parts() {
    let entries = sample::entries(0, 8);
    let part = sample::leaf_part(&entries, Compression::None);
    let bytes = exact("leaf_part/mixed.bin", &sample::join(&part.pieces)[..part.raw_length as usize]);
    assert_eq!(decode_leaf_part(&bytes), Ok(entries));

    let part = sample::buffer_part().encode(Compression::None);
    let bytes = exact("buffer_part/mixed.bin", &sample::join(&part.pieces)[..part.raw_length as usize]);
    assert_eq!(BufferPart::decode(&bytes), Ok(sample::buffer_part()));
}

#[test]
fn block_table() {
    let bytes = exact("block_table/table.bin", &sample::table_page().encode());
    assert_eq!(TablePage::decode(&bytes), Ok(sample::table_page()));
    let bytes = exact("block_table/index.bin", &sample::index_page().encode());
    assert_eq!(IndexPage::decode(&bytes), Ok(sample::index_page()));
}

#[test]
fn log() {
    let (header, batch, chain) = sample::batch();
    let bytes = exact("log_batch/bindings.bin", &batch);
    let (decoded, records) = decode_batch(&bytes).unwrap();
    assert_eq!(records, sample::records());
    let BatchHeader { payload_length, payload_checksum, .. } = decoded;
    assert_eq!(decoded, BatchHeader { payload_length, payload_checksum, ..header });
    assert_eq!(stored_checksum(&bytes), chain);

    let record = encode_record(&sample::operations());
    let bytes = exact("log_record/operations.bin", &sample::bytes_of(&record));
    assert_eq!(log_record::decode_record(&bytes, Lsn(50)).unwrap(), sample::records()[0]);
    let record = encode_binding(&sample::binding());
    let bytes = exact("log_record/pieces.bin", &sample::bytes_of(&record));
    assert_eq!(log_record::decode_record(&bytes, Lsn(0)), Ok(LogRecord::Binding(sample::binding())));
}

/// The first version took pieces of compressed bytes, too, which nothing ever wrote; a log of them could be replayed without end
/// (FMT-20).
#[test]
fn pieces_of_compressed_bytes() {
    let error = log_record::decode_record(&stored("log_record/binding.bin"), Lsn(0)).unwrap_err();
    assert!(error.to_string().contains("bound piece"), "{error}");
    let error = decode_batch(&stored("log_batch/mixed.bin")).unwrap_err();
    assert!(error.to_string().contains("bound piece"), "{error}");
}

#[test]
fn stream_of_a_snapshot() {
    use pando_format::send_stream::*;
    let mut stream = encode_preamble();
    let mut chain = Chain::default();
    let snapshot = SnapshotId { volume: *b"fixture's volume", number: 70_001, seconds: 5, nanoseconds: 6 };
    let base = Some(SnapshotId { number: 70_000, ..snapshot });
    let begin = Begin { snapshot, base, counter: 1 << 17, name: "two".into(), root: "the root".into() };
    let change = |tree, key: &'static [u8], value: Option<&'static [u8]>| KeyChange {
        tree,
        key: key.into(),
        value: value.map(Bytes::from_static),
    };
    let changes = vec![
        change(Tree::Metadata, b"\0\0file", Some(b"a record")),
        change(Tree::Metadata, b"\0\0file too", None),
        change(Tree::Data, b"\0\0file\0\0\0\0\0\0\0\0\0", Some(b"a block")),
    ];
    let moves = vec![
        Move { what: Moved::Directory, from: Some("\0old".into()), to: "\0new\0place".into() },
        Move { what: Moved::Directory, from: None, to: "\0old".into() },
        Move { what: Moved::File, from: Some("\0\0large".into()), to: "\0new\0\0large".into() },
    ];
    let frames = [Frame::Begin(begin), Frame::Moves(moves), Frame::Changes(changes), Frame::End(3)];
    for frame in &frames {
        stream.extend(frame.encode(&mut chain));
    }
    let read = |bytes: Bytes, frames: &[&Frame]| {
        decode_preamble(&bytes.slice(..PREAMBLE_LENGTH)).unwrap();
        let mut rest = bytes.slice(PREAMBLE_LENGTH..);
        let mut chain = Chain::default();
        for frame in frames {
            let header = FrameHeader::decode(&rest.split_to(FRAME_HEADER_LENGTH)).unwrap();
            let payload = rest.split_to(header.payload_length as usize);
            assert_eq!(Frame::decode(&header, &payload, &mut chain).as_ref(), Ok(*frame));
        }
        assert!(rest.is_empty());
    };
    let [begin, moves, changes, end] = &frames;
    read(exact("send_stream/incremental.bin", &stream), &[begin, moves, changes, end]);
    // Of before there were moves.
    let mut version_1 = encode_preamble();
    version_1[MAGIC.len()] = 1;
    let mut chain = Chain::default();
    for frame in [begin, changes, end] {
        version_1.extend(frame.encode(&mut chain));
    }
    read(exact("send_stream/version-1.bin", &version_1), &[begin, changes, end]);
}
