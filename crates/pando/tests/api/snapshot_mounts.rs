//! Snapshots mounted alone, beside their volume and without it. Needs root and /dev/fuse.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use pando_device::{Access, FileDevice};

use crate::mount::Place;

/// The volume was taken for unmounted, and whoever unmounted the snapshot waited for its end.
#[test]
fn a_snapshot_is_unmounted_while_its_volume_is_mounted_elsewhere() {
    let Some(place) = Place::new("a_snapshot_is_unmounted_while_its_volume_is_mounted_elsewhere") else {
        return;
    };
    place.mount();
    let [bound, snapshot] = ["bound", "snapshot"].map(|name| place.directory.path().join(name));
    fs::create_dir(&bound).unwrap();
    fs::create_dir(&snapshot).unwrap();
    place.pando(&["snapshot", "create", "mnt", "taken"]).expect_success();
    place.pando(&["mount", "-o", "snapshot=taken", "volume", "snapshot"]).expect_success();
    // They changed the volume, and left out what its own mount had not written.
    for change in [
        &["create", "snapshot", "other"][..],
        &["delete", "snapshot", "taken"],
        &["rollback", "snapshot", "taken"],
    ] {
        place
            .pando(&[&["snapshot"], change].concat())
            .expect_failure(1, "name the mount point of the volume");
    }
    rustix::mount::mount_bind(place.mountpoint(), &bound).unwrap();
    pando_fuse::mount_point::unmount(&place.mountpoint(), false).unwrap();
    place.pando(&["umount", "snapshot"]).expect_success();
    assert_eq!(place.mountpoints(), [bound]);
    place.pando(&["umount", "bound"]).expect_success();
}

/// Each `mount -a` put another mount over the one before.
#[test]
fn a_snapshot_is_mounted_once_at_a_place() {
    let Some(place) = Place::new("a_snapshot_is_mounted_once_at_a_place") else { return };
    let mount = place.directory.path().join("mount.fuse.pando");
    symlink(env!("CARGO_BIN_EXE_pando"), &mount).unwrap();
    fs::create_dir(place.directory.path().join("snapshot")).unwrap();
    place.pando(&["snapshot", "create", "volume", "taken"]).expect_success();
    place.pando(&["snapshot", "create", "volume", "other"]).expect_success();
    let by_helper = |name: &str| {
        let option = format!("rw,snapshot={name}");
        place.run(&mount, &["volume", "snapshot", "-o", &option]).expect_success();
    };
    // By a daemon of its own, then by that of the volume.
    for is_mounted in [false, true] {
        if is_mounted {
            place.mount();
        }
        by_helper("taken");
        let mounted = place.mountpoints();
        by_helper("taken");
        assert_eq!(place.mountpoints(), mounted);
        place
            .pando(&["mount", "-o", "snapshot=taken", "volume", "snapshot"])
            .expect_failure(1, "taken of volume is mounted on snapshot already");
        assert_eq!(place.mountpoints(), mounted);
        // Another one is another mount.
        by_helper("other");
        assert_eq!(place.mountpoints().len(), mounted.len() + 1);
        for _ in 0..2 {
            place.pando(&["umount", "snapshot"]).expect_success();
        }
    }
    place.unmount();
}

/// Of two lines of /etc/fstab, which are mounted at the same time, one failed.
#[test]
fn a_snapshot_waits_for_the_mount_of_its_volume_that_is_under_way() {
    let Some(place) = Place::new("a_snapshot_waits_for_the_mount_of_its_volume_that_is_under_way") else {
        return;
    };
    fs::create_dir(place.directory.path().join("snapshot")).unwrap();
    place.pando(&["snapshot", "create", "volume", "taken"]).expect_success();
    let arguments = ["mount", "-o", "snapshot=taken", "volume", "snapshot"];
    // As a daemon does that replays the log.
    let held = FileDevice::open(place.directory.path().join("volume"), Access::Exclusive).unwrap();
    let mut mounting = place.command(Path::new(env!("CARGO_BIN_EXE_pando")), &arguments);
    let mut mounting = mounting.stderr(Stdio::piped()).spawn().unwrap();
    // Longer than anybody waits for a passing use.
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(mounting.try_wait().unwrap(), None, "it does not wait");
    drop(held);
    let mounted = mounting.wait_with_output().unwrap();
    assert!(mounted.status.success(), "{}", String::from_utf8_lossy(&mounted.stderr));
    // It came first; the other way round they cannot be.
    place.pando(&["mount", "volume", "mnt"]).expect_failure(1, "mount it after the volume");
    place.pando(&["umount", "snapshot"]).expect_success();
    place.mount();
    place.pando(&arguments).expect_success();
    place.pando(&["umount", "snapshot"]).expect_success();
    place.unmount();
}
