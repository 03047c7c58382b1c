//! Snapshots mounted alone, beside their volume and without it. Needs root and /dev/fuse.

use std::fs;
use std::os::unix::fs::symlink;

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
