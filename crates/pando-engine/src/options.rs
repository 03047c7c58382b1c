//! How a volume is made and opened.

use std::time::Duration;

use crate::{Result, recovery};

pub use pando_format::Compression;

/// Fixed when a volume is formatted.
#[derive(Debug, Clone)]
pub struct FormatOptions {
    /// Name shown to people; at most 255 bytes.
    pub label: String,
    /// Random 128 bits that name the volume.
    pub volume_id: [u8; 16],
    /// How parts of nodes are compressed.
    pub compression: Compression,
    /// Most bytes a leaf holds before it splits; `None` chooses by the size of the volume (4 MiB from 1 GiB up).
    pub node_bytes: Option<u32>,
    /// Bytes of a basement node; `None` chooses (128 KiB with large nodes).
    pub basement_bytes: Option<u32>,
    /// Children of an interior node, at most; `None` chooses (16).
    pub fanout: Option<u32>,
    /// Bytes of the log region; `None` chooses (a sixteenth of the volume, at most 4 GiB).
    pub log_bytes: Option<u64>,
}

impl FormatOptions {
    /// Whether a device of so many bytes can be formatted so; if not, [`crate::Error::Invalid`] says why.
    pub fn check(&self, capacity: u64) -> Result<()> {
        recovery::plan(capacity, self).map(drop)
    }
}

impl Default for FormatOptions {
    fn default() -> Self {
        Self {
            label: String::new(),
            volume_id: [0; 16],
            compression: Compression::None,
            node_bytes: None,
            basement_bytes: None,
            fanout: None,
            log_bytes: None,
        }
    }
}

/// Who runs the work behind the scenes: flushes, write-back, checkpoints, the log's timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Background {
    /// Threads of the engine's own.
    Threads,
    /// The caller, through [`crate::Engine::background_step`]: everything on one thread, in one order, for simulation.
    /// A call that must wait for such work runs it itself.
    Manual,
}

/// How a volume is opened.
#[derive(Debug, Clone)]
pub struct Options {
    /// Memory for nodes, clean and dirty, in bytes. What one call reads has to fit in beside what is dirty, or the call never
    /// ends: each part that is read for it would throw out another that it needs.
    pub cache_bytes: usize,
    /// Refuse every change. The log is replayed in memory, nothing is written.
    pub read_only: bool,
    /// Tell the device which extents are free.
    pub discard: bool,
    /// Who works behind the scenes.
    pub background: Background,
    /// Time between checkpoints.
    pub checkpoint_interval: Duration,
    /// Time after which an operation is durable without an fsync.
    pub log_interval: Duration,
    /// Read ahead of those who read in order. Without it only less is read; for measuring what it gives.
    pub read_ahead: bool,
    /// Write the pages of large writes to their leaves at once and leave them out of the log (FAST16, 3). Without it they
    /// are written twice; for measuring what it gives.
    pub late_binding: bool,
    /// Ranges of fewer bytes are moved and cloned by copy; `None` is a part of a node that was measured. For measuring it.
    pub copied_bytes: Option<usize>,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            cache_bytes: 1 << 30,
            read_only: false,
            discard: true,
            background: Background::Threads,
            checkpoint_interval: Duration::from_secs(60),
            log_interval: Duration::from_secs(1),
            read_ahead: true,
            late_binding: true,
            copied_bytes: None,
        }
    }
}
