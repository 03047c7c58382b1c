//! A full volume: ENOSPC from the call that does not fit and from no other, nothing lost that was accepted, and after
//! deleting at least 95 % of the space back.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::pattern::{Random, fill, mix};
use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Failure, Outcome};

const MIB: u64 = 1 << 20;
const BLOCK: usize = 4096;
/// The smallest volume that is formatted.
const SMALLEST: u64 = 16 * MIB;
/// What the kernel hands over at once, at most.
const REQUEST: usize = 1 << 20;
/// Of the large file; small against the smallest volume, so that rounding does not show.
const CHUNK: usize = 128 << 10;
const FILES_PER_DIRECTORY: u64 = 500;
/// A volume that refuses before this share of what statfs promised has told a lie.
const PROMISE_PERCENT: u64 = 85;
/// Two checkpoints after everything was deleted.
const BACK_PERCENT: u64 = 95;

/// Something that fills a directory until the volume is full.
trait Load {
    /// Writes until ENOSPC; bytes accepted.
    fn fill(&mut self, directory: &Path) -> Result<u64, Failure>;
    /// Compares everything that was accepted with what is there.
    fn verify(&self, directory: &Path) -> Outcome;
}

/// Small files on a volume of ordinary size.
pub fn small_files(context: &Context) -> Outcome {
    cycle(context, 512 * MIB, &mut SmallFiles { bytes_max: 32 << 10, sizes: Vec::new() })
}

/// Small files on the smallest volume.
pub fn small_files_smallest(context: &Context) -> Outcome {
    cycle(context, SMALLEST, &mut SmallFiles { bytes_max: 4 << 10, sizes: Vec::new() })
}

/// One large file on a volume whose nodes have their full size.
pub fn large_file(context: &Context) -> Outcome {
    cycle(context, 1024 * MIB, &mut LargeFile { bytes: 0 })
}

/// One large file on the smallest volume.
pub fn large_file_smallest(context: &Context) -> Outcome {
    cycle(context, SMALLEST, &mut LargeFile { bytes: 0 })
}

/// Random overwrites in a file that fills a volume of ordinary size.
pub fn overwrites(context: &Context) -> Outcome {
    cycle(context, 512 * MIB, &mut Overwrites { count: 20_000, versions: Vec::new() })
}

/// Random overwrites in a file that fills the smallest volume.
pub fn overwrites_smallest(context: &Context) -> Outcome {
    cycle(context, SMALLEST, &mut Overwrites { count: 5_000, versions: Vec::new() })
}

fn cycle(context: &Context, size_bytes: u64, load: &mut dyn Load) -> Outcome {
    let mut volume = Volume::create(context, size_bytes, &[])?;
    let directory = volume.root.join("fill");
    tool::create_directory(&directory)?;
    let free = tool::free_bytes(&volume.root)?;
    let first = load.fill(&directory)?;
    eprintln!(
        "{free} bytes were free, {first} were accepted, {} are free now",
        tool::free_bytes(&volume.root)?
    );
    if first * 100 < free * PROMISE_PERCENT {
        return Err(Failure::Wrong(format!(
            "statfs promised {free} bytes, but the volume was full after {first}"
        )));
    }
    load.verify(&directory)?;
    // On the full volume everything but taking more space works: fsync, unmounting, mounting, deleting.
    let root = at("cannot open", &directory, File::open(&directory))?;
    at("cannot sync", &directory, root.sync_all())?;
    drop(root);
    volume.remount()?;
    load.verify(&directory)?;
    at("cannot remove", &directory, fs::remove_dir_all(&directory))?;
    // Unmounting makes a checkpoint, and so does mounting what it left or, at the latest, unmounting that.
    volume.remount()?;
    volume.remount()?;
    let back = tool::free_bytes(&volume.root)?;
    if back * 100 < free * BACK_PERCENT {
        return Err(Failure::Wrong(format!(
            "{free} bytes were free before, only {back} after everything was deleted"
        )));
    }
    tool::create_directory(&directory)?;
    let second = load.fill(&directory)?;
    if second * 100 < first * BACK_PERCENT {
        return Err(Failure::Wrong(format!(
            "{first} bytes fitted at first, only {second} after everything was deleted"
        )));
    }
    load.verify(&directory)?;
    at("cannot remove", &directory, fs::remove_dir_all(&directory))?;
    volume.finish()
}

/// None when the volume is full; every other error is a failure of the test.
fn unless_full<T>(what: &'static str, path: &Path, result: io::Result<T>) -> Result<Option<T>, Failure> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => Ok(None),
        other => at(what, path, other).map(Some),
    }
}

/// Files of 1 to `bytes_max` bytes, some hundreds a directory.
struct SmallFiles {
    bytes_max: u64,
    /// Of the files that were written whole, in order.
    sizes: Vec<usize>,
}

impl SmallFiles {
    fn contents(number: u64, size: usize) -> Vec<u8> {
        let mut contents = vec![0; size];
        fill(&mut contents, number);
        contents
    }

