//! A volume that is 80 % full, and whose free space is in pieces: it was filled further with files of 1 to 32 MiB, of which
//! some are gone again.

use std::fs::{self, File};
use std::io::Write;
use std::path::PathBuf;

use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::volume::Volume;

const MIB: u64 = 1 << 20;
const FILE_MIB_MAX: u64 = 32;
/// Per cent of the space that an empty volume offers: what is written, and what stays.
const WRITTEN: u64 = 90;
const FULL: u64 = 80;

/// What fills a volume, if it is filled.
pub fn directory(volume: &Volume) -> PathBuf {
    volume.root.join("filled")
}

/// Fills, unless an earlier row of the group has.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    let directory = directory(volume);
    if directory.exists() {
        return Ok(());
    }
    let space_mib = volume.free_bytes()? / MIB;
    at("cannot create", &directory, fs::create_dir(&directory))?;
    let mut random = Random(41);
    let mut chunk = vec![0; MIB as usize];
    let mut files = Vec::new();
    let mut filled_mib = 0;
    while filled_mib < space_mib * WRITTEN / 100 {
        let path = directory.join(files.len().to_string());
        let size_mib = 1 + random.below(FILE_MIB_MAX);
        let mut file = at("cannot create", &path, File::create(&path))?;
        for _ in 0..size_mib {
            fill(&mut chunk, random.next());
            at("cannot write", &path, file.write_all(&chunk))?;
        }
        filled_mib += size_mib;
        files.push((path, size_mib));
    }
    random.shuffle(&mut files);
    while filled_mib > space_mib * FULL / 100 {
        let Some((path, size_mib)) = files.pop() else { break };
        at("cannot remove", &path, fs::remove_file(&path))?;
        filled_mib -= size_mib;
    }
    volume.sync()
}
