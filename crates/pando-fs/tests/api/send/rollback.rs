//! Power cuts while the live tree becomes what a snapshot was, and while what it was before is taken apart.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_device::simulated::{CrashPoint, Event, Image, Random};
use pando_fs::FileSystem;
use pando_fs::operations::{Caller, FileType, Operations, ROOT, WriteMode, changing};

use super::assert_nothing_is_left;
use super::crash::{Picture, open, picture, prepared};

/// Of so many states behind the roll back, one is brought to rest.
const SETTLE_EVERY: usize = 4;

/// A volume with a snapshot, and a live tree of some nodes that has nothing of it.
fn volume() -> Image {
    let device = Arc::new(prepared().0);
    let fs = open(device.clone()).unwrap();
    let caller = Caller { uid: 0, gid: 0, umask: 0 };
    for number in 0..80u32 {
        let name = format!("live {number}");
        let make =
            |fs: &FileSystem| fs.make_node(&caller, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0);
        let file = changing(&*fs, make).unwrap().attributes.inode;
        let bytes = Bytes::from(vec![number as u8 + 1; 9000]);
        changing(&*fs, |fs| fs.write(file, 0, bytes.clone(), WriteMode::PLAIN)).unwrap();
        fs.forget(file, 1);
    }
    while fs.engine().background_step().unwrap() {}
    fs.close().unwrap();
    device.image()
}

/// States found.
#[derive(Debug, Default)]
struct Found {
    before: usize,
    after: usize,
    /// Those of after from before it was known to be durable.
    after_early: usize,
    settled: usize,
}

struct Run {
    base: Image,
    trace: Vec<Event>,
    /// Length of the trace when the roll back was durable.
    durable: usize,
    before: Picture,
    after: Picture,
}

impl Run {
    /// A roll back made durable by a checkpoint, or by the log record by record, so that several would be caught between
    /// them; and the background work behind it.
    fn make(base: Image, checkpoint: bool) -> Self {
        let device = Arc::new(SimulatedDevice::from_image(base.clone()));
        let fs = open(device.clone()).unwrap();
        let before = picture(&fs);
        if !checkpoint {
            let engine = fs.engine().clone();
            fs.observe_records(move || {
                engine.sync().unwrap();
            });
        }
        drop(changing(&*fs, |fs| fs.roll_back(b"one")).unwrap());
        let after = picture(&fs);
        assert!(before != after);
        match checkpoint {
            true => fs.engine().checkpoint().unwrap(),
            false => fs.sync().unwrap(),
        }
        let durable = device.trace_length();
        while fs.engine().background_step().unwrap() {}
        fs.engine().checkpoint().unwrap();
        assert!(fs.engine().stats().nodes_reclaimed > 10, "{:?}", fs.engine().stats());
        Self { base, trace: device.trace(), durable, before, after }
    }

    fn check(&self, image: Image, prefix: usize, found: &mut Found) {
        let fs = open(Arc::new(SimulatedDevice::from_image(image))).unwrap();
        let now = picture(&fs);
        if now == self.before {
            assert!(prefix < self.durable, "it was durable");
            found.before += 1;
        } else {
            assert!(now == self.after, "neither before nor after");
            found.after += 1;
            found.after_early += usize::from(prefix < self.durable);
            if found.after % SETTLE_EVERY == 1 {
                self.settle(&fs);
                found.settled += 1;
            }
        }
        assert_nothing_is_left(&fs);
    }

    /// The former live tree is taken apart, and its space comes back.
    fn settle(&self, fs: &FileSystem) {
        for _ in 0..2 {
            while fs.engine().background_step().unwrap() {}
            fs.engine().checkpoint().unwrap();
        }
        assert_eq!(fs.engine().stats().nodes_doomed, 0);
        assert_eq!(fs.usage(false).unwrap().unowned, 0);
        assert!(picture(fs) == self.after);
        assert_nothing_is_left(fs);
    }
}

#[test]
fn a_crash_during_a_roll_back_leaves_what_was_before_or_after() {
    let base = volume();
    for checkpoint in [true, false] {
        let run = Run::make(base.clone(), checkpoint);
        let (mut random, mut found) = (Random::new(1), Found::default());
        let mut point = CrashPoint::start(run.base.clone());
        let mut seen = HashSet::new();
        for (prefix, event) in (1..).zip(&run.trace) {
            point.push(event);
            if *event == Event::Flush {
                seen.clear();
            }
            for choice in point.subsets(random.bits()).into_iter().take(4) {
                if seen.insert(choice.clone()) {
                    run.check(point.image(&choice), prefix, &mut found);
                }
            }
        }
        println!("made durable by a checkpoint: {checkpoint}: {} I/Os, {found:?}", run.trace.len());
        let all = [found.before, found.after, found.after_early, found.settled];
        assert!(all.iter().all(|count| *count > 0), "{found:?}");
    }
}
