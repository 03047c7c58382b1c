//! A volume opened for reading: the log is replayed in memory, nothing is written, and everything can be read.

use pando_engine::{Batch, Error, FormatOptions, Options, Tree};

use crate::common::{assert_sound, formatted, manual, open, scan};

const RECORDS: usize = 4000;

#[test]
fn a_replay_larger_than_the_cache_can_be_read_and_leaves_the_device_alone() {
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(8 << 10),
        log_bytes: Some(16 << 20),
        ..FormatOptions::default()
    };
    let device = formatted(128, &format);
    let engine = open(&device, manual());
    for number in 0..RECORDS {
        let mut batch = Batch::new();
        batch.put(Tree::Data, (number as u32).to_be_bytes().to_vec(), vec![number as u8; 1000]);
        engine.apply(batch).unwrap();
    }
    engine.sync().unwrap();
    drop(engine);

    let before = device.to_bytes();
    let engine = open(&device, Options { cache_bytes: 1 << 20, read_only: true, ..manual() });
    assert_eq!(scan(&engine, Tree::Data).len(), RECORDS);
    assert_sound(&engine);
    let mut batch = Batch::new();
    batch.delete(Tree::Data, &b"key"[..]);
    assert!(matches!(engine.apply(batch), Err(Error::ReadOnly { .. })));
    engine.close().unwrap();
    assert!(device.to_bytes() == before, "nothing was written");
}
