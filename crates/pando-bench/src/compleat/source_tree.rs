//! The Linux source as a tree of many files: unpacked, searched, read and deleted by the programs people use.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::{Bench, Measurement};
use crate::error::{self, Error, at};

/// Entries of the tree, which all rates here count.
fn entries(archive: &Path) -> Result<f64, Error> {
    let list = error::run(&["tar".to_owned(), "-tf".to_owned(), archive.display().to_string()])?;
    Ok(list.lines().count() as f64)
}

fn tree(bench: &Bench<'_>) -> PathBuf {
    bench.root.join("linux")
}

/// The archive without compression, beside the device: decompressing is not what is measured.
fn archive(bench: &Bench<'_>) -> Result<PathBuf, Error> {
    let plain = bench.options.directory.join("linux.tar");
    if plain.exists() {
        return Ok(plain);
    }
    let folder = fs::read_dir("/usr/src").into_iter().flatten().flatten().map(|entry| entry.path());
    let is_source = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("linux-source-") && name.ends_with(".tar.xz")
    };
    let missing = || {
        Error::Usage(
            "there is no /usr/src/linux-source-*.tar.xz; install the package linux-source".to_owned(),
        )
    };
    let compressed = folder.filter(is_source).max().ok_or_else(missing)?;
    let unfinished = plain.with_extension("unfinished");
    let output = at("cannot create", &unfinished, fs::File::create(&unfinished))?;
    let status = Command::new("xz").arg("-dc").arg(&compressed).stdout(output).status();
    if !at("cannot decompress", &compressed, status)?.success() {
        return Err(Error::Program(format!("xz cannot decompress {}", compressed.display())));
    }
    at("cannot rename", &unfinished, fs::rename(&unfinished, &plain))?;
    Ok(plain)
}

/// The archive is on the disk, and there is no tree yet.
pub fn load_archive(bench: &mut Bench<'_>) -> Result<(), Error> {
    archive(bench)?;
    let tree = tree(bench);
    if tree.exists() { at("cannot remove", &tree, fs::remove_dir_all(&tree)) } else { Ok(()) }
}

/// Unpacks the tree if its row was not asked for.
pub fn ensure(bench: &mut Bench<'_>) -> Result<(), Error> {
    if tree(bench).exists() { Ok(()) } else { untar(bench).map(drop) }
}

/// Entries unpacked, from an archive that is in the page cache.
pub fn untar(bench: &mut Bench<'_>) -> Result<Measurement, Error> {
    let archive = archive(bench)?;
    let entries = entries(&archive)?;
    let tree = tree(bench);
    let begin = Instant::now();
    at("cannot create", &tree, fs::create_dir(&tree))?;
    let [archive, tree] = [&archive, &tree].map(|path| path.display().to_string());
    error::run(&["tar", "-C", &tree, "-xf", &archive].map(str::to_owned))?;
    bench.sync()?;
    Ok(Measurement::since(begin, entries))
}

/// Entries found; all of them must be.
pub fn find(bench: &mut Bench<'_>) -> Result<Measurement, Error> {
    let begin = Instant::now();
    let found = shell(bench, "find . -mindepth 1 | wc -l")?;
    let found: f64 = found.trim().parse().map_err(|_| Error::Wrong(format!("find | wc says {found}")))?;
    let measurement = Measurement::since(begin, found);
    let wanted = entries(&archive(bench)?)?;
    if found == wanted {
        Ok(measurement)
    } else {
        Err(Error::Wrong(format!("find sees {found} of {wanted} entries")))
    }
}

/// Entries of the tree whose files were searched.
pub fn grep(bench: &mut Bench<'_>) -> Result<Measurement, Error> {
    let begin = Instant::now();
    // A word that occurs nowhere; grep says so with status 1.
    shell(bench, "grep -r xyzzy_occurs_nowhere . ; test $? = 1")?;
    measured(bench, begin)
}

/// Entries packed. A tar to /dev/null would not read its files, hence the pipe.
pub fn tar(bench: &mut Bench<'_>) -> Result<Measurement, Error> {
    let begin = Instant::now();
    shell(bench, "tar -cf - . | cat > /dev/null")?;
    measured(bench, begin)
}

/// Renames of the whole tree.
pub fn rename(bench: &mut Bench<'_>) -> Result<Measurement, Error> {
    const ROUNDS: usize = 20;
    let here = tree(bench);
    let other = bench.root.join("other");
    at("cannot create", &other, fs::create_dir(&other))?;
    let there = other.join("linux");
    let begin = Instant::now();
    for _ in 0..ROUNDS {
        for (from, to, parent) in [(&here, &there, &other), (&there, &here, &bench.root)] {
            at("cannot rename", from, fs::rename(from, to))?;
            at("cannot sync", parent, fs::File::open(parent).and_then(|directory| directory.sync_all()))?;
        }
    }
    let measurement = Measurement::since(begin, (2 * ROUNDS) as f64);
    at("cannot remove", &other, fs::remove_dir(&other))?;
    Ok(measurement)
}

/// Entries deleted.
pub fn remove(bench: &mut Bench<'_>) -> Result<Measurement, Error> {
    let begin = Instant::now();
    error::run(&["rm".to_owned(), "-rf".to_owned(), tree(bench).display().to_string()])?;
    bench.sync()?;
    measured(bench, begin)
}

/// The whole tree since `begin`; counting its entries takes no part in that.
fn measured(bench: &Bench<'_>, begin: Instant) -> Result<Measurement, Error> {
    let mut measurement = Measurement::since(begin, 0.0);
    measurement.amount = entries(&archive(bench)?)?;
    Ok(measurement)
}

fn shell(bench: &Bench<'_>, script: &str) -> Result<String, Error> {
    let output =
        Command::new("sh").args(["-c", script]).current_dir(tree(bench)).stderr(Stdio::inherit()).output();
    let output = at("cannot start a shell in", &tree(bench), output)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if output.status.success() {
        Ok(text)
    } else {
        Err(Error::Program(format!("{script}: {}", output.status)))
    }
}
