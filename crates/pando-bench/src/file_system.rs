//! The file systems to measure: a name, and commands. Nothing else is known of them.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::bare;
use crate::command;
use crate::error::{Error, at};
use crate::options::Options;

/// A file system by its commands, in which DEVICE, MOUNTPOINT, SOURCE and TARGET stand for real paths. A command that is
/// empty is one that it does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSystem {
    /// Name in tables.
    pub name: String,
    /// Formats the device, whatever is on it.
    pub format: String,
    /// Formats for as many files as there are blocks, if its usual format has room for fewer.
    pub format_for_many_files: String,
    /// Returns when the mount is usable.
    pub mount: String,
    /// What makes that mount discard nothing, if it would; appended to it.
    pub without_discards: String,
    /// Returns when everything is on the device.
    pub umount: String,
    /// Puts everything into its place on the device while it stays mounted.
    pub checkpoint: String,
    /// Makes a directory that can be cloned; one of its own if it is empty.
    pub make_directory: String,
    /// Makes a writable copy of a directory that shares the data.
    pub clone: String,
    /// Makes a read-only copy of the whole volume at TARGET, a name.
    pub snapshot: String,
    /// Prints the version of its programs.
    pub version: String,
    /// How it is compared.
    pub role: Role,
    /// What is in it is lost with its mount: cold means that the kernel's caches are dropped, no more.
    pub volatile: bool,
    /// It is none: only the device is measured.
    pub bare: bool,
    /// Runs these rows only; every row if empty.
    pub only: Vec<String>,
}

/// How a file system is compared with the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// The ratio to the best peer is that of this one.
    Ours,
    /// The others are measured against the best of these.
    #[default]
    Peer,
    /// Shown beside them, and compared with none.
    Reference,
    /// Ours with something left out or added: shown beside ours, in a table of its own.
    Ablation,
}

/// PandoFS keeps no time of the last read either.
const PEER_MOUNT: &str = "mount -o noatime DEVICE MOUNTPOINT";
const PEER_UMOUNT: &str = "umount MOUNTPOINT";
const PEER_CHECKPOINT: &str = "mount -o remount,ro MOUNTPOINT && mount -o remount,rw MOUNTPOINT";
const PEER_CLONE: &str = "cp -a --reflink=always SOURCE TARGET";
const OURS_CHECKPOINT: &str = "mount.fuse.pando=pando DEVICE MOUNTPOINT -o remount,ro && \
                               mount.fuse.pando=pando DEVICE MOUNTPOINT -o remount,rw";

impl FileSystem {
    fn peer(name: &str, format: &str, version: &str) -> FileSystem {
        FileSystem {
            name: name.to_owned(),
            format: format.to_owned(),
            mount: PEER_MOUNT.to_owned(),
            umount: PEER_UMOUNT.to_owned(),
            checkpoint: PEER_CHECKPOINT.to_owned(),
            version: version.to_owned(),
            ..FileSystem::default()
        }
    }

    /// A directory on a file system that is mounted already and stays so.
    pub fn directory() -> FileSystem {
        FileSystem { name: "directory".to_owned(), role: Role::Ours, ..FileSystem::default() }
    }

    /// NAME=FORMAT;MOUNT;UMOUNT
    fn parse(text: &str) -> Result<FileSystem, Error> {
        let wrong = || Error::Usage(format!("'{text}' is not NAME=FORMAT;MOUNT;UMOUNT"));
        let (name, commands) = text.split_once('=').ok_or_else(wrong)?;
        let commands: Vec<&str> = commands.split(';').map(str::trim).collect();
        match commands[..] {
            [format, mount, umount] if !name.is_empty() && !mount.is_empty() && !umount.is_empty() => {
                Ok(FileSystem {
                    mount: mount.to_owned(),
                    umount: umount.to_owned(),
                    checkpoint: String::new(),
                    ..FileSystem::peer(name, format, "")
                })
            }
            _ => Err(wrong()),
        }
    }

    /// Whether it runs a row of this name.
    pub fn takes(&self, row: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| name == row)
    }
}

