//! A subtree that is cut off between two checkpoints is gone from both sides: from the node above it and from the block table.

use pando_engine::{Batch, Bound, KeyRange, Tree};

use crate::common::{assert_sound, formatted, get, manual, open, put, settle, small_nodes};

/// A checkpoint left the root clean; pruning then changed it without saying so, and the next checkpoint wrote a block table
/// without the nodes that the root on the device still led to.
#[test]
fn pruning_below_a_root_that_was_just_written_reaches_the_next_checkpoint() {
    let device = formatted(64, &small_nodes());
    let engine = open(&device, manual());
    for number in 0..2000u32 {
        let key = [if number < 1800 { b"a" } else { b"b" }, &number.to_be_bytes()[..]].concat();
        put(&engine, Tree::Metadata, key, vec![7; 100]);
        settle(&engine);
    }
    engine.checkpoint().unwrap();
    let mut batch = Batch::reclaiming();
    batch.delete_range(Tree::Metadata, KeyRange::new(Bound::least(), Bound::after(&b"a"[..])));
    engine.apply(batch).unwrap();
    engine.checkpoint().unwrap();
    let before = engine.stats().pruned_subtrees;
    settle(&engine);
    assert!(engine.stats().pruned_subtrees > before, "the range delete covers a subtree of the root");
    engine.checkpoint().unwrap();
    drop(engine);

    let engine = open(&device, manual());
    assert_sound(&engine);
    assert!(get(&engine, Tree::Metadata, &[b"b", &1999u32.to_be_bytes()[..]].concat()).is_some());
    assert_eq!(get(&engine, Tree::Metadata, &[b"a", &5u32.to_be_bytes()[..]].concat()), None);
}

/// The tree kept its height: that its last edge leads to nothing was taken for a mark that nothing is known of it.
#[test]
fn a_tree_of_which_nothing_is_left_is_one_leaf_again() {
    let device = formatted(64, &small_nodes());
    let engine = open(&device, manual());
    for number in 0..2000u32 {
        put(&engine, Tree::Metadata, number.to_be_bytes(), vec![7; 100]);
        settle(&engine);
    }
    engine.checkpoint().unwrap();
    assert!(engine.superblock().live.metadata.height > 1);
    let mut batch = Batch::reclaiming();
    batch.delete_range(Tree::Metadata, KeyRange::all());
    engine.apply(batch).unwrap();
    settle(&engine);
    engine.checkpoint().unwrap();
    assert_eq!(engine.superblock().live.metadata.height, 0);
    put(&engine, Tree::Metadata, *b"new", vec![8; 100]);
    assert_eq!(get(&engine, Tree::Metadata, b"new"), Some(vec![8; 100]));
    assert_sound(&engine);
}
