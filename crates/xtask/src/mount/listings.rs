//! Listings that the kernel keeps: what readdir(3), telldir(3) and seekdir(3) promise while names come and go, what changes without the
//! kernel's doing, and that what has not changed is not asked for again.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::path::Path;

use rustix::fs::{RawDir, SeekFrom, seek};

use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Failure, Outcome};

const FILES: usize = 3000;
/// Bytes of a buffer: a few entries, less than any kernel asks a daemon for.
const SMALL: usize = 512;
/// As much as the C library asks for.
const USUAL: usize = 32 << 10;

/// A name, and the place behind it.
type Entry = (String, u64);

/// An open directory.
struct Listing {
    directory: File,
    buffer: usize,
}

impl Listing {
    fn open(path: &Path, buffer: usize) -> Result<Self, Failure> {
        Ok(Self { directory: at("open", path, File::open(path))?, buffer })
    }

    /// What one system call brings, but `.` and `..`.
    fn read(&self) -> Result<Vec<Entry>, Failure> {
        let mut buffer = vec![MaybeUninit::uninit(); self.buffer];
        let mut raw = RawDir::new(&self.directory, &mut buffer);
        let mut entries = Vec::new();
        while let Some(entry) = raw.next() {
            let entry = entry.map_err(|error| Failure::Wrong(format!("a listing fails: {error}")))?;
            let name = entry.file_name().to_string_lossy().into_owned();
            entries.push((name, entry.next_entry_cookie()));
            if raw.is_buffer_empty() {
                break;
            }
        }
        let is_end = entries.is_empty();
        entries.retain(|(name, _)| name != "." && name != "..");
        // Two names alone are no end.
        if entries.is_empty() && !is_end { self.read() } else { Ok(entries) }
    }

    fn rest(&self) -> Result<Vec<Entry>, Failure> {
        let mut all = Vec::new();
        loop {
            let some = self.read()?;
            if some.is_empty() {
                return Ok(all);
            }
            all.extend(some);
        }
    }

    fn seek(&self, place: u64) -> Outcome {
        let sought = seek(&self.directory, SeekFrom::Start(place));
        sought.map(drop).map_err(|error| Failure::Wrong(format!("cannot seek to {place}: {error}")))
    }
}

fn all(path: &Path, buffer: usize) -> Result<Vec<Entry>, Failure> {
    Listing::open(path, buffer)?.rest()
}

fn is(wanted: bool, so: bool, what: &str) -> Outcome {
    if so == wanted { Ok(()) } else { Err(Failure::Wrong(format!("{what}: {so}"))) }
}

fn make(path: &Path, names: impl Iterator<Item = String>) -> Result<BTreeSet<String>, Failure> {
    let names: BTreeSet<String> = names.collect();
    for name in &names {
        let path = path.join(name);
        at("make", &path, File::create(&path))?;
    }
    Ok(names)
}

/// Directories of one level.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    for (number, buffer) in [SMALL, USUAL].into_iter().enumerate() {
        let path = volume.root.join(number.to_string());
        at("mkdir", &path, fs::create_dir(&path))?;
        let names = make(&path, (0..FILES).map(|number| format!("a name {number}")))?;
        complete(&path, &names, buffer)?;
        changes_meanwhile(&path, names, buffer)?;
    }
    if volume.is_pando() {
        kept(true, &volume)?;
        changes_by_others(context, &volume)?;
        volume.umount()?;
        volume.set_options(&["-o", "without=listing_cache"]);
        volume.mount()?;
        kept(false, &volume)?;
    }
    volume.finish()
}

/// Each name once, in either size of buffer, from the daemon and from what the kernel has kept.
fn complete(path: &Path, names: &BTreeSet<String>, buffer: usize) -> Outcome {
    for _ in 0..2 {
        let listed = all(path, buffer)?;
        let found: BTreeSet<String> = listed.iter().map(|(name, _)| name.clone()).collect();
        is(true, listed.len() == names.len() && found == *names, "each name is listed once")?;
    }
    Ok(())
}

