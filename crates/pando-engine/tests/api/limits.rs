//! What the engine refuses because no replay would take it.

use pando_engine::{Batch, Error, FormatOptions, Options, Tree};

/// A patch that reached too far was acknowledged, and the log ended before it at the next opening; a run beyond the last number
/// overflowed.
#[test]
fn what_a_replay_takes_for_damage_is_refused() {
    let device = crate::common::formatted(256, &FormatOptions::default());
    let engine = crate::common::open(&device, Options::default());
    let refused = |fill: fn(&mut Batch)| {
        let mut batch = Batch::new();
        fill(&mut batch);
        match engine.apply(batch) {
            Err(Error::TooLarge { what }) => what,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(refused(|batch| batch.patch(Tree::Data, "key", 16 << 20, "x")), "a value");
    assert_eq!(refused(|batch| batch.put(Tree::Data, "key", vec![0; (16 << 20) + 1])), "a value");
    assert_eq!(refused(|batch| batch.put(Tree::Data, vec![0; (1 << 18) + 1], "x")), "a key");
    let run = "the first number of a run";
    assert_eq!(refused(|batch| batch.put_run(Tree::Data, "file", u64::MAX, vec![0; 4097])), run);
    let keys = "a batch of operations";
    assert_eq!(refused(|batch| batch.put_run(Tree::Data, vec![0; 200_000], 0, vec![0; 8 << 20])), keys);
}
