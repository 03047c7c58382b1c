//! Runs in which nothing can be measured.
#![forbid(unsafe_code)]

use std::fs::{self, File};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Output};

const PROGRAM: &str = env!("CARGO_BIN_EXE_pando-bench");

fn run_in(directory: &Path, command: &mut Command, arguments: &[&str]) -> Output {
    command.args(arguments).arg("--directory").arg(directory).current_dir(directory).output().unwrap()
}

/// Each row of a group formatted anew and wrote the large file up to where the space had ended before.
#[test]
fn what_could_not_be_made_for_a_row_is_not_tried_for_the_next() {
    let directory = tempfile::tempdir().unwrap();
    let mut shell = Command::new("sh");
    // Its limit, 4 MiB at most, is smaller than the file.
    shell.args(["-c", "trap '' XFSZ; ulimit -f 4096; exec \"$@\"", "sh", PROGRAM]);
    let on = directory.path().to_str().unwrap();
    let ran =
        run_in(directory.path(), &mut shell, &["--on", on, "--size", "8M", "--rows", "cold-read,random-4k"]);
    let said = String::from_utf8_lossy(&ran.stderr);
    let failures: Vec<_> = said.lines().filter_map(|line| line.split_once(" FAILED: ")).collect();
    let [(_, first), (row, second)] = failures[..] else { panic!("{said}") };
    assert!(first.contains("File too large"), "{said}");
    assert!(row.contains("random-4k") && second == "what it needs could not be made for cold-read", "{said}");
}

#[test]
fn a_run_that_measured_nothing_stores_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let ran = run_in(
        directory.path(),
        Command::new(PROGRAM).arg("--inside"),
        &[
            "--file-system",
            "other=true;true;true",
            "--fs",
            "other",
            "--device",
            "/dev/null",
            "--erase-device",
            "--rows",
            "rm",
        ],
    );
    let said = String::from_utf8_lossy(&ran.stderr);
    assert!(!ran.status.success() && said.contains("/dev/null is not a block device"), "{said}");
    assert_eq!(directory.path().read_dir().unwrap().count(), 0);
}

fn small_run(on: &Path, directory: &Path, rows: &str) -> Output {
    let mut run = Command::new(PROGRAM);
    run.arg("--on").arg(on).arg("--directory").arg(directory).args(["--rows", rows]);
    run.args(["--files", "10", "--size", "1M", "--memory", "0"]);
    run.current_dir(on.parent().unwrap()).output().unwrap()
}

fn said(ran: &Output) -> String {
    String::from_utf8_lossy(&ran.stderr).into_owned()
}

/// Somebody's checkout in the directory that was given was deleted before the first row.
#[test]
fn what_others_have_in_the_place_of_a_run_stays() {
    let parent = tempfile::tempdir().unwrap();
    let [on, directory] = ["on", "own"].map(|name| parent.path().join(name));
    let theirs = [on.join("pando-bench"), directory.join("pando-bench-scratch")];
    for place in &theirs {
        fs::create_dir_all(place).unwrap();
        fs::write(place.join("theirs"), "work").unwrap();
        let ran = small_run(&on, &directory, "cold-read");
        assert!(!ran.status.success() && said(&ran).contains("was not made by a run"), "{}", said(&ran));
        assert_eq!(fs::read_to_string(place.join("theirs")).unwrap(), "work");
        fs::remove_file(place.join("theirs")).unwrap();
    }
    // What is empty is nobody's loss.
    let ran = small_run(&on, &directory, "cold-read");
    assert!(ran.status.success(), "{}", said(&ran));
    assert!(theirs.iter().all(|place| !place.exists()));
}

#[test]
fn a_directory_is_for_one_run_at_a_time() {
    let parent = tempfile::tempdir().unwrap();
    let [on, directory] = ["on", "own"].map(|name| parent.path().join(name));
    fs::create_dir(&on).unwrap();
    for place in [&on, &directory] {
        fs::create_dir_all(place).unwrap();
        let lock = File::open(place).unwrap();
        lock.lock().unwrap();
        let ran = small_run(&on, &directory, "cold-read");
        assert!(!ran.status.success() && said(&ran).contains("another run uses "), "{}", said(&ran));
    }
}

/// It was made, on whatever file system was there.
#[test]
fn a_directory_that_is_not_there_is_not_measured() {
    let parent = tempfile::tempdir().unwrap();
    let missing = parent.path().join("mnt");
    let ran = small_run(&missing, &parent.path().join("own"), "cold-read");
    assert!(!ran.status.success() && said(&ran).contains("is not a directory"), "{}", said(&ran));
    assert_eq!(parent.path().read_dir().unwrap().count(), 0);
}

/// The report could not be written.
#[test]
fn the_directory_of_a_run_is_made() {
    let parent = tempfile::tempdir().unwrap();
    let [on, new, other] = ["on", "new", "other"].map(|name| parent.path().join(name));
    fs::create_dir(&on).unwrap();
    let ran = small_run(&on, &new, "small-files");
    assert!(ran.status.success() && new.join("report.html").is_file(), "{}", said(&ran));
    let stored = parent.path().join("bench-results").read_dir().unwrap().next().unwrap().unwrap().path();
    let mut again = Command::new(PROGRAM);
    let ran = again.arg("--from").arg(stored).arg("--directory").arg(&other).output().unwrap();
    assert!(ran.status.success() && other.join("report.html").is_file(), "{}", said(&ran));
}

