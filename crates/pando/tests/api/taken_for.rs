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
    place.pando(&["format", "--force", "volume"]).expect_success();
    // One of the user to whom the volume belongs is believed.
    std::os::unix::fs::chown(path("volume"), Some(65_534), None).unwrap();
    place.pando(&["format", "--force", "volume"]).expect_failure(1, "it is mounted on");
    pando_fuse::mount_point::unmount(Path::new(&path("false")), true).unwrap();
}
