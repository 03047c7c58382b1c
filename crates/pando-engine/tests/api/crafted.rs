//! Volumes that no writer writes, whole by their checksums: an error, and never a panic.

use std::sync::Arc;

use bytes::Bytes;
use pando_device::MemoryDevice;
use pando_engine::{Batch, Engine, Error, Tree, read_superblock};
use pando_format::block_table::ENTRIES_PER_PAGE;
use pando_format::superblock::{SUPERBLOCK_LENGTH, superblock_offsets};
use pando_format::{BlockEntry, NodeId, Superblock, TablePage, stored_checksum};

use crate::common::{formatted, manual, put, settle, small_nodes};

/// A closed volume with a tree of several nodes after a change of its superblock and of its block table, which is one page.
fn crafted(change: fn(&mut Superblock, &mut TablePage)) -> Arc<MemoryDevice> {
    let device = formatted(16, &small_nodes());
    let engine = crate::common::open(&device, manual());
    for number in 0..100u8 {
        put(&engine, Tree::Metadata, [number], vec![number; 1000]);
    }
    settle(&engine);
    engine.close().unwrap();
    let mut superblock = read_superblock(&*device).unwrap();
    let mut bytes = device.to_bytes();
    assert!(superblock.table.levels == 0 && superblock.live.metadata.height > 0);
    let pointer = superblock.table.page.unwrap();
    let place =
        pointer.extent.offset as usize..(pointer.extent.offset + u64::from(pointer.extent.length)) as usize;
    let mut page = TablePage::decode(&Bytes::copy_from_slice(&bytes[place.clone()])).unwrap();
    change(&mut superblock, &mut page);
    let page = page.encode();
    bytes[place].copy_from_slice(&page);
    superblock.table.page.as_mut().unwrap().checksum = stored_checksum(&page);
    let offset = superblock_offsets(superblock.capacity)[superblock.slot()] as usize;
    bytes[offset..][..SUPERBLOCK_LENGTH].copy_from_slice(&superblock.encode());
    Arc::new(MemoryDevice::from_bytes(bytes))
}

fn at(node: NodeId) -> usize {
    node.0 as usize % ENTRIES_PER_PAGE
}

/// A node to which the metadata root leads.
fn child<'a>(superblock: &Superblock, page: &'a mut TablePage) -> &'a mut BlockEntry {
    let root = superblock.live.metadata;
    let mut entries = page.entries.iter_mut().flatten();
    entries.find(|entry| entry.tree == Tree::Metadata && entry.height + 1 == root.height).unwrap()
}

/// A node that a key is looked for in was reclaimed meanwhile.
#[test]
fn a_node_with_names_that_waits_for_reclamation_is_damage() {
    let changes: [fn(&mut Superblock, &mut TablePage); 2] = [
        |superblock, page| child(superblock, page).pending_reclamation = true,
        |superblock, page| child(superblock, page).references = 0,
    ];
    for change in changes {
        match Engine::open(crafted(change), manual()).map(drop) {
            Err(Error::Damaged { what }) => assert!(what.contains("wait for reclamation"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}

/// One name more than can be counted ended the daemon.
#[test]
fn too_many_names_are_damage() {
    let engine =
        Engine::open(crafted(|superblock, page| child(superblock, page).references = u32::MAX), manual())
            .unwrap();
    let mut batch = Batch::new();
    batch.clone_range(Tree::Metadata, Vec::new(), b"clone".to_vec());
    engine.changing(0, || engine.apply(batch.clone())).unwrap();
    let why = engine.failure().unwrap();
    assert!(why.contains("what leads to it is not what the block table counts"), "{why}");
    assert!(matches!(engine.checkpoint(), Err(Error::ReadOnly { .. })));
    for number in 0..100u8 {
        let value = engine.waiting(|| engine.get(Tree::Metadata, &[number]));
        assert_eq!(value, Ok(Some(vec![number; 1000].into())));
    }
}

/// The first change of a root with other names ended the daemon, and one that was to be reclaimed was not there at the next mount.
#[test]
fn a_root_that_the_block_table_does_not_have_as_one_is_damage() {
    let changes: [fn(&mut Superblock, &mut TablePage); 3] = [
        |superblock, page| page.entries[at(superblock.live.metadata.node)].as_mut().unwrap().references = 2,
        |superblock, page| {
            let root = page.entries[at(superblock.live.data.node)].as_mut().unwrap();
            (root.references, root.pending_reclamation) = (0, true);
        },
        |superblock, _| superblock.live.metadata = superblock.live.data,
    ];
    for change in changes {
        match Engine::open(crafted(change), manual()).map(drop) {
            Err(Error::Damaged { what }) => assert!(what.contains("as a root"), "{what}"),
            other => panic!("{other:?}"),
        }
    }
}
