//! Power cuts, and devices that fail, while snapshots are received, taken, deleted, sent and gone back to.

use std::collections::{BTreeMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_device::simulated::{CrashPoint, Event, Fault, Image, Random};
use pando_engine::{Background, FormatOptions, Options, Tree};
use pando_fs::operations::{
    Caller, FileType, Operations, ROOT, RenameMode, SNAPSHOTS, WriteMode, XattrMode, changing, waiting,
};
use pando_fs::schema::key;
use pando_fs::{FileSystem, SnapshotFiles};

use super::{assert_nothing_is_left, below, contents, filled, names, receive, send, take};
use crate::common::{self, Volume};

pub fn small() -> FormatOptions {
    FormatOptions { log_bytes: Some(1 << 20), ..common::small_nodes() }
}

pub fn open(device: Arc<SimulatedDevice>) -> pando_fs::Result<Arc<FileSystem>> {
    let options = Options { background: Background::Manual, cache_bytes: 2 << 20, ..Options::default() };
    FileSystem::open(device, options)
}

/// A volume on a simulated device, with the base, and the streams of the base and of what follows.
pub fn prepared() -> (SimulatedDevice, Vec<u8>, BTreeMap<(u8, Bytes), Bytes>) {
    let volume = filled();
    take(&volume.fs, "one");
    let whole = send(&volume.fs, "one", None);
    for number in 0..30u32 {
        let file = volume.file(ROOT, &format!("more {number}"));
        volume.write(file, 0, &vec![number as u8; 9000]);
    }
    volume.fs.unlink(volume.walk("a/deep").unwrap(), b"linked").unwrap();
    take(&volume.fs, "two");
    let device = Arc::new(SimulatedDevice::new(64 << 20));
    FileSystem::format(device.clone(), &small()).unwrap();
    let fs = open(device.clone()).unwrap();
    receive(&fs, &whole).unwrap();
    fs.close().unwrap();
    let stream = send(&volume.fs, "two", Some("one"));
    (SimulatedDevice::from_image(device.image()), stream, contents(&volume.fs, "two"))
}

/// After whatever has happened: the snapshot is there whole, or nothing of it is.
fn assert_whole_or_nothing(fs: &FileSystem, expected: &BTreeMap<(u8, Bytes), Bytes>, what: &str) -> bool {
    assert_nothing_is_left(fs);
    let received = names(fs).len() == 2;
    if received {
        assert!(contents(fs, "two") == *expected, "{what}");
    }
    received
}

#[test]
fn a_crash_while_receiving_leaves_all_or_nothing() {
    let (device, stream, expected) = prepared();
    let image = device.image();
    let device = Arc::new(SimulatedDevice::from_image(image));
    let fs = open(device.clone()).unwrap();
    let records = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (states, observed) = (records.clone(), device.clone());
    let engine = fs.engine().clone();
    fs.observe_records(move || {
        // Durable up to here: what a crash then leaves.
        engine.sync().unwrap();
        states.lock().unwrap().push(observed.image());
    });
    receive(&fs, &stream).unwrap();
    let states = std::mem::take(&mut *records.lock().unwrap());
    assert!(states.len() > 5, "{}", states.len());
    let last = states.len() - 1;
    for (number, image) in states.into_iter().enumerate() {
        // As the check of a volume that nobody has opened sees it, and after the next mount.
        let device = Arc::new(SimulatedDevice::from_image(image));
        let options = Options { read_only: true, background: Background::Manual, ..Options::default() };
        let seen = FileSystem::open(device.clone(), options).unwrap();
        assert_eq!(seen.check().unwrap().problems, [], "record {number}");
        drop(seen);
        let fs = open(device).unwrap();
        let received = assert_whole_or_nothing(&fs, &expected, &format!("record {number}"));
        assert_eq!(received, number == last, "record {number}");
    }
}

#[test]
fn a_device_that_fails_while_receiving_leaves_all_or_nothing() {
    let (device, stream, expected) = prepared();
    let image = device.image();
    for (kind, fault) in [("alone", Fault::At as fn(u64) -> Fault), ("and all behind it", Fault::From)] {
        let mut last = false;
        for number in 0.. {
            let what = format!("I/O {number} {kind} fails");
            let device = Arc::new(SimulatedDevice::from_image(image.clone()));
            let fs = open(device.clone()).unwrap();
            device.set_fault(fault(device.io_count() + number));
            let outcome = receive(&fs, &stream);
            let closed = fs.close();
            drop(fs);
            let failed = device.failed_count() > 0;
            let device = Arc::new(SimulatedDevice::from_image(device.image()));
            let fs = open(device).unwrap();
            let whole = assert_whole_or_nothing(&fs, &expected, &what);
            assert!(whole || outcome.is_err(), "{what}: {closed:?}");
            if !failed {
                assert!(outcome.is_ok() && whole, "{what}");
                last = number > 0;
                break;
            }
        }
        assert!(last);
    }
}

/// A frozen copy was to be made, on a volume that cannot take it: what could not be written was in no way to be saved.
#[test]
fn a_writable_snapshot_leaves_a_volume_that_takes_no_changes_since_a_write_failed() {
    let device = Arc::new(SimulatedDevice::new(64 << 20));
    FileSystem::format(device.clone(), &small()).unwrap();
    let fs = open(device.clone()).unwrap();
    let caller = Caller { uid: 0, gid: 0, umask: 0 };
    changing(&*fs, |fs| fs.take_snapshot(b"w", true)).unwrap();
    let w = waiting(&*fs, |fs| fs.lookup(SNAPSHOTS, b"w")).unwrap().attributes.inode;
    for name in [b"kept", b"open"] {
        let made = changing(&*fs, |fs| fs.make_node(&caller, w, name, FileType::Regular, 0o644, 0)).unwrap();
        changing(&*fs, |fs| fs.write(made.attributes.inode, 0, vec![1; 20_000].into(), WriteMode::PLAIN))
            .unwrap();
    }
    changing(&*fs, |fs| fs.unlink(w, b"open")).unwrap();
    changing(&*fs, |fs| fs.take_snapshot_of(Some(b"w"), b"then", false)).unwrap();
    device.set_fault(Fault::WritesFrom(device.io_count()));
    assert!(fs.engine().sync().is_err() && fs.engine().failure().is_some());
    // No matter whether changes are refused as well, or no longer.
    for refuse in [false, true, false] {
        fs.refuse_changes(refuse);
        let other = Volume::new();
        receive(&other.fs, &send(&fs, "w", None)).unwrap();
        other.assert_clean();
        assert!(contents(&other.fs, "w") == contents(&fs, "then"));
        let files = SnapshotFiles::open(&fs, b"w").unwrap();
        let kept = waiting(&files, |files| files.lookup(ROOT, b"kept")).unwrap();
        assert_eq!(kept.attributes.size, 20_000);
    }
}

/// States between "all kept" and "all lost" that are tried at each moment.
const SUBSETS: usize = 3;

/// Steps of a run.
const STEPS: usize = 60;

/// States of a run that are looked at, at most and about.
const STATES: usize = 200;

/// Of so many states found, one is looked at for space that did not come back.
const SPACE_EVERY: u64 = 10;

/// What can be found: a sum of the live tree under the empty name, and one of each snapshot.
pub type Picture = BTreeMap<Bytes, u64>;

pub fn picture(fs: &FileSystem) -> Picture {
    let sum = |entries: &mut dyn Iterator<Item = (u8, Bytes, Bytes)>| {
        let mut hasher = DefaultHasher::new();
        entries.for_each(|entry| entry.hash(&mut hasher));
        hasher.finish()
    };
    let mut live = Vec::new();
    for tree in Tree::ALL {
        for tag in [0, key::LINKED_TAG, key::LINK_NAME_TAG] {
            live.extend(below(fs, tree, &[tag]).into_iter().map(|(key, value)| (tree as u8, key, value)));
        }
    }
    let root = fs.engine().waiting(|| fs.engine().get(Tree::Metadata, key::ROOT)).unwrap();
    live.push((0, Bytes::new(), root.unwrap()));
    let mut picture = Picture::from([(Bytes::new(), sum(&mut live.into_iter()))]);
    for name in names(fs) {
        let all = contents(fs, std::str::from_utf8(&name).unwrap());
        let sum = sum(&mut all.into_iter().map(|((tree, key), value)| (tree, key, value)));
        picture.insert(name, sum);
    }
    picture
}

/// The streams that a run receives.
struct Streams {
    whole: Vec<u8>,
    changes: Vec<u8>,
}

impl Streams {
    /// Of a tree that takes some records, and of what follows.
    fn make(seed: u64) -> Self {
        let volume = Volume::new();
        let mut random = Random::new(seed);
        let a = volume.directory(ROOT, "a");
        let mut bytes = |length| (0..length).map(|_| random.bits() as u8).collect::<Vec<_>>();
        for number in 0..14u32 {
            let file = volume.file(a, &format!("f{number}"));
            volume.write(file, 0, &bytes(24_000));
        }
        volume.fs.link(volume.walk("a/f3").unwrap(), ROOT, b"linked").unwrap();
        volume.fs.set_xattr(a, b"user.large", &[7; 3000], XattrMode::Set, false).unwrap();
        take(&volume.fs, "one");
        for number in 0..10u32 {
            let file = volume.file(ROOT, &format!("more {number}"));
            volume.write(file, 0, &bytes(30_000));
        }
        volume.rename(ROOT, "a", ROOT, "moved").unwrap();
        volume.write(volume.walk("moved/f5").unwrap(), 0, b"changed");
        take(&volume.fs, "two");
        Self { whole: send(&volume.fs, "one", None), changes: send(&volume.fs, "two", Some("one")) }
    }
}

/// One thing that is done; what is refused changes nothing.
fn step(fs: &FileSystem, streams: &Streams, random: &mut Random) -> &'static str {
    let caller = Caller { uid: 0, gid: 0, umask: 0 };
    let all = names(fs);
    let one_of = |random: &mut Random| match all.len() {
        0 => Bytes::from_static(b"none"),
        count => all[random.below(count as u64) as usize].clone(),
    };
    let new = format!("s{}", random.below(4));
    match random.below(18) {
        0..3 => {
            let name = format!("f{}", random.below(6));
            match waiting(fs, |fs| fs.lookup(ROOT, name.as_bytes())) {
                Ok(entry) => {
                    let bytes = Bytes::from(vec![random.bits() as u8; random.below(20_000) as usize]);
                    let file = entry.attributes.inode;
                    let _ = changing(fs, |fs| fs.write(file, 0, bytes.clone(), WriteMode::PLAIN));
                    fs.forget(file, 1);
                }
                Err(_) => {
                    let make = |fs: &FileSystem| {
                        fs.make_node(&caller, ROOT, name.as_bytes(), FileType::Regular, 0o644, 0)
                    };
                    let made = changing(fs, make).unwrap();
                    fs.forget(made.attributes.inode, 1);
                }
            }
            "a change"
        }
        3 => {
            let (old, new) = (one_of_names(random), one_of_names(random));
            let _ = changing(fs, |fs| fs.rename(ROOT, old, ROOT, new, RenameMode::Exchange));
            "a rename"
        }
        4 | 5 => {
            let _ = changing(fs, |fs| fs.take_snapshot(new.as_bytes(), random.chance(1, 2)));
            "a snapshot"
        }
        6 => {
            let of = one_of(random);
            let _ = changing(fs, |fs| fs.take_snapshot_of(Some(&of), new.as_bytes(), random.chance(1, 2)));
            "a snapshot of a snapshot"
        }
        7..10 => {
            let name = one_of(random);
            let _ = changing(fs, |fs| fs.delete_snapshot(&name));
            "a deletion"
        }
        10 | 11 => {
            let name = one_of(random);
            let _ = changing(fs, |fs| fs.roll_back(&name)).map(drop);
            "a roll back"
        }
        12 => {
            let (name, base) = (one_of(random), one_of(random));
            let base = random.chance(1, 2).then_some(&base[..]);
            let _ = fs.send_snapshot(&name, base, &mut std::io::sink());
            "a send"
        }
        13 | 14 => {
            let stream = if random.chance(1, 2) { &streams.whole } else { &streams.changes };
            let _ = receive(fs, &stream[..random.below(stream.len() as u64) as usize]);
            "a stream that is cut off"
        }
        15 | 16 => {
            let _ = fs.receive_snapshot(&mut &streams.whole[..], Some(new.as_bytes()));
            "a receive"
        }
        _ => {
            let _ = fs.receive_snapshot(&mut &streams.changes[..], Some(new.as_bytes()));
            "a receive of changes"
        }
    }
}

