//! Directories of this program's own, in places that were given: they are emptied and removed without asking, and so only those that a file in
//! them tells were made by it. And the lock that keeps other runs out of a place.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::io::Errno;

use crate::error::{Error, at};

/// The file that tells.
const MARK: &str = ".pando-bench";

/// In the directory that was given with `--on`: where the loads work.
pub fn on(directory: &Path) -> PathBuf {
    directory.join("pando-bench")
}

/// In `--directory`: what goes with a run.
pub fn scratch(directory: &Path) -> PathBuf {
    directory.join("pando-bench-scratch")
}

/// Keeps other runs out of a directory. `None` where its file system has no such locks.
pub fn lock(directory: &Path) -> Result<Option<File>, Error> {
    let lock = at("cannot open", directory, File::open(directory))?;
    match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(lock)),
        Err(Errno::WOULDBLOCK) => {
            Err(Error::Usage(format!("another run uses {}: name another directory", directory.display())))
        }
        Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK | Errno::BADF) => Ok(None),
        Err(errno) => at("cannot lock", directory, Err(errno.into())),
    }
}

/// Makes one.
pub fn make(place: &Path) -> Result<(), Error> {
    at("cannot create", place, fs::create_dir(place))?;
    let mark = place.join(MARK);
    at("cannot create", &mark, File::create(&mark)).map(drop)
}

/// Removes one, with all that is in it, if it is there. An error if somebody else has made it, unless it is empty.
pub fn remove(place: &Path) -> Result<(), Error> {
    let Ok(metadata) = fs::symlink_metadata(place) else { return Ok(()) };
    if metadata.is_dir() && fs::remove_dir(place).is_ok() {
        return Ok(());
    }
    let mark = place.join(MARK);
    if !metadata.is_dir() || fs::symlink_metadata(&mark).is_err() {
        return Err(Error::Usage(format!(
            "{} was not made by a run of this program, which would remove what is in it: move it away, or name another directory",
            place.display()
        )));
    }
    // The mark goes last, so that whoever is stopped meanwhile leaves what the next run may remove.
    for entry in at("cannot list", place, fs::read_dir(place))? {
        let entry = at("cannot list", place, entry)?;
        let path = entry.path();
        if path != mark {
            let is_directory = at("cannot look at", &path, entry.file_type())?.is_dir();
            let removed = if is_directory { fs::remove_dir_all(&path) } else { fs::remove_file(&path) };
            at("cannot remove", &path, removed)?;
        }
    }
    at("cannot remove", &mark, fs::remove_file(&mark))?;
    at("cannot remove", place, fs::remove_dir(place))
}

/// A new one, in place of what an earlier run left.
pub fn renew(place: &Path) -> Result<(), Error> {
    remove(place)?;
    make(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_has_the_mark_is_removed() {
        let parent = tempfile::tempdir().unwrap();
        let place = parent.path().join("place");
        remove(&place).unwrap();
        renew(&place).unwrap();
        fs::create_dir_all(place.join("a/b")).unwrap();
        fs::write(place.join("c"), "c").unwrap();
        renew(&place).unwrap();
        assert_eq!(place.read_dir().unwrap().count(), 1);
        fs::write(place.join("c"), "c").unwrap();
        fs::remove_file(place.join(MARK)).unwrap();
        assert!(remove(&place).is_err() && renew(&place).is_err() && place.join("c").exists());
        fs::remove_file(place.join("c")).unwrap();
        remove(&place).unwrap();
        assert!(!place.exists());
    }

    #[test]
    fn a_directory_is_for_one_run_at_a_time() {
        let parent = tempfile::tempdir().unwrap();
        let directory = parent.path();
        let first = lock(directory).unwrap();
        assert!(lock(directory).unwrap_err().to_string().starts_with("another run uses "));
        drop(first);
        // What another test starts at this moment has the lock, too, until it executes its program.
        let begin = std::time::Instant::now();
        while lock(directory).is_err() {
            assert!(begin.elapsed() < std::time::Duration::from_secs(10), "the lock outlives the run");
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    #[test]
    fn what_is_no_directory_is_not_removed() {
        let parent = tempfile::tempdir().unwrap();
        let [theirs, link, file] = ["theirs", "link", "file"].map(|name| parent.path().join(name));
        make(&theirs).unwrap();
        std::os::unix::fs::symlink(&theirs, &link).unwrap();
        fs::write(&file, "").unwrap();
        for place in [&link, &file] {
            assert!(remove(place).is_err() && fs::symlink_metadata(place).is_ok());
        }
        assert!(theirs.join(MARK).exists());
    }
}
