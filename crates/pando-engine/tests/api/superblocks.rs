//! Which superblock a volume is opened by.

use std::sync::Arc;

use pando_device::MemoryDevice;
use pando_device::simulated::{Fault, SimulatedDevice};
use pando_engine::{Engine, Error, Options, Tree, read_superblock};
use pando_format::Superblock;
use pando_format::superblock::{SUPERBLOCK_LENGTH, superblock_offsets};

use crate::common::{formatted, get, manual, put, small_nodes};

const MIB: usize = 1 << 20;

/// The bytes of a closed volume of 16 MiB with one value that both superblocks lead to, on a device that has grown to 20.
fn grown() -> (Vec<u8>, Superblock) {
    let device = formatted(16, &small_nodes());
    let engine = crate::common::open(&device, manual());
    put(&engine, Tree::Metadata, *b"key", *b"value");
    engine.checkpoint().unwrap();
    engine.close().unwrap();
    let superblock = read_superblock(&*device).unwrap();
    let mut bytes = device.to_bytes();
    bytes.resize(20 * MIB, 0);
    (bytes, superblock)
}

fn write(bytes: &mut [u8], offset: u64, block: &[u8]) {
    bytes[offset as usize..][..SUPERBLOCK_LENGTH].copy_from_slice(block);
}

fn open(bytes: Vec<u8>) -> Result<Engine, Error> {
    Engine::open(Arc::new(MemoryDevice::from_bytes(bytes)), manual())
}

fn assert_opens(bytes: Vec<u8>) {
    let engine = open(bytes).unwrap();
    assert_eq!(get(&engine, Tree::Metadata, b"key"), Some(b"value".to_vec()));
}

/// What a larger volume had left at the end of a device was newer, and hid the volume that was made there since.
#[test]
fn a_superblock_of_another_volume_is_not_taken() {
    for capacity in [16, 20].map(|mib| mib << 20) {
        let (mut bytes, superblock) = grown();
        let other = Superblock { volume: [7; 16], capacity, checkpoint: 5000, ..superblock };
        write(&mut bytes, superblock_offsets(capacity)[1], &other.encode());
        assert_opens(bytes);
    }
}

