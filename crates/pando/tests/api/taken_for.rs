//! What a command takes for the mount of a volume, where the path alone would tell it wrong. Needs root and /dev/fuse.

use std::ffi::CString;
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;

use rustix::mount::MountFlags;
use serde_json::Value;

use crate::mount::Place;

fn info(place: &Place, path: &str) -> Value {
    let shown = place.pando(&["info", "--json", path]);
    shown.expect_success();
    serde_json::from_str(&shown.stdout()).unwrap()
}

/// The old volume's snapshot was mounted, and the new one was shown with the space of the old one.
#[test]
fn what_has_come_to_the_path_of_a_mounted_volume_is_not_that_volume() {
    let Some(place) = Place::new("what_has_come_to_the_path_of_a_mounted_volume_is_not_that_volume") else {
        return;
    };
    let path = |name: &str| place.directory.path().join(name);
    place.mount();
    place.pando(&["snapshot", "create", "mnt", "monday"]).expect_success();
    fs::create_dir(path("media")).unwrap();
    fs::rename(path("volume"), path("old")).unwrap();
    place.pando(&["info", "mnt"]).expect_failure(1, "it is not what is at");
    place.pando(&["format", "--size", "64M", "volume"]).expect_success();
    let snapshot = ["mount", "-o", "snapshot=monday", "volume", "media"];
    place.pando(&snapshot).expect_failure(1, "there is no snapshot monday");
    place.pando(&["info", "mnt"]).expect_failure(1, "it is not what is at");
    let shown = info(&place, "volume");
    assert_eq!((&shown["mountpoint"], &shown["clean"]), (&Value::Null, &true.into()));
    // A mount at the same place is another one.
    place.pando(&["mount", "volume", "mnt"]).expect_success();
    assert_eq!(place.mountpoints().len(), 2);
    assert!(info(&place, "mnt")["size"] == 64 << 20);
    place.unmount();
    fs::rename(path("old"), path("volume")).unwrap();
    place.pando(&snapshot).expect_success();
    assert_eq!(info(&place, "volume")["mountpoint"], *path("mnt").canonicalize().unwrap().to_str().unwrap());
    assert_eq!(info(&place, "media")["size"], 256 << 20);
    place.pando(&["umount", "media"]).expect_success();
    place.unmount();
}

/// Whose FUSE says that it is of root's volume kept root from using that, and was shown as its mount.
#[test]
fn any_user_s_mount_is_not_that_of_root_s_volume() {
    let Some(place) = Place::new("any_user_s_mount_is_not_that_of_root_s_volume") else { return };
    let path = |name: &str| place.directory.path().join(name);
    place.pando(&["snapshot", "create", "volume", "monday"]).expect_success();
    for name in ["media", "false"] {
        fs::create_dir(path(name)).unwrap();
    }
    // As fusermount3 mounts it for a user.
    let device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
    let options = format!("fd={},rootmode=40000,user_id=65534,group_id=65534", device.as_raw_fd());
    let options = CString::new(options).unwrap();
    let source = path("volume").canonicalize().unwrap();
    rustix::mount::mount(&source, path("false"), "fuse.pando", MountFlags::empty(), &*options).unwrap();
    let shown = info(&place, "volume");
    assert_eq!((&shown["mountpoint"], &shown["clean"]), (&Value::Null, &true.into()));
    place.pando(&["mount", "-o", "snapshot=monday", "volume", "media"]).expect_success();
    place.pando(&["umount", "media"]).expect_success();
    place.pando(&["format", "volume"]).expect_failure(1, "it is mounted on");
    place.pando(&["format", "--force", "volume"]).expect_success();
    // One of the user to whom the volume belongs is believed.
    std::os::unix::fs::chown(path("volume"), Some(65_534), None).unwrap();
    place.pando(&["format", "--force", "volume"]).expect_failure(1, "it is mounted on");
    pando_fuse::mount_point::unmount(Path::new(&path("false")), true).unwrap();
}
