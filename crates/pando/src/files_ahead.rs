//! The helper of a daemon that has the kernel read files ahead: this program under the name that the daemon starts it by, with a socket as its
//! standard input. Not for people.

use std::ffi::OsString;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Parser;
use pando_fuse::files_ahead;
use rustix::process::{Signal, set_parent_process_death_signal};

use crate::failure::complain;

/// `pando-files-ahead MOUNTPOINT DEVICE`.
#[derive(Debug, Parser)]
#[command(name = files_ahead::NAME, about = "Have the kernel read files ahead, called by the daemon of a mount")]
struct FilesAhead {
    /// The directory it is mounted on.
    mountpoint: PathBuf,
    /// The number of its device, as `major:minor`.
    device: String,
}

/// Runs as the helper until it is unmounted, or the daemon is gone. The first argument is the name of the program.
pub fn run(args: impl IntoIterator<Item = OsString>) -> ExitCode {
    let args = FilesAhead::parse_from(args);
    let helped = files_ahead::run(io::stdin().as_fd(), killed().ok(), &args.mountpoint, &args.device);
    match helped {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain(format_args!("cannot read files ahead: {error}"));
            ExitCode::FAILURE
        }
    }
}

/// What can be read once the thread that started this process has ended.
fn killed() -> io::Result<UnixStream> {
    let (killed, tells) = UnixStream::pair()?;
    signal_hook::low_level::pipe::register(signal_hook::consts::SIGUSR1, tells)?;
    set_parent_process_death_signal(Some(Signal::USR1))?;
    Ok(killed)
}
