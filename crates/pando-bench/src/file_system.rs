//! The file systems to measure: a name, and the commands that format, mount and unmount. Nothing else is known of them.

use std::path::Path;

use crate::error::{self, Error};
use crate::options::Options;

/// A file system by its commands, in which DEVICE and MOUNTPOINT stand for the real ones.
#[derive(Clone, Debug)]
pub struct FileSystem {
    /// Name in tables.
    pub name: String,
    /// Formats the device, whatever is on it.
    pub format: String,
    /// Returns when the mount is usable.
    pub mount: String,
    /// Returns when everything is on the device.
    pub umount: String,
    /// The one whose ratio to the best of the others is reported.
    pub ours: bool,
}

const PEER_MOUNT: &str = "mount DEVICE MOUNTPOINT";
const PEER_UMOUNT: &str = "umount MOUNTPOINT";

/// (name, format, mount, unmount). Formatting discards nothing: the file behind the device is allocated anew for each,
/// and a hole in it would have to be allocated again within what is measured.
const FILE_SYSTEMS: [(&str, &str, &str, &str); 4] = [
    ("pandofs", "pando format --force DEVICE", "pando mount DEVICE MOUNTPOINT", "pando umount MOUNTPOINT"),
    (
        "ext4",
        "mkfs.ext4 -q -F -E nodiscard,lazy_itable_init=0,lazy_journal_init=0 DEVICE",
        PEER_MOUNT,
        PEER_UMOUNT,
    ),
    ("xfs", "mkfs.xfs -q -f -K DEVICE", PEER_MOUNT, PEER_UMOUNT),
    ("btrfs", "mkfs.btrfs -q -f -K DEVICE", PEER_MOUNT, PEER_UMOUNT),
];

impl FileSystem {
    /// Runs one of its commands.
    pub fn run(&self, command: &str, device: &Path, mountpoint: &Path) -> Result<(), Error> {
        let mut words = error::words(command);
        for word in &mut words {
            match word.as_str() {
                "DEVICE" => *word = device.display().to_string(),
                "MOUNTPOINT" => *word = mountpoint.display().to_string(),
                _ => {}
            }
        }
        // Beside this program stands the one that was built with it.
        if let Some(own) =
            std::env::current_exe().ok().and_then(|own| own.parent().map(|place| place.join(&words[0])))
            && own.is_file()
        {
            words[0] = own.display().to_string();
        }
        error::run(&words).map(drop)
    }
}

/// Those that were asked for; without a wish all of which this machine has the program and the kernel the driver.
pub fn available(options: &Options) -> Result<Vec<FileSystem>, Error> {
    let known = |name: &str| FILE_SYSTEMS.iter().any(|known| known.0 == name);
    if let Some(name) = options.file_systems.iter().find(|name| !known(name)) {
        return Err(Error::Usage(format!("'{name}' is none of pandofs, ext4, xfs, btrfs")));
    }
    let drivers = Path::new("/proc/filesystems");
    let drivers = error::at("cannot read", drivers, std::fs::read_to_string(drivers))?;
    let mut chosen = Vec::new();
    for (name, format, mount, umount) in FILE_SYSTEMS {
        let ours = name == "pandofs";
        let here = ours || drivers.split_whitespace().any(|driver| driver == name) || load_driver(name);
        if options.file_systems.is_empty() && !here {
            eprintln!("{name} is left out: this kernel does not have it");
        } else if options.file_systems.is_empty() || options.file_systems.iter().any(|wanted| wanted == name)
        {
            let [name, format, mount, umount] = [name, format, mount, umount].map(str::to_owned);
            chosen.push(FileSystem { name, format, mount, umount, ours });
        }
    }
    Ok(chosen)
}

fn load_driver(name: &str) -> bool {
    error::run(&["modprobe", "-q", name].map(str::to_owned)).is_ok()
}
