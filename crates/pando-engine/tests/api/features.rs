//! A volume with features that this version does not know.

use std::sync::Arc;

use pando_device::{Device, MemoryDevice, WriteRequest};
use pando_engine::{Engine, Error, Options, Tree, read_superblock};
use pando_format::Features;
use pando_format::superblock::superblock_offsets;

use crate::common::{formatted, get, manual, put, small_nodes};

const UNKNOWN: u64 = 1 << 63;

/// A volume with one value that uses these features.
fn volume_with(features: Features) -> Arc<MemoryDevice> {
    let device = formatted(16, &small_nodes());
    let engine = crate::common::open(&device, manual());
    put(&engine, Tree::Metadata, *b"key", *b"value");
    engine.close().unwrap();
    let mut superblock = read_superblock(&*device).unwrap();
    superblock.features = features;
    for offset in superblock_offsets(superblock.capacity) {
        let pieces = vec![superblock.encode().into()];
        device.write(&[WriteRequest { offset, pieces }]).unwrap();
    }
    device
}

fn open(device: &Arc<MemoryDevice>, read_only: bool) -> Result<Engine, Error> {
    Engine::open(device.clone(), Options { read_only, ..manual() })
}

#[test]
fn unknown_incompatible_features_refuse_the_volume() {
    let device = volume_with(Features { incompatible: UNKNOWN, ..Features::default() });
    let before = device.to_bytes();
    for read_only in [false, true] {
        match open(&device, read_only).map(drop) {
            Err(Error::Unsupported { what }) => assert!(what.contains("0x8000000000000000"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
    assert!(device.to_bytes() == before, "nothing was written");
}

#[test]
fn features_that_writers_must_know_refuse_writing_alone() {
    let device = volume_with(Features { read_only_compatible: UNKNOWN, ..Features::default() });
    let before = device.to_bytes();
    match open(&device, false).map(drop) {
        Err(Error::Unsupported { what }) => assert!(what.contains("open it read-only"), "{what}"),
        other => panic!("{other:?}"),
    }
    let engine = open(&device, true).unwrap();
    assert_eq!(get(&engine, Tree::Metadata, b"key"), Some(b"value".to_vec()));
    engine.close().unwrap();
    assert!(device.to_bytes() == before, "nothing was written");
}

#[test]
fn compatible_features_are_kept() {
    let features = Features { compatible: UNKNOWN, ..Features::default() };
    let device = volume_with(features);
    open(&device, false).unwrap().close().unwrap();
    assert_eq!(read_superblock(&*device).unwrap().features, features);
}
