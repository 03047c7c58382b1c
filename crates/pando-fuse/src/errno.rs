//! The one place that chooses the errno of a failed request.

use pando_fs::Error;
use rustix::io::Errno;

/// The number that the caller of a system call sees. `Miss`, `Busy`, `Unforgotten` and `Unfinished` never come
/// this far: the dispatcher waits until they are gone.
pub(crate) fn errno(error: &Error) -> Errno {
    match error {
        Error::NotFound => Errno::NOENT,
        Error::Exists => Errno::EXIST,
        Error::NotADirectory => Errno::NOTDIR,
        Error::IsADirectory => Errno::ISDIR,
        Error::NotEmpty => Errno::NOTEMPTY,
        Error::Invalid => Errno::INVAL,
        Error::NotPermitted => Errno::PERM,
        Error::AccessDenied => Errno::ACCESS,
        Error::NameTooLong => Errno::NAMETOOLONG,
        Error::NoSpace => Errno::NOSPC,
        Error::ReadOnly => Errno::ROFS,
        Error::TooBig => Errno::FBIG,
        Error::TooManyLinks => Errno::MLINK,
        Error::NoAttribute => Errno::NODATA,
        Error::AttributeTooBig => Errno::TOOBIG,
        Error::NoData => Errno::NXIO,
        Error::Stale => Errno::STALE,
        Error::NotSupported => Errno::OPNOTSUPP,
        Error::InUse => Errno::BUSY,
        Error::OtherTree => Errno::XDEV,
        _ => Errno::IO,
    }
}

/// Whether the file system itself failed, which deserves a line in the log, and not just the request.
pub(crate) fn is_failure(error: &Error) -> bool {
    errno(error) == Errno::IO
}
