//! Emulated devices: limits of the kernel's block controller, so that results are comparable on machines whose disks are not.
//!
//! With cgroup v2 the limits are those of the group that the run is in (`io.max`). Where that can have none, since it is the topmost
//! group or is not offered the controllers, as a login's is not by systemd, the run moves to a group of its own below the topmost one.
//! The kernel writes a page back on account of the group that the page's memory is counted for, so memory must be counted by group there, too. What the kernel does for nobody in particular, such as ext4's
//! journal, is in no group that could be limited and goes unlimited there. With the older `blkio` controller the limits are those of the root
//! group, which the run moves to: each group there has limits of its own, and what the kernel writes back is the root group's.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

use crate::error::{Error, at};

/// The device that is emulated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Profile {
    /// The device as it is.
    #[default]
    Raw,
    /// A SATA SSD: 567 MB/s read, 502 MB/s written, 98000 reads and 90000 writes a second.
    Ssd,
    /// A disk of 7200 revolutions a minute: 100 MiB/s, 109 reads or writes a second.
    Hdd,
}

/// Bytes and requests a second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    read_bytes: u64,
    written_bytes: u64,
    reads: u64,
    writes: u64,
}

impl Profile {
    /// Its name among the options.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Raw => "raw",
            Profile::Ssd => "ssd",
            Profile::Hdd => "hdd",
        }
    }

    fn limits(self) -> Option<Limits> {
        match self {
            Profile::Raw => None,
            // Samsung 860 EVO of 250 GB: bandwidth as EUROSYS22 7 measured it, requests from its data sheet.
            Profile::Ssd => Some(Limits {
                read_bytes: 567_000_000,
                written_bytes: 502_000_000,
                reads: 98_000,
                writes: 90_000,
            }),
            // The disk of the example in FAST17 1, 100 MiB/s and 5 ms a seek, and half a turn of 8.33 ms for each request.
            Profile::Hdd => {
                Some(Limits { read_bytes: 100 << 20, written_bytes: 100 << 20, reads: 109, writes: 109 })
            }
        }
    }
}

/// Names of the files of the older controller, in the order of the limits.
const BLKIO: [&str; 4] = [
    "blkio.throttle.read_bps_device",
    "blkio.throttle.write_bps_device",
    "blkio.throttle.read_iops_device",
    "blkio.throttle.write_iops_device",
];
/// Where a group of cgroup v2 has its limits.
const LIMITS: &str = "io.max";
/// Our group below the topmost one.
const GROUP: &str = "pando-bench";
/// Where the devices are noted that have limits, in the run's directory.
const NOTED: &str = "limited-devices";

/// How this machine lets requests be limited.
#[derive(Debug, PartialEq, Eq)]
enum Controller {
    /// The group that this process is in, which can have limits.
    Group(PathBuf),
    /// The topmost group of cgroup v2: that which this process is in can have no limits.
    Top(PathBuf),
    /// The root of the older hierarchy.
    Root(PathBuf),
}

impl Controller {
    fn of_this_machine() -> Option<Controller> {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let (mounts, own) = (read("/proc/self/mounts"), read("/proc/self/cgroup"));
        let root = blkio(&mounts).filter(|root| BLKIO.iter().all(|file| root.join(file).exists()));
        groups(&mounts, &own).and_then(Controller::of_groups).or(root.map(Controller::Root))
    }

    /// None where the topmost group is not offered the controllers of requests and of the memory whose pages are written back.
    fn of_groups((top, own): (PathBuf, PathBuf)) -> Option<Controller> {
        let offers = |group: &Path| {
            let offered = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
            ["io", "memory"].iter().all(|needed| offered.split_whitespace().any(|name| name == *needed))
        };
        if own.join(LIMITS).exists() && offers(&own) {
            return Some(Controller::Group(own));
        }
        offers(&top).then_some(Controller::Top(top))
    }
}

