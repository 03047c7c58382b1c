//! What the commands say about a volume that is mounted. Needs root and /dev/fuse.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::common::Sandbox;

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

/// A loop device, taken apart at the end of the test.
struct Looped(String);

impl Drop for Looped {
    fn drop(&mut self) {
        let _ = Command::new("losetup").arg("--detach").arg(&self.0).status();
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

/// A volume was written by two processes: mounted through a loop device, and used as a file.
#[test]
fn an_image_that_a_loop_device_is_over_is_used_through_that_alone() {
    let sandbox = Sandbox::with_volume();
    let Some(mounted) =
        Mounted::new(&sandbox, "an_image_that_a_loop_device_is_over_is_used_through_that_alone")
    else {
        return;
    };
    let attached =
        Command::new("losetup").args(["--find", "--show"]).arg(sandbox.path("v.img")).output().unwrap();
    if !attached.status.success() {
        println!("SKIPPED an_image_that_a_loop_device_is_over_is_used_through_that_alone: losetup refused");
        return mounted.unmount();
    }
    let attached = Looped(String::from_utf8(attached.stdout).unwrap().trim().to_owned());
    let looped = attached.0.clone();
    let inside = format!("{looped}:/");
    sandbox.refused(["ls", &inside], 1, &[&looped, "the file behind it, is mounted on"]);
    fs::create_dir(sandbox.path("other")).unwrap();
    sandbox.refused(["mount", &looped, "other"], 1, &[&looped, "the file behind it, is mounted on"]);
    mounted.unmount();
    for args in [
        &["mkdir", "v.img:/a"][..],
        &["ls", "v.img:/"],
        &["mount", "v.img", "other"],
        &["format", "-f", "v.img"],
    ] {
        sandbox.refused(args, 1, &["v.img", "it is attached to", &looped]);
    }
    sandbox.ok(["mkdir", &format!("{looped}:/a")]);
    sandbox.ok(["mount", &looped, "other"]);
    sandbox.refused(["mkdir", "v.img:/b"], 1, &["it is attached to", &looped]);
    sandbox.ok(["umount", "other"]);
    // The kernel keeps it as long as somebody has it open, as udev does for a moment.
    let looked_at = fs::File::open(&looped).unwrap();
    drop(attached);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            std::thread::sleep(Duration::from_millis(300));
            drop(looked_at);
        });
        assert_eq!(sandbox.lines(["ls", "v.img:/"]), ["a"]);
    });
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

#[test]
fn snapshots_are_taken_and_gone_back_to_while_a_volume_is_mounted_and_when_it_is_not() {
    let sandbox = Sandbox::with_volume();
    let name = "snapshots_are_taken_and_gone_back_to_while_a_volume_is_mounted_and_when_it_is_not";
    let Some(mounted) = Mounted::new(&sandbox, name) else { return };
    let at = |path: &str| mounted.mountpoint.join(path);
    let read = |path: &str| fs::read_to_string(at(path)).ok();
    fs::write(at("f"), "first").unwrap();
    assert_eq!(read(".snapshots/one/f"), None);
    sandbox.ok(["snapshot", "create", "mnt", "one"]);
    fs::write(at("f"), "second").unwrap();
    fs::write(at("g"), "new").unwrap();
    assert_eq!(read(".snapshots/one/f").as_deref(), Some("first"));
    assert_eq!(read(".snapshots/one/g"), None);
    assert_eq!(fs::write(at(".snapshots/one/f"), "x").unwrap_err().raw_os_error(), Some(30));
    assert_eq!(fs::create_dir(at(".snapshots/two")).unwrap_err().raw_os_error(), Some(30));
    sandbox.refused(["snapshot", "create", "mnt", "one"], 1, &["one of mnt", "already"]);
    sandbox.ok(["snapshot", "create", "mnt", "later"]);
    sandbox.ok(["snapshot", "rollback", "mnt", "one"]);
    assert_eq!(read("f").as_deref(), Some("first"));
    assert_eq!(read("g"), None);
    sandbox.ok(["snapshot", "rollback", "mnt", "later"]);
    assert_eq!(read("f").as_deref(), Some("second"));
    assert_eq!(read("g").as_deref(), Some("new"));
    sandbox.ok(["snapshot", "delete", "mnt", "later"]);
    // What a snapshot is called says nothing about what it was called before.
    sandbox.ok(["snapshot", "create", "mnt", "two"]);
    sandbox.ok(["snapshot", "delete", "mnt", "one"]);
    assert_eq!(read(".snapshots/one/f"), None);
    sandbox.ok(["snapshot", "create", "mnt", "one"]);
    assert_eq!(read(".snapshots/one/f").as_deref(), Some("second"));
    let mut names: Vec<_> = fs::read_dir(at(".snapshots"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["one", "two"]);
    assert!(
        fs::read_dir(&mounted.mountpoint).unwrap().all(|entry| entry.unwrap().file_name() != ".snapshots")
    );
    sandbox.ok(["clone", "mnt/.snapshots/one", "mnt/whole"]);
    assert_eq!(read("whole/f").as_deref(), Some("second"));
    let listed = sandbox.json(["snapshot", "list", "--json", "mnt"]);
    assert_eq!((&listed[0]["name"], &listed[1]["name"]), (&"two".into(), &"one".into()));
    fs::remove_file(at("f")).unwrap();
    mounted.unmount();
    sandbox.check("v.img");
    assert_eq!(sandbox.ok(["cat", "v.img:/.snapshots/two/f"]), b"second");
    sandbox.ok(["snapshot", "rollback", "v.img", "two"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/f"]), b"second");
    assert_eq!(sandbox.lines(["ls", "v.img:/"]), ["f", "g"]);
    sandbox.refused(["snapshot", "rollback", "v.img", "none"], 1, &["no such snapshot"]);
    sandbox.ok(["snapshot", "delete", "v.img", "two"]);
    sandbox.ok(["snapshot", "delete", "v.img", "one"]);
    assert_eq!(sandbox.lines(["snapshot", "list", "v.img"]), [""; 0]);
    sandbox.check("v.img");
}
