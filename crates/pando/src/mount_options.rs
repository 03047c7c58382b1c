//! The options behind `-o`: those of every mount, which the kernel keeps, and those of PandoFS.

use std::time::Duration;

use pando_fuse::{Transport, VfsOption};

use crate::size;

/// What a list of options asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MountSettings {
    /// Options that the kernel keeps, in the order given; later ones win.
    pub vfs_options: Vec<VfsOption>,
    /// What SELinux is told of the labels of files: options that it takes of the kernel's mount.
    pub contexts: Vec<String>,
    /// Whether other users get in; without a word about it, if root mounts.
    pub allow_other: Option<bool>,
    /// The kernel checks permission bits.
    pub default_permissions: bool,
    /// The kernel collects small writes and sends them later.
    pub writeback: bool,
    /// How requests come from the kernel.
    pub transport: Transport,
    /// The device is told which extents are free.
    pub discard: bool,
    /// Memory for the node cache, in bytes.
    pub cache_bytes: Option<u64>,
    /// Listings of the root show the directory of the snapshots.
    pub show_snapshots: bool,
    /// Only this snapshot is mounted, read-only.
    pub snapshot: Option<String>,
    /// Time between checkpoints.
    pub checkpoint_interval: Option<Duration>,
    /// Time after which a change is durable without fsync.
    pub commit_interval: Option<Duration>,
    /// What is left out, to measure what it gives.
    pub without: Vec<Technique>,
}

/// Something that only makes things faster.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Technique {
    /// Reading ahead in the tree.
    ReadAhead,
    /// Leaving the pages of large writes out of the log.
    LateBinding,
    /// Listing entries with their attributes.
    Readdirplus,
    /// Listings without attributes of files for programs that do not look at them.
    NamesAlone,
    /// Listings that the kernel keeps.
    ListingCache,
    /// Serving threads that give way to those whom they answer.
    Yielding,
    /// Memory that is there before the allocator asks for it.
    MemoryAhead,
    /// Having the kernel read the files that a program will read next.
    FilesAhead,
}

impl Technique {
    /// By the names that `-o without` has for them.
    const NAMED: [(&str, Self); 8] = [
        ("read_ahead", Self::ReadAhead),
        ("late_binding", Self::LateBinding),
        ("readdirplus", Self::Readdirplus),
        ("names_alone", Self::NamesAlone),
        ("listing_cache", Self::ListingCache),
        ("yielding", Self::Yielding),
        ("memory_ahead", Self::MemoryAhead),
        ("files_ahead", Self::FilesAhead),
    ];

    fn parse(name: &str) -> Option<Self> {
        Self::NAMED.into_iter().find(|(known, _)| *known == name).map(|(_, technique)| technique)
    }
}

impl Default for MountSettings {
    fn default() -> Self {
        Self {
            vfs_options: Vec::new(),
            contexts: Vec::new(),
            allow_other: None,
            default_permissions: true,
            writeback: false,
            transport: Transport::default(),
            discard: true,
            cache_bytes: None,
            show_snapshots: false,
            snapshot: None,
            checkpoint_interval: None,
            commit_interval: None,
            without: Vec::new(),
        }
    }
}

/// Why a list of options is not understood.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum OptionError {
    /// No such option.
    Unknown(String),
    /// The option needs another value, or none.
    Value {
        /// The option with its value.
        option: String,
        /// What would be understood.
        expected: String,
    },
    /// A mount that is there is changed through mount(8).
    Remount,
}

impl std::fmt::Display for OptionError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown(option) => {
                write!(f, "unknown mount option '{option}'; `pando mount --help` lists those that there are")
            }
            Self::Value { option, expected } => write!(f, "mount option '{option}': {expected}"),
            Self::Remount => {
                f.write_str("what is mounted is changed by `mount -o remount,OPTIONS MOUNTPOINT`")
            }
        }
    }
}

impl std::error::Error for OptionError {}

/// Words of /etc/fstab that are meant for others: mount(8), the boot scripts, the desktop; and of the kernel for other file systems than FUSE.
const NOT_FOR_US: &[&str] = &[
    "defaults",
    "auto",
    "noauto",
    "user",
    "nouser",
    "users",
    "nousers",
    "owner",
    "noowner",
    "group",
    "nogroup",
    "uhelper",
    "helper",
    "_netdev",
    "nofail",
    "silent",
    "loud",
    "iversion",
    "noiversion",
    "nomand",
];