#[test]
fn a_wish_that_nothing_meets_is_an_error() {
    let parent = tempfile::tempdir().unwrap();
    let on = parent.path().join("on");
    fs::create_dir(&on).unwrap();
    for (rows, what) in [("untarr", "'untarr' is no row"), ("natural-transfer-size", "nothing to run")] {
        let ran = small_run(&on, &parent.path().join("own"), rows);
        assert!(!ran.status.success() && said(&ran).contains(what), "{}", said(&ran));
        assert!(!parent.path().join("bench-results").exists());
    }
}

/// A tree to take the Linux source's place, as an archive in the directory of a run.
fn archive(parent: &Path, directory: &Path) {
    let source = parent.join("linux-source-1");
    for part in ["fs", "mm", "kernel", "block", "lib"] {
        let part = source.join(part);
        fs::create_dir_all(&part).unwrap();
        (0..8).for_each(|number| fs::write(part.join(format!("{number}.c")), [b'x'; 50_000]).unwrap());
    }
    fs::create_dir_all(directory).unwrap();
    let mut tar = Command::new("tar");
    tar.arg("-C").arg(parent).arg("-cf").arg(directory.join("linux.tar")).arg("linux-source-1");
    assert!(tar.status().unwrap().success());
}

/// The status of the pipe was that of its last program.
#[test]
fn a_tar_that_fails_behind_its_last_byte_has_failed() {
    let parent = tempfile::tempdir().unwrap();
    let [on, directory, programs] = ["on", "own", "bin"].map(|name| parent.path().join(name));
    archive(parent.path(), &directory);
    [&on, &programs].into_iter().for_each(|place| fs::create_dir(place).unwrap());
    assert!(small_run(&on, &directory, "cold-tar").status.success());
    let found = Command::new("sh").args(["-c", "command -v tar"]).output().unwrap().stdout;
    let tar = programs.join("tar");
    let text = format!(
        "#!/bin/sh\n{} \"$@\" || exit\ncase $1 in -cf) echo it broke >&2; exit 2;; esac\n",
        String::from_utf8(found).unwrap().trim()
    );
    fs::write(&tar, text).unwrap();
    fs::set_permissions(&tar, fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", programs.display(), std::env::var("PATH").unwrap());
    let [on, directory] = [&on, &directory].map(|path| path.to_str().unwrap());
    let mut run = Command::new(PROGRAM);
    run.args(["--on", on, "--directory", directory, "--memory", "0", "--rows", "cold-tar"]);
    let ran = run.env("PATH", path).current_dir(parent.path()).output().unwrap();
    assert!(said(&ran).contains("FAILED: 'tar -cf - .': exit status: 2: it broke"), "{}", said(&ran));
}

/// A user's configuration was read, which may have commits signed.
#[test]
fn git_has_no_configuration_but_that_of_the_rows() {
    let parent = tempfile::tempdir().unwrap();
    let [on, directory] = ["on", "own"].map(|name| parent.path().join(name));
    archive(parent.path(), &directory);
    fs::create_dir(&on).unwrap();
    fs::write(parent.path().join(".gitconfig"), "[commit]\ngpgsign = true\n[gpg]\nprogram = false\n")
        .unwrap();
    let [on, directory] = [&on, &directory].map(|path| path.to_str().unwrap());
    let mut run = Command::new(PROGRAM);
    run.args(["--on", on, "--directory", directory, "--memory", "0", "--rows", "git-"]);
    let ran = run.env("HOME", parent.path()).current_dir(parent.path()).output().unwrap();
    assert!(ran.status.success() && !said(&ran).contains("FAILED"), "{}", said(&ran));
}

/// It was formatted under those who use it.
#[test]
fn a_device_in_use_is_not_overwritten() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    fs::write(&image, vec![7; 1 << 20]).unwrap();
    let attached = Command::new("losetup").args(["--find", "--show"]).arg(&image).output();
    let Some(attached) = attached.ok().filter(|attached| attached.status.success()) else {
        return eprintln!("left out: no loop device can be had");
    };
    let device = String::from_utf8(attached.stdout).unwrap().trim().to_owned();
    // As a mount claims it.
    let claim = File::options().read(true).custom_flags(rustix::fs::OFlags::EXCL.bits() as i32).open(&device);
    assert!(Command::new("losetup").args(["--detach", &device]).status().unwrap().success());
    let claim = claim.unwrap();
    let mut run = Command::new(PROGRAM);
    run.args(["--inside", "--file-system", "other=dd if=/dev/zero of=DEVICE bs=4096 count=1;true;true"]);
    let ran = run_in(
        directory.path(),
        &mut run,
        &["--fs", "other", "--device", &device, "--erase-device", "--rows", "rm"],
    );
    assert!(!ran.status.success() && said(&ran).contains("is in use"), "{}", said(&ran));
    drop(claim);
    assert!(fs::read(&image).unwrap().iter().all(|byte| *byte == 7));
}
