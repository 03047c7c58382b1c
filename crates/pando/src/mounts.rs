//! Who uses a device or image file at the moment, as far as the kernel's tables tell.

use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The type of a mounted PandoFS volume in the kernel's tables.
const FILE_SYSTEM_TYPE: &str = "fuse.pando";

/// A line of `/proc/self/mountinfo`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Where it is mounted.
    pub mountpoint: PathBuf,
    /// The type, with the subtype behind a dot.
    pub file_system_type: String,
    /// What is mounted.
    pub source: PathBuf,
}

/// All mounts that this process sees; none where there is no /proc.
pub fn all() -> Vec<Mount> {
    let text = fs::read("/proc/self/mountinfo").unwrap_or_default();
    text.split(|&b| b == b'\n').filter_map(parse).collect()
}

/// The mount of the PandoFS volume at `volume`, if there is one.
pub fn of_volume(volume: &Path) -> Option<Mount> {
    let volume = volume.canonicalize().ok()?;
    all().into_iter().rev().find(|mount| mount.file_system_type == FILE_SYSTEM_TYPE && mount.source == volume)
}

/// The PandoFS mount whose mount point is `path`.
pub fn at(path: &Path) -> Option<Mount> {
    let path = path.canonicalize().ok()?;
    // The last one mounted there covers the others.
    let mount = all().into_iter().rev().find(|mount| mount.mountpoint == path)?;
    (mount.file_system_type == FILE_SYSTEM_TYPE).then_some(mount)
}

/// Who uses the device or image at `path`, as the end of a sentence: "it is mounted on /mnt".
pub fn user_of(path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let metadata = path.metadata().ok()?;
    let is_block_device = metadata.file_type().is_block_device();
    let same = |other: &Path| {
        let both = is_block_device.then(|| other.metadata().ok()).flatten();
        other == path || both.is_some_and(|m| m.file_type().is_block_device() && m.rdev() == metadata.rdev())
    };
    if let Some(mount) = all().into_iter().rev().find(|mount| same(&mount.source)) {
        return Some(format!("it is mounted on {}", mount.mountpoint.display()));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    if swaps
        .lines()
        .skip(1)
        .filter_map(|line| line.split_whitespace().next())
        .any(|area| same(Path::new(area)))
    {
        return Some("it is in use as swap space".to_owned());
    }
    loop_device_of(&path).map(|device| format!("it is attached to {device}"))
}

/// The loop device behind which `file` is.
fn loop_device_of(file: &Path) -> Option<String> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.filter_map(Result::ok).find_map(|device| {
        let backing = fs::read(device.path().join("loop/backing_file")).ok()?;
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing).to_vec();
        let same = Path::new(&std::ffi::OsString::from_vec(backing)) == file;
        same.then(|| format!("/dev/{}", device.file_name().to_string_lossy()))
    })
}

/// `36 35 98:0 /root /mountpoint options [optional fields] - type source superoptions`; proc(5).
fn parse(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|&b| b == b' ');
    let mountpoint = fields.nth(4)?;
    let mut rest = fields.skip_while(|field| *field != b"-").skip(1);
    let file_system_type = String::from_utf8_lossy(rest.next()?).into_owned();
    Some(Mount { mountpoint: unescaped(mountpoint), file_system_type, source: unescaped(rest.next()?) })
}

/// Spaces, tabs, line feeds and backslashes are written as three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&first, tail)) = rest.split_first() {
        let octal = tail.get(..3).filter(|_| first == b'\\').and_then(|d| std::str::from_utf8(d).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &tail[3..];
            }
            None => {
                bytes.push(first);
                rest = tail;
            }
        }
    }
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_mountinfo_is_read() {
        let line = br"71 28 0:45 / /mnt/with\040space rw,relatime shared:9 - fuse.pando /srv/a\134b.img rw,user_id=0";
        let expected = Mount {
            mountpoint: "/mnt/with space".into(),
            file_system_type: "fuse.pando".into(),
            source: r"/srv/a\b.img".into(),
        };
        assert_eq!(parse(line), Some(expected));
        assert_eq!(parse(b""), None);
        assert_eq!(parse(br"71 28 0:45 / /mnt\04"), None);
    }
}