fn one_of_names(random: &mut Random) -> &'static [u8] {
    [&b"f0"[..], b"f1", b"f2", b"a", b"moved"][random.below(5) as usize]
}

/// How far things were when a step had returned.
struct Mark {
    /// Length of the trace when the step began.
    start: usize,
    /// Length of the trace.
    trace: usize,
    /// Lengths of the trace behind each record of the step.
    records: Vec<usize>,
    /// The last of the marks known to be durable.
    durable: usize,
    what: &'static str,
    picture: Picture,
}

struct Recording {
    base: Image,
    trace: Vec<Event>,
    marks: Vec<Mark>,
}

/// Where a state came from.
struct Checked {
    /// What came next, or was under way and is lost.
    next: &'static str,
    /// What was under way when the power went, if its first I/O was done and its last was not.
    cut: Option<Cut>,
}

struct Cut {
    what: &'static str,
    /// Its first record was applied, and its last was not.
    between_records: bool,
    /// What was found is what it leads to.
    is_done: bool,
}

/// States of what was cut off in its middle.
#[derive(Debug, Default)]
struct Cuts {
    before: usize,
    after: usize,
    between_records: usize,
}

impl Recording {
    fn make(seed: u64, streams: &Streams, steps: usize) -> Self {
        let device = Arc::new(SimulatedDevice::new(64 << 20));
        FileSystem::format(device.clone(), &small()).unwrap();
        let fs = open(device.clone()).unwrap();
        receive(&fs, &streams.whole).unwrap();
        fs.close().unwrap();
        let base = device.image();
        let device = Arc::new(SimulatedDevice::from_image(base.clone()));
        let fs = open(device.clone()).unwrap();
        // Durable behind one record of two, so that a step that is not one record is caught between them.
        let (engine, state) = (fs.engine().clone(), AtomicU64::new(seed));
        let records = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (seen, observed) = (records.clone(), device.clone());
        fs.observe_records(move || {
            seen.lock().unwrap().push(observed.trace_length());
            if Random::new(state.fetch_add(1, Ordering::Relaxed)).chance(1, 2) {
                engine.sync().unwrap();
            }
        });
        let mut random = Random::new(seed);
        let mut marks = Vec::new();
        let mut mark = |start: usize, durable: Option<usize>, what| {
            let number = marks.len();
            let (trace, records) = (device.trace_length(), std::mem::take(&mut *records.lock().unwrap()));
            let durable = durable.unwrap_or(number);
            marks.push(Mark { start, trace, records, durable, what, picture: picture(&fs) });
            number
        };
        let mut durable = mark(0, None, "the start");
        for _ in 0..steps {
            let start = device.trace_length();
            let what = step(&fs, streams, &mut random);
            mark(start, Some(durable), what);
            let start = device.trace_length();
            match random.below(8) {
                0 => fs.engine().checkpoint().unwrap(),
                1 | 2 => fs.sync().unwrap(),
                3 => {
                    for _ in 0..random.below(30) {
                        fs.engine().background_step().unwrap();
                    }
                    continue;
                }
                _ => continue,
            }
            durable = mark(start, None, "a sync");
        }
        Self { base, trace: device.trace(), marks }
    }

