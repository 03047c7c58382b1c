//! `pando mount`, `umount` and the daemon, as a user and mount(8) meet them.
//!
//! Each test has its own directory and unmounts whatever way it ends. Commands are stopped after a time-out by
//! timeout(1), so that a hang is a failure with a name.

use std::fs::{self, File, Permissions};
use std::io::{BufRead, BufReader, PipeWriter, Write};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::fs::SeekFrom;
use rustix::process::{Pid, PidfdFlags, Signal};
use serde_json::Value;
use tempfile::TempDir;

const TIME_OUT: Duration = Duration::from_secs(600);

/// A volume and a directory to mount it on.
pub struct Place {
    pub directory: TempDir,
}

impl Place {
    /// `None`, said aloud, where nothing can be mounted.
    pub fn new(test: &str) -> Option<Self> {
        let fuse = File::options().read(true).write(true).open("/dev/fuse");
        if fuse.is_err() || !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED {test}: it needs /dev/fuse and root");
            return None;
        }
        let place = Self { directory: TempDir::new().unwrap() };
        fs::create_dir(place.mountpoint()).unwrap();
        place.pando(&["format", "--size", "256M", "volume"]).expect_success();
        Some(place)
    }

    pub fn mountpoint(&self) -> PathBuf {
        self.directory.path().join("mnt")
    }

    pub fn file(&self) -> PathBuf {
        self.mountpoint().join("file")
    }

    pub fn command(&self, program: &Path, arguments: &[&str]) -> Command {
        let mut command = Command::new("timeout");
        command.arg("--kill-after=5").arg(TIME_OUT.as_secs().to_string()).arg(program).args(arguments);
        command.current_dir(self.directory.path());
        command
    }

    pub fn run(&self, program: &Path, arguments: &[&str]) -> Ended {
        let output = self.command(program, arguments).output().unwrap();
        Ended { line: arguments.join(" "), output }
    }

    pub fn pando(&self, arguments: &[&str]) -> Ended {
        self.run(Path::new(env!("CARGO_BIN_EXE_pando")), arguments)
    }

    pub fn mount(&self) {
        self.pando(&["mount", "volume", "mnt"]).expect_success();
    }

    /// Mounts with a daemon that writes to standard error what it has to say.
    pub fn mount_in_foreground(&self, stderr: Stdio) -> Child {
        self.mount_by(env!("CARGO_BIN_EXE_pando"), &[], stderr)
    }

    /// The same through another program.
    fn mount_by(&self, program: &str, arguments: &[&str], stderr: Stdio) -> Child {
        let mut command = Command::new(program);
        command.args(arguments).args(["mount", "--foreground", "volume", "mnt"]);
        let daemon = command.current_dir(self.directory.path()).stderr(stderr).spawn().unwrap();
        let started = Instant::now();
        while !self.is_mounted() {
            assert!(started.elapsed() < TIME_OUT, "the mount does not come");
            std::thread::yield_now();
        }
        // It answers behind what catches signals.
        fs::write(self.file(), "kept").unwrap();
        daemon
    }

    pub fn unmount(&self) {
        self.pando(&["umount", "mnt"]).expect_success();
    }

    /// Whether the volume, which is not mounted, was closed.
    pub fn is_clean(&self) -> bool {
        let info = self.pando(&["info", "--json", "volume"]);
        info.expect_success();
        serde_json::from_slice::<Value>(&info.output.stdout).unwrap()["clean"] == true
    }

    /// All that is mounted in its directory.
    pub fn mountpoints(&self) -> Vec<PathBuf> {
        let directory = self.directory.path().canonicalize().unwrap();
        let mounted = pando_fuse::mount_table::mounted().unwrap().into_iter();
        mounted.map(|entry| entry.mountpoint).filter(|path| path.starts_with(&directory)).collect()
    }

    pub fn is_mounted(&self) -> bool {
        pando_fuse::mount_table::mounted_at(&self.mountpoint()).unwrap().is_some()
    }

    /// The process that serves the mount.
    pub fn daemon(&self) -> Pid {
        self.daemon_of(&self.mountpoint())
    }

    fn daemon_of(&self, mountpoint: &Path) -> Pid {
        let entry = pando_fuse::mount_table::mounted_at(mountpoint).unwrap().unwrap();
        let socket = format!("/run/pando/{}.socket", entry.device.replace(':', "-"));
        let mut stream = UnixStream::connect(socket).unwrap();
        stream.write_all(b"{\"request\":\"info\"}\n").unwrap();
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        let answer: Value = serde_json::from_str(&line).unwrap();
        assert_eq!(answer["ok"]["volume"], *self.directory.path().join("volume").to_string_lossy());
        Pid::from_raw(answer["ok"]["pid"].as_i64().unwrap() as i32).unwrap()
    }

    /// Signals the daemon, and waits for its end if it is to end at once.
    pub fn signal(&self, daemon: Pid, signal: Signal, ends: bool) {
        let process = rustix::process::pidfd_open(daemon, PidfdFlags::empty()).unwrap();
        rustix::process::pidfd_send_signal(&process, signal).unwrap();
        if ends {
            wait_for(&process);
        }
        // One of its threads takes the signal and stops the others, which serve meanwhile.
        let started = Instant::now();
        while signal == Signal::STOP && !is_stopped(daemon) {
            assert!(started.elapsed() < TIME_OUT, "the daemon does not stop");
            std::thread::yield_now();
        }
    }
}

