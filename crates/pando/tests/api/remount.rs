//! Mount options that the kernel keeps, from the mount on and changed by `mount -o remount`. Needs root and /dev/fuse.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;

use rustix::process::{Resource, Rlimit};
use serde_json::Value;

use crate::mount::Place;

/// What the kernel does not see went on: clones, snapshots, what is received.
#[test]
fn a_volume_that_is_remounted_read_only_takes_no_changes_at_all() {
    let Some(place) = Place::new("a_volume_that_is_remounted_read_only_takes_no_changes_at_all") else {
        return;
    };
    let mount = place.directory.path().join("mount.fuse.pando");
    symlink(env!("CARGO_BIN_EXE_pando"), &mount).unwrap();
    let remount = |option: &str| place.run(&mount, &["volume", "mnt", "-o", &format!("remount,{option}")]);
    let changes = [
        &["clone", "mnt/file", "mnt/copy"][..],
        &["snapshot", "create", "mnt", "taken"],
        &["snapshot", "rollback", "mnt", "first"],
        &["snapshot", "delete", "mnt", "first"],
    ];
    place.mount();
    fs::write(place.file(), "kept").unwrap();
    place.pando(&["snapshot", "create", "mnt", "first"]).expect_success();
    // In use for writing it stays what it is.
    let file = File::options().append(true).open(place.file()).unwrap();
    remount("ro").expect_failure(32, "is in use");
    drop(file);
    place.pando(&["clone", "mnt/file", "mnt/other"]).expect_success();
    remount("ro").expect_success();
    for change in changes {
        place.pando(change).expect_failure(1, "read-only");
    }
    remount("rw").expect_success();
    for change in changes {
        place.pando(change).expect_success();
    }
    place.unmount();
}

/// The kernel could let changes through that the daemon refused, or the reverse.
#[test]
fn remounts_in_opposite_directions_leave_kernel_and_daemon_of_one_mind() {
    let Some(place) = Place::new("remounts_in_opposite_directions_leave_kernel_and_daemon_of_one_mind")
    else {
        return;
    };
    let mount = place.directory.path().join("mount.fuse.pando");
    symlink(env!("CARGO_BIN_EXE_pando"), &mount).unwrap();
    place.mount();
    fs::write(place.file(), "kept").unwrap();
    let mountpoint = place.mountpoint().canonicalize().unwrap();
    for round in 0..40 {
        let options = ["remount,ro", "remount,rw", "remount,ro", "remount,rw"];
        let start = |option| place.command(&mount, &["volume", "mnt", "-o", option]).spawn().unwrap();
        for mut remounting in options.map(start) {
            assert!(remounting.wait().unwrap().success());
        }
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mountinfo.lines().find(|line| line.split(' ').nth(4) == mountpoint.to_str()).unwrap();
        let is_read_only = line.rsplit(' ').next().unwrap().split(',').any(|option| option == "ro");
        let cloned = place.pando(&["clone", "mnt/file", &format!("mnt/copy{round}")]);
        let is_refused = cloned.status() != 0;
        assert_eq!(is_refused, is_read_only, "{line}: {}", cloned.stderr());
    }
    place.unmount();
}

/// It was told of in one line of the log, and nowhere else.
#[test]
fn a_volume_that_takes_no_changes_any_more_says_so() {
    let Some(place) = Place::new("a_volume_that_takes_no_changes_any_more_says_so") else { return };
    let remount = place.directory.path().join("mount.fuse.pando");
    symlink(env!("CARGO_BIN_EXE_pando"), &remount).unwrap();
    // Else it would be killed by a write beyond the limit that is set below.
    let mount = ["-c", "trap '' XFSZ && exec \"$0\" mount volume mnt", env!("CARGO_BIN_EXE_pando")];
    place.run(Path::new("sh"), &mount).expect_success();
    let json = |command: &str| {
        let output = place.pando(&[command, "--json", "mnt"]).output;
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["failure"].clone()
    };
    assert_eq!((json("info"), json("stats")), (Value::Null, Value::Null));
    let limit = Rlimit { current: Some(0), maximum: Some(0) };
    rustix::process::prlimit(Some(place.daemon()), Resource::Fsize, limit).unwrap();
    let file = File::create(place.file()).unwrap();
    file.sync_all().unwrap_err();
    assert!(json("info").as_str().unwrap().contains("the log could not be written: "), "{}", json("info"));
    assert_eq!(json("stats"), json("info"));
    let said = |arguments: &[&str]| String::from_utf8(place.pando(arguments).output.stdout).unwrap();
    assert!(
        said(&["info", "mnt"]).contains("/mnt; it takes no changes any more: "),
        "{}",
        said(&["info", "mnt"])
    );
    assert!(said(&["stats", "mnt"]).contains("failure: "), "{}", said(&["stats", "mnt"]));
    let refused = place.run(&remount, &["volume", "mnt", "-o", "remount,rw"]);
    refused.expect_failure(32, "the volume takes no changes any more: ");
    drop(file);
    place.pando(&["umount", "mnt"]).expect_failure(1, "could not be closed");
}

/// They were refused, also by a remount that took the one from what is mounted.
#[test]
fn what_mount_takes_for_any_file_system_is_taken() {
    let Some(place) = Place::new("what_mount_takes_for_any_file_system_is_taken") else { return };
    let mount = place.directory.path().join("mount.fuse.pando");
    symlink(env!("CARGO_BIN_EXE_pando"), &mount).unwrap();
    let options = "rw,lazytime,nosymfollow,iversion,silent";
    place.run(&mount, &["volume", "mnt", "-o", options]).expect_success();
    // As the kernel lists them: of the mount, and of the file system.
    let shown = || {
        let mountpoint = place.mountpoint().canonicalize().unwrap();
        let mountinfo = fs::read_to_string("/proc/self/mountinfo").unwrap();
        let line = mountinfo.lines().find(|line| line.split(' ').nth(4) == mountpoint.to_str()).unwrap();
        let fields: Vec<_> = line.split(' ').collect();
        format!("{},{}", fields[5], fields.last().unwrap())
    };
    let has = |name: &str| shown().split(',').any(|option| option == name);
    assert!(has("lazytime") && has("nosymfollow") && !has("noatime"), "{}", shown());
    let remount = |more: &str| {
        let options = format!("remount,{},{more}", shown());
        place.run(&mount, &["volume", "mnt", "-o", &options]).expect_success();
    };
    remount("noatime");
    assert!(has("lazytime") && has("nosymfollow") && has("noatime"), "{}", shown());
    remount("nolazytime,symfollow");
    assert!(!has("lazytime") && !has("nosymfollow") && has("noatime"), "{}", shown());
    place.unmount();
}