    /// The marks that may be found after a crash behind the first `prefix` events.
    fn allowed(&self, prefix: usize) -> std::ops::RangeInclusive<usize> {
        let returned = self.marks.partition_point(|mark| mark.trace <= prefix);
        let durable = returned.checked_sub(1).map_or(0, |last| self.marks[last].durable);
        let running = self.marks.partition_point(|mark| mark.trace < prefix);
        durable..=running.max(returned.saturating_sub(1)).min(self.marks.len() - 1)
    }

    /// A crash here leaves the state between two steps, the name space sound and nothing of what was under way.
    fn check(&self, image: Image, prefix: usize, look_at_space: bool) -> Result<Checked, String> {
        let device = Arc::new(SimulatedDevice::from_image(image));
        let fs = open(device).map_err(|error| format!("open: {error}"))?;
        let found = picture(&fs);
        let allowed = self.allowed(prefix);
        let kept = allowed.clone().rev().find(|number| self.marks[*number].picture == found);
        let kept = kept.ok_or_else(|| format!("{:?}, not one of {allowed:?}", found.keys()))?;
        assert_nothing_is_left(&fs);
        if look_at_space {
            // What an earlier mount deleted is looked for when space is short, or much is deleted.
            take(&fs, "probe");
            changing(&*fs, |fs| fs.delete_snapshot(b"probe")).unwrap();
            for _ in 0..2 {
                while fs.engine().background_step().unwrap() {}
                fs.engine().checkpoint().unwrap();
            }
            let usage = fs.usage(false).unwrap();
            if usage.unowned > 0 {
                return Err(format!("space that nobody uses and that does not come back: {usage:?}"));
            }
            assert_eq!(picture(&fs), found);
        }
        let next = self.marks.get(kept + 1).map_or("the end", |mark| mark.what);
        Ok(Checked { next, cut: self.cut(prefix, kept) })
    }

