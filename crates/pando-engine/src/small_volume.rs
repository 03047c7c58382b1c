//! Volumes for tests of what happens in a tree: in memory, with nodes so small that few keys make it high.

use std::sync::Arc;
use std::time::Duration;

use pando_device::{Device, DeviceError, Layer, MemoryDevice, ReadRequest, WriteRequest};
use pando_format::Tree;
use parking_lot::Mutex;

use crate::{Background, Batch, Engine, FormatOptions, Options};

/// An empty volume of 256 MiB with a fan-out of 4, opened, and its device. Nothing happens behind the scenes.
pub(crate) fn small_volume(node_bytes: u32, basement_bytes: u32) -> (Engine, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    (small_volume_on(&device, node_bytes, basement_bytes), device)
}

/// The same on a device.
pub(crate) fn small_volume_on(
    device: &Arc<impl Device + 'static>,
    node_bytes: u32,
    basement_bytes: u32,
) -> Engine {
    let format = FormatOptions {
        node_bytes: Some(node_bytes),
        basement_bytes: Some(basement_bytes),
        fanout: Some(4),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    Engine::open(device.clone(), manual()).unwrap()
}

/// Makes a volume with nodes of 64 KiB and basement nodes of 4 KiB, and opens it. Nothing happens behind the scenes.
pub(crate) fn volume_on(device: &Arc<impl Device + 'static>) -> Engine {
    let format = FormatOptions {
        node_bytes: Some(64 << 10),
        basement_bytes: Some(4 << 10),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    Engine::open(device.clone(), manual()).unwrap()
}

/// Puts so many values of 1 KiB into the data tree, under their numbers, and lets them come down to leaves.
pub(crate) fn fill(engine: &Engine, values: u32) {
    for number in 0..values {
        let mut batch = Batch::new();
        batch.put(Tree::Data, number.to_be_bytes().to_vec(), vec![number as u8; 1024]);
        engine.changing(0, || engine.apply(batch.clone())).unwrap();
        while engine.background_step().unwrap() {}
    }
}

/// Applies a batch once there is room for it.
pub(crate) fn change(engine: &Engine, fill: impl Fn(&mut Batch)) {
    engine
        .changing(0, || {
            let mut batch = Batch::new();
            fill(&mut batch);
            engine.apply(batch)
        })
        .unwrap();
}

/// Every byte is as it should be.
pub(crate) fn assert_sound(engine: &Engine) {
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, Vec::<String>::new());
}

/// Background work is done when a test asks for it.
pub(crate) fn manual() -> Options {
    Options { background: Background::Manual, ..Options::default() }
}

/// Done while a write is under way; answers whether it is to be done during the next one, too.
type Work = Box<dyn FnMut() -> bool + Send>;

/// A device in memory on which somebody is at work while it writes, and which may take its time to read.
pub(crate) struct Busy {
    inner: MemoryDevice,
    pub(crate) work: Mutex<Option<Work>>,
    /// How long a read takes.
    pub(crate) read_time: Mutex<Duration>,
}

impl Busy {
    /// Nobody is at work yet.
    pub(crate) fn new(capacity: u64) -> Self {
        Self { inner: MemoryDevice::new(capacity), work: Mutex::default(), read_time: Mutex::default() }
    }
}

impl Layer for Busy {
    fn below(&self) -> &dyn Device {
        &self.inner
    }

    fn on_read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        let time = *self.read_time.lock();
        std::thread::sleep(time);
        self.inner.read(batch)
    }

    fn on_write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        // What it does may write as well.
        let work = self.work.lock().take();
        if let Some(mut work) = work
            && work()
        {
            *self.work.lock() = Some(work);
        }
        self.inner.write(batch)
    }
}
