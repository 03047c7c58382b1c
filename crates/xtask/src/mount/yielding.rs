//! Threads that serve a core give way to those whom they answer, as long as they are asked, and are ordinary threads otherwise.

use std::fs;
use std::num::NonZero;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use super::tool::{at, until};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

/// Requests of one caller that follow each other.
const REQUESTS: usize = 200;

/// Looks that must find none.
const LOOKS: usize = 5;

/// Scheduling classes as /proc gives them.
const OTHER: u32 = 0;
const IDLE: u32 = 5;

/// Asks, and looks at the daemon's threads meanwhile and after.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("no other file system has a daemon".to_owned()));
    }
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    let threads = |volume: &Volume| volume.threads("pando-ring-");
    if threads(&volume)?.is_empty() {
        return Err(Failure::Skipped("requests do not come over io_uring here".to_owned()));
    }
    let cores = std::thread::available_parallelism().map_or(1, NonZero::get);
    let (mut looks, mut crowded) = (0, 0);
    let yields = until("a thread yields to who asks all the time", || {
        ask(&volume.root)?;
        looks += 1;
        crowded += usize::from(running()? > cores + 2);
        any_of_class(&threads(&volume)?, IDLE)
    });
    if yields.is_err() && crowded > looks / 2 {
        return Err(Failure::Skipped("too many other programs want to run".to_owned()));
    }
    yields?;
    until("all threads are ordinary once nobody asks", || Ok(!any_of_class(&threads(&volume)?, IDLE)?))?;
    let end = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Twice as many as there are cores for.
        for _ in 0..2 * cores + 2 {
            scope.spawn(|| {
                while !end.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let found = until("no thread yields in a crowd", || {
            for _ in 0..LOOKS {
                ask(&volume.root)?;
                if any_of_class(&threads(&volume)?, IDLE)? {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        end.store(true, Relaxed);
        found
    })?;

    volume.umount()?;
    volume.set_options(&["-o", "without=yielding"]);
    volume.mount()?;
    for _ in 0..LOOKS {
        ask(&volume.root)?;
        if any_of_class(&threads(&volume)?, IDLE)? {
            return Err(Failure::Wrong("a thread yields without being allowed to".to_owned()));
        }
    }
    volume.finish()
}

/// Makes files and removes them.
fn ask(root: &Path) -> Outcome {
    for number in 0..REQUESTS {
        let path = root.join(number.to_string());
        at("cannot create", &path, fs::write(&path, "x"))?;
        at("cannot look at", &path, fs::metadata(&path).map(|found| found.size()))?;
        at("cannot remove", &path, fs::remove_file(&path))?;
    }
    Ok(())
}

/// How many threads of all programs run or wait for a core.
fn running() -> Result<usize, Failure> {
    let path = Path::new("/proc/loadavg");
    let text = at("cannot read", path, fs::read_to_string(path))?;
    let number = text.split(' ').nth(3).and_then(|threads| threads.split('/').next()?.parse().ok());
    number.ok_or_else(|| Failure::Wrong(format!("the kernel's load is not understood: {text}")))
}

/// Whether any of these threads, directories in /proc, is of this class; each is of one of the two.
fn any_of_class(threads: &[PathBuf], class: u32) -> Result<bool, Failure> {
    let mut any = false;
    for thread in threads {
        let path = &thread.join("stat");
        let text = at("cannot read", path, fs::read_to_string(path))?;
        // The name, field 2, may hold anything; the class is field 41.
        let found = text.rsplit(") ").next().and_then(|rest| rest.split(' ').nth(38)?.parse().ok());
        match found {
            Some(OTHER | IDLE) => any |= found == Some(class),
            _ => return Err(Failure::Wrong(format!("{} is of no class known: {text}", path.display()))),
        }
    }
    Ok(any)
}
