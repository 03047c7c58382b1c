//! What can go wrong in the engine.

use std::time::{Duration, Instant};

use pando_device::DeviceError;
use pando_format::{NodeId, Tree};

/// The engine's results.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A part of a node that a query needs and that is not in memory. Give it to [`crate::Engine::fetch`], without any
/// lock held, then ask again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Miss {
    /// The node.
    pub(crate) node: NodeId,
    /// Which of its parts; `None` for its header.
    pub(crate) part: Option<u32>,
}

/// Why the engine did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Not in memory; nothing has been changed.
    Miss(Miss),
    /// The device failed.
    Device(DeviceError),
    /// Bytes on the device are not what was written there.
    Damaged {
        /// Which structure, where, and what is wrong with it: one sentence.
        what: String,
    },
    /// The device holds no PandoFS volume, or one this version cannot read.
    NotAVolume {
        /// What was found instead, of the device as "it".
        what: String,
    },
    /// The volume uses features that this version does not know, and so must not do with it what was asked.
    Unsupported {
        /// Which features: one sentence.
        what: String,
    },
    /// There is no space, but the next checkpoint releases some; nothing has been changed. Let go of all locks, call
    /// [`crate::Engine::make_room`], which waits for that checkpoint, and try again as long as [`Refusals`] allow.
    Busy,
    /// The volume is full.
    NoSpace,
    /// A batch that was to be applied only if its moves are copies ([`crate::Batch::copies_only`]), and they are not. Nothing has been
    /// changed.
    NotCopied,
    /// The volume takes no changes, since when it was opened so or something failed.
    ReadOnly {
        /// Why.
        why: String,
    },
    /// A key is longer than [`pando_format::key::KEY_LENGTH_MAX`] or a value than [`pando_format::VALUE_LENGTH_MAX`], a run goes on beyond
    /// the last number that there is, or a batch is larger than the log can take, or moves and clones more than memory can.
    TooLarge {
        /// What is too large.
        what: &'static str,
    },
    /// What was asked makes no sense for this volume or device, e.g. a size too small to format.
    Invalid {
        /// What is wrong: one sentence.
        what: String,
    },
}

impl Error {
    /// True if something on the device cannot be read, or is not what was written there: that costs what lies there, and nothing else. So it is with
    /// what lies where an image file ends that somebody has cut.
    pub fn is_unreadable(&self) -> bool {
        use DeviceError::{Io, OutOfRange};
        matches!(self, Self::Damaged { .. } | Self::Device(Io { action: "read", .. } | OutOfRange { .. }))
    }

    /// Damage found in a node.
    pub(crate) fn damaged_node(tree: Option<Tree>, node: NodeId, what: impl std::fmt::Display) -> Self {
        match tree {
            Some(tree) => Self::Damaged { what: format!("node {} of the {tree:?} tree: {what}", node.0) },
            None => Self::Damaged { what: format!("node {}: {what}", node.0) },
        }
    }
}

impl From<DeviceError> for Error {
    fn from(error: DeviceError) -> Self {
        Self::Device(error)
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Miss(miss) => write!(f, "node {} is not in memory", miss.node.0),
            Self::Device(error) => error.fmt(f),
            Self::Damaged { what }
            | Self::NotAVolume { what }
            | Self::Unsupported { what }
            | Self::Invalid { what } => f.write_str(what),
            Self::Busy => f.write_str("there is no space before the next checkpoint"),
            Self::NoSpace => f.write_str("the volume is full"),
            Self::NotCopied => f.write_str("what is to be moved is too large to be copied"),
            Self::ReadOnly { why } => write!(f, "the volume is read-only: {why}"),
            Self::TooLarge { what } => write!(f, "{what} is too large"),
        }
    }
}

impl std::error::Error for Error {}

/// How often one change was answered [`Error::Busy`]. Behind each refusal a whole checkpoint has released what it could, so a
/// change that is refused again and again, by what others write meanwhile, does not fit.
#[derive(Debug, Default)]
pub struct Refusals {
    count: u32,
    first: Option<Instant>,
}

impl Refusals {
    /// Counts one more; false if it was the last to be waited for.
    pub fn may_wait(&mut self) -> bool {
        let first = *self.first.get_or_insert_with(Instant::now);
        self.count += 1;
        self.count <= REFUSALS_MAX && (self.count <= REFUSALS_MIN || first.elapsed() < REFUSED_TIME_MAX)
    }
}

/// So many refusals are waited for at most.
const REFUSALS_MAX: u32 = 15;

/// So many are waited for however slow the device is.
const REFUSALS_MIN: u32 = 5;

/// Time for which a change is tried, within these bounds.
const REFUSED_TIME_MAX: Duration = Duration::from_secs(10);