/// A listing that has begun, one that goes back, and others, which make the kernel read anew, while names come and go.
fn changes_meanwhile(path: &Path, names: BTreeSet<String>, buffer: usize) -> Outcome {
    let order = all(path, buffer)?;
    let (begun, told) = (Listing::open(path, buffer)?, Listing::open(path, buffer)?);
    let first: BTreeSet<String> = begun.read()?.into_iter().map(|(name, _)| name).collect();
    // Every second name goes, and with them those on which the listings stand.
    let stands = first.len() - 1;
    let is_gone = |index: usize| index % 2 == stands % 2;
    let (gone, stays): (Vec<_>, Vec<_>) = order.iter().enumerate().partition(|(index, _)| is_gone(*index));
    for (_, (name, _)) in gone {
        let path = path.join(name);
        at("remove", &path, fs::remove_file(&path))?;
        if name.ends_with("00") {
            all(path.parent().expect("it has one"), USUAL)?;
        }
    }
    make(path, (0..100).map(|number| format!("new {number}")))?;
    all(path, USUAL)?;
    let stays: Vec<&str> = stays.into_iter().map(|(_, (name, _))| &name[..]).collect();

    let rest = begun.rest()?;
    let found: BTreeSet<&str> = rest.iter().map(|(name, _)| &name[..]).collect();
    is(true, found.len() == rest.len(), "no name is listed twice")?;
    is(false, found.iter().any(|name| first.contains(*name)), "a name is listed again")?;
    let expected = stays.iter().filter(|name| !first.contains(**name));
    is(true, expected.clone().all(|name| found.contains(name)), "what was there all along is listed")?;

    // Behind names that stay, and behind some that are gone.
    for index in [0, 1, order.len() / 2, order.len() / 2 + 1, order.len() - 1] {
        told.seek(order[index].1)?;
        let rest = told.rest()?;
        let found: Vec<&str> =
            rest.iter().map(|(name, _)| &name[..]).filter(|name| names.contains(*name)).collect();
        let behind: BTreeSet<&str> = order[index + 1..].iter().map(|(name, _)| &name[..]).collect();
        let expected: Vec<&str> = stays.iter().copied().filter(|name| behind.contains(name)).collect();
        is(true, found == expected, &format!("what stays follows name {index} in its order"))?;
    }
    Ok(())
}

/// What has been listed once is not read again from the daemon until something changes, or it is each time.
fn kept(wanted: bool, volume: &Volume) -> Outcome {
    let path = volume.root.join("0");
    let scans = |lists: bool| -> Result<u64, Failure> {
        let before = volume.counter("scans")?;
        if lists {
            all(&path, USUAL)?;
        }
        Ok(volume.counter("scans")? - before)
    };
    // Asking for the counter scans as well.
    let none = scans(false)?;
    scans(true)?;
    let again = scans(true)?;
    make(&path, std::iter::once(format!("another {wanted}")))?;
    let (changed, then) = (scans(true)?, scans(true)?);
    eprintln!("scans: {none} for nothing, {again} again, {changed} after a change, {then} then");
    is(true, changed > none, "what has changed is asked for")?;
    let so = again == none && then == none;
    is(wanted, so, "the kernel keeps listings until something changes")
}

/// A directory that is opened for each look at it, and one that stays open.
struct Watched<'a> {
    path: &'a Path,
    open: Listing,
}

impl<'a> Watched<'a> {
    fn new(path: &'a Path) -> Result<Self, Failure> {
        Ok(Self { path, open: Listing::open(path, USUAL)? })
    }

    fn has(&self, wanted: bool, name: &str, what: &str) -> Outcome {
        self.open.seek(0)?;
        for (listed, how) in [(self.open.rest()?, "rewound"), (all(self.path, USUAL)?, "opened")] {
            is(wanted, listed.iter().any(|(found, _)| found == name), &format!("{what} ({how})"))?;
        }
        Ok(())
    }
}

/// What clones, snapshots and a roll back change.
fn changes_by_others(context: &Context, volume: &Volume) -> Outcome {
    let root = &volume.root;
    let pando = |words: &[&str]| tool::run(context.program("pando").args(words));
    let text = root.display().to_string();
    let snapshots = root.join(".snapshots");
    let (root, snapshots) = (Watched::new(root)?, Watched::new(&snapshots)?);
    root.has(false, "clone", "a clone is listed before it is made")?;
    pando(&["clone", &format!("{text}/1"), &format!("{text}/clone")])?;
    root.has(true, "clone", "a clone is listed")?;
    snapshots.has(false, "one", "a snapshot is listed before it is taken")?;
    pando(&["snapshot", "create", &text, "one"])?;
    snapshots.has(true, "one", "a snapshot is listed")?;
    make(root.path, std::iter::once("later".to_owned()))?;
    root.has(true, "later", "a file is listed")?;
    // Then the kernel is not told of this name, which it knows from the listing alone.
    let caches = Path::new("/proc/sys/vm/drop_caches");
    at("write", caches, fs::write(caches, "2"))?;
    pando(&["snapshot", "rollback", &text, "one"])?;
    root.has(false, "later", "a file is listed that was rolled back")?;
    root.has(true, "clone", "a clone is listed after a roll back")?;
    snapshots.has(false, "two", "a snapshot is listed before it is received")?;
    let program = context.programs.join("pando");
    let program = program.display();
    let transfer = format!("'{program}' send '{text}' one | '{program}' receive --name two '{text}'");
    tool::shell_with_pipes(&context.work, &transfer)?;
    snapshots.has(true, "two", "a snapshot that was received is listed")?;
    pando(&["snapshot", "delete", &text, "one"])?;
    snapshots.has(false, "one", "a snapshot is listed that was deleted")
}