/// All that are known. Formatting discards nothing: how a device takes discards is not what the rows measure.
fn known() -> Vec<FileSystem> {
    let pandofs = FileSystem {
        name: "pandofs".to_owned(),
        format: "pando format --force DEVICE".to_owned(),
        mount: "pando mount DEVICE MOUNTPOINT".to_owned(),
        without_discards: " -o nodiscard".to_owned(),
        umount: "pando umount MOUNTPOINT".to_owned(),
        checkpoint: OURS_CHECKPOINT.to_owned(),
        clone: "pando clone SOURCE TARGET".to_owned(),
        snapshot: "pando snapshot create MOUNTPOINT TARGET".to_owned(),
        version: "pando --version".to_owned(),
        role: Role::Ours,
        ..FileSystem::default()
    };
    let ext4 = "mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 DEVICE";
    let btrfs = FileSystem {
        clone: PEER_CLONE.to_owned(),
        without_discards: " -o nodiscard".to_owned(),
        snapshot: "btrfs subvolume snapshot -r MOUNTPOINT MOUNTPOINT/TARGET".to_owned(),
        ..FileSystem::peer("btrfs", "mkfs.btrfs -q -f -K DEVICE", "mkfs.btrfs --version")
    };
    // A directory of Btrfs can be made a subvolume, whose snapshot is its fastest way to clone.
    let subvolume = FileSystem {
        name: "btrfs-subvolume".to_owned(),
        make_directory: "btrfs subvolume create TARGET".to_owned(),
        clone: "btrfs subvolume snapshot SOURCE TARGET".to_owned(),
        only: ["clone-tree", "clone-rounds"].map(str::to_owned).to_vec(),
        ..btrfs.clone()
    };
    // What the transport costs with nothing behind it: an example program of pando-fuse, which serves until it is unmounted.
    let floor = FileSystem {
        name: "floor".to_owned(),
        mount: "floor MOUNTPOINT &".to_owned(),
        umount: PEER_UMOUNT.to_owned(),
        role: Role::Reference,
        volatile: true,
        ..FileSystem::default()
    };
    let device = FileSystem {
        name: bare::NAME.to_owned(),
        version: "fio --version".to_owned(),
        role: Role::Reference,
        bare: true,
        ..FileSystem::default()
    };
    vec![
        pandofs,
        floor,
        device,
        FileSystem {
            format_for_many_files: ext4.replace("-F", "-F -i 4096"),
            ..FileSystem::peer("ext4", ext4, "mkfs.ext4 -V")
        },
        FileSystem {
            clone: PEER_CLONE.to_owned(),
            ..FileSystem::peer("xfs", "mkfs.xfs -q -f -K DEVICE", "mkfs.xfs -V")
        },
        btrfs,
        subvolume,
        FileSystem {
            without_discards: " -o nodiscard".to_owned(),
            ..FileSystem::peer("f2fs", "mkfs.f2fs -q -f -t 0 DEVICE", "mkfs.f2fs -V")
        },
        FileSystem {
            clone: PEER_CLONE.to_owned(),
            ..FileSystem::peer("bcachefs", "bcachefs format --force DEVICE", "bcachefs version")
        },
        FileSystem {
            mount: "zpool import -d DEVICE -N pando-bench && mount -t zfs -o noatime pando-bench MOUNTPOINT"
                .to_owned(),
            umount: "umount MOUNTPOINT && zpool export pando-bench".to_owned(),
            checkpoint: String::new(),
            ..FileSystem::peer(
                "zfs",
                "zpool create -f -m legacy pando-bench DEVICE && zpool export pando-bench",
                "zfs version",
            )
        },
    ]
}

/// NAME=OPTIONS: ours, mounted with these options.
fn variant(ours: &FileSystem, text: &str) -> Result<FileSystem, Error> {
    match text.split_once('=') {
        Some((name, mount_options)) if !name.is_empty() && !mount_options.is_empty() => Ok(FileSystem {
            name: name.to_owned(),
            mount: format!("pando mount -o {mount_options} DEVICE MOUNTPOINT"),
            role: Role::Reference,
            ..ours.clone()
        }),
        _ => Err(Error::Usage(format!("'{text}' is not NAME=OPTIONS"))),
    }
}

