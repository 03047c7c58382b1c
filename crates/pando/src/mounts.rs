//! Who uses a device or image file at the moment, as far as the kernel's tables tell. Where a table cannot be read,
//! nobody is known to.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io::ErrorKind;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use pando_device::loops;
use pando_fuse::mount_point::{is_dead, unmount_by_force};
use pando_fuse::mount_table::{MountEntry, mounted, mounted_at, mounted_of_any_type};
use rustix::process::Uid;
use serde_json::{Value, json};

use crate::control;
use crate::snapshots::mount_source;
use crate::volume::name;

/// The mount of the PandoFS volume at `volume`, if there is one.
pub fn of_volume(volume: &Path) -> Option<MountEntry> {
    all_of(volume).pop()
}

/// The same, unless its daemon was killed: then nobody has the volume. Nor has one that serves what was at that path before.
pub fn served(volume: &Path) -> Option<MountEntry> {
    all_of(volume).into_iter().rfind(|mount| !is_dead(&mount.mountpoint) && !is_of_another(mount, volume))
}

fn all_of(volume: &Path) -> Vec<MountEntry> {
    let Ok(volume) = volume.canonicalize() else { return Vec::new() };
    let owner = owner_of(&volume);
    let mut mounts = mounted().unwrap_or_default();
    mounts.retain(|mount| mount.source == volume && is_believed(mount, owner));
    mounts
}

fn owner_of(volume: &Path) -> Option<Uid> {
    volume.metadata().ok().map(|metadata| Uid::from_raw(metadata.uid()))
}

/// Whether a mount is taken for one of what it says it is of, which belongs to `owner`. Any user can mount a FUSE with any source, and let those hang who ask it.
fn is_believed(mount: &MountEntry, owner: Option<Uid>) -> bool {
    let may_be_his = |user: Uid| user.is_root() || user == rustix::process::geteuid() || Some(user) == owner;
    mount.owner.is_none_or(may_be_his)
}

/// Whether the daemon of a mount has something else open than what is at this path now. Not if it does not say.
pub fn is_of_another(mount: &MountEntry, volume: &Path) -> bool {
    let info = control::request(&mount.device, "info").unwrap_or_default();
    let Some(has_open) = info.get("file").filter(|file| !file.is_null()) else { return false };
    match volume.metadata() {
        Ok(metadata) => *has_open != identity(&metadata),
        Err(error) => error.kind() == ErrorKind::NotFound,
    }
}

/// What a file or block device is, by whatever name.
pub fn identity(metadata: &Metadata) -> Value {
    match metadata.file_type().is_block_device() {
        true => json!({ "block_device": metadata.rdev() }),
        false => json!({ "device": metadata.dev(), "inode": metadata.ino() }),
    }
}

/// Whether what is mounted at a directory is this volume, or this snapshot of it, already, and is served.
pub fn is_at(volume: &Path, snapshot: Option<&str>, mountpoint: &Path) -> bool {
    let Ok(volume) = volume.canonicalize() else { return false };
    let source = snapshot.map_or_else(|| volume.clone(), |name| mount_source(&volume, name));
    let mount = mounted_at(mountpoint).ok().flatten().filter(|mount| mount.source == source);
    mount.filter(|mount| is_believed(mount, owner_of(&volume))).is_some_and(|mount| {
        // Something else may have come to the volume's path since.
        !is_dead(&mount.mountpoint) && !is_of_another(&mount, &volume)
    })
}

/// Where the mount with this device number is seen.
pub fn place_of(device: &str) -> Option<PathBuf> {
    let mount = mounted().ok()?.into_iter().rfind(|mount| mount.device == device && is_on_top(mount));
    mount.map(|mount| mount.mountpoint)
}

/// Takes away the dead mounts of a block device, on which the kernel's claim goes with the last of them; false if there are none. For who has locked the
/// volume: then no daemon serves it, and who is asked whether it is dead does not hang.
pub fn take_away_dead(volume: &Path) -> bool {
    let Ok(number) = volume.metadata().map(|metadata| metadata.rdev()) else { return false };
    let number = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
    let mut taken_away = false;
    // The topmost first.
    for mount in mounted().unwrap_or_default().iter().rev().filter(|mount| mount.device == number) {
        if is_on_top(mount) && is_dead(&mount.mountpoint) {
            taken_away |= unmount_by_force(&mount.mountpoint, true).is_ok();
        }
    }
    taken_away
}

