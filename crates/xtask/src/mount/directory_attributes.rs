//! What the kernel believes of a directory in which names come and go while others ask for its attributes.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};

use super::pattern::Random;
use super::tool::at;
use super::volume::Volume;
use super::{Context, Failure, Outcome};

/// An answer that was overtaken stood in each of six runs of the longer time, where the kernel remembered it.
const TIME: Duration = Duration::from_secs(5);
const TIME_FULL: Duration = Duration::from_secs(10);

/// Changes come at most so long after the last: who has just asked again is given its answer meanwhile.
const PAUSE_NS_MAX: u64 = 60_000;

const NOT_AT_ONCE: Duration = Duration::from_micros(10);

/// The kernel clears the mark that it must ask, and sets what it was told a moment later; who looks in between sees what was before. After
/// this time only what is remembered for good is left.
const SETTLED: Duration = Duration::from_millis(20);

/// A directory is made in a directory and removed, over and over, by one thread.
pub fn run(context: &Context) -> Outcome {
    let volume = Volume::create(context, 1 << 30, &[])?;
    let parent = volume.root.join("parent");
    let directory = parent.join("directory");
    for path in [&parent, &directory] {
        at("mkdir", path, fs::create_dir(path))?;
    }
    let stat = || _ = links(&directory);
    let time = if context.full { TIME_FULL } else { TIME };
    while_others(&directory, &[&stat, &stat, &stat], time)?;
    volume.finish()
}

fn while_others(directory: &Path, others: &[&(dyn Fn() + Sync)], time: Duration) -> Outcome {
    let has_ended = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for other in others {
            scope.spawn(|| {
                while !has_ended.load(Ordering::Relaxed) {
                    other();
                }
            });
        }
        let end = Instant::now() + time;
        let mut random = Random::new(1);
        let mut rounds = 0;
        let mut known = Ok(());
        while known.is_ok() && Instant::now() < end {
            known = round(directory, Duration::from_nanos(random.below(PAUSE_NS_MAX)));
            rounds += 1;
        }
        has_ended.store(true, Ordering::Relaxed);
        eprintln!("{rounds} rounds");
        known
    })
}

fn round(directory: &Path, pause: Duration) -> Outcome {
    wait(pause);
    let [within, other] = ["within", "other"].map(|name| directory.join(name));
    at("mkdir", &other, fs::create_dir(&other))?;
    at("rmdir", &other, fs::remove_dir(&other))?;
    at("mkdir", &within, fs::create_dir(&within))?;
    settle(directory, 3)?;
    at("rmdir", &within, fs::remove_dir(&within))?;
    settle(directory, 2)
}

/// Fails if the kernel does not come to say that a directory has so many links.
fn settle(directory: &Path, expected: u32) -> Outcome {
    // Who asks at once is told the truth, and overtakes what others are told.
    wait(NOT_AT_ONCE);
    let known = || at("stat", directory, links(directory).map_err(Into::into));
    if known()? == expected {
        return Ok(());
    }
    std::thread::sleep(SETTLED);
    match known()? {
        links if links == expected => Ok(()),
        links => {
            Err(Failure::Wrong(format!("a directory has {expected} links, and the kernel says {links}")))
        }
    }
}

/// Awake: to be woken takes far longer.
fn wait(time: Duration) {
    let start = Instant::now();
    while start.elapsed() < time {}
}

fn links(path: &Path) -> rustix::io::Result<u32> {
    rustix::fs::statx(CWD, path, AtFlags::empty(), StatxFlags::BASIC_STATS).map(|known| known.stx_nlink)
}