fn is_stopped(process: Pid) -> bool {
    let tasks = fs::read_dir(format!("/proc/{}/task", process.as_raw_pid())).unwrap().map(Result::unwrap);
    let mut states = tasks.map(|task| fs::read_to_string(task.path().join("stat")).unwrap_or_default());
    // Behind the name, which may hold anything.
    states.all(|stat| stat.rsplit_once(") ").is_none_or(|(_, rest)| rest.starts_with('T')))
}

/// Waits for the end of a daemon, or for what it says.
fn wait_for(daemon: impl AsFd) {
    let mut ended = [rustix::event::PollFd::new(&daemon, rustix::event::PollFlags::IN)];
    let time_out = rustix::event::Timespec { tv_sec: TIME_OUT.as_secs() as i64, tv_nsec: 0 };
    assert_eq!(
        rustix::event::poll(&mut ended, Some(&time_out)),
        Ok(1),
        "the daemon lives on, and says nothing"
    );
}

/// Tells a daemon in the foreground to end, and returns what it answers.
fn stop(daemon: &mut Child) -> String {
    rustix::process::kill_process(Pid::from_child(daemon), Signal::TERM).unwrap();
    let stderr = daemon.stderr.take().unwrap();
    wait_for(&stderr);
    let mut said = String::new();
    BufReader::new(stderr).read_line(&mut said).unwrap();
    said
}

impl Drop for Place {
    fn drop(&mut self) {
        while let Some(mountpoint) = self.mountpoints().pop() {
            if pando_fuse::mount_point::unmount(&mountpoint, true).is_err() {
                break;
            }
        }
    }
}

pub struct Ended {
    line: String,
    pub output: Output,
}

impl Ended {
    pub fn status(&self) -> i32 {
        self.output.status.code().unwrap_or(-1)
    }

    pub fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.output.stdout).into_owned()
    }

    pub fn stderr(&self) -> String {
        String::from_utf8_lossy(&self.output.stderr).into_owned()
    }

    pub fn expect_success(&self) {
        assert_eq!(self.status(), 0, "{}: {}", self.line, self.stderr());
    }

    /// One sentence on standard error, with these words in it.
    pub fn expect_failure(&self, status: i32, words: &str) {
        assert_eq!(self.status(), status, "{}: {}", self.line, self.stderr());
        assert!(self.stderr().contains(words), "{}: {}", self.line, self.stderr());
    }
}

#[test]
fn a_volume_keeps_its_files_from_mount_to_mount() {
    let Some(place) = Place::new("a_volume_keeps_its_files_from_mount_to_mount") else { return };
    place.mount();
    fs::write(place.file(), "kept").unwrap();
    place.unmount();
    assert!(!place.file().exists());
    // Unmounted means closed: nobody holds the volume any more.
    place.mount();
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "kept");
    place.unmount();
}

#[test]
fn what_was_synced_survives_a_killed_daemon() {
    let Some(place) = Place::new("what_was_synced_survives_a_killed_daemon") else { return };
    place.mount();
    let mut file = File::create(place.file()).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap();
    drop(file);
    // The kernel has all attributes of the root afterwards, and may tell them whoever serves it: a mount was put over the dead one.
    place.run(Path::new("stat"), &["mnt", "mnt"]).expect_success();
    rustix::mount::mount_bind(place.mountpoint(), place.mountpoint()).unwrap();
    place.signal(place.daemon(), Signal::KILL, true);
    // What is dead is replaced, though there are several.
    place.mount();
    assert_eq!(place.mountpoints().len(), 1);
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "synced");
    place.signal(place.daemon(), Signal::KILL, true);
    // Nobody has the volume, and both were refused.
    assert!(!place.is_clean());
    let no_snapshot = place.pando(&["mount", "-o", "snapshot=monday", "volume", "mnt"]);
    no_snapshot.expect_failure(1, "there is no snapshot monday");
    let unmounted = place.pando(&["umount", "mnt"]);
    unmounted.expect_failure(0, "had been killed");
    assert!(!place.is_mounted());
}

