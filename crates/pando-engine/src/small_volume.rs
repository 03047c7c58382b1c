//! Volumes for tests of what happens in a tree: in memory, with nodes so small that few keys make it high.

use std::sync::Arc;

use pando_device::MemoryDevice;

use crate::{Background, Engine, FormatOptions, Options};

/// An empty volume of 256 MiB with a fan-out of 4, opened, and its device. Nothing happens behind the scenes.
pub(crate) fn small_volume(node_bytes: u32, basement_bytes: u32) -> (Engine, Arc<MemoryDevice>) {
    let device = Arc::new(MemoryDevice::new(256 << 20));
    let format = FormatOptions {
        node_bytes: Some(node_bytes),
        basement_bytes: Some(basement_bytes),
        fanout: Some(4),
        ..FormatOptions::default()
    };
    Engine::format(device.clone(), &format).unwrap();
    (Engine::open(device.clone(), manual()).unwrap(), device)
}

/// Background work is done when a test asks for it.
pub(crate) fn manual() -> Options {
    Options { background: Background::Manual, ..Options::default() }
}
