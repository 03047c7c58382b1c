//! What eviction drops, and what it spares.

use std::collections::HashSet;

use super::dropped_tests::with_leaves;
use super::evict::nothing_loaded;

/// Each round began with the same nodes: what was used among them went, and what lay behind them stayed, used or not.
#[test]
fn no_leaf_goes_twice_before_every_other_has_gone_once() {
    let (engine, leaves) = with_leaves();
    let volume = engine.volume();
    let mut gone = HashSet::new();
    while gone.len() < leaves.len() {
        volume.drop_clean(volume.cache.memory() - 1, false);
        for leaf in leaves.iter().filter(|leaf| nothing_loaded(&leaf.state.read())) {
            assert!(
                gone.insert(leaf.id),
                "{:?} has gone twice, {} of {} once",
                leaf.id,
                gone.len(),
                leaves.len()
            );
            volume.load_all(leaf).unwrap();
        }
    }
}