/// Something else may be mounted over it.
fn is_on_top(mount: &MountEntry) -> bool {
    mounted_at(&mount.mountpoint).is_ok_and(|top| top.as_ref() == Some(mount))
}

/// Whether a mount is that of a volume, or of a snapshot of it.
pub fn is_of(mount: &MountEntry, volume: &Path) -> bool {
    let source = mount.source.as_os_str().as_bytes();
    let rest = source.strip_prefix(volume.as_os_str().as_bytes());
    rest.is_some_and(|rest| rest.is_empty() || rest[0] == b'@') && is_believed(mount, owner_of(volume))
}

/// Who uses the device or image at `path`, as the end of a sentence: "it is mounted on /mnt". If `doubted` is true also who only says that he does, as any
/// user can.
pub fn user_of(path: &Path, doubted: bool) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let metadata = path.metadata().ok()?;
    let is_block_device = metadata.file_type().is_block_device();
    // A block device may have several names.
    let same = |other: &Path| {
        let other_device = || other.metadata().ok().filter(|other| other.file_type().is_block_device());
        other == path
            || is_block_device && other_device().is_some_and(|other| other.rdev() == metadata.rdev())
    };
    let owner = Some(Uid::from_raw(metadata.uid()));
    // A source that is not believed is not looked at either: it may be on a file system of its user's.
    let is_it = |mount: &MountEntry| match is_believed(mount, owner) {
        true => same(&mount.source),
        false => doubted && mount.source == path,
    };
    if let Some(mount) = mounted_of_any_type().unwrap_or_default().into_iter().rfind(is_it) {
        return Some(format!("it is mounted on {}", name(&mount.mountpoint)));
    }
    let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let mut areas = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
    if areas.any(|area| same(Path::new(area))) {
        return Some("it is in use as swap space".to_owned());
    }
    if is_block_device {
        let file = loops::behind(metadata.rdev())?;
        let user = of_volume(&file)?;
        let (file, mountpoint) = (name(&file), name(&user.mountpoint));
        return Some(format!("{file}, the file behind it, is mounted on {mountpoint}"));
    }
    let device = loops::over(&metadata)?;
    Some(format!("it is attached to {}", device.display()))
}

/// One process, by id and name, of each mount namespace in which the mount with this device number still is. A
/// namespace that was made while a volume was mounted, as containers and `unshare -m` do, keeps its copy of the mount.
pub fn holders(device: &str) -> Vec<(u32, String)> {
    let mut seen = HashSet::new();
    let processes = fs::read_dir("/proc").into_iter().flatten().filter_map(Result::ok);
    let ids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let mut holders = Vec::new();
    for id in ids {
        let of_process = |name: &str| Path::new("/proc").join(id.to_string()).join(name);
        let Ok(namespace) = fs::read_link(of_process("ns/mnt")) else { continue };
        if !seen.insert(namespace) {
            continue;
        }
        let mounts = fs::read_to_string(of_process("mountinfo")).unwrap_or_default();
        if mounts.lines().any(|line| line.split(' ').nth(2) == Some(device)) {
            let name = fs::read_to_string(of_process("comm")).unwrap_or_default();
            holders.push((id, name.trim_end().to_owned()));
        }
    }
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_is_believed_of_those_who_could_have_made_it() {
        let user = rustix::process::geteuid();
        let [owner, stranger] = [1, 2].map(|number| Uid::from_raw(user.as_raw() + number));
        let is_believed = |served_by: Option<Uid>| {
            let mount = MountEntry {
                device: "0:52".to_owned(),
                mountpoint: "/mnt".into(),
                source: "/dev/sdb1".into(),
                owner: served_by,
            };
            is_believed(&mount, Some(owner))
        };
        // The kernel's own file systems, root's daemons and ours, and those of whom the volume belongs to.
        assert!([None, Some(Uid::ROOT), Some(user), Some(owner)].into_iter().all(is_believed));
        assert!(!is_believed(Some(stranger)));
    }
}
