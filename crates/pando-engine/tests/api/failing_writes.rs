//! What can still be read when nothing can be written any more, and what is there afterwards.

use std::env;
use std::process::{Command, Stdio};
use std::sync::Arc;

use pando_device::simulated::{Fault, SimulatedDevice};
use pando_engine::{Engine, Error, Options, Tree};

use crate::common::buffered::Buffered;
use crate::common::{get, manual, put, scan, settle, small_nodes};

/// Reads fill the cache, and had to write what is dirty to make room: they were answered with its failure.
#[test]
fn queries_are_answered_although_nothing_can_be_evicted() {
    let device = Arc::new(SimulatedDevice::untraced(64 << 20));
    Engine::format(device.clone(), &small_nodes()).unwrap();
    let open = |cache_bytes| Engine::open(device.clone(), Options { cache_bytes, ..manual() }).unwrap();
    let key = |number: u32| number.to_be_bytes();
    let engine = open(16 << 20);
    for number in 0..4000 {
        put(&engine, Tree::Data, key(number), vec![number as u8; 300]);
        settle(&engine);
    }
    engine.close().unwrap();

    let engine = open(64 << 10);
    for number in (0..4000).step_by(7) {
        put(&engine, Tree::Data, key(number), vec![1; 300]);
    }
    while engine.background_step().unwrap() {}
    for number in (0..4000).step_by(11) {
        put(&engine, Tree::Data, key(number), vec![2; 300]);
    }
    device.set_fault(Fault::WritesFrom(0));
    for number in 0..4000 {
        let expected = match number {
            _ if number % 11 == 0 => 2,
            _ if number % 7 == 0 => 1,
            _ => number as u8,
        };
        assert_eq!(get(&engine, Tree::Data, &key(number)), Some(vec![expected; 300]), "{number}");
    }
}

/// The words about the failure panicked, and ended the daemon, where nobody reads standard error any more: one in the foreground,
/// say, whose terminal is gone.
#[test]
fn a_failure_that_nobody_hears_of_is_no_panic() {
    const UNHEARD: &str = "PANDO_UNHEARD";
    if env::var_os(UNHEARD).is_none() {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let mut unheard = Command::new(env::current_exe().unwrap());
        // What a test prints is kept from standard error otherwise.
        unheard.args([
            "--exact",
            "failing_writes::a_failure_that_nobody_hears_of_is_no_panic",
            "--nocapture",
        ]);
        let ended = unheard.env(UNHEARD, "1").stderr(writer).stdout(Stdio::piped()).output().unwrap();
        let told = String::from_utf8_lossy(&ended.stdout);
        assert!(ended.status.success() && told.contains("1 passed"), "{}: {told}", ended.status);
        return;
    }
    let device = Arc::new(SimulatedDevice::untraced(64 << 20));
    Engine::format(device.clone(), &small_nodes()).unwrap();
    let engine = Engine::open(device.clone(), manual()).unwrap();
    put(&engine, Tree::Data, "key", "value");
    device.set_fault(Fault::WritesFrom(0));
    engine.checkpoint().unwrap_err();
    let refused = engine.make_room(0).and_then(|()| engine.sync().map(drop));
    assert!(matches!(refused, Err(Error::ReadOnly { .. })), "{refused:?}");
    assert_eq!(get(&engine, Tree::Data, b"key"), Some(b"value".to_vec()));
}

/// The superblock of a checkpoint whose last flush failed was read from the kernel's pages by the next mount, and never came to the medium: that
/// mount wrote over what the one that was there leads to.
#[test]
fn what_the_medium_leads_to_is_there_after_a_flush_that_failed() {
    const KEYS: u32 = 1000;
    let device = Arc::new(Buffered::new(16 << 20));
    Engine::format(device.clone(), &small_nodes()).unwrap();
    let engine = Arc::new(Engine::open(device.clone(), manual()).unwrap());
    let put_all = |engine: &Engine, value: u8| {
        for number in 0..KEYS {
            put(engine, Tree::Data, number.to_be_bytes(), vec![value; 300]);
        }
    };
    for value in [1, 2] {
        engine.checkpoint().unwrap();
        put_all(&engine, value);
        settle(&engine);
    }
    // Behind the cut, so that there is something to replay.
    let late = engine.clone();
    device.before_the_next_write(move || {
        put_all(&late, 3);
        late.sync().unwrap();
    });
    // That of the log works, and that of the nodes and the table.
    device.fail_flush(2);
    engine.checkpoint().unwrap_err();
    drop(engine);

    let small_cache = || Options { cache_bytes: 64 << 10, ..manual() };
    for (crashed, is_torn) in (0..).flat_map(|crashed| [(crashed, false), (crashed, true)]) {
        let device = Arc::new(device.copy());
        device.crash(crashed, is_torn);
        let opened = Engine::open(device.clone(), small_cache());
        let found = Engine::open(Arc::new(device.medium()), manual());
        let found = found.unwrap_or_else(|error| panic!("after {crashed} writes, torn {is_torn}: {error}"));
        let expected = (0..KEYS).map(|number| (number.to_be_bytes().to_vec(), vec![3; 300]));
        assert!(scan(&found, Tree::Data).into_iter().eq(expected), "after {crashed} writes, torn {is_torn}");
        if opened.is_ok() {
            assert!(crashed > 10, "only {crashed} writes");
            break;
        }
    }
}