/// The kernel leaves it to the file system, and nobody saw to it.
#[test]
fn what_is_to_be_durable_when_it_is_answered_survives_a_killed_daemon() {
    let Some(place) = Place::new("what_is_to_be_durable_when_it_is_answered_survives_a_killed_daemon") else {
        return;
    };
    let at = |name: &str| place.mountpoint().join(name);
    let killed_after = |options: &str, change: &dyn Fn()| {
        place.pando(&["mount", "-o", &format!("{options},commit=60"), "volume", "mnt"]).expect_success();
        change();
        place.signal(place.daemon(), Signal::KILL, true);
    };
    killed_after("dirsync", &|| fs::create_dir(at("made")).unwrap());
    killed_after("dirsync", &|| fs::rename(at("made"), at("renamed")).unwrap());
    killed_after("dirsync", &|| place.pando(&["clone", "mnt/renamed", "mnt/cloned"]).expect_success());
    killed_after("sync", &|| fs::set_permissions(at("renamed"), Permissions::from_mode(0o711)).unwrap());
    killed_after("sync", &|| fs::write(place.file(), "kept").unwrap());
    place.mount();
    assert!(at("cloned").is_dir());
    assert_eq!(fs::metadata(at("renamed")).unwrap().permissions().mode() & 0o777, 0o711);
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "kept");
    place.unmount();
}

#[test]
fn signals_unmount() {
    let Some(place) = Place::new("signals_unmount") else { return };
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        place.mount();
        fs::write(place.file(), "kept").unwrap();
        place.signal(place.daemon(), signal, true);
        assert!(!place.is_mounted());
    }
    // In use, it leaves the tree at once and lives on for who has it open.
    place.mount();
    let file = File::open(place.file()).unwrap();
    let daemon = place.daemon();
    place.signal(daemon, Signal::TERM, false);
    let started = Instant::now();
    while place.is_mounted() {
        assert!(started.elapsed() < TIME_OUT, "the mount stays");
        std::thread::yield_now();
    }
    // It comes along with a SIGTERM, and ended the daemon under them.
    place.signal(daemon, Signal::HUP, false);
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(std::io::read_to_string(&file).unwrap(), "kept");
    drop(file);
    let process = rustix::process::pidfd_open(daemon, PidfdFlags::empty());
    if let Ok(process) = process {
        wait_for(&process);
    }
    // So it does where it comes first. Whoever insists ends it.
    place.mount();
    let file = File::open(place.file()).unwrap();
    let daemon = place.daemon();
    let process = rustix::process::pidfd_open(daemon, PidfdFlags::empty()).unwrap();
    for signal in [Signal::HUP, Signal::TERM] {
        place.signal(daemon, signal, false);
        let mut ended = [rustix::event::PollFd::new(&process, rustix::event::PollFlags::IN)];
        let soon = rustix::event::Timespec { tv_sec: 0, tv_nsec: 300_000_000 };
        assert_eq!(rustix::event::poll(&mut ended, Some(&soon)), Ok(0), "the daemon has ended");
        assert!(!place.is_mounted());
    }
    place.signal(daemon, Signal::TERM, true);
    drop(file);
}

/// The daemon looked for its mount at the path where it had been mounted, and did nothing.
#[test]
fn a_signal_unmounts_what_was_moved_with_its_directory_and_what_is_bound_elsewhere() {
    let test = "a_signal_unmounts_what_was_moved_with_its_directory_and_what_is_bound_elsewhere";
    let Some(place) = Place::new(test) else { return };
    let [before, after, bound] = ["before", "after", "bound"].map(|name| place.directory.path().join(name));
    fs::create_dir_all(before.join("inner")).unwrap();
    fs::create_dir(&bound).unwrap();
    place.pando(&["mount", "volume", "before/inner"]).expect_success();
    fs::write(before.join("inner/file"), "kept").unwrap();
    fs::rename(&before, &after).unwrap();
    rustix::mount::mount_bind(after.join("inner"), &bound).unwrap();
    place.signal(place.daemon_of(&after.join("inner")), Signal::TERM, true);
    assert!(place.mountpoints().is_empty());
    place.mount();
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "kept");
    place.unmount();
}