/// The topmost group of cgroup v2 and that which a process is in, from its mounts and its groups.
fn groups(mounts: &str, own: &str) -> Option<(PathBuf, PathBuf)> {
    let top = mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        (fields.get(2) == Some(&"cgroup2")).then(|| PathBuf::from(fields[1]))
    })?;
    let path = own.lines().find_map(|line| line.strip_prefix("0::/"))?;
    let group = if path.is_empty() { top.clone() } else { top.join(path) };
    Some((top, group))
}

/// Where the older controller is mounted.
fn blkio(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(' ').collect();
        let has =
            fields.get(2) == Some(&"cgroup") && fields.get(3)?.split(',').any(|option| option == "blkio");
        has.then(|| PathBuf::from(fields[1]))
    })
}

/// Prepares this process, and all that it starts, for limits; an error in a sentence where there can be none.
pub fn enter(profile: Profile) -> Result<(), Error> {
    if profile == Profile::Raw {
        return Ok(());
    }
    match Controller::of_this_machine() {
        None => Err(Error::Usage(format!(
            "--profile {} needs cgroups that limit a device's requests, and this machine has neither the io and memory \
             controllers of cgroup v2 nor the older blkio controller",
            profile.name()
        ))),
        Some(Controller::Group(_)) => Ok(()),
        Some(Controller::Root(root)) => enter_root(profile, &root),
        Some(Controller::Top(parent)) => {
            let (own, control) = (parent.join(GROUP), parent.join("cgroup.subtree_control"));
            at("cannot pass controllers on by", &control, fs::write(&control, "+io +memory"))?;
            if !own.exists() {
                at("cannot create", &own, fs::create_dir(&own))?;
            }
            let procs = own.join("cgroup.procs");
            at("cannot write", &procs, fs::write(&procs, "0"))
        }
    }
}

/// Moves to the root group of the older controller. In a container what looks like it may be none.
fn enter_root(profile: Profile, root: &Path) -> Result<(), Error> {
    let own = || fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    if !is_in_root(&own()) {
        let procs = root.join("cgroup.procs");
        at("cannot write", &procs, fs::write(&procs, "0"))?;
    }
    if is_in_root(&own()) {
        return Ok(());
    }
    Err(Error::Usage(format!(
        "--profile {} needs the root group of the blkio controller: what is in another one has limits of its own, and what the \
         kernel writes back for it has not",
        profile.name()
    )))
}

/// Whether a process with these groups is in the root group of the older controller.
fn is_in_root(own: &str) -> bool {
    own.lines().any(|line| {
        let fields: Vec<&str> = line.splitn(3, ':').collect();
        matches!(fields[..], [_, names, "/"] if names.split(',').any(|name| name == "blkio"))
    })
}

/// Gives a device, `major:minor`, the limits of a profile; whether it has any.
pub fn limit(profile: Profile, device: &str, directory: &Path) -> Result<bool, Error> {
    let Some(limits) = profile.limits() else { return Ok(false) };
    // Noted first: what is noted is undone however the run ends.
    let noted = directory.join(NOTED);
    let opened = OpenOptions::new().create(true).append(true).open(&noted);
    at("cannot write", &noted, opened.and_then(|mut file| writeln!(file, "{device}")))?;
    set(device, Some(limits)).map(|()| true)
}

/// Takes a device's limits away.
pub fn unlimit(device: &str) {
    // A group that is gone has no limits.
    let _ = set(device, None);
}

/// Takes away what a run in this directory has left, by the process that ends last.
pub fn remove_left(directory: &Path) {
    let noted = directory.join(NOTED);
    fs::read_to_string(&noted).unwrap_or_default().lines().for_each(unlimit);
    let _ = fs::remove_file(noted);
    if let Some(Controller::Top(parent)) = Controller::of_this_machine() {
        let _ = fs::remove_dir(parent.join(GROUP));
    }
}