/// What is left out of ours, or added: a name, the options of the format, those of the mount.
const ABLATIONS: [(&str, &str, &str); 12] = [
    ("no-io-uring", "", "transport=dev"),
    ("no-read-ahead", "", "without=read_ahead"),
    ("no-late-binding", "", "without=late_binding"),
    ("no-readdirplus", "", "without=readdirplus"),
    ("no-names-alone", "", "without=names_alone"),
    ("no-listing-cache", "", "without=listing_cache"),
    ("no-yielding", "", "without=yielding"),
    ("no-memory-ahead", "", "without=memory_ahead"),
    ("no-files-ahead", "", "without=files_ahead"),
    ("cache-64M", "", "cache=64M"),
    ("writeback", "", "writeback"),
    ("lz4", "--compression lz4", ""),
];

/// The rows in which that is looked at, those of EUROSYS22 table 3 among them.
const ABLATED: [&str; 10] = [
    "sequential-write",
    "cold-read",
    "random-4k",
    "random-4b",
    "small-files",
    "untar",
    "cold-find",
    "cold-grep",
    "cold-tar",
    "rm",
];

fn ablation(ours: &FileSystem, (name, format, mount): (&str, &str, &str)) -> FileSystem {
    let with = |command: &str, first: &str, options: String| match options.trim() {
        "" => command.to_owned(),
        options => command.replacen(first, &format!("{first} {options}"), 1),
    };
    let mount = if mount.is_empty() { String::new() } else { format!("-o {mount}") };
    FileSystem {
        name: name.to_owned(),
        format: with(&ours.format, "pando format", format.to_owned()),
        mount: with(&ours.mount, "pando mount", mount),
        role: Role::Ablation,
        only: ABLATED.map(str::to_owned).to_vec(),
        ..ours.clone()
    }
}

/// Columns that run without being asked for.
const USUAL: [&str; 6] = ["floor", "device", "ext4", "xfs", "btrfs", "btrfs-subvolume"];

/// Known and given ones.
pub fn all(options: &Options) -> Result<Vec<FileSystem>, Error> {
    if options.on.is_some() {
        return Ok(vec![FileSystem::directory()]);
    }
    let mut all = known();
    for text in &options.given {
        all.push(FileSystem::parse(text)?);
    }
    for text in &options.variants {
        all.push(variant(&all[0], text)?);
    }
    if options.ablations {
        all.extend(ABLATIONS.map(|one| ablation(&all[0], one)));
    }
    // What is measured is told apart by them.
    let names = all.iter().map(|one| &one.name).enumerate();
    let mut again = names.filter(|(index, name)| all[..*index].iter().any(|one| one.name == **name));
    match again.next() {
        Some((_, name)) => Err(Error::Usage(format!("'{name}' is the name of another column"))),
        None => Ok(all),
    }
}

/// Why a file system is not here.
fn missing(one: &FileSystem) -> &'static str {
    match one.volatile {
        true => "it has not been built (cargo build --release -p pando-fuse --example floor)",
        false => "this kernel does not have it",
    }
}

