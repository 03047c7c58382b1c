//! What the kernel has been given and has not sent to the daemon yet.
//!
//! syncfs(2) has the kernel send it, and waits for that only on kernels up to some 6.18: newer ones do not wait for file systems in user
//! space, whose daemon might be what waits. fsync(2) of a file does wait. Pages wait to be sent in files that are mapped (munmap and
//! close send them, and wait), so each file that some process has mapped to write is told by itself.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

/// Has the kernel send what was written before in a mount, and waits until the daemon has it. Files that processes of other users have mapped are only
/// seen by root; of those, and with `-o writeback`, what is sent may still be under way.
///
/// # Errors
/// Of syncfs(2). A mapped file that cannot be opened or synced is passed over.
pub fn write_out(within: impl AsFd) -> Result<(), Errno> {
    let directory = rustix::fs::fstat(&within)?;
    rustix::fs::syncfs(&within)?;
    let mut waited_for = HashSet::new();
    for maps in processes().map(|process| process.join("map_files")) {
        let list = maps.with_file_name("maps");
        for mapped in File::open(list).into_iter().flat_map(mapped_to_write) {
            if mapped.device != directory.st_dev || !waited_for.insert(mapped.inode) {
                continue;
            }
            // The name may be another file's by now; the other way is for root alone.
            let is_it = |file: &File| {
                let metadata = file.metadata();
                metadata.is_ok_and(|it| (it.dev(), it.ino()) == (mapped.device, mapped.inode))
            };
            let file = File::open(maps.join(&mapped.range)).or_else(|_| File::open(&mapped.path));
            if let Some(file) = file.ok().filter(is_it) {
                let _ = file.sync_data();
            }
        }
    }
    Ok(())
}

/// As [`write_out`], of the mount at a place. A mount that cannot be opened says so itself, to whom asks it next.
pub fn write_out_mount(mountpoint: &Path) {
    if let Ok(directory) = File::open(mountpoint) {
        let _ = write_out(directory);
    }
}

/// The directories of all processes that can be seen.
fn processes() -> impl Iterator<Item = PathBuf> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let is_process = |name: &std::ffi::OsStr| name.as_encoded_bytes().iter().all(u8::is_ascii_digit);
    entries.filter(move |entry| is_process(&entry.file_name())).map(|entry| entry.path())
}

/// A file that a process has mapped.
#[derive(Debug, PartialEq)]
struct Mapped {
    /// Of addresses, as its name in `map_files`.
    range: String,
    device: u64,
    inode: u64,
    path: PathBuf,
}

/// Of a list as in /proc/PID/maps, what is mapped shared, and to be written.
fn mapped_to_write(list: File) -> impl Iterator<Item = Mapped> {
    let lines = BufReader::new(list).split(b'\n').map_while(Result::ok);
    lines.filter_map(|line| mapped(&String::from_utf8_lossy(&line)))
}

fn mapped(line: &str) -> Option<Mapped> {
    let mut words = line.splitn(6, ' ');
    let (range, rights, _offset) = (words.next()?, words.next()?, words.next()?);
    let (major, minor) = words.next()?.split_once(':')?;
    let number = |text| u32::from_str_radix(text, 16).ok();
    let device = rustix::fs::makedev(number(major)?, number(minor)?);
    let inode = words.next()?.parse().ok()?;
    let path = words.next()?.trim_start().into();
    let is_written = rights.as_bytes().get(1) == Some(&b'w') && rights.as_bytes().get(3) == Some(&b's');
    is_written.then(|| Mapped { range: range.to_owned(), device, inode, path })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_shared_and_to_be_written_counts() {
        let line = "7f3c1d000000-7f3c1d010000 rw-s 00000000 00:2a 77                         /mnt/a file";
        let expected = Mapped {
            range: "7f3c1d000000-7f3c1d010000".to_owned(),
            device: rustix::fs::makedev(0, 0x2a),
            inode: 77,
            path: "/mnt/a file".into(),
        };
        assert_eq!(mapped(line), Some(expected));
        for other in [line.replace("rw-s", "rw-p"), line.replace("rw-s", "r--s"), line[..40].to_owned()] {
            assert_eq!(mapped(&other), None, "{other}");
        }
        assert_eq!(mapped("7f3c1d000000-7f3c1d010000 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn this_process_is_seen() {
        assert!(processes().any(|process| process.ends_with(std::process::id().to_string())));
    }
}