fn set(device: &str, limits: Option<Limits>) -> Result<(), Error> {
    let values = |none: &str| {
        let text =
            |value: fn(&Limits) -> u64| limits.as_ref().map_or(none.to_owned(), |one| value(one).to_string());
        [
            text(|one| one.read_bytes),
            text(|one| one.written_bytes),
            text(|one| one.reads),
            text(|one| one.writes),
        ]
    };
    let write = |path: PathBuf, text: String| at("cannot write", &path, fs::write(&path, text));
    match Controller::of_this_machine() {
        Some(Controller::Group(group)) => {
            let [read_bytes, written_bytes, reads, writes] = values("max");
            let text =
                format!("{device} rbps={read_bytes} wbps={written_bytes} riops={reads} wiops={writes}");
            write(group.join(LIMITS), text)
        }
        Some(Controller::Root(root)) => {
            let mut each = BLKIO.iter().zip(values("0"));
            each.try_for_each(|(file, value)| write(root.join(file), format!("{device} {value}")))
        }
        // Whoever is in the topmost group limits nothing; the limits of a run go with its group.
        Some(Controller::Top(_)) | None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn controllers_are_found_among_the_mounts() {
        let mounts = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /c/blkio cgroup rw,relatime,blkio 0 0\n\
                      cgroup /c/cpu cgroup rw,cpu 0 0\ncgroup2 /c/unified cgroup2 rw 0 0\n";
        assert_eq!(blkio(mounts), Some(PathBuf::from("/c/blkio")));
        let of = |own: &str| Some((PathBuf::from("/c/unified"), PathBuf::from(own)));
        assert_eq!(groups(mounts, "1:cpu:/\n0::/\n"), of("/c/unified"));
        assert_eq!(groups(mounts, "0::/a/b\n"), of("/c/unified/a/b"));
        assert_eq!((blkio("\n"), groups("cgroup2", "0::/"), groups(mounts, "1:cpu:/\n")), (None, None, None));
    }

    /// Direct I/O of its processes was not limited, and what the kernel wrote back for peers was.
    #[test]
    fn limits_of_the_root_group_are_for_those_who_are_in_it() {
        for root in ["7:blkio:/\n", "3:cpu:/a\n7:blkio,net_cls:/\n0::/a\n"] {
            assert!(is_in_root(root), "{root}");
        }
        for other in ["7:blkio:/a\n", "7:blkio:/a:/\n", "3:cpu:/\n0::/\n", ""] {
            assert!(!is_in_root(other), "{other}");
        }
    }

    #[test]
    fn a_group_has_limits_itself_where_it_can() {
        let directory = tempfile::tempdir().unwrap();
        let (top, own) = (directory.path().to_owned(), directory.path().join("session"));
        let found = || Controller::of_groups((top.clone(), own.clone()));
        let offer = |group: &Path, names: &str| fs::write(group.join("cgroup.controllers"), names).unwrap();
        fs::create_dir(&own).unwrap();
        assert_eq!(found(), None);
        for too_few in ["cpu iocost memory\n", "cpu io\n"] {
            offer(&top, too_few);
            assert_eq!(found(), None);
        }
        offer(&top, "cpu io memory\n");
        offer(&own, "memory pids\n");
        assert_eq!(found(), Some(Controller::Top(top.clone())));
        assert_eq!(Controller::of_groups((top.clone(), top.clone())), Some(Controller::Top(top.clone())));
        offer(&own, "io memory\n");
        fs::write(own.join(LIMITS), "").unwrap();
        assert_eq!(found(), Some(Controller::Group(own.clone())));
    }

    #[test]
    fn a_raw_device_has_no_limits() {
        assert_eq!(Profile::Raw.limits(), None);
        assert!(enter(Profile::Raw).is_ok());
        assert!(!limit(Profile::Raw, "7:0", Path::new("/no/such/directory")).unwrap());
        for profile in [Profile::Ssd, Profile::Hdd] {
            assert!(profile.limits().is_some());
        }
    }
}
