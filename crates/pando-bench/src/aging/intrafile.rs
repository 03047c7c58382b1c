//! Files that are written side by side (FAST17 5): the later the step, the smaller the part that is written in one piece.

use std::fs::{self, File};
use std::io::Write;

use super::grep_cost::age;
use crate::error::{Error, at};
use crate::generate::fill;
use crate::row::Measurement;
use crate::volume::Volume;

const FILES: usize = 10;
const CHUNKS: u64 = 100;
const CHUNK_BYTES: usize = 4096;
const STEPS: u64 = 10;

/// Ages, and looks at every second step.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    let tree = volume.root.join("intrafile");
    age(volume, &tree, (STEPS, 2), |step| {
        if tree.exists() {
            at("cannot remove", &tree, fs::remove_dir_all(&tree))?;
        }
        at("cannot create", &tree, fs::create_dir(&tree))?;
        let appended = CHUNKS * step / STEPS;
        let mut seed = 0;
        let mut contents = |chunks: u64| {
            let mut bytes = vec![0; chunks as usize * CHUNK_BYTES];
            seed += 1;
            fill(&mut bytes, seed);
            bytes
        };
        let mut files = Vec::new();
        for number in 0..FILES {
            let path = tree.join(number.to_string());
            let mut file = at("cannot create", &path, File::create(&path))?;
            at("cannot write", &path, file.write_all(&contents(CHUNKS - appended)))?;
            at("cannot sync", &path, file.sync_all())?;
            files.push((path, file));
        }
        for _ in 0..appended {
            for (path, file) in &mut files {
                at("cannot write", path, file.write_all(&contents(1)))?;
                at("cannot sync", path, file.sync_all())?;
            }
        }
        Ok(())
    })
}
