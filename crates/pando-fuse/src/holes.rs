//! Data and holes of files (lseek(2)).
//!
//! What was written through a map of the file and has not been sent yet is data, and only the kernel knows of it. It does not send that by itself before it
//! asks, nor does it tell which files are mapped. So before a hole is told of, the kernel has to send what it has there, and to forget it. The lock that who asks
//! holds is not needed for that, but those of pages are (FU-4). Who cannot wait, or would wait for too long, is told that all is data, which is always true
//! enough.

use std::ops::Range;
use std::sync::Arc;

use pando_fs::operations::{Seek, waiting};
use pando_fs::{Error, InodeNumber, Operations, Result};
use rustix::io::Errno;

use crate::notifier::Notifier;
use crate::protocol::Answer;

/// Holes that turn out to be data, one after the other, before all is called data.
const HOLES_MAX: usize = 32;

/// What the file system says.
struct Found {
    /// `NoData` if there is none up to the end.
    at: Result<u64>,
    /// What that says is a hole.
    hole: Option<Range<u64>>,
    /// The answer if all that the file has were data.
    without_holes: u64,
}

/// The answer to lseek(2).
pub(crate) fn seek(
    fs: &Arc<dyn Operations>,
    notifier: &Notifier,
    inode: InodeNumber,
    offset: u64,
    what: Seek,
) -> Result<Answer> {
    let found = look(&**fs, inode, offset, what)?;
    if found.hole.is_none() {
        return found.at.map(Answer::number);
    }
    let (fs, notifier) = (fs.clone(), notifier.clone());
    // What fails here has been answered without it.
    let first = move || match settle(&*fs, &notifier, inode, offset, what)? {
        Ok(at) => Some(Answer::number(at)),
        Err(Error::NoData) => Some(Answer::Refused(Errno::NXIO)),
        Err(_) => None,
    };
    Ok(Answer::Later(Box::new(Answer::number(found.without_holes)), Box::new(first)))
}

fn look(fs: &dyn Operations, inode: InodeNumber, offset: u64, what: Seek) -> Result<Found> {
    let size = fs.get_attributes(inode)?.size;
    let at = match fs.seek(inode, offset, what) {
        Err(error) if !matches!(error, Error::NoData) => return Err(error),
        at => at,
    };
    let next_data = |from| match fs.seek(inode, from, Seek::Data) {
        Err(Error::NoData) => Ok(size),
        next => next,
    };
    let hole = match (what, &at) {
        (Seek::Data, &Ok(at)) => offset..at,
        (Seek::Data, Err(_)) => offset..size,
        (Seek::Hole, &Ok(at)) if at < size => at..next_data(at)?,
        (Seek::Hole, _) => size..size,
    };
    let without_holes = if what == Seek::Data { offset } else { size };
    Ok(Found { at, hole: (!hole.is_empty()).then_some(hole), without_holes })
}

/// The same once the kernel has sent what it had where holes seemed to be; none if there always was something.
fn settle(
    fs: &dyn Operations,
    notifier: &Notifier,
    inode: InodeNumber,
    offset: u64,
    what: Seek,
) -> Option<Result<u64>> {
    let mut sent = 0..0;
    for _ in 0..HOLES_MAX {
        let found = waiting(fs, |fs| look(fs, inode, offset, what));
        match found {
            Err(error) => return Some(Err(error)),
            Ok(Found { at, hole: None, .. }) => return Some(at),
            Ok(Found { at, hole: Some(hole), .. }) if sent.start <= hole.start && hole.end <= sent.end => {
                return Some(at);
            }
            Ok(Found { hole: Some(hole), .. }) => {
                notifier.forget_range(inode, &hole);
                sent = hole;
            }
        }
    }
    None
}