/// The options of a list. A comma in a value in quotes is none between two: security contexts hold such.
pub fn split(list: &str) -> impl Iterator<Item = &str> {
    let (mut before, mut quoted) = (',', false);
    let options = list.split(move |c| {
        quoted = if quoted { c != '"' } else { c == '"' && before == '=' };
        before = c;
        c == ',' && !quoted
    });
    options.map(str::trim)
}

/// With less than a few nodes in memory every change waits until the last one has left it.
pub const CACHE_BYTES_MIN: u64 = 16 << 20;

/// Bytes of a node cache, as `-o cache` and `--cache` take them. An error is the end of a sentence.
pub fn cache_bytes(text: &str) -> Result<u64, String> {
    match size::parse(text).map_err(|error| error.to_string())? {
        bytes if bytes < CACHE_BYTES_MIN => Err(format!(
            "a cache of {} is too small, at least 16M are needed; write a suffix behind the number, such as 512M or 4G",
            bytes_text(bytes)
        )),
        bytes => Ok(bytes),
    }
}

/// A size that nobody takes for another one.
fn bytes_text(bytes: u64) -> String {
    if bytes < 1024 { format!("{bytes} bytes") } else { size::human(bytes) }
}

impl MountSettings {
    /// Adds a list of options separated by commas.
    pub fn add(&mut self, list: &str) -> Result<(), OptionError> {
        split(list).filter(|option| !option.is_empty()).try_for_each(|option| self.add_one(option))
    }

    /// Whether changes are refused.
    pub fn is_read_only(&self) -> bool {
        self.snapshot.is_some() || pando_fuse::mount_point::is_read_only(&self.vfs_options)
    }

    /// Whether the kernel collects writes: not where there are none, since it then takes holes for data.
    pub fn collects_writes(&self) -> bool {
        self.writeback && !self.is_read_only()
    }

    fn add_one(&mut self, option: &str) -> Result<(), OptionError> {
        if let Some(option) = VfsOption::parse(option) {
            self.vfs_options.push(option);
            return Ok(());
        }
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        match (name, value) {
            ("allow_other", None) => self.allow_other = Some(true),
            ("no_allow_other", None) => self.allow_other = Some(false),
            ("default_permissions", None) => self.default_permissions = true,
            ("no_default_permissions", None) => self.default_permissions = false,
            ("writeback", None) => self.writeback = true,
            ("writethrough", None) => self.writeback = false,
            ("context" | "fscontext" | "defcontext" | "rootcontext", Some(_)) => {
                self.contexts.push(option.to_owned());
            }
            ("discard", None) => self.discard = true,
            ("nodiscard", None) => self.discard = false,
            ("show_snapshots", None) => self.show_snapshots = true,
            ("hide_snapshots", None) => self.show_snapshots = false,
            ("snapshot", Some("")) => return Err(wrong(option, "a snapshot's name is not empty")),
            ("snapshot", Some(name)) => self.snapshot = Some(name.to_owned()),
            ("transport", Some(value)) => {
                let refuse = || wrong(option, "it is auto, uring or dev");
                self.transport = Transport::parse(value).ok_or_else(refuse)?;
            }
            ("cache", Some(value)) => {
                self.cache_bytes = Some(cache_bytes(value).map_err(|why| wrong(option, why))?);
            }
            ("checkpoint", Some(value)) => self.checkpoint_interval = Some(seconds(option, value)?),
            ("commit", Some(value)) => self.commit_interval = Some(seconds(option, value)?),
            // For measurements only, so the help does not name it.
            ("without", Some(names)) => {
                let refuse = || {
                    let names = Technique::NAMED.map(|(name, _)| name).join(", ");
                    wrong(option, format!("it is some of {names}, with '+' between them"))
                };
                let parsed = names.split('+').map(|name| Technique::parse(name).ok_or_else(refuse));
                self.without = parsed.collect::<Result<_, _>>()?;
            }
            ("remount", None) => return Err(OptionError::Remount),
            ("cache" | "checkpoint" | "commit" | "snapshot" | "transport" | "without", None) => {
                return Err(wrong(option, "it needs a value behind '='"));
            }
            (name, _) if NOT_FOR_US.contains(&name) || name.starts_with("x-") || name.starts_with("X-") => {}
            ("comment", Some(_)) => {}
            _ => return Err(OptionError::Unknown(option.to_owned())),
        }
        Ok(())
    }
}