/// What is mounted over the volume belongs to somebody else.
#[test]
fn a_signal_unmounts_nothing_that_was_mounted_over_the_volume() {
    let Some(place) = Place::new("a_signal_unmounts_nothing_that_was_mounted_over_the_volume") else {
        return;
    };
    let mut daemon = place.mount_in_foreground(Stdio::piped());
    let [covering, bound] = ["covering", "bound"].map(|name| place.directory.path().join(name));
    fs::create_dir(&bound).unwrap();
    fs::create_dir(&covering).unwrap();
    rustix::mount::mount_bind(place.mountpoint(), &bound).unwrap();
    rustix::mount::mount_bind(&covering, place.mountpoint()).unwrap();
    let said = stop(&mut daemon);
    assert!(said.contains("something else is mounted over it"), "{said}");
    assert_eq!(place.mountpoints(), [place.mountpoint()], "only the other place is unmounted");
    assert!(!place.is_mounted(), "what was mounted over it is there no more");
    pando_fuse::mount_point::unmount(&place.mountpoint(), false).unwrap();
    place.unmount();
    assert!(daemon.wait().unwrap().success());
}

#[test]
fn a_signal_that_finds_nothing_to_unmount_is_answered_in_the_log() {
    let Some(place) = Place::new("a_signal_that_finds_nothing_to_unmount_is_answered_in_the_log") else {
        return;
    };
    let mut daemon = place.mount_in_foreground(Stdio::piped());
    let file = File::open(place.file()).unwrap();
    pando_fuse::mount_point::unmount(&place.mountpoint(), true).unwrap();
    let said = stop(&mut daemon);
    assert!(said.contains("mounted nowhere"), "{said}");
    drop(file);
    assert!(daemon.wait().unwrap().success());
}

/// The end of a terminal killed a daemon in the foreground, and what was not synced was lost.
#[test]
fn a_daemon_in_the_foreground_unmounts_when_its_terminal_goes() {
    let Some(place) = Place::new("a_daemon_in_the_foreground_unmounts_when_its_terminal_goes") else {
        return;
    };
    let mut daemon = place.mount_in_foreground(Stdio::null());
    place.signal(place.daemon(), Signal::HUP, true);
    assert!(daemon.wait().unwrap().success());
    assert!(!place.is_mounted());
    // Who was told to outlive it does.
    let mut daemon = place.mount_by("nohup", &[env!("CARGO_BIN_EXE_pando")], Stdio::null());
    place.signal(place.daemon(), Signal::HUP, false);
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "kept");
    place.unmount();
    assert!(daemon.wait().unwrap().success());
}

/// The mount came later all the same, and nobody knew of it.
#[test]
fn a_mount_that_is_interrupted_does_not_come() {
    let Some(place) = Place::new("a_mount_that_is_interrupted_does_not_come") else { return };
    let start = |stdout: PipeWriter| {
        let arguments = ["mount", "--daemon", "volume", "mnt"];
        let mut daemon = place.command(Path::new(env!("CARGO_BIN_EXE_pando")), &arguments);
        daemon.stdout(stdout).spawn().unwrap()
    };
    // Before there is a mount: while a log is replayed, say.
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    assert!(start(writer).wait().unwrap().success());
    assert!(!place.is_mounted());
    // When it is there, and the word that it is cannot be said.
    let (reader, mut writer) = std::io::pipe().unwrap();
    let bytes = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    writer.write_all(&vec![0; bytes]).unwrap();
    let mut daemon = start(writer);
    let started = Instant::now();
    while !place.is_mounted() {
        assert!(started.elapsed() < TIME_OUT, "the mount does not come");
        std::thread::yield_now();
    }
    drop(reader);
    assert!(daemon.wait().unwrap().success());
    assert!(!place.is_mounted());
    assert!(place.is_clean());
}

/// The daemon kept what the shell that called it had open, and with it a lock, until the volume was unmounted.
#[test]
fn what_the_caller_has_open_is_not_kept_while_it_is_mounted() {
    let Some(place) = Place::new("what_the_caller_has_open_is_not_kept_while_it_is_mounted") else { return };
    // What is named by a descriptor is found all the same.
    let script = "exec 8<volume 9>lock && flock 9 && \"$0\" mount /dev/fd/8 mnt && exec 9>&- && flock --nonblock lock true";
    place.run(Path::new("sh"), &["-c", script, env!("CARGO_BIN_EXE_pando")]).expect_success();
    assert!(place.is_mounted());
    place.unmount();
}

