//! What goes to a device and comes from it, request by request, in runs of their own (`--trace`), which are counted and not timed.
//!
//! The kernel's block events tell of every request that a device is given, after merging and splitting, whatever file system made it; its
//! FUSE events of every request that a daemon is sent, and its events of system calls where threads of PandoFS that serve requests wait for
//! locks. All come through an instance of tracefs of our own, with buffers of its own, so that
//! nobody else's tracing is disturbed.

mod event;
pub mod load_bytes;
pub mod round;
pub mod summary;

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

pub use event::{Event, What};

use crate::command;
use crate::error::{Error, at};

const PLACES: [&str; 2] = ["/sys/kernel/tracing", "/sys/kernel/debug/tracing"];
const BLOCK: &str = "events/block/block_rq_issue";
const FUSE: [&str; 2] = ["events/fuse/fuse_request_send", "events/fuse/fuse_request_end"];
const FUTEX: [&str; 2] = ["events/syscalls/sys_enter_futex", "events/syscalls/sys_exit_futex"];
/// Threads of PandoFS that serve requests. They wait for those elsewhere, so that a futex is always a lock to them.
const SERVING: &str = r#"(comm ~ "pando-ring-*" || comm ~ "pando-fuse-*")"#;
/// FUTEX_WAIT and FUTEX_WAIT_BITSET, both within a process.
const WAITS: &str = "(op == 128 || op == 137)";
/// Room for events that were not read yet, for each core.
const BUFFER_KIB: &str = "16384";

/// A trace that is being taken. Dropping it ends it.
pub struct Trace {
    instance: PathBuf,
    over: Arc<AtomicBool>,
    reader: Option<JoinHandle<Result<Vec<Event>, Error>>>,
}

/// Where the kernel's tracing is, mounted if need be: this happens in a mount namespace of our own.
fn tracing() -> Result<PathBuf, Error> {
    let found = || {
        PLACES
            .iter()
            .map(PathBuf::from)
            .find(|place| place.join("instances").is_dir() && place.join(BLOCK).is_dir())
    };
    if found().is_none() {
        // Whether it could be mounted shows in what is there afterwards.
        let _ = command::run(&["mount", "-t", "tracefs", "tracefs", PLACES[0]]);
    }
    found().ok_or_else(|| {
        Error::Usage(
            "this kernel offers no block events (tracefs, CONFIG_BLK_DEV_IO_TRACE), so nothing can be traced"
                .to_owned(),
        )
    })
}

/// An error, in a sentence, where this machine allows no trace.
pub fn is_possible() -> Result<(), Error> {
    tracing().map(drop)
}

/// The beginning of the names of all instances of runs in this directory.
fn prefix(directory: &Path) -> String {
    format!("pando-bench{}_", directory.display().to_string().replace('/', "-"))
}

/// Removes what a run in this directory left when it was killed.
pub fn remove_left(directory: &Path) {
    for place in PLACES {
        let entries = fs::read_dir(Path::new(place).join("instances")).into_iter().flatten().flatten();
        let ours =
            entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(&prefix(directory)));
        ours.for_each(|entry| remove(&entry.path()));
    }
}

/// What cannot be removed is used by nobody but us, and goes with the next run.
fn remove(instance: &Path) {
    let _ = fs::write(instance.join("events/enable"), "0");
    let _ = fs::remove_dir(instance);
}

/// The kernel's own form of a device number.
pub fn kernel_number(number: u64) -> u64 {
    (u64::from(rustix::fs::major(number)) << 20) | u64::from(rustix::fs::minor(number))
}

impl Trace {
    /// Begins a trace of a device, under a name that no other trace of this run has.
    pub fn start(directory: &Path, name: &str, device: &Path) -> Result<Trace, Error> {
        let number = kernel_number(at("cannot look at", device, fs::metadata(device))?.rdev());
        let instance = tracing()?.join("instances").join(prefix(directory) + name);
        if instance.exists() {
            remove(&instance);
        }
        at("cannot create", &instance, fs::create_dir(&instance))?;
        let over = Arc::new(AtomicBool::new(false));
        // From here on it is removed in every case.
        let mut trace = Trace { instance, over, reader: None };
        trace.set("buffer_size_kb", BUFFER_KIB)?;
        trace.set("trace_clock", "mono")?;
        trace.set(&format!("{BLOCK}/filter"), &format!("dev == {number}"))?;
        let pipe = trace.instance.join("trace_pipe");
        let mut options = OpenOptions::new();
        options.read(true).custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
        let opened = at("cannot open", &pipe, options.open(&pipe))?;
        let over = trace.over.clone();
        trace.reader = Some(std::thread::spawn(move || read_all(opened, &pipe, &over)));
        for events in FUSE.into_iter().filter(|events| trace.instance.join(events).is_dir()) {
            trace.set(&format!("{events}/enable"), "1")?;
        }
        if trace.sees_locks() {
            let [begin, end] = FUTEX;
            trace.set(&format!("{begin}/filter"), &format!("{SERVING} && {WAITS}"))?;
            trace.set(&format!("{end}/filter"), SERVING)?;
            trace.set(&format!("{end}/enable"), "1")?;
            trace.set(&format!("{begin}/enable"), "1")?;
        }
        trace.set(&format!("{BLOCK}/enable"), "1")?;
        Ok(trace)
    }

    /// Whether this kernel has events of system calls.
    pub fn sees_locks(&self) -> bool {
        self.instance.join(FUTEX[0]).is_dir()
    }

    fn set(&self, file: &str, value: &str) -> Result<(), Error> {
        let path = self.instance.join(file);
        at("cannot write", &path, fs::write(&path, value))
    }

    /// The file that puts what is written to it as a mark between what was done and what will be.
    pub fn marks(&self) -> PathBuf {
        self.instance.join("trace_marker")
    }

    /// Ends the trace: all events in the order in which they happened.
    pub fn finish(mut self) -> Result<Vec<Event>, Error> {
        self.set("events/enable", "0")?;
        self.over.store(true, Ordering::Release);
        let reader = self.reader.take().expect("it reads until it is told that it is over");
        let mut events = reader.join().expect("a reader does not panic")?;
        // Each core has a buffer; what happened at almost the same time on two may have been read in the other order.
        events.sort_by_key(|event| event.time_us);
        Ok(events)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Release);
        if let Some(reader) = self.reader.take() {
            let _ = reader.join();
        }
        remove(&self.instance);
    }
}

/// Reads until it is over and nothing is left.
fn read_all(mut pipe: File, path: &Path, over: &AtomicBool) -> Result<Vec<Event>, Error> {
    let (mut events, mut rest, mut bytes) = (Vec::new(), Vec::new(), vec![0; 1 << 16]);
    loop {
        // Asked for before the read: what came before the end is then read for certain.
        let ended = over.load(Ordering::Acquire);
        match pipe.read(&mut bytes) {
            Ok(count) if count > 0 => {
                rest.extend_from_slice(&bytes[..count]);
                let whole = rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
                for line in String::from_utf8_lossy(&rest[..whole]).lines() {
                    if line.contains("[LOST ") {
                        return Err(Error::Wrong(
                            "events were lost: they came faster than they could be read".to_owned(),
                        ));
                    }
                    events.extend(Event::parse(line));
                }
                rest.drain(..whole);
            }
            Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
                return Err(Error::Io("cannot read", path.to_owned(), error));
            }
            _ if ended => return Ok(events),
            _ => std::thread::sleep(Duration::from_millis(5)),
        }
    }
}
