//! What the commands say about a volume that is mounted. Needs root and /dev/fuse.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use common::Sandbox;

/// Unmounts on every way out of a test.
struct Mounted<'a> {
    sandbox: &'a Sandbox,
    mountpoint: PathBuf,
}

impl<'a> Mounted<'a> {
    /// `None` where nothing can be mounted; that is said aloud.
    fn new(sandbox: &'a Sandbox, test: &str) -> Option<Self> {
        if !Path::new("/dev/fuse").exists() || !rustix::process::geteuid().is_root() {
            println!("SKIPPED {test}: needs root and /dev/fuse");
            return None;
        }
        let mountpoint = sandbox.path("mnt");
        fs::create_dir(&mountpoint).unwrap();
        sandbox.ok(["mount", "v.img", "mnt"]);
        Some(Self { sandbox, mountpoint })
    }
}

impl Mounted<'_> {
    /// Unmounts, which must work: nothing uses the mount any more.
    fn unmount(self) {
        self.sandbox.ok(["umount", "mnt"]);
    }
}

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = Command::new("umount").arg("-l").arg(&self.mountpoint).stderr(Stdio::null()).status();
        }
    }
}

#[test]
fn a_mounted_volume_is_refused_by_its_mount_point() {
    let sandbox = Sandbox::with_volume();
    let Some(mounted) = Mounted::new(&sandbox, "a_mounted_volume_is_refused_by_its_mount_point") else {
        return;
    };
    let mountpoint = mounted.mountpoint.to_str().unwrap();
    let advice = format!("pando umount {mountpoint}");
    sandbox.refused(["ls", "v.img:/"], 1, &["v.img is mounted on", &advice]);
    sandbox.refused(["mkdir", "v.img:/a"], 1, &["v.img is mounted on", &advice]);
    sandbox.refused(["format", "--force", "v.img"], 1, &["v.img is mounted on", &advice]);
    sandbox.refused(["check", "v.img"], 2, &["v.img is mounted on", &advice]);
    sandbox.refused(["mount", "v.img", "mnt"], 1, &["v.img"]);
    mounted.unmount();
    sandbox.check("v.img");
}

#[test]
fn a_mount_shows_its_state_and_its_counters() {
    let sandbox = Sandbox::with_volume();
    let Some(mounted) = Mounted::new(&sandbox, "a_mount_shows_its_state_and_its_counters") else { return };
    fs::write(mounted.mountpoint.join("f"), vec![b'x'; 100_000]).unwrap();
    let stats = sandbox.json(["stats", "--json", "mnt"]);
    assert!(stats["batches"].as_u64() > Some(0), "{stats}");
    assert!(stats["bytes_in"].as_u64() >= Some(100_000), "{stats}");
    for place in ["mnt", "v.img"] {
        let info = sandbox.json(["info", "--json", place]);
        assert_eq!(info["mountpoint"].as_str(), mounted.mountpoint.to_str());
        assert_eq!(info["size"], 256 << 20);
    }
    mounted.unmount();
    assert_eq!(sandbox.json(["info", "--json", "v.img"])["clean"], true);
    assert_eq!(sandbox.ok(["cat", "v.img:/f"]).len(), 100_000);
    sandbox.refused(["stats", "mnt"], 1, &["no PandoFS volume is mounted there"]);
    sandbox.refused(["umount", "mnt"], 1, &["no PandoFS volume is mounted there"]);
}