#[test]
fn refusals_are_one_sentence() {
    let Some(place) = Place::new("refusals_are_one_sentence") else { return };
    place.pando(&["umount", "mnt"]).expect_failure(1, "no PandoFS volume is mounted there");
    place.pando(&["mount", "nothing", "mnt"]).expect_failure(1, "cannot mount nothing: no such file");
    place.pando(&["mount", "volume", "volume"]).expect_failure(1, "not a directory");
    place.pando(&["mount", "-o", "ro,frobnicate", "volume", "mnt"]).expect_failure(2, "'frobnicate'");
    place.pando(&["mount", "--cache", "512", "volume", "mnt"]).expect_failure(2, "at least 16M");
    place.pando(&["mount", "-o", "cache=4M", "volume", "mnt"]).expect_failure(2, "4.0M is too small");
    // Refused by the kernel, and not before the volume is open.
    let no_fuse = "mount --bind /dev/null /dev/fuse && exec \"$0\" mount volume mnt";
    let refused = ["--mount", "sh", "-c", no_fuse, env!("CARGO_BIN_EXE_pando")];
    place.run(Path::new("unshare"), &refused).expect_failure(1, "mnt: invalid argument");
    assert!(place.is_clean(), "nobody has used it");
    place.mount();
    fs::create_dir(place.directory.path().join("other")).unwrap();
    place.pando(&["mount", "volume", "other"]).expect_failure(1, "is mounted on");
    let inside = File::open(place.mountpoint()).unwrap();
    place.pando(&["umount", "mnt"]).expect_failure(1, "is in use");
    drop(inside);
    place.unmount();
}

