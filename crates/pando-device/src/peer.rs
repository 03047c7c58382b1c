//! Who is at the other end of a socket.

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use rustix::fs::Uid;
use rustix::process::Pid;

/// The process that connected a socket, or made a pair of them, as it was then.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// Its number in our pid namespace; `None` if it is outside, as is one on the host for a daemon in a container.
    pub pid: Option<Pid>,
    /// Its user.
    pub uid: Uid,
}

/// Who is at the other end of a connected Unix socket.
///
/// # Errors
/// That of getsockopt(2), for what is no such socket.
pub fn peer(socket: impl AsFd) -> io::Result<Peer> {
    // Not `socket_peercred` of rustix: it takes the number for one that is not 0, and the kernel has 0 for a process outside.
    let mut found = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes to `found`, which is so long and may hold any bytes, and the length of that.
    let failed = unsafe {
        libc::getsockopt(
            socket.as_fd().as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut found).cast(),
            &raw mut length,
        )
    };
    if failed != 0 {
        return Err(io::Error::last_os_error());
    }
    // On a socket that was never connected, nobody's: the user is no user.
    Ok(Peer { pid: Pid::from_raw(found.pid), uid: Uid::from_raw(found.uid) })
}

#[cfg(test)]
mod tests {
    use std::env;
    use std::os::fd::OwnedFd;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn the_peer_of_a_pair_is_who_made_it() {
        let (one, _other) = UnixStream::pair().unwrap();
        let us = Peer { pid: Some(rustix::process::getpid()), uid: rustix::process::geteuid() };
        assert_eq!(peer(&one).unwrap(), us);
        assert!(peer(std::fs::File::open("/").unwrap()).is_err());
    }

    /// The number 0 was one that is never 0, as far as the compiler knew.
    #[test]
    fn a_peer_outside_our_pid_namespace_has_no_number() {
        const INSIDE: &str = "PANDO_INSIDE";
        if env::var_os(INSIDE).is_some() {
            let found = peer(std::io::stdin()).unwrap();
            assert_eq!(found, Peer { pid: None, uid: rustix::process::geteuid() });
            return;
        }
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork"]);
        if !inside.arg("true").status().is_ok_and(|status| status.success()) {
            println!(
                "SKIPPED a_peer_outside_our_pid_namespace_has_no_number: it needs unshare(1) and its right"
            );
            return;
        }
        let (theirs, _ours) = UnixStream::pair().unwrap();
        let mut inside = Command::new("unshare");
        inside.args(["--pid", "--fork"]).arg(env::current_exe().unwrap());
        inside.args([
            "--exact",
            "peer::tests::a_peer_outside_our_pid_namespace_has_no_number",
            "--nocapture",
        ]);
        inside.env(INSIDE, "1").stdin(OwnedFd::from(theirs)).stdout(Stdio::piped());
        let ended = inside.output().unwrap();
        let said =
            String::from_utf8_lossy(&ended.stdout).into_owned() + &String::from_utf8_lossy(&ended.stderr);
        assert!(ended.status.success() && said.contains("1 passed"), "{said}");
    }
}
