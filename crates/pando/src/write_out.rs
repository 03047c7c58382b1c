//! What the kernel has been given and has not sent to the daemon yet.
//!
//! syncfs(2) has the kernel send it, and waits for that on older kernels only: newer ones, seen on 6.18.44, do not wait for file systems in
//! user space, whose daemon might be what waits. fsync(2) of a file does wait. Pages wait to be sent in files that are mapped (munmap and
//! close send them, and wait), so each file that some process has mapped is told by itself.

use std::collections::HashSet;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;

/// Has the kernel send what was written before in a mount, and does not always wait. A mount that cannot be opened says so itself, to whom asks it next.
pub fn send(mountpoint: &Path) {
    if let Ok(directory) = File::open(mountpoint) {
        let _ = rustix::fs::syncfs(directory);
    }
}

/// As [`send`], and waits until the daemon has it. Processes of other users are seen by root alone, those of other pid namespaces by nobody; what these
/// have mapped, and with `-o writeback` what is open and was not synced, may still be under way.
///
/// # Errors
/// Of fdatasync(2), but not what cannot be changed: what is written to a map of it comes to nothing. A mapped file that cannot be opened is passed over.
pub fn write_out(within: impl AsFd) -> Result<(), Errno> {
    let device = rustix::fs::fstat(&within)?.st_dev;
    // Its error may be that of any file which somebody wrote to some time ago, and had been told of.
    let _ = rustix::fs::syncfs(&within);
    let mut waited_for = HashSet::new();
    for maps in processes().map(|process| process.join("map_files")) {
        let list = maps.with_file_name("maps");
        for mapped in File::open(list).into_iter().flat_map(mapped_files) {
            if mapped.device != device || waited_for.contains(&mapped.inode) {
                continue;
            }
            // The first way is for root, who must not be led elsewhere by a name that somebody else has chosen.
            let file = match open(&maps.join(&mapped.range), &mapped) {
                Err(Errno::ACCESS | Errno::PERM) => open(&mapped.path, &mapped),
                other => other,
            };
            if let Ok(file) = file {
                match rustix::fs::fdatasync(file) {
                    Ok(()) | Err(Errno::ROFS | Errno::STALE) => {}
                    Err(errno) => return Err(errno),
                }
                waited_for.insert(mapped.inode);
            }
        }
    }
    Ok(())
}

/// As [`write_out`], of the mount at a place.
///
/// # Errors
/// As there. A mount that cannot be opened says so itself, to whom asks it next.
pub fn write_out_mount(mountpoint: &Path) -> Result<(), Errno> {
    File::open(mountpoint).map_or(Ok(()), write_out)
}

/// Opens a mapped file, if that is what lies at the path: anything else may do something when it is opened, or have to be waited for.
fn open(path: &Path, mapped: &Mapped) -> Result<File, Errno> {
    let found = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    let status = rustix::fs::fstat(&found)?;
    let is_it = (status.st_dev, status.st_ino) == (mapped.device, mapped.inode);
    if !is_it || FileType::from_raw_mode(status.st_mode) != FileType::RegularFile {
        return Err(Errno::NOENT);
    }
    let itself = format!("/proc/self/fd/{}", found.as_raw_fd());
    rustix::fs::open(itself, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map(File::from)
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

/// Of a list as in /proc/PID/maps, what is mapped shared: also what cannot be written any more may have been.
fn mapped_files(list: File) -> impl Iterator<Item = Mapped> {
    BufReader::new(list).split(b'\n').map_while(Result::ok).filter_map(|line| mapped(&line))
}

fn mapped(line: &[u8]) -> Option<Mapped> {
    let mut words = line.splitn(6, |&byte| byte == b' ');
    let mut word = || std::str::from_utf8(words.next()?).ok();
    let (range, rights, _offset) = (word()?, word()?, word()?);
    let (device, inode) = (word()?, word()?.parse().ok()?);
    let hexadecimal = |text| u64::from_str_radix(text, 16).ok();
    let (start, end) = range.split_once('-')?;
    let (major, minor) = device.split_once(':')?;
    let name = words.next()?.trim_ascii_start();
    (rights.as_bytes().get(3) == Some(&b's')).then_some(())?;
    Some(Mapped {
        // The list has leading zeros, and the directory has none.
        range: format!("{:x}-{:x}", hexadecimal(start)?, hexadecimal(end)?),
        device: rustix::fs::makedev(hexadecimal(major)? as u32, hexadecimal(minor)? as u32),
        inode,
        path: OsString::from_vec(name.to_vec()).into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_mapped_shared_counts() {
        let line = b"08000000-08010000 rw-s 00000000 00:2a 77                         /mnt/caf\xe9 b";
        let expected = Mapped {
            range: "8000000-8010000".to_owned(),
            device: rustix::fs::makedev(0, 0x2a),
            inode: 77,
            path: OsString::from_vec(b"/mnt/caf\xe9 b".to_vec()).into(),
        };
        assert_eq!(mapped(line), Some(expected));
        let line = b"7f3c1d000000-7f3c1d010000 r--s 00000000 00:2a 77      /mnt/written before";
        assert!(mapped(line).is_some(), "it may have been written before");
        assert_eq!(mapped(&line[..40]), None);
        assert_eq!(mapped(b"7f3c1d000000-7f3c1d010000 rw-p 00000000 00:2a 77      /mnt/private"), None);
        assert_eq!(mapped(b"7f3c1d000000-7f3c1d010000 rw-p 00000000 00:00 0 "), None);
    }

    #[test]
    fn this_process_is_seen() {
        assert!(processes().any(|process| process.ends_with(std::process::id().to_string())));
    }

    #[test]
    fn nothing_but_the_mapped_file_is_opened() {
        let directory = tempfile::tempdir().unwrap();
        let [file, other, fifo] = ["file", "other", "fifo"].map(|name| directory.path().join(name));
        fs::write(&file, "mapped").unwrap();
        fs::write(&other, "another").unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, FileType::Fifo, Mode::RWXU, 0).unwrap();
        let of = |path: &Path| {
            let status = rustix::fs::stat(path).unwrap();
            Mapped { range: String::new(), device: status.st_dev, inode: status.st_ino, path: path.into() }
        };
        assert!(open(&file, &of(&file)).is_ok());
        assert_eq!(open(&other, &of(&file)).unwrap_err(), Errno::NOENT);
        // It would wait for somebody who writes.
        assert_eq!(open(&fifo, &of(&fifo)).unwrap_err(), Errno::NOENT);
    }
}
