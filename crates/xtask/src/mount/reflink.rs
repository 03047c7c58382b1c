//! Copies that share: cp and copy_file_range(2) of a large file, by counts of what the engine was given and of the space used.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::pattern;
use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Failure, Outcome};

const MIB: u64 = 1 << 20;
/// More than copies of it may use, also without what lies outside of the range.
const FILE_MIB: u64 = 96;
const FILE_MIB_FULL: u64 = 256;
/// Places that are changed later.
const CHANGES: u64 = 12;
/// What is given to the engine for a copy that shares: records and, of a range, what lies outside of whole MiB.
const GIVEN_MAX: u64 = 4 * MIB;
/// What copies of the file may use: nodes of 4 MiB that are seen in part on both sides, and those that lead to them.
const USED_MAX: u64 = 64 * MIB;
/// All files: one, three copies of it, and a copy of a part.
const NAMES: [&str; 5] = ["file", "auto", "default", "kept", "range"];

/// Makes copies, changes either side, and compares all with what they should be.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 2 << 30, &[])?;
    let mut expected = Expected::of(if context.full { FILE_MIB_FULL } else { FILE_MIB } * MIB);
    let path = volume.root.join("file");
    let mut chunk = vec![0; MIB as usize];
    let file = at("cannot create", &path, File::create(&path))?;
    for index in 0..expected.file_bytes / MIB {
        pattern::fill(&mut chunk, index);
        at("cannot write", &path, file.write_all_at(&chunk, index * MIB))?;
    }
    drop(file);
    // A checkpoint, of which the space is told.
    volume.remount()?;
    let before = Space::of(&volume)?;
    for arguments in [&["--reflink=auto", "file", "auto"][..], &["file", "default"], &["-a", "file", "kept"]]
    {
        sharing(&volume, "cp", || {
            tool::run(context.program("cp").args(arguments).current_dir(&volume.root))
        })?;
    }
    compare(&volume.root, &NAMES[..4], &expected)?;
    volume.remount()?;
    let before = Space::of(&volume)?.checked_beside(&before)?;
    sharing(&volume, "copy_file_range of a part", || copy_range(&volume.root, expected.range()))?;
    compare(&volume.root, &NAMES, &expected)?;
    // The last checkpoint has joined what the pieces have left: they stay shared.
    volume.remount()?;
    Space::of(&volume)?.checked_beside(&before)?;
    compare(&volume.root, &NAMES, &expected)?;

    expected.change(&volume.root)?;
    compare(&volume.root, &NAMES, &expected)?;
    volume.remount()?;
    compare(&volume.root, &NAMES, &expected)?;
    for name in ["file", "kept"] {
        let path = volume.root.join(name);
        at("cannot remove", &path, fs::remove_file(&path))?;
    }
    compare(&volume.root, &["auto", "default", "range"], &expected)?;
    volume.remount()?;
    compare(&volume.root, &["auto", "default", "range"], &expected)?;
    volume.finish()
}

/// Does something that is to share what it copies.
fn sharing(volume: &Volume, what: &str, copy: impl FnOnce() -> Outcome) -> Outcome {
    if !volume.is_pando() {
        return copy();
    }
    let counters = || Ok::<_, Failure>((volume.counter("bytes_in")?, volume.counter("ranges_cloned")?));
    let before = counters()?;
    copy()?;
    let after = counters()?;
    let (given, cloned) = (after.0 - before.0, after.1 - before.1);
    eprintln!("{what}: {given} bytes given to the engine, {cloned} ranges cloned");
    if given > GIVEN_MAX || cloned == 0 {
        let what =
            format!("{what} gave the engine {given} bytes and cloned {cloned} ranges: it does not share");
        return Err(Failure::Wrong(what));
    }
    Ok(())
}

/// The range at the same place of a new file, in as many calls as it takes.
fn copy_range(root: &Path, range: Range<u64>) -> Outcome {
    let (from, to) = (root.join("file"), root.join("range"));
    let source = at("cannot open", &from, File::open(&from))?;
    let target = at("cannot create", &to, File::create(&to))?;
    let (mut read, mut written) = (range.start, range.start);
    while read < range.end {
        let left = (range.end - read) as usize;
        let copied = rustix::fs::copy_file_range(&source, Some(&mut read), &target, Some(&mut written), left);
        if at("cannot copy a range of", &from, copied.map_err(Into::into))? == 0 {
            return Err(Failure::Wrong(format!("copy_file_range copied nothing at {read}")));
        }
    }
    Ok(())
}

