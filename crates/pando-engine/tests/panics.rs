//! What becomes of a volume when a thread of its own panics.

use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use pando_device::{Device, DeviceError, MemoryDevice, ReadRequest, WriteRequest};
use pando_engine::{Batch, Engine, Error, FormatOptions, Options, Tree};
use parking_lot::Mutex;

/// A device at whose writes a thread panics, once it is told which. It says so before.
struct Panicking {
    inner: MemoryDevice,
    thread: Mutex<Option<(&'static str, Sender<()>)>>,
}

impl Device for Panicking {
    fn capacity(&self) -> u64 {
        self.inner.capacity()
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.inner.read(batch)
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        let mut thread = self.thread.lock();
        if let Some((_, panics)) = thread.take_if(|(name, _)| std::thread::current().name() == Some(*name)) {
            drop(thread);
            panics.send(()).unwrap();
            panic!("as it was told to");
        }
        drop(thread);
        self.inner.write(batch)
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.inner.flush()
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.inner.discard(offset, length)
    }

    fn name(&self) -> String {
        self.inner.name()
    }
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
    const NEVER: Duration = Duration::from_secs(1 << 20);
    const SOON: Duration = Duration::from_millis(1);
    for (name, log_interval, checkpoint_interval) in
        [("pando-log", SOON, NEVER), ("pando-checkpt", NEVER, SOON)]
    {
        let inner = MemoryDevice::new(64 << 20);
        let device = Arc::new(Panicking { inner, thread: Mutex::new(None) });
        Engine::format(device.clone(), &FormatOptions::default()).unwrap();
        let options = Options { log_interval, checkpoint_interval, ..Options::default() };
        let engine = Arc::new(Engine::open(device.clone(), options).unwrap());
        put(&engine, "before").unwrap();
        let (panics, has_panicked) = channel();
        *device.thread.lock() = Some((name, panics));
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