/// Those that were asked for; without a wish all usual ones of which this machine has the program and the kernel the
/// driver. Ours come first.
pub fn available(options: &Options) -> Result<Vec<FileSystem>, Error> {
    let all = all(options)?;
    if options.on.is_some() {
        return Ok(all);
    }
    let known = known().len();
    let wished: Vec<&String> = options.file_systems.iter().chain(&options.peers).collect();
    if let Some(name) = wished.iter().find(|name| all.iter().all(|one| one.name != ***name)) {
        let names: Vec<&str> = all.iter().map(|one| one.name.as_str()).collect();
        return Err(Error::Usage(format!("'{name}' is none of {}", names.join(", "))));
    }
    let drivers = Path::new("/proc/filesystems");
    let drivers = at("cannot read", drivers, fs::read_to_string(drivers))?;
    let mut chosen = Vec::new();
    for (index, one) in all.iter().enumerate() {
        let given = index >= known;
        let asked_for = given || wished.iter().any(|name| **name == one.name);
        let by_itself = one.role == Role::Ours || USUAL.contains(&one.name.as_str());
        let driver = one.name.split('-').next().unwrap_or_default();
        let here = || {
            one.role == Role::Ours
                || given
                || one.bare
                || (one.volatile && command::is_built(&one.name))
                || drivers.split_whitespace().any(|name| name == driver)
                || command::run(&["modprobe", "-q", driver]).is_ok()
        };
        if one.role == Role::Ablation {
            // What is left out is timed; nobody looks at its counts.
            if !options.trace {
                chosen.push(one.clone());
            }
        } else if asked_for {
            if !here() {
                return Err(Error::Usage(format!("{} cannot be had: {}", one.name, missing(one))));
            }
            chosen.push(one.clone());
        } else if options.file_systems.is_empty() && by_itself {
            if here() {
                chosen.push(one.clone());
            } else {
                eprintln!("{} is left out: {}", one.name, missing(one));
            }
        }
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_ablation_differs_from_ours_in_its_options_alone() {
        let ours = &known()[0];
        let [first, .., last] = ABLATIONS.map(|one| ablation(ours, one));
        assert_eq!(first.mount, "pando mount -o transport=dev DEVICE MOUNTPOINT");
        assert_eq!((&first.format, &last.mount), (&ours.format, &ours.mount));
        assert_eq!(last.format, "pando format --compression lz4 --force DEVICE");
    }

    #[test]
    fn a_file_system_is_given_by_three_commands() {
        let given = FileSystem::parse("mine=mkfs.mine -f DEVICE; mount DEVICE MOUNTPOINT ;umount MOUNTPOINT");
        let given = given.unwrap();
        assert_eq!((given.name.as_str(), given.format.as_str()), ("mine", "mkfs.mine -f DEVICE"));
        assert_eq!((given.mount.as_str(), given.role), ("mount DEVICE MOUNTPOINT", Role::Peer));
        for bad in ["mine", "mine=a;b", "=a;b;c", "mine=a;;c", "mine=a;b;c;d"] {
            assert!(FileSystem::parse(bad).is_err(), "{bad}");
        }
        let variant = variant(&known()[0], "writeback=writeback,cache=1G").unwrap();
        assert_eq!(variant.mount, "pando mount -o writeback,cache=1G DEVICE MOUNTPOINT");
        assert_eq!((variant.name.as_str(), variant.role), ("writeback", Role::Reference));
    }

    fn chosen(arguments: &[&str]) -> Result<Vec<String>, Error> {
        use clap::Parser;
        let options = Options::parse_from(["pando-bench"].iter().chain(arguments));
        Ok(available(&options)?.into_iter().map(|one| one.name).collect())
    }

    #[test]
    fn what_is_given_by_its_commands_or_options_was_asked_for() {
        let given = ["--fs", "pandofs", "--file-system", "mine=a;b;c", "--variant", "small=cache=64M"];
        assert_eq!(chosen(&given).unwrap(), ["pandofs", "mine", "small"]);
    }

    /// What they gave was mixed.
    #[test]
    fn no_two_columns_have_one_name() {
        let same: [&[&str]; 4] = [
            &["--variant", "ext4=writeback"],
            &["--file-system", "mine=a;b;c", "--variant", "mine=writeback"],
            &["--variant", "one=writeback", "--variant", "one=cache=1G"],
            &["--ablations", "--variant", "lz4=cache=1G"],
        ];
        for arguments in same {
            assert!(chosen(arguments).is_err(), "{arguments:?}");
        }
        assert!(chosen(&["--fs", "pandofs,pandofs", "--variant", "lz4=cache=1G"]).is_ok());
    }

    #[test]
    fn names_are_unique_and_one_is_ours() {
        let known = known();
        let names: std::collections::BTreeSet<_> = known.iter().map(|one| &one.name).collect();
        assert_eq!(names.len(), known.len());
        assert_eq!(known.iter().filter(|one| one.role == Role::Ours).count(), 1);
    }
}