/// An unmount once took most of a minute with an idle daemon: another process had made a mount namespace meanwhile, and the
/// mount lived on in there.
#[test]
fn a_mount_namespace_that_keeps_the_volume_is_named() {
    let Some(place) = Place::new("a_mount_namespace_that_keeps_the_volume_is_named") else { return };
    place.mount();
    // It keeps the mount until its input ends.
    let mut other = Command::new("unshare");
    let other = other.args(["--mount", "sh", "-c", "echo there; read end"]);
    let mut other = other.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(other.stdout.take().unwrap()).read_line(&mut line).unwrap();
    if line != "there\n" {
        eprintln!(
            "SKIPPED a_mount_namespace_that_keeps_the_volume_is_named: it needs unshare(1) and its right"
        );
        other.wait().unwrap();
        return place.unmount();
    }
    let mut unmounting = Command::new(env!("CARGO_BIN_EXE_pando"));
    let unmounting = unmounting.args(["umount", "mnt"]).current_dir(place.directory.path());
    let mut unmounting = unmounting.stderr(Stdio::piped()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(unmounting.stderr.take().unwrap()).read_line(&mut said).unwrap();
    drop(other.stdin.take());
    other.wait().unwrap();
    assert!(unmounting.wait().unwrap().success(), "{said}");
    assert!(said.contains(&format!("process {} ", other.id())), "{said}");
    place.mount();
    place.unmount();
}

#[test]
fn helpers_of_mount_and_umount() {
    let Some(place) = Place::new("helpers_of_mount_and_umount") else { return };
    let link = |name: &str| {
        let path = place.directory.path().join(name);
        symlink(env!("CARGO_BIN_EXE_pando"), &path).unwrap();
        path
    };
    let (mount, umount) = (link("mount.fuse.pando"), link("umount.fuse.pando"));
    let line =
        ["volume", "mnt", "-o", "ro,noatime,_netdev,x-systemd.automount,cache=64M", "-t", "fuse.pando"];
    place.run(&mount, &line).expect_success();
    let refused = fs::write(place.file(), "").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    place.run(&umount, &["mnt"]).expect_success();
    assert!(!place.is_mounted());
    // The exit statuses of mount(8).
    place.run(&mount, &["volume", "mnt", "-o", "frobnicate"]).expect_failure(1, "frobnicate");
    place.run(&mount, &["volume", "mnt", "-s", "-o", "frobnicate,ro"]).expect_success();
    assert!(fs::write(place.file(), "").is_err(), "what is known counts");
    // A link to the mount point stands for it.
    symlink("mnt", place.directory.path().join("link")).unwrap();
    symlink(place.directory.path().join("link"), place.directory.path().join("to-link")).unwrap();
    place.pando(&["stats", "to-link"]).expect_success();
    place.pando(&["umount", "to-link"]).expect_success();
    assert!(!place.is_mounted());
    place.run(&mount, &["nothing", "mnt", "-o", "rw"]).expect_failure(32, "nothing");
}

/// Read-only, each `mount -a` put another daemon over the one before where the line of /etc/fstab names a link; else it failed.
#[test]
fn a_volume_is_mounted_once_at_a_place() {
    let Some(place) = Place::new("a_volume_is_mounted_once_at_a_place") else { return };
    let [mount, link] = ["mount.fuse.pando", "link"].map(|name| place.directory.path().join(name));
    symlink(env!("CARGO_BIN_EXE_pando"), &mount).unwrap();
    symlink("volume", link).unwrap();
    fs::create_dir(place.directory.path().join("other")).unwrap();
    for options in ["ro", "rw"] {
        for volume in ["link", "link", "volume"] {
            place.run(&mount, &[volume, "mnt", "-o", options]).expect_success();
            assert_eq!(place.mountpoints().len(), 1);
        }
        let again = place.pando(&["mount", "-o", options, "volume", "mnt"]);
        again.expect_failure(1, "volume is mounted on mnt already");
        let opposite = if options == "ro" { "rw" } else { "ro" };
        place.run(&mount, &["volume", "mnt", "-o", opposite]).expect_failure(32, "mounted on mnt already");
        // Readers share it.
        let elsewhere = place.pando(&["mount", "-o", options, "volume", "other"]);
        assert_eq!(elsewhere.status() == 0, options == "ro", "{}", elsewhere.stderr());
        if options == "ro" {
            place.pando(&["umount", "other"]).expect_success();
        }
        assert_eq!(place.mountpoints().len(), 1);
        place.unmount();
    }
}

/// They asked the daemon first, and waited for its end.
#[test]
fn the_helper_unmounts_lazily_and_by_force_without_the_daemon() {
    let Some(place) = Place::new("the_helper_unmounts_lazily_and_by_force_without_the_daemon") else {
        return;
    };
    let umount = place.directory.path().join("umount.fuse.pando");
    symlink(env!("CARGO_BIN_EXE_pando"), &umount).unwrap();
    place.run(&umount, &["mnt"]).expect_failure(32, "no PandoFS volume is mounted there");
    place.mount();
    fs::write(place.file(), "kept").unwrap();
    let file = File::open(place.file()).unwrap();
    place.run(&umount, &["mnt"]).expect_failure(32, "is in use");
    let daemon = place.daemon();
    place.run(&umount, &["-l", "mnt"]).expect_success();
    assert!(!place.is_mounted());
    assert_eq!(std::io::read_to_string(&file).unwrap(), "kept");
    let process = rustix::process::pidfd_open(daemon, PidfdFlags::empty()).unwrap();
    drop(file);
    wait_for(&process);
    place.mount();
    let daemon = place.daemon();
    place.signal(daemon, Signal::STOP, false);
    let forced = place.run(&umount, &["-f", "mnt"]);
    place.signal(daemon, Signal::CONT, true);
    forced.expect_success();
    assert!(!place.is_mounted());
}

/// It waited for the end of the volume, which was mounted elsewhere as well.
#[test]
fn what_is_bound_to_another_place_is_unmounted_at_once() {
    let Some(place) = Place::new("what_is_bound_to_another_place_is_unmounted_at_once") else { return };
    place.mount();
    fs::write(place.file(), "kept").unwrap();
    fs::create_dir(place.mountpoint().join("directory")).unwrap();
    for name in ["bound", "snapshot"] {
        fs::create_dir(place.directory.path().join(name)).unwrap();
    }
    place.pando(&["snapshot", "create", "mnt", "taken"]).expect_success();
    place.pando(&["mount", "-o", "snapshot=taken", "volume", "snapshot"]).expect_success();
    let bind = |what, to| place.run(Path::new("mount"), &["--bind", what, to]).expect_success();
    for (what, to) in [("mnt/file", "mnt/file"), ("mnt/directory", "bound")] {
        bind(what, to);
        let unmounted = place.pando(&["umount", to]);
        unmounted.expect_success();
        assert!(unmounted.stderr().contains("/mnt as well"), "{}", unmounted.stderr());
    }
    place.pando(&["umount", "snapshot"]).expect_success();
    let process = rustix::process::pidfd_open(place.daemon(), PidfdFlags::empty()).unwrap();
    bind("mnt", "bound");
    place.unmount();
    assert_eq!(fs::read_to_string(place.directory.path().join("bound/file")).unwrap(), "kept");
    place.pando(&["umount", "bound"]).expect_success();
    wait_for(&process);
    assert!(place.mountpoints().is_empty());
}

/// It asked the daemon first, which may hang.
#[test]
fn a_lazy_unmount_waits_for_the_daemon_afterwards() {
    let Some(place) = Place::new("a_lazy_unmount_waits_for_the_daemon_afterwards") else { return };
    place.mount();
    fs::write(place.file(), "kept").unwrap();
    let daemon = place.daemon();
    place.signal(daemon, Signal::STOP, false);
    let mut command = place.command(Path::new(env!("CARGO_BIN_EXE_pando")), &["umount", "-l", "mnt"]);
    let mut unmounting = command.stderr(Stdio::piped()).spawn().unwrap();
    let started = Instant::now();
    while place.is_mounted() && started.elapsed() < Duration::from_secs(20) {
        std::thread::yield_now();
    }
    let is_mounted = place.is_mounted();
    let mut said = String::new();
    if !is_mounted {
        BufReader::new(unmounting.stderr.take().unwrap()).read_line(&mut said).unwrap();
    }
    place.signal(daemon, Signal::CONT, true);
    assert!(!is_mounted, "it waits for a daemon that hangs");
    assert!(unmounting.wait().unwrap().success(), "{said}");
    assert!(said.contains(&format!("waiting for the daemon (process {daemon}) to close")), "{said}");
    place.mount();
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "kept");
    place.unmount();
}