    /// What a crash behind the first `prefix` events cuts off.
    fn cut(&self, prefix: usize, kept: usize) -> Option<Cut> {
        let running = self.marks.partition_point(|mark| mark.trace < prefix);
        let mark = self.marks.get(running).filter(|mark| mark.start < prefix && prefix < mark.trace)?;
        let between_records = match &mark.records[..] {
            [first, .., last] => *first < prefix && prefix <= *last,
            _ => false,
        };
        Some(Cut { what: mark.what, between_records, is_done: kept >= running })
    }
}

/// Power cuts at some of the moments of runs in which snapshots come and go, with some of what was not flushed lost.
#[test]
fn a_crash_among_snapshots_leaves_what_was_there_before_or_after() {
    let mut next: BTreeMap<&str, usize> = BTreeMap::new();
    let mut cuts: BTreeMap<&str, Cuts> = BTreeMap::new();
    let seeds = pando_sim::seeds(4);
    for seed in &seeds {
        println!("PANDO_SEED={seed}");
        let streams = Streams::make(*seed);
        let recording = Recording::make(*seed, &streams, STEPS);
        let mut random = Random::new(*seed);
        let mut point = CrashPoint::start(recording.base.clone());
        let mut seen = HashSet::new();
        let every = (recording.trace.len() * (2 + SUBSETS)).div_ceil(STATES) as u64;
        for prefix in 0..=recording.trace.len() {
            if let Some(event) = prefix.checked_sub(1).map(|last| &recording.trace[last]) {
                point.push(event);
                if *event == Event::Flush {
                    seen.clear();
                }
            }
            let choices = point.subsets(random.bits());
            let some =
                [0, 1].into_iter().chain((0..SUBSETS).map(|_| random.below(choices.len() as u64) as usize));
            for choice in some.collect::<Vec<_>>() {
                let Some(choice) = choices.get(choice).filter(|_| random.chance(1, every)) else { continue };
                if !seen.insert(choice.clone()) {
                    continue;
                }
                let look_at_space = random.chance(1, SPACE_EVERY);
                let checked = recording.check(point.image(choice), prefix, look_at_space);
                let checked = checked.unwrap_or_else(|what| {
                    panic!("PANDO_SEED={seed}, crash after I/O {prefix}; {choice}: {what}")
                });
                *next.entry(checked.next).or_default() += 1;
                if let Some(cut) = checked.cut {
                    let cuts = cuts.entry(cut.what).or_default();
                    *(if cut.is_done { &mut cuts.after } else { &mut cuts.before }) += 1;
                    cuts.between_records += usize::from(cut.between_records);
                }
            }
        }
    }
    println!("states by what came next or was under way: {next:?}");
    println!("cut off in the middle: {cuts:#?}");
    if seeds.len() >= 4 {
        // That receives of changes are cut between their records is the first test's business.
        let receives = &cuts["a receive"];
        assert!(receives.between_records >= 30 && receives.before >= 30, "{cuts:?}");
        for what in ["a receive of changes", "a receive", "a roll back", "a deletion"] {
            assert!(next.get(what).is_some_and(|count| *count >= 10), "{what}: {next:?}");
        }
    }
}
