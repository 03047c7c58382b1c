//! The commands, one file each.

pub mod cat;
pub mod check;
pub mod clone;
pub mod completions;
pub mod cp;
pub mod dump;
pub mod format;
pub mod info;
pub mod ls;
pub mod man;
pub mod mkdir;
pub mod mount;
pub mod mv;
pub mod receive;
pub mod rm;
pub mod send;
pub mod snapshot;
pub mod stat;
pub mod stats;
pub mod umount;

use std::ffi::OsString;

use crate::failure::{Result, Status, Trouble, complain};
use crate::files::Files;
use crate::location::VolumePath;
use crate::volume::{Purpose, Volumes};

/// Does something with each of several places in volumes, if all of these can be opened. A place that fails is named, as
/// `cannot ACTION PLACE: why`, and the next one follows. Afterwards the volumes are closed, and everything done is durable.
fn for_each_place(
    arguments: &[OsString],
    purpose: Purpose,
    action: &str,
    mut act: impl FnMut(&Files, &VolumePath) -> Result<Status, Trouble>,
) -> Result<Status> {
    let places = arguments.iter().map(|argument| VolumePath::parse(argument)).collect::<Result<Vec<_>>>()?;
    let mut volumes = Volumes::default();
    let opened =
        places.iter().map(|place| volumes.open(&place.volume, purpose)).collect::<Result<Vec<_>>>()?;
    let mut status = Status::Success;
    for (place, volume) in places.iter().zip(opened) {
        match act(volumes.files(volume), place) {
            Ok(Status::Success) => {}
            Ok(Status::Problems) => status = Status::Problems,
            Err(Trouble::Here(cause)) => {
                complain(format_args!("cannot {action} {place}: {cause}"));
                status = Status::Problems;
            }
            Err(Trouble::Everywhere(failure)) => {
                // What was done before it is kept all the same.
                return volumes.close().and(Err(failure));
            }
        }
    }
    volumes.close()?;
    Ok(status)
}
