//! A file system mounted on a directory of its own for the length of one test.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use pando_fs::Operations;
use pando_fuse::{MountError, MountOptions, Session, Transport, Unmounter, mount_point, mount_table};
use tempfile::TempDir;

/// No test takes this long unless something hangs.
const TIME_OUT: Duration = Duration::from_secs(600);

thread_local! {
    /// How the mounts of this thread's test talk with the kernel.
    static TRANSPORT: Cell<Transport> = const { Cell::new(Transport::Device) };
}

/// A mount. Dropping it unmounts, also when the test fails.
pub struct Mounted {
    directory: TempDir,
    unmounter: Unmounter,
    server: Option<JoinHandle<std::io::Result<()>>>,
}

impl Mounted {
    /// Mounts it, with the options changed by `adjust`.
    pub fn new(fs: Arc<dyn Operations>, adjust: impl FnOnce(&mut MountOptions)) -> Self {
        let directory = TempDir::new().unwrap();
        let mut options = MountOptions::new(PathBuf::from("/dev/a volume"));
        options.transport = TRANSPORT.get();
        adjust(&mut options);
        let session = Session::mount(fs, directory.path(), &options).unwrap();
        assert_eq!(session.transport(), options.transport);
        let unmounter = session.unmounter();
        let server = Some(std::thread::spawn(move || session.run()));
        Self { directory, unmounter, server }
    }

    pub fn path(&self) -> &Path {
        self.directory.path()
    }

    /// How its requests come.
    pub fn transport(&self) -> Transport {
        TRANSPORT.get()
    }

    pub fn unmounter(&self) -> &Unmounter {
        &self.unmounter
    }

    /// Unmounts, and checks that the session ends well.
    pub fn unmount(mut self) {
        // Another test of this process may be starting a program: until its exec, the child holds a copy of every open file,
        // those in this mount too. That passes; a mount that stays busy runs into the time-out of `with_fuse`.
        while let Err(error) = self.unmounter.unmount(false) {
            assert!(matches!(error, MountError::Busy { .. }), "{error}");
            std::thread::yield_now();
        }
        self.end().unwrap();
    }

    /// Waits for the end of the session.
    pub fn end(&mut self) -> std::io::Result<()> {
        self.server.take().unwrap().join().unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // The server is not joined: it serves until the failed test's own files are closed, which may be later.
        let _ = self.unmounter.unmount(true);
        // A dead mount that a session has left.
        while let Ok(Some(_)) = mount_table::mounted_at(self.path()) {
            if mount_point::unmount(self.path(), true).is_err() {
                break;
            }
        }
    }
}

/// Runs a test that mounts, once over each transport: skips by name what the kernel does not offer, and ends the whole
/// process if it hangs, since a thread stuck in a dead mount cannot be ended alone.
pub fn with_fuse(name: &'static str, test: impl Fn() + Send + Sync + 'static) {
    if std::fs::File::options().read(true).write(true).open("/dev/fuse").is_err() {
        eprintln!("SKIPPED {name}: /dev/fuse cannot be opened");
        return;
    }
    let test = Arc::new(test);
    for transport in [Transport::Device, Transport::Uring] {
        let switch = std::fs::read("/sys/module/fuse/parameters/enable_uring");
        if transport == Transport::Uring && !switch.is_ok_and(|switch| switch.starts_with(b"Y")) {
            eprintln!("{name} is not run over io_uring: fuse.enable_uring is not on");
            continue;
        }
        let (done, finished) = channel::<()>();
        let test = test.clone();
        let thread = std::thread::spawn(move || {
            let _done = done;
            TRANSPORT.set(transport);
            test();
        });
        wait(name, &finished);
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Returns when the sender is gone, however the test ended.
fn wait(name: &str, finished: &Receiver<()>) {
    if let Err(RecvTimeoutError::Timeout) = finished.recv_timeout(TIME_OUT) {
        eprintln!("{name} has been running for {} s and is stopped", TIME_OUT.as_secs());
        std::process::exit(1);
    }
}

/// Waits for what the kernel does in its own time, such as forgetting; the test's time-out ends a vain wait. Unmounting
/// would not hurry it: the kernel drops what it has not sent by then.
pub fn until(condition: impl Fn() -> bool) {
    while !condition() {
        std::thread::yield_now();
    }
}