/// The device had grown, and nothing but slot 0 told where slot 1 is.
#[test]
fn a_torn_superblock_on_a_grown_device_leads_to_the_other() {
    let (mut bytes, superblock) = grown();
    let [first, second] = superblock_offsets(superblock.capacity).map(|offset| offset as usize);
    // The device had written the first sector alone.
    bytes[first + 512..][..SUPERBLOCK_LENGTH - 512].fill(1);
    assert_opens(bytes.clone());
    bytes[second] ^= 1;
    match open(bytes).map(drop) {
        Err(Error::NotAVolume { what }) => assert!(what.contains("superblock is damaged"), "{what}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn without_slot_0_a_superblock_counts_only_where_its_capacity_puts_it() {
    let (mut bytes, superblock) = grown();
    write(&mut bytes, superblock_offsets(superblock.capacity)[0], &[0; SUPERBLOCK_LENGTH]);
    let end = superblock_offsets(bytes.len() as u64)[1];
    write(&mut bytes, end, &superblock.encode());
    assert!(matches!(open(bytes.clone()), Err(Error::NotAVolume { .. })));
    bytes.truncate(superblock.capacity as usize);
    assert_opens(bytes);
}

/// The other superblock is of a volume that was closed, and of an epoch before: all that was synced since was left out without a word.
#[test]
fn a_superblock_that_is_lost_after_it_was_mounted_is_damage() {
    let (bytes, _) = grown();
    let device = Arc::new(MemoryDevice::from_bytes(bytes));
    let engine = crate::common::open(&device, manual());
    put(&engine, Tree::Metadata, *b"synced", *b"value");
    engine.sync().unwrap();
    let mounted = engine.superblock();
    drop(engine);
    let mut bytes = device.to_bytes();
    bytes[superblock_offsets(mounted.capacity)[mounted.slot()] as usize + 1000] ^= 1;
    match open(bytes).map(drop) {
        Err(Error::Damaged { what }) => assert!(what.contains("a newer one is lost"), "{what}"),
        other => panic!("{other:?}"),
    }
}

/// A bad sector kept the volume from being opened, where one full of garbage did not.
#[test]
fn a_superblock_that_cannot_be_read_leaves_the_other_to_who_only_reads() {
    let device = Arc::new(SimulatedDevice::untraced(16 << 20));
    Engine::format(device.clone(), &small_nodes()).unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    put(&engine, Tree::Metadata, *b"key", *b"value");
    engine.checkpoint().unwrap();
    engine.close().unwrap();
    for slot in 0..2 {
        let open = |read_only| {
            device.set_fault(Fault::At(device.io_count() + slot));
            Engine::open(device.clone(), Options { read_only, ..manual() })
        };
        assert!(matches!(open(false).map(drop), Err(Error::Device(_))));
        let engine = open(true).unwrap();
        assert_eq!(get(&engine, Tree::Metadata, b"key"), Some(b"value".to_vec()));
    }
}

/// What is said of the superblock that is not in use.
fn said(bytes: Vec<u8>) -> Vec<String> {
    let device = Arc::new(MemoryDevice::from_bytes(bytes));
    let engine = Engine::open(device, Options { read_only: true, ..manual() }).unwrap();
    engine.check_roots()
}

/// A volume that had lost one of its superblocks was clean to a check, until the other was lost, too.
#[test]
fn a_superblock_that_is_lost_beside_that_of_a_closed_volume_is_told_of() {
    let device = formatted(16, &small_nodes());
    let engine = crate::common::open(&device, manual());
    put(&engine, Tree::Metadata, *b"key", *b"value");
    engine.close().unwrap();
    let (bytes, superblock) = (device.to_bytes(), read_superblock(&*device).unwrap());
    let other = superblock_offsets(superblock.capacity)[1 - superblock.slot()] as usize;
    assert_eq!(said(bytes.clone()), Vec::<String>::new());
    for rubbish in [0, 0xff] {
        let mut bytes = bytes.clone();
        write(&mut bytes, other as u64, &[rubbish; SUPERBLOCK_LENGTH]);
        let what = said(bytes).concat();
        assert!(what.contains("is lost"), "{what}");
    }
    // In each of its fields; in what the volume is, in what it was when it was written, and in what is reserved.
    for rotten in [10, 30, 70, 330, 341, 360, 376, 400, 440, 490, 512, 530, 540, 560, 3000] {
        let mut bytes = bytes.clone();
        bytes[other + rotten] ^= 1;
        assert_eq!(said(bytes).len(), 1, "{rotten}");
    }
}

/// No crash is taken for a superblock that is lost: neither that of the next mount, which writes over the older one, nor one while the volume is in use.
#[test]
fn a_superblock_that_a_crash_has_torn_is_not_told_of() {
    let (before, superblock) = grown();
    let offsets = superblock_offsets(superblock.capacity).map(|offset| offset as usize);
    let device = Arc::new(MemoryDevice::from_bytes(before.clone()));
    let engine = crate::common::open(&device, manual());
    let opened = device.to_bytes();
    put(&engine, Tree::Metadata, *b"key", *b"value");
    engine.checkpoint().unwrap();
    let in_use = device.to_bytes();
    let mut torn = 0;
    for (before, after) in [(&before, &opened), (&opened, &in_use)] {
        let written = offsets.into_iter().find(|at| before[*at..][..4096] != after[*at..][..4096]).unwrap();
        for sector in [0, 512] {
            let mut bytes = before.clone();
            bytes[written + sector..][..512].copy_from_slice(&after[written + sector..][..512]);
            torn += usize::from(Superblock::decode(&bytes[written..][..4096].to_vec().into()).is_err());
            assert_eq!(said(bytes), Vec::<String>::new());
        }
    }
    assert_eq!(torn, 4);
    // Whoever was about to make a volume is to do so again.
    let device = formatted(16, &small_nodes());
    let first = read_superblock(&*device).unwrap();
    let mut bytes = device.to_bytes();
    let first = Superblock { checkpoint: 1, ..first };
    write(&mut bytes, superblock_offsets(first.capacity)[1], &first.encode());
    write(&mut bytes, superblock_offsets(first.capacity)[0], &[0; SUPERBLOCK_LENGTH]);
    assert_eq!(said(bytes), Vec::<String>::new());
}
