//! The Linux source as a tree of many files: unpacked, searched, read and deleted by the programs people use.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;
use std::{fs, io};

use crate::command;
use crate::error::{Error, at};
use crate::row::{Measurement, per_second};
use crate::trace::load_bytes;
use crate::volume::Volume;

/// Entries of the tree, which all rates here count.
fn entries(archive: &Path) -> Result<f64, Error> {
    let list = command::run(&["tar".to_owned(), "-tf".to_owned(), archive.display().to_string()])?;
    Ok(list.lines().count() as f64)
}

/// Where it is unpacked.
pub fn tree(volume: &Volume) -> PathBuf {
    volume.root.join("linux")
}

/// The archive without compression, beside the device: decompressing is not what is measured.
fn archive(volume: &Volume) -> Result<PathBuf, Error> {
    let plain = volume.options.directory.join("linux.tar");
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

/// A copy of it, to be deleted with it.
fn copy(volume: &Volume) -> PathBuf {
    volume.root.join("linux-copy")
}

/// The archive is on the disk, and there is no tree yet.
pub fn load_archive(volume: &Volume) -> Result<(), Error> {
    archive(volume)?;
    for tree in [tree(volume), copy(volume)] {
        if tree.exists() {
            at("cannot remove", &tree, fs::remove_dir_all(&tree))?;
        }
    }
    Ok(())
}

/// Unpacks the tree if its row was not asked for.
pub fn ensure(volume: &Volume) -> Result<(), Error> {
    if tree(volume).exists() { Ok(()) } else { untar(volume).map(drop) }
}

/// The same, and its copy.
pub fn ensure_both(volume: &Volume) -> Result<(), Error> {
    ensure(volume)?;
    let [from, to] = [tree(volume), copy(volume)].map(|path| path.display().to_string());
    // As one that was broken off has left it.
    command::run(&["rm", "-rf", &to].map(str::to_owned))?;
    command::run(&["cp", "-a", &from, &to].map(str::to_owned)).map(drop)
}

/// Entries unpacked, from an archive that is in the page cache.
pub fn untar(volume: &Volume) -> Result<Measurement, Error> {
    let archive = archive(volume)?;
    let entries = entries(&archive)?;
    // tar lists the archive without its larger files, which would be read from the machine's own disk then.
    let whole = fs::File::open(&archive).and_then(|mut file| io::copy(&mut file, &mut io::sink()));
    at("cannot read", &archive, whole)?;
    let tree = tree(volume);
    let begin = Instant::now();
    volume.make_directory(&tree)?;
    let [archive, tree] = [&archive, &tree].map(|path| path.display().to_string());
    command::run(&["tar", "-C", &tree, "-xf", &archive].map(str::to_owned))?;
    volume.sync()?;
    Ok(Measurement::rate(begin, entries))
}

/// Unpacks some of its top directories into an existing one.
pub fn untar_parts(volume: &Volume, into: &Path, parts: &[&str]) -> Result<(), Error> {
    let archive = archive(volume)?.display().to_string();
    let place = into.display().to_string();
    let mut words = vec!["tar".to_owned(), "-C".to_owned(), place, "--strip-components=1".to_owned()];
    words.extend(["--wildcards".to_owned(), "--no-wildcards-match-slash".to_owned()]);
    words.extend(["-xf".to_owned(), archive]);
    words.extend(parts.iter().map(|part| format!("linux-source-*/{part}")));
    command::run(&words).map(drop)
}

/// Entries found; all of them must be.
pub fn find(volume: &Volume) -> Result<Measurement, Error> {
    load_bytes::are(0);
    let begin = Instant::now();
    let found = shell(&tree(volume), "find . -mindepth 1 | wc -l")?;
    let found: f64 = found.trim().parse().map_err(|_| Error::Wrong(format!("find | wc says {found}")))?;
    let measurement = Measurement::rate(begin, found);
    let wanted = entries(&archive(volume)?)?;
    if found == wanted {
        Ok(measurement)
    } else {
        Err(Error::Wrong(format!("find sees {found} of {wanted} entries")))
    }
}

/// Entries of the tree whose files were searched.
pub fn grep(volume: &Volume) -> Result<Measurement, Error> {
    let begin = Instant::now();
    grep_in(&tree(volume))?;
    measured(volume, begin)
}

/// Searches every file below a directory.
pub fn grep_in(directory: &Path) -> Result<(), Error> {
    load_bytes::are(0);
    // A word that occurs nowhere; grep says so with status 1.
    shell(directory, "grep -r xyzzy_occurs_nowhere . ; test $? = 1").map(drop)
}

/// Bytes of all files below a directory. Not of directories, whose size is another on each file system.
pub fn tree_bytes(directory: &Path) -> Result<u64, Error> {
    let words = ["find", &directory.display().to_string(), "-type", "f", "-printf", "%s\\n"];
    let sizes = command::run(&words.map(str::to_owned))?;
    sizes.lines().map(|size| size.parse::<u64>().map_err(|_| Error::Wrong(format!("find says {size}")))).sum()
}

/// Entries of the tree.
pub fn count(volume: &Volume) -> Result<f64, Error> {
    entries(&archive(volume)?)
}

/// Entries packed; the new archive must be about as long as the one that the tree is from. A tar to /dev/null would not
/// read its files, hence the pipe.
pub fn tar(volume: &Volume) -> Result<Measurement, Error> {
    load_bytes::are(0);
    let begin = Instant::now();
    let packed = command::run_piped(&tree(volume), &["tar", "-cf", "-", "."], &["wc", "-c"])?;
    let measurement = measured(volume, begin)?;
    let path = archive(volume)?;
    let wanted = at("cannot look at", &path, fs::metadata(&path))?.len();
    match packed.trim().parse::<u64>() {
        Ok(bytes) if bytes.abs_diff(wanted) < wanted / 100 => Ok(measurement),
        _ => Err(Error::Wrong(format!("tar packs {} of {wanted} bytes", packed.trim()))),
    }
}

/// Entries of two trees, deleted by one program.
pub fn remove_both(volume: &Volume) -> Result<Measurement, Error> {
    let [tree, copy] = [tree(volume), copy(volume)].map(|path| path.display().to_string());
    load_bytes::are(0);
    let begin = Instant::now();
    command::run(&["rm", "-rf", &tree, &copy].map(str::to_owned))?;
    volume.sync()?;
    let elapsed = begin.elapsed();
    Ok(Measurement::of(per_second(2.0 * count(volume)?, elapsed)))
}

/// The whole tree since `begin`; counting its entries takes no part in that.
fn measured(volume: &Volume, begin: Instant) -> Result<Measurement, Error> {
    let elapsed = begin.elapsed();
    Ok(Measurement::of(per_second(entries(&archive(volume)?)?, elapsed)))
}

fn shell(directory: &Path, script: &str) -> Result<String, Error> {
    command::run_in(directory, &["sh", "-c", script])
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Directories counted, which are 4 KiB and more on ext4 and next to nothing elsewhere.
    #[test]
    fn a_tree_has_the_bytes_of_its_files() {
        let directory = tempfile::tempdir().unwrap();
        let below = directory.path().join("a/b");
        fs::create_dir_all(&below).unwrap();
        fs::write(directory.path().join("f"), [0; 300]).unwrap();
        fs::write(below.join("odd\nname"), [0; 5000]).unwrap();
        std::os::unix::fs::symlink("f", below.join("link")).unwrap();
        assert_eq!(tree_bytes(directory.path()).unwrap(), 5300);
    }
}
