//! What a request can fail with. pando-fuse gives each its errno.

pub use pando_engine::Miss;

/// Why a request was not done. Nothing has changed when one of these comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Error {
    /// Something is not in memory; fetch it and ask again.
    Miss(Miss),
    /// No room for changes at the moment; ask again with a thread that may wait.
    Busy,
    /// A file that was unlinked a moment ago is in the way of a new name. Take the forgets that have come and ask again: that is done in any
    /// case, but costs a move of what it holds if it is not forgotten by then. Answered once for each such file, and only behind
    /// [`Operations::forgets_gather`](crate::Operations::forgets_gather).
    Unforgotten,
    /// A part of what there was to do first is done; ask again, with a thread that may wait for room. Each of these answers brings the end nearer,
    /// so it is asked again however often they come.
    Unfinished,
    /// ENOENT.
    NotFound,
    /// EEXIST.
    Exists,
    /// ENOTDIR.
    NotADirectory,
    /// EISDIR.
    IsADirectory,
    /// ENOTEMPTY.
    NotEmpty,
    /// EINVAL.
    Invalid,
    /// EPERM.
    NotPermitted,
    /// EACCES.
    AccessDenied,
    /// ENAMETOOLONG.
    NameTooLong,
    /// ENOSPC.
    NoSpace,
    /// EROFS.
    ReadOnly,
    /// EFBIG.
    TooBig,
    /// EMLINK.
    TooManyLinks,
    /// ENODATA: no such extended attribute.
    NoAttribute,
    /// E2BIG: an extended attribute. Names that are too long for one the kernel refuses itself.
    AttributeTooBig,
    /// ENXIO: nothing behind this offset.
    NoData,
    /// ESTALE: no such inode any more.
    Stale,
    /// EOPNOTSUPP.
    NotSupported,
    /// EBUSY.
    InUse,
    /// EXDEV: between the live tree and a snapshot, or two snapshots.
    OtherTree,
    /// EIO, with the engine's sentence for the log.
    Engine(pando_engine::Error),
}

impl Error {
    /// What is on the device breaks a rule; `what` is the sentence for the log.
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Engine(pando_engine::Error::Damaged { what: what.into() })
    }

    /// Of a change of one file or directory: its record was too large for the log, and that only a path makes it.
    pub(crate) fn of_one_path(self) -> Self {
        match self {
            Self::Engine(pando_engine::Error::TooLarge { what: "a batch of operations" }) => {
                Self::NameTooLong
            }
            other => other,
        }
    }

    /// The end of a sentence about a request that names snapshots, or is to make one.
    pub fn snapshot_text(&self) -> String {
        let text = match self {
            Self::NotFound => "there is no such snapshot",
            Self::Exists => "there is a snapshot of this name already",
            Self::Stale => "a snapshot was deleted meanwhile",
            Self::Invalid => "this cannot be a snapshot's name",
            Self::InUse => "it is mounted; unmount it first",
            Self::TooManyLinks => "there are too many snapshots to list; delete some by their names",
            other => return other.to_string(),
        };
        text.to_owned()
    }
}

impl From<pando_engine::Error> for Error {
    fn from(error: pando_engine::Error) -> Self {
        match error {
            pando_engine::Error::Miss(miss) => Self::Miss(miss),
            pando_engine::Error::Busy => Self::Busy,
            pando_engine::Error::NoSpace => Self::NoSpace,
            pando_engine::Error::ReadOnly { .. } => Self::ReadOnly,
            // Of a path that is too long, be it that of something far below what is renamed or cloned.
            pando_engine::Error::TooLarge { what: "a key" } => Self::NameTooLong,
            other => Self::Engine(other),
        }
    }
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let text = match self {
            Self::Engine(error) => return error.fmt(f),
            Self::Miss(_) => "not in memory",
            Self::Busy => "no room for changes at the moment",
            Self::Unforgotten => "what was unlinked a moment ago is in the way",
            Self::Unfinished => "not all that is in the way has been moved",
            Self::NotFound => "no such file or directory",
            Self::Exists => "it exists already",
            Self::NotADirectory => "not a directory",
            Self::IsADirectory => "it is a directory",
            Self::NotEmpty => "the directory is not empty",
            Self::Invalid => "invalid argument",
            Self::NotPermitted => "operation not permitted",
            Self::AccessDenied => "permission denied",
            Self::NameTooLong => "the name is too long",
            Self::NoSpace => "no space left on the volume",
            Self::ReadOnly => "the volume is read-only",
            Self::TooBig => "the file would be too big",
            Self::TooManyLinks => "too many links",
            Self::NoAttribute => "no such extended attribute",
            Self::AttributeTooBig => "the extended attribute is too big",
            Self::NoData => "no data behind this offset",
            Self::Stale => "the inode is gone",
            Self::NotSupported => "not supported",
            Self::InUse => "it is in use",
            Self::OtherTree => "they lie in different snapshots, or one of them in none",
        };
        f.write_str(text)
    }
}

impl std::error::Error for Error {}