/// It waited without a word.
#[test]
fn an_unmount_says_that_it_waits_for_a_daemon_that_hangs() {
    let Some(place) = Place::new("an_unmount_says_that_it_waits_for_a_daemon_that_hangs") else { return };
    place.mount();
    let daemon = place.daemon();
    place.signal(daemon, Signal::STOP, false);
    let mut command = place.command(Path::new(env!("CARGO_BIN_EXE_pando")), &["umount", "mnt"]);
    let mut unmounting = command.stderr(Stdio::piped()).spawn().unwrap();
    let stderr = unmounting.stderr.take().unwrap();
    let mut said = String::new();
    BufReader::new(stderr).read_line(&mut said).unwrap();
    place.signal(daemon, Signal::CONT, true);
    assert!(unmounting.wait().unwrap().success(), "{said}");
    assert!(said.contains(&format!("(process {daemon}); with -l, ")), "{said}");
}

/// The daemon ended as if it had been unmounted, and left a dead mount.
#[test]
fn an_unmount_by_force_that_fails_ends_the_daemon_with_an_error() {
    let Some(place) = Place::new("an_unmount_by_force_that_fails_ends_the_daemon_with_an_error") else {
        return;
    };
    let daemon = place.mount_in_foreground(Stdio::piped());
    let file = File::open(place.file()).unwrap();
    assert!(pando_fuse::mount_point::unmount_by_force(&place.mountpoint(), false).is_err());
    let ended = daemon.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&ended.stderr);
    assert_eq!(ended.status.code(), Some(1), "{said}");
    assert!(said.contains("the connection to the kernel broke: it was aborted"), "{said}");
    assert!(!place.is_mounted());
    drop(file);
    place.mount();
    assert_eq!(fs::read_to_string(place.file()).unwrap(), "kept");
    place.unmount();
}

#[test]
fn an_unmount_is_one_for_the_helper_though_the_daemon_cannot_be_reached() {
    let Some(place) = Place::new("an_unmount_is_one_for_the_helper_though_the_daemon_cannot_be_reached")
    else {
        return;
    };
    let umount = place.directory.path().join("umount.fuse.pando");
    symlink(env!("CARGO_BIN_EXE_pando"), &umount).unwrap();
    for (program, status) in [(umount.as_path(), 0), (Path::new(env!("CARGO_BIN_EXE_pando")), 1)] {
        place.mount();
        let process = rustix::process::pidfd_open(place.daemon(), PidfdFlags::empty()).unwrap();
        let entry = pando_fuse::mount_table::mounted_at(&place.mountpoint()).unwrap().unwrap();
        fs::remove_file(format!("/run/pando/{}.socket", entry.device.replace(':', "-"))).unwrap();
        let arguments: &[&str] = if status == 0 { &["mnt"] } else { &["umount", "mnt"] };
        place.run(program, arguments).expect_failure(status, "its daemon cannot be reached");
        assert!(!place.is_mounted());
        wait_for(&process);
    }
}

