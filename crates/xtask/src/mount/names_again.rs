//! Files that are unlinked and created anew at once, as tar does over an older tree: what the old ones held need not be moved out of the way,
//! unless somebody has them open.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;

use super::tool::at;
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

const FILES: usize = 500;
const BYTES: usize = 10_000;

/// That one thread took a forget and another needs it before the file is gone may happen to one in so many.
const RARE: u64 = 10;

/// Makes files, and each of them anew.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("nothing is moved in other file systems".to_owned()));
    }
    let volume = Volume::create(context, 1 << 30, &[])?;
    let path = |number: usize| volume.root.join(format!("f{number}"));
    let contents = |number: usize, version: u8| vec![number as u8 ^ version; BYTES];
    for number in 0..FILES {
        at("cannot write", &path(number), fs::write(path(number), contents(number, 0)))?;
    }
    let held = at("cannot open", &path(7), File::open(path(7)))?;
    let moved = || Ok(volume.counter("ranges_copied")? + volume.counter("ranges_cloned")?);
    let before = moved()?;
    for number in 0..FILES {
        at("cannot unlink", &path(number), fs::remove_file(path(number)))?;
        at("cannot write", &path(number), fs::write(path(number), contents(number, 1)))?;
    }
    let moved = moved()? - before;
    for number in 0..FILES {
        if at("cannot read", &path(number), fs::read(path(number)))? != contents(number, 1) {
            return Err(Failure::Wrong(format!("{} is not as it was written", path(number).display())));
        }
    }
    let mut old = vec![1; BYTES];
    at("cannot read what is held open of", &path(7), held.read_exact_at(&mut old, 0))?;
    if old != contents(7, 0) {
        return Err(Failure::Wrong(format!("{} that is held open is not as it was", path(7).display())));
    }
    drop(held);
    if moved == 0 {
        return Err(Failure::Wrong("what is held open was not moved out of the way".to_owned()));
    }
    if !volume.threads("pando-ring-")?.is_empty() && moved > FILES as u64 / RARE {
        return Err(Failure::Wrong(format!("{moved} of {FILES} files were moved out of the way")));
    }
    volume.finish()
}