    fn path(directory: &Path, number: u64) -> std::path::PathBuf {
        directory.join((number / FILES_PER_DIRECTORY).to_string()).join(number.to_string())
    }
}

impl Load for SmallFiles {
    fn fill(&mut self, directory: &Path) -> Result<u64, Failure> {
        self.sizes.clear();
        let mut accepted = 0;
        for number in 0.. {
            let path = SmallFiles::path(directory, number);
            let above = path.parent().expect("the path was joined from two parts");
            if number % FILES_PER_DIRECTORY == 0
                && unless_full("cannot create", above, fs::create_dir(above))?.is_none()
            {
                break;
            }
            let size = 1 + (mix(number) % self.bytes_max) as usize;
            let contents = SmallFiles::contents(number, size);
            if unless_full("cannot write", &path, fs::write(&path, contents))?.is_none() {
                break;
            }
            self.sizes.push(size);
            accepted += size as u64;
        }
        Ok(accepted)
    }

    fn verify(&self, directory: &Path) -> Outcome {
        for (number, size) in self.sizes.iter().enumerate() {
            let path = SmallFiles::path(directory, number as u64);
            if at("cannot read", &path, fs::read(&path))? != SmallFiles::contents(number as u64, *size) {
                return Err(Failure::Wrong(format!(
                    "{} has other contents than were written",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// One file, written from its beginning to where the volume is full.
struct LargeFile {
    bytes: u64,
}

impl Load for LargeFile {
    fn fill(&mut self, directory: &Path) -> Result<u64, Failure> {
        let path = directory.join("large");
        let mut file = at("cannot create", &path, File::create(&path))?;
        self.bytes = 0;
        let mut chunk = vec![0; REQUEST];
        loop {
            chunk
                .chunks_mut(BLOCK)
                .zip(self.bytes / BLOCK as u64..)
                .for_each(|(block, number)| fill(block, number));
            match unless_full("cannot write", &path, file.write(&chunk))? {
                Some(written) if written == chunk.len() => {
                    self.bytes += written as u64;
                    chunk.truncate(CHUNK);
                }
                // The volume became full inside this chunk; the whole ones before it are compared.
                Some(_) | None => return Ok(self.bytes),
            }
        }
    }

    fn verify(&self, directory: &Path) -> Outcome {
        let path = directory.join("large");
        let file = at("cannot open", &path, File::open(&path))?;
        let (mut found, mut wanted) = (vec![0; CHUNK], vec![0; CHUNK]);
        for offset in (0..self.bytes).step_by(CHUNK) {
            at("cannot read", &path, file.read_exact_at(&mut found, offset))?;
            wanted
                .chunks_mut(BLOCK)
                .zip(offset / BLOCK as u64..)
                .for_each(|(block, number)| fill(block, number));
            if found != wanted {
                return Err(Failure::Wrong(format!(
                    "{} differs in the {CHUNK} bytes at {offset}",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}

/// A file that fills the volume, its blocks overwritten in random order.
struct Overwrites {
    count: u64,
    /// What each block was last written with.
    versions: Vec<u64>,
}

impl Overwrites {
    fn block(number: usize, version: u64) -> [u8; BLOCK] {
        let mut block = [0; BLOCK];
        fill(&mut block, (number as u64) << 32 | version);
        block
    }
}

impl Load for Overwrites {
    fn fill(&mut self, directory: &Path) -> Result<u64, Failure> {
        let path = directory.join("overwritten");
        let file = at("cannot create", &path, File::create(&path))?;
        self.versions.clear();
        loop {
            let number = self.versions.len();
            let block = Overwrites::block(number, 0);
            match unless_full("cannot write", &path, file.write_at(&block, (number * BLOCK) as u64))? {
                Some(BLOCK) => self.versions.push(0),
                Some(_) | None => break,
            }
        }
        let accepted = (self.versions.len() * BLOCK) as u64;
        let mut random = Random::new(3);
        let mut refused = 0;
        for version in 1..=self.count {
            let number = random.below(self.versions.len() as u64) as usize;
            let block = Overwrites::block(number, version);
            let result = file.write_at(&block, (number * BLOCK) as u64);
            match unless_full("cannot overwrite", &path, result)? {
                Some(_) => self.versions[number] = version,
                // A refused write changes nothing.
                None => refused += 1,
            }
        }
        eprintln!("{} of {} overwrites were refused", refused, self.count);
        at("cannot sync", &path, file.sync_all())?;
        Ok(accepted)
    }

    fn verify(&self, directory: &Path) -> Outcome {
        let path = directory.join("overwritten");
        let file = at("cannot open", &path, File::open(&path))?;
        let mut found = [0; BLOCK];
        for (number, version) in self.versions.iter().enumerate() {
            at("cannot read", &path, file.read_exact_at(&mut found, (number * BLOCK) as u64))?;
            if found != Overwrites::block(number, *version) {
                return Err(Failure::Wrong(format!(
                    "block {number} of {} is not its version {version}",
                    path.display()
                )));
            }
        }
        Ok(())
    }
}