fn wrong(option: &str, expected: impl ToString) -> OptionError {
    OptionError::Value { option: option.to_owned(), expected: expected.to_string() }
}

/// A time of at least a tenth of a second, and at most a day.
fn seconds(option: &str, value: &str) -> Result<Duration, OptionError> {
    match value.parse::<f64>() {
        Ok(number) if (0.1..=86_400.0).contains(&number) => Ok(Duration::from_secs_f64(number)),
        _ => Err(wrong(option, "it takes seconds, from 0.1 to 86400")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(list: &str) -> Result<MountSettings, OptionError> {
        let mut settings = MountSettings::default();
        settings.add(list).map(|()| settings)
    }

    #[test]
    fn a_line_of_fstab_is_understood() {
        let settings = parsed(
            "defaults,noatime,ro,_netdev,x-systemd.automount,nofail,cache=64M,commit=0.5,checkpoint=30",
        );
        let settings = settings.unwrap();
        assert!(settings.is_read_only());
        assert_eq!(settings.vfs_options.len(), 2);
        assert_eq!(settings.cache_bytes, Some(64 << 20));
        let of_snapshot = parsed("rw,snapshot=a b").unwrap();
        assert!(of_snapshot.is_read_only() && of_snapshot.snapshot.as_deref() == Some("a b"));
        assert_eq!(settings.commit_interval, Some(Duration::from_millis(500)));
        assert_eq!(settings.checkpoint_interval, Some(Duration::from_secs(30)));
        let of_others = "nomand,noowner,nogroup,owner,group,users,uhelper=udisks2,helper=systemd,comment=a";
        assert_eq!(parsed(of_others).unwrap(), MountSettings::default());
        let labelled = r#"nosuid,context="a:b:c:s0:c1,c2",ro,fscontext=d,snapshot=e"f,noexec"#;
        let labelled = parsed(labelled).unwrap();
        assert_eq!(labelled.contexts, [r#"context="a:b:c:s0:c1,c2""#, "fscontext=d"]);
        assert_eq!((labelled.vfs_options.len(), labelled.snapshot.as_deref()), (3, Some(r#"e"f"#)));
    }

    #[test]
    fn later_options_win() {
        assert!(!parsed("ro,rw").unwrap().is_read_only());
        assert!(!parsed("discard,nodiscard").unwrap().discard);
        assert_eq!(parsed("allow_other,no_allow_other").unwrap().allow_other, Some(false));
        assert_eq!(parsed("transport=uring,transport=dev").unwrap().transport, Transport::Device);
        assert!(!parsed("show_snapshots,hide_snapshots").unwrap().show_snapshots);
        let without = parsed("without=read_ahead,without=readdirplus+late_binding").unwrap().without;
        assert_eq!(without, [Technique::Readdirplus, Technique::LateBinding]);
        assert_eq!(parsed("").unwrap(), MountSettings::default());
    }

    /// mount(8) takes them for any file system.
    #[test]
    fn what_any_mount_may_be_told_is_understood() {
        let kept = parsed("lazytime,nolazytime,nosymfollow,symfollow").unwrap();
        assert_eq!(kept.vfs_options.len(), 4);
        assert_eq!(parsed("silent,loud,iversion,noiversion").unwrap(), MountSettings::default());
    }

    #[test]
    fn what_is_not_understood_is_named() {
        assert_eq!(parsed("rw,frobnicate"), Err(OptionError::Unknown("frobnicate".into())));
        assert_eq!(parsed("writeback=yes"), Err(OptionError::Unknown("writeback=yes".into())));
        assert_eq!(parsed("remount,ro"), Err(OptionError::Remount));
        for option in [
            "cache=much",
            "cache=512",
            "cache=15M",
            "cache",
            "commit=0",
            "commit=never",
            "checkpoint=1e9",
            "commit=NaN",
            "transport=tcp",
            "snapshot",
            "snapshot=",
            "without",
            "without=",
            "without=read_ahead+much",
        ] {
            assert!(matches!(parsed(option), Err(OptionError::Value { .. })), "{option}");
        }
        assert_eq!(parsed("cache=16M").unwrap().cache_bytes, Some(16 << 20));
        let too_small = parsed("cache=512").unwrap_err().to_string();
        assert!(too_small.contains("512 bytes is too small") && too_small.contains("512M"), "{too_small}");
    }
}
