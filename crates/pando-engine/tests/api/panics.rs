//! What becomes of a volume when a thread of its own panics.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use pando_engine::{Batch, Engine, Error, Options, Tree};

use crate::common::stage::Stage;

const NEVER: Duration = Duration::from_secs(1 << 20);
const SOON: Duration = Duration::from_millis(1);

/// Opened, with something in it.
fn open(device: &Arc<Stage>, log_interval: Duration, checkpoint_interval: Duration) -> Arc<Engine> {
    let options = Options { log_interval, checkpoint_interval, ..Options::default() };
    let engine = Arc::new(Engine::open(device.clone(), options).unwrap());
    put(&engine, "before").unwrap();
    engine
}

fn put(engine: &Engine, key: &'static str) -> Result<(), Error> {
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, key.as_bytes(), &b"value"[..]);
    engine.changing(0, || engine.apply(batch.clone())).map(drop)
}

/// Who synced while the log's thread panicked waited for ever for the end of its write, and who changed something went on with trees
/// that were in nobody knew what state.
#[test]
fn a_volume_takes_no_changes_when_a_thread_of_its_own_has_panicked() {
    for (name, log_interval, checkpoint_interval) in
        [("pando-log", SOON, NEVER), ("pando-checkpt", NEVER, SOON)]
    {
        let device = Stage::new();
        let engine = open(&device, log_interval, checkpoint_interval);
        let (panics, has_panicked) = channel();
        device.tell(name, move || {
            panics.send(()).unwrap();
            panic!("as it was told to");
        });
        while has_panicked.recv_timeout(SOON).is_err() {
            let _ = put(&engine, "written by the thread");
        }

        let (done, is_done) = channel();
        let synced = engine.clone();
        std::thread::spawn(move || {
            while synced.sync().is_ok() {
                std::thread::yield_now();
            }
            let _ = done.send(synced.sync().map(drop));
        });
        let synced = is_done.recv_timeout(Duration::from_secs(20)).expect("it waits for ever");
        for refused in [synced, put(&engine, "after"), engine.checkpoint(), engine.close()] {
            let Err(Error::ReadOnly { why }) = refused else { panic!("{refused:?}") };
            assert!(why.contains(name), "{why}");
        }
        assert_eq!(engine.get(Tree::Metadata, b"before").unwrap().as_deref(), Some(&b"value"[..]));
    }
}

/// What a thread that has panicked left half done was in the trees, and a checkpoint that ran meanwhile made it durable and let go of the log.
#[test]
fn a_checkpoint_that_runs_while_a_thread_panics_does_not_count() {
    let device = Stage::new();
    let engine = open(&device, SOON, NEVER);
    engine.sync().unwrap();
    let before = engine.stats().checkpoints;
    let (stage, other) = (device.clone(), engine.clone());
    device.tell("checkpoint", move || {
        stage.tell("pando-log", || panic!("as it was told to"));
        while put(&other, "written by the thread").is_ok() {
            std::thread::sleep(SOON);
        }
    });
    let made = engine.clone();
    let checkpoint =
        std::thread::Builder::new().name("checkpoint".to_owned()).spawn(move || made.checkpoint());
    let made = checkpoint.unwrap().join().unwrap();
    assert!(matches!(made, Err(Error::ReadOnly { .. })), "{made:?}");
    assert_eq!(engine.stats().checkpoints, before);
    drop(engine);
    let engine = Engine::open(device, Options::default()).unwrap();
    assert_eq!(engine.get(Tree::Metadata, b"before").unwrap().as_deref(), Some(&b"value"[..]));
}

/// Whoever syncs writes what waits, for others as well.
#[test]
fn nobody_waits_for_who_has_panicked_in_a_sync() {
    let device = Stage::new();
    let engine = open(&device, NEVER, NEVER);
    device.tell("panics", || panic!("as it was told to"));
    let syncs = |name: &str| {
        let (done, is_done) = channel();
        let engine = engine.clone();
        let sync = move || drop(done.send(engine.sync().and_then(|_| engine.close())));
        std::thread::Builder::new().name(name.to_owned()).spawn(sync).unwrap();
        is_done.recv_timeout(Duration::from_secs(20))
    };
    assert_eq!(syncs("panics").err(), Some(RecvTimeoutError::Disconnected), "it has panicked");
    let Ok(Err(Error::ReadOnly { why })) = syncs("waits") else { panic!("it waits for ever") };
    assert!(why.contains("the thread panics panicked"), "{why}");
}
