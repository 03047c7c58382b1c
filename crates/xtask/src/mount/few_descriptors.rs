//! A daemon that may open only a few files at once says so and leaves no mount, or serves: whatever it is that it lacks, nobody waits for ever.

use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};

use super::tool::{self, at, until};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

/// From one with which it cannot begin to one that is plenty on a machine of few cores.
const DESCRIPTORS: std::ops::RangeInclusive<u32> = 5..=32;

/// Plenty on any machine.
const PLENTY: u32 = 1024;

/// What is told of a mount whose requests were to come over io_uring, and do not.
const WITHOUT_RINGS: &str = "requests do not come over io_uring";

/// What became of a mount.
#[derive(Debug, PartialEq, Eq)]
enum Became {
    Refused,
    ServedWithoutRings,
    Served,
}

/// Mounts with each number of descriptors.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("no other file system has a daemon".to_owned()));
    }
    // The kernel waits for the daemon's answer when a block device is unmounted.
    for create in [Volume::create, Volume::create_on_loop_device] {
        run_on(context, create(context, 256 << 20, &[])?)?;
    }
    Ok(())
}

fn run_on(context: &Context, mut volume: Volume) -> Outcome {
    let has_rings = !volume.threads("pando-ring-")?.is_empty();
    volume.umount()?;
    let mut all = Vec::new();
    for descriptors in DESCRIPTORS.chain([PLENTY]) {
        let mut daemon = start(context, &volume, descriptors)?;
        let became = serve(context, &volume, &mut daemon);
        if became.is_err() {
            // Others who wait for it are let go with it.
            at("cannot kill the daemon of", &volume.root, daemon.kill())?;
        }
        let became = became?;
        eprintln!("{descriptors} descriptors: {became:?}");
        all.push(became);
    }
    for wanted in [Became::Refused, Became::ServedWithoutRings, Became::Served] {
        if !all.contains(&wanted) && (has_rings || wanted != Became::ServedWithoutRings) {
            return Err(Failure::Wrong(format!("no number of descriptors led to {wanted:?}")));
        }
    }
    end_without_any(context, &volume)?;
    volume.check()
}

/// A daemon that may open nothing any more still unmounts when it is told to end.
fn end_without_any(context: &Context, volume: &Volume) -> Outcome {
    let root = &volume.root;
    let mut daemon = start(context, volume, PLENTY)?;
    let ended = until("it is mounted", || is_listed(root)).and_then(|()| {
        in_time("echo text > $0/file", root)?;
        let pid = Pid::from_child(&daemon);
        let none = Rlimit { current: Some(0), maximum: Some(0) };
        let limited = prlimit(Some(pid), Resource::Nofile, none).map(drop);
        let told = limited.and_then(|()| kill_process(pid, Signal::TERM));
        at("cannot tell to end the daemon of", root, told.map_err(Into::into))?;
        until("no mount is left", || Ok(!is_listed(root)?))?;
        until("the daemon has ended", || has_ended(&mut daemon, root))
    });
    if ended.is_err() {
        at("cannot kill the daemon of", root, daemon.kill())?;
    }
    ended?;
    let status = at("cannot wait for the daemon of", root, daemon.wait())?;
    if status.success() { Ok(()) } else { Err(Failure::Wrong(format!("the daemon ended with {status}"))) }
}

fn start(context: &Context, volume: &Volume, descriptors: u32) -> Result<Child, Failure> {
    let said = context.work.join("said");
    let stderr = at("cannot create", &said, File::create(&said))?;
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n $0 && exec \"$@\"", &descriptors.to_string()]);
    command.arg(context.program("pando").get_program()).args(["mount", "--foreground"]);
    command.arg(volume.image()).arg(&volume.root).stdin(Stdio::null()).stderr(stderr);
    at("cannot start the daemon of", &volume.root, command.spawn())
}

fn serve(context: &Context, volume: &Volume, daemon: &mut Child) -> Result<Became, Failure> {
    let root = &volume.root;
    until("it is mounted, or refused", || Ok(is_listed(root)? || has_ended(daemon, root)?))?;
    let used = in_time("echo text > $0/file && grep -q text $0/file && ls $0 > $0/list", root);
    let served = used.and_then(|()| in_time("umount -i $0", root));
    let is_refused = served.is_err();
    if is_refused {
        // It may have been mounted for a moment.
        until("no mount is left", || Ok(!is_listed(root)?)).or(served)?;
    }
    until("the daemon has ended", || has_ended(daemon, root))?;
    let path = context.work.join("said");
    let said = at("cannot read", &path, fs::read_to_string(&path))?;
    eprintln!("{said}");
    let status = at("cannot wait for the daemon of", root, daemon.wait())?;
    match (is_refused, status.success()) {
        (true, false) if said.to_lowercase().contains("too many open files") => Ok(Became::Refused),
        (false, true) if said.contains(WITHOUT_RINGS) => Ok(Became::ServedWithoutRings),
        (false, true) => Ok(Became::Served),
        _ => Err(Failure::Wrong(format!("the daemon ended with {status} and said: {said}"))),
    }
}

fn is_listed(root: &Path) -> Result<bool, Failure> {
    let path = Path::new("/proc/self/mounts");
    let mounts = at("cannot read", path, fs::read_to_string(path))?;
    let line = |kind: &str| format!(" {} {kind}.pando ", root.display());
    Ok(["fuse", "fuseblk"].iter().any(|kind| mounts.contains(&line(kind))))
}

fn has_ended(daemon: &mut Child, root: &Path) -> Result<bool, Failure> {
    Ok(at("cannot wait for the daemon of", root, daemon.try_wait())?.is_some())
}

/// Runs a script whose `$0` is the root, and kills it if it hangs.
fn in_time(script: &str, root: &Path) -> Outcome {
    tool::run(Command::new("timeout").args(["-s", "KILL", "60", "sh", "-ec", script]).arg(root))
}