/// `unshare --pid --fork` leaves the /proc of the old namespace, in which the caller's number is a stranger's.
#[test]
fn strangers_in_the_proc_of_another_namespace_lend_nobody_their_groups() {
    let Some(place) = Place::new("strangers_in_the_proc_of_another_namespace_lend_nobody_their_groups")
    else {
        return;
    };
    if place.run(Path::new("unshare"), &["--pid", "--fork", "true"]).status() != 0 {
        eprintln!(
            "SKIPPED strangers_in_the_proc_of_another_namespace_lend_nobody_their_groups: it needs unshare(1) and its right"
        );
        return;
    }
    fs::set_permissions(place.directory.path(), Permissions::from_mode(0o755)).unwrap();
    // Others must get to the program.
    fs::copy(env!("CARGO_BIN_EXE_pando"), place.directory.path().join("pando")).unwrap();
    // The first process of the namespace outlives the daemon.
    let script = r#"
        ./pando mount volume mnt
        trap './pando umount mnt' EXIT
        chmod 777 mnt
        echo kept > mnt/file
        chown 65534 mnt/file
        ./pando clone mnt/file mnt/by-root
        # The next process has the number that this test has outside, if the kernel allows to choose.
        echo $(($1 - 1)) > /proc/sys/kernel/ns_last_pid || true
        setpriv --reuid 65534 --regid 65534 --clear-groups ./pando clone mnt/file mnt/by-its-owner
    "#;
    let arguments = ["--pid", "--fork", "sh", "-ec", script, "sh", &std::process::id().to_string()];
    let ended = place.run(Path::new("unshare"), &arguments);
    ended.expect_failure(1, "mnt/by-its-owner: permission denied");
    assert!(!place.is_mounted());
}

/// The clone was made and failed, and the kernel went on to believe that there was none.
#[test]
fn a_clone_is_found_though_the_daemon_can_start_no_thread() {
    let test = "a_clone_is_found_though_the_daemon_can_start_no_thread";
    let Some(place) = Place::new(test) else { return };
    let group = PathBuf::from(format!("/sys/fs/cgroup/pids/pando-{}", std::process::id()));
    if fs::create_dir(&group).is_err() {
        eprintln!("SKIPPED {test}: it needs a control group that limits tasks");
        return;
    }
    place.mount();
    let copy = place.file().with_file_name("copy");
    fs::write(place.file(), "kept").unwrap();
    assert!(!copy.exists(), "the kernel remembers that");
    let daemon = place.daemon().as_raw_pid().to_string();
    fs::write(group.join("cgroup.procs"), &daemon).unwrap();
    let tasks = fs::read_to_string(group.join("pids.current")).unwrap();
    fs::write(group.join("pids.max"), tasks).unwrap();
    let cloned = place.pando(&["clone", "mnt/file", "mnt/copy"]);
    let found = fs::read_to_string(&copy);
    fs::write(group.with_file_name("cgroup.procs"), daemon).unwrap();
    fs::remove_dir(group).unwrap();
    place.unmount();
    cloned.expect_success();
    assert_eq!(found.unwrap(), "kept");
}

/// What the kernel has collected came to the volume later, with the time of that.
#[test]
fn collected_writes_keep_the_times_of_when_they_were_made_and_are_no_holes() {
    let Some(place) = Place::new("collected_writes_keep_the_times_of_when_they_were_made_and_are_no_holes")
    else {
        return;
    };
    place.pando(&["mount", "-o", "writeback", "volume", "mnt"]).expect_success();
    let mut file = File::create(place.file()).unwrap();
    file.write_all(b"collected").unwrap();
    let renamed = place.file().with_file_name("renamed");
    // The kernel tells the times of what it has collected when a file is renamed.
    fs::rename(place.file(), &renamed).unwrap();
    let modified = || fs::metadata(&renamed).unwrap().modified().unwrap();
    let written = modified();
    std::thread::sleep(Duration::from_millis(30));
    file.sync_all().unwrap();
    drop(file);
    let sparse = File::create(place.file()).unwrap();
    sparse.set_len(1 << 20).unwrap();
    sparse.write_all_at(b"data", 1 << 19).unwrap();
    let data = rustix::fs::seek(&sparse, SeekFrom::Data(0)).unwrap();
    let end = rustix::fs::seek(&sparse, SeekFrom::Hole(1 << 19)).unwrap();
    assert!(data <= 1 << 19 && end >= (1 << 19) + 4, "{data} to {end}");
    drop(sparse);
    // The kernel's clock for that goes by its ticks.
    for number in 0..50 {
        let path = place.file().with_file_name(format!("born{number}"));
        let mut file = File::create(&path).unwrap();
        file.write_all(b"collected").unwrap();
        let metadata = file.metadata().unwrap();
        assert!(metadata.created().unwrap() <= metadata.modified().unwrap(), "{metadata:?}");
        fs::remove_file(path).unwrap();
    }
    place.unmount();
    place.mount();
    assert_eq!(modified(), written);
    place.unmount();
}
