//! Servers whose data is on the volume, run as a user without rights.
//!
//! A server sees the directory of its data at `HOME` and an empty `/run`, in a mount namespace of its own: so the length and
//! the permissions of the real path do not matter, and its sockets and process files go with it. It gets SIGINT when the
//! process that started it dies, whatever the reason; `Server` stops it and waits until nothing of it is left.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::command;
use crate::error::{Error, at};
use crate::volume::Volume;

/// Where a server finds its data.
pub const HOME: &str = "/mnt";

/// The user and its group.
const USER: &str = "nobody";
const GROUP: &str = "nogroup";

/// For a server to write what it has to write. What takes longer is killed.
const PATIENCE: Duration = Duration::from_secs(120);

const SCRIPT: &str = "mount --bind \"$1\" /mnt && mount -t tmpfs -o mode=1777 tmpfs /run && cd /mnt && shift && \
                      exec setpriv --reuid=nobody --regid=nogroup --clear-groups --pdeathsig=INT -- \"$@\"";

/// The command that runs a program as a server is run.
fn words<'a>(home: &'a str, program: &[&'a str]) -> Vec<&'a str> {
    let mut words = vec!["unshare", "--mount", "--", "sh", "-c", SCRIPT, "sh", home];
    words.extend(program);
    words
}

/// Makes the directory of a server's data anew.
pub fn renew(home: &Path) -> Result<(), Error> {
    if home.exists() {
        at("cannot remove", home, std::fs::remove_dir_all(home))?;
    }
    at("cannot create", home, std::fs::create_dir(home))?;
    own(home)
}

/// Gives everything below a directory to the user of servers.
pub fn own(home: &Path) -> Result<(), Error> {
    let owner = format!("{USER}:{GROUP}");
    command::run(&["chown", "-R", &owner, &home.display().to_string()]).map(drop)
}

/// Runs a program that belongs to a server to its end; what it wrote to standard output.
pub fn run(home: &Path, program: &[&str]) -> Result<String, Error> {
    command::run(&words(&home.display().to_string(), program))
}

/// Of what a server complains about, the end that a message shows.
const COMPLAINTS_BYTES: u64 = 1000;

/// A server that is running.
pub struct Server {
    child: Child,
    name: &'static str,
    /// What it wrote to standard error. In memory: a file on the volume would be written in the measured time.
    complaints: File,
}

impl Server {
    /// Starts a program, which stays in the foreground.
    pub fn start(name: &'static str, home: &Path, program: &[&str]) -> Result<Server, Error> {
        Server::spawn(name, &words(&home.display().to_string(), program))
    }

    fn spawn(name: &'static str, words: &[&str]) -> Result<Server, Error> {
        let cannot = |error| Error::Program(format!("{name} cannot be started: {error}"));
        let complaints = rustix::fs::memfd_create("complaints", MemfdFlags::CLOEXEC);
        let complaints = complaints.map(File::from).map_err(|error| cannot(error.into()))?;
        let stderr = complaints.try_clone().map_err(cannot)?;
        let mut command = Command::new(words[0]);
        command.args(&words[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(stderr);
        let child = command.process_group(0).spawn().map_err(cannot)?;
        Ok(Server { child, name, complaints })
    }

    /// Adds to an error what the server last complained about.
    pub fn explain(&self, error: Error) -> Error {
        let length = self.complaints.metadata().map_or(0, |found| found.len());
        let mut end = vec![0; length.min(COMPLAINTS_BYTES) as usize];
        match self.complaints.read_exact_at(&mut end, length.saturating_sub(COMPLAINTS_BYTES)) {
            Ok(()) if !end.is_empty() => {
                let end = String::from_utf8_lossy(&end);
                Error::Program(format!("{error}; {} says: {}", self.name, end.trim()))
            }
            _ => error,
        }
    }

    /// Tries until the server answers; an error if it ends before, or if it does not come up.
    pub fn wait_for<T>(&mut self, mut answer: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
        let begin = Instant::now();
        loop {
            let error = match answer() {
                Ok(answer) => return Ok(answer),
                Err(error) => error,
            };
            let ended = self.child.try_wait().ok().flatten();
            if let Some(status) = ended {
                return Err(self.explain(Error::Program(format!("{} has ended: {status}", self.name))));
            }
            if begin.elapsed() > PATIENCE {
                let error = Error::Program(format!("{} does not answer: {error}", self.name));
                return Err(self.explain(error));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Returns when all of its processes have ended, and the volume can be unmounted.
    pub fn stop(mut self) -> Result<(), Error> {
        if self.end() {
            return Ok(());
        }
        Err(Error::Program(format!("{} did not stop and was killed", self.name)))
    }

    /// Whether it ended without being killed.
    fn end(&mut self) -> bool {
        let group = Pid::from_child(&self.child);
        let signals = [(Signal::INT, PATIENCE), (Signal::KILL, PATIENCE)];
        for (signal, patience) in signals {
            // The first process tells its own; all of them get what cannot be caught.
            let _ = match signal {
                Signal::KILL => kill_process_group(group, signal),
                _ if matches!(self.child.try_wait(), Ok(None)) => {
                    rustix::process::kill_process(group, signal)
                }
                _ => Ok(()),
            };
            let begin = Instant::now();
            while begin.elapsed() < patience {
                let ended = !matches!(self.child.try_wait(), Ok(None));
                if ended && test_kill_process_group(group).is_err() {
                    return signal == Signal::INT;
                }
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        false
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end();
    }
}

/// The directory of a server's data.
pub fn home(volume: &Volume, name: &str) -> std::path::PathBuf {
    volume.root.join(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_comes_with_what_the_server_complains_about() {
        let mut server = Server::spawn("A server", &["sh", "-c", "echo no room >&2; exit 3"]).unwrap();
        let error =
            server.wait_for(|| Err::<(), _>(Error::Program("nobody listens".to_owned()))).unwrap_err();
        assert_eq!(error.to_string(), "A server has ended: exit status: 3; A server says: no room");
        let error = server.explain(Error::Program("it is slow".to_owned()));
        assert_eq!(error.to_string(), "it is slow; A server says: no room");
    }
}
