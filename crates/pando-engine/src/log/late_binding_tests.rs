//! Which records wait for those that follow them, and what binding leaves behind.

use std::sync::Arc;

use bytes::Bytes;
use pando_device::MemoryDevice;
use pando_format::{Compression, Operation, Tree};

use super::batch::{Binder, Record};
use super::late_binding::BOUND_BYTES_MIN;
use crate::small_volume::manual;
use crate::{Batch, Engine, FormatOptions, Options};

/// How many are ripe of two small records and one with a run of blocks, whose leaf is in memory.
fn ripe(late_binding: bool, compression: Compression) -> usize {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Engine::format(device.clone(), &FormatOptions { compression, ..FormatOptions::default() }).unwrap();
    let options = Options { late_binding, ..manual() };
    let engine = Engine::open(device, options).unwrap();
    let small = || Operation::Put { tree: Tree::Data, key: Bytes::from_static(b"key"), value: Bytes::new() };
    let run = Operation::PutRun {
        tree: Tree::Data,
        prefix: Bytes::from_static(b"file"),
        first: 0,
        bytes: vec![1; BOUND_BYTES_MIN].into(),
    };
    let records = [small(), small(), run].map(|operation| Record::new(&[operation]));
    engine.volume().ripe(&records)
}

#[test]
fn a_run_waits_for_what_follows_only_where_it_can_be_bound() {
    assert_eq!(ripe(true, Compression::None), 2);
    assert_eq!(ripe(false, Compression::None), 3);
    assert_eq!(ripe(true, Compression::Zstd), 3);
}

/// Each leaf that was bound stayed in the list of dirty nodes until the next cut, once for each time.
#[test]
fn what_is_bound_is_dirty_no_more() {
    let device = Arc::new(MemoryDevice::new(64 << 20));
    Engine::format(device.clone(), &FormatOptions::default()).unwrap();
    let engine = Engine::open(device, manual()).unwrap();
    for round in 1..3 {
        let mut batch = Batch::new();
        batch.put_run(Tree::Data, &b"file"[..], 0, vec![round as u8; BOUND_BYTES_MIN]);
        engine.apply(batch).unwrap();
        engine.sync().unwrap();
        assert_eq!(engine.stats().runs_bound, round);
        assert_eq!(engine.volume().cache.dirty_nodes().len(), 0);
    }
}
