//! Raw leaf parts, and any bytes as compressed ones.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use pando_format::checksum::checksum;
use pando_format::{Compression, LeafPartWriter, Msn, PartEntry, Structure, decode_leaf_part, open_part};

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    open_as_compressed(&data);
    let Ok(entries) = decode_leaf_part(&data) else { return };
    for compression in Compression::ALL {
        let mut writer = LeafPartWriter::new();
        entries.iter().for_each(|(key, value)| writer.push(key, value));
        let part = writer.finish(compression);
        let stored = Bytes::from(part.pieces.concat());
        let raw = open_part(Structure::LeafPart, &stored, &part.entry(1, Msn::default()));
        let raw = raw.expect("what was encoded can be opened");
        assert_eq!(decode_leaf_part(&raw).as_ref(), Ok(&entries));
    }
});

fn open_as_compressed(data: &Bytes) {
    for compression in Compression::ALL {
        for raw_length in [1, 4096, 1 << 20] {
            let entry = PartEntry {
                stored_length: data.len() as u32,
                raw_length,
                compression,
                checksum: checksum(Structure::LeafPart, data),
                ..PartEntry::default()
            };
            if let Ok(raw) = open_part(Structure::LeafPart, data, &entry) {
                assert!(raw.is_empty() || raw.len() == raw_length as usize);
            }
        }
    }
}
