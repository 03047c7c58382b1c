//! Life on the brim: a volume that is filled, and on which files then come, grow, are overwritten and go for a long time. What
//! was deleted must be there for others again, what was written must be what is read, and a cache far smaller than the
//! volume must not be in anybody's way.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::pattern::{Random, fill};
use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Failure, Outcome};

const VOLUME_BYTES: u64 = 256 << 20;
const STEPS: u64 = 3000;
const FILE_BYTES_MAX: u64 = 2 << 20;
/// A volume that refuses with less of its promise in live files does not give back what was deleted.
const LIVE_PERCENT: u64 = 60;
/// After everything was deleted and the volume unmounted.
const BACK_PERCENT: u64 = 95;

/// What was written to a file: its size, and each write in its order.
#[derive(Default)]
struct Written {
    size: u64,
    writes: Vec<Piece>,
}

struct Piece {
    offset: u64,
    length: u64,
    /// Of the bytes, which are those of no other write.
    seed: u64,
}

impl Written {
    /// What is in the file.
    fn contents(&self) -> Vec<u8> {
        let mut contents = vec![0; self.size as usize];
        for piece in &self.writes {
            let (from, to) = (piece.offset as usize, (piece.offset + piece.length) as usize);
            fill(&mut contents[from..to], piece.seed);
        }
        contents
    }
}

/// What is there: each file by its number.
struct Life<'a> {
    directory: &'a Path,
    files: BTreeMap<u64, Written>,
    random: Random,
    writes: u64,
    block: Vec<u8>,
}

impl Life<'_> {
    fn path(&self, number: u64) -> PathBuf {
        self.directory.join((number % 7).to_string()).join(number.to_string())
    }

    fn live_bytes(&self) -> u64 {
        self.files.values().map(|written| written.size).sum()
    }

    fn any(&mut self) -> Option<u64> {
        let at = self.random.below(self.files.len().max(1) as u64) as usize;
        self.files.keys().nth(at).copied()
    }

    /// One step: a new file, or some writes into one that is there.
    fn step(&mut self, number: u64) -> io::Result<()> {
        let old = self.any().filter(|_| self.random.below(2) == 0);
        let Some(number) = old else {
            let size = match self.random.below(2) {
                0 => self.random.below(20_000),
                _ => self.random.below(FILE_BYTES_MAX),
            };
            let file = File::create(self.path(number))?;
            self.files.insert(number, Written::default());
            return self.write(&file, number, 0, size);
        };
        let file = File::options().write(true).open(self.path(number))?;
        for _ in 0..1 + self.random.below(40) {
            let offset = self.random.below(self.files[&number].size + 1);
            let length = [4, 100, 4096, 65_536][self.random.below(4) as usize];
            self.write(&file, number, offset, length)?;
        }
        Ok(())
    }

    fn write(&mut self, file: &File, number: u64, offset: u64, length: u64) -> io::Result<()> {
        self.writes += 1;
        let (seed, block) = (self.writes, &mut self.block[..length as usize]);
        fill(block, seed);
        // A long write that is refused may have been done in part, and says so before.
        let mut done = 0;
        let written = loop {
            if done == length {
                break Ok(());
            }
            match file.write_at(&block[done as usize..], offset + done) {
                Ok(0) => break Err(io::ErrorKind::WriteZero.into()),
                Ok(more) => done += more as u64,
                Err(error) => break Err(error),
            }
        };
        let file = self.files.get_mut(&number).expect("only what is there is written to");
        file.size = file.size.max(offset + done);
        file.writes.push(Piece { offset, length: done, seed });
        written
    }

    /// Compares all that is there with what was written.
    fn compare(&self) -> Outcome {
        for (number, written) in &self.files {
            let path = self.path(*number);
            let found = at("cannot read", &path, fs::read(&path))?;
            let wanted = written.contents();
            if found.len() != wanted.len() {
                let (found, wanted) = (found.len(), wanted.len());
                return Err(Failure::Wrong(format!("{} has {found} bytes, not {wanted}", path.display())));
            }
            if let Some(place) = found.iter().zip(&wanted).position(|(found, wanted)| found != wanted) {
                let path = path.display();
                return Err(Failure::Wrong(format!("{path} differs at {place} from what was written")));
            }
        }
        Ok(())
    }

    /// Deletes a few files.
    fn make_room(&mut self) -> Outcome {
        for _ in 0..1 + self.random.below(4) {
            let Some(number) = self.any() else { return Ok(()) };
            let path = self.path(number);
            at("cannot remove", &path, fs::remove_file(&path))?;
            self.files.remove(&number);
        }
        Ok(())
    }
}

/// Fills, lives on, empties, and looks at what statfs says.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, VOLUME_BYTES, &["-o", "cache=64M"])?;
    let free = tool::free_bytes(&volume.root)?;
    let directory = volume.root.join("life");
    for number in 0..7 {
        tool::create_directory(&directory.join(number.to_string()))?;
    }
    let mut life = Life {
        directory: &directory,
        files: BTreeMap::new(),
        random: Random::new(20_260_102),
        writes: 0,
        block: vec![0; FILE_BYTES_MAX as usize],
    };
    let (mut refused, mut least) = (0, u64::MAX);
    for number in 0..STEPS {
        match life.step(number) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                refused += 1;
                least = least.min(life.live_bytes());
                life.make_room()?;
            }
            other => at("cannot write in", &directory, other)?,
        }
    }
    eprintln!(
        "{free} bytes were promised; {refused} times there was no space, with {least} bytes live at least"
    );
    if volume.is_pando() && (refused == 0 || least * 100 < free * LIVE_PERCENT) {
        return Err(Failure::Wrong(format!(
            "of {free} bytes that were promised, {least} were live when a write was refused"
        )));
    }
    volume.remount()?;
    life.compare()?;
    at("cannot remove", &directory, fs::remove_dir_all(&directory))?;
    volume.remount()?;
    let back = tool::free_bytes(&volume.root)?;
    if back * 100 < free * BACK_PERCENT {
        return Err(Failure::Wrong(format!(
            "{free} bytes were free before, only {back} after everything was deleted"
        )));
    }
    volume.finish()
}