/// Where a volume's space has gone.
struct Space {
    used: u64,
    free: u64,
}

impl Space {
    /// Nothing is told of ext4, which does not share.
    fn of(volume: &Volume) -> Result<Space, Failure> {
        let used = if volume.is_pando() { volume.counter("used")? } else { 0 };
        Ok(Space { used, free: if volume.is_pando() { tool::free_bytes(&volume.root)? } else { 0 } })
    }

    fn checked_beside(self, before: &Space) -> Result<Self, Failure> {
        let (used, free) = (self.used.saturating_sub(before.used), before.free.saturating_sub(self.free));
        eprintln!("the copies use {used} bytes in nodes; {free} bytes less are free");
        if used.max(free) > USED_MAX {
            let what =
                format!("copies that are to share use {used} bytes in nodes, and {free} of those free");
            return Err(Failure::Wrong(what));
        }
        Ok(self)
    }
}

/// How large the file is, and what was changed in each: places of 8 bytes, and what they hold.
struct Expected {
    file_bytes: u64,
    changes: Vec<(&'static str, u64, [u8; 8])>,
}

impl Expected {
    fn of(file_bytes: u64) -> Self {
        Self { file_bytes, changes: Vec::new() }
    }

    /// What is copied of the file: its ends lie on no border of anything.
    fn range(&self) -> Range<u64> {
        5 * MIB + 777..self.file_bytes - 13 * MIB + 12_345
    }

    /// Writes to every file, in the middle of MiB that only it changes.
    fn change(&mut self, root: &Path) -> Outcome {
        for (number, name) in NAMES.into_iter().enumerate() {
            let path = root.join(name);
            let file = at("cannot open", &path, File::options().write(true).open(&path))?;
            // All within the range.
            let step = (self.file_bytes / MIB - 24) / CHANGES;
            for index in 0..CHANGES {
                let place = (10 + step * index + number as u64) * MIB + 4093 + index;
                let bytes = pattern::mix(place + number as u64).to_le_bytes();
                at("cannot write", &path, file.write_all_at(&bytes, place))?;
                self.changes.push((name, place, bytes));
            }
        }
        Ok(())
    }

    /// The bytes of one MiB of a file.
    fn fill(&self, name: &str, index: u64, chunk: &mut [u8]) {
        pattern::fill(chunk, index);
        let start = index * MIB;
        if name == "range" {
            let within = |place: u64| place.saturating_sub(start).min(MIB) as usize;
            let range = self.range();
            chunk[..within(range.start)].fill(0);
            chunk[within(range.end)..].fill(0);
        }
        for (_, place, bytes) in self.changes.iter().filter(|change| change.0 == name) {
            if *place / MIB == index {
                let at = (place - start) as usize;
                chunk[at..at + bytes.len()].copy_from_slice(bytes);
            }
        }
    }
}

/// Compares all bytes of these files.
fn compare(root: &Path, names: &[&str], expected: &Expected) -> Outcome {
    let (mut found, mut wanted) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    for name in names.iter().copied() {
        let path = root.join(name);
        let file = at("cannot open", &path, File::open(&path))?;
        let size = if name == "range" { expected.range().end } else { expected.file_bytes };
        let length = at("cannot look at", &path, file.metadata())?.len();
        if length != size {
            return Err(Failure::Wrong(format!("{} has {length} bytes, not {size}", path.display())));
        }
        for index in 0..size.div_ceil(MIB) {
            expected.fill(name, index, &mut wanted);
            let length = (size - index * MIB).min(MIB) as usize;
            at("cannot read", &path, file.read_exact_at(&mut found[..length], index * MIB))?;
            if found[..length] != wanted[..length] {
                return Err(Failure::Wrong(format!("{} differs in the MiB {index}", path.display())));
            }
        }
    }
    Ok(())
}
