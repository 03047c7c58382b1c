//! A volume on a block device, which the kernel mounts as one: sync(2) reaches it, its unmount ends when it is closed, and nobody else gets the device.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::process::Signal;

use super::tool::{self, at};
use super::volume::{self, Kind, Volume};
use super::{Context, Failure, Outcome};

const VOLUME_BYTES: u64 = 256 << 20;

/// Longer than a test takes: what is durable became so by being asked for. And the helper that reads files ahead has a mount of its own while it starts and
/// works: an unmount that comes then ends before the last mount does.
const OPTIONS: [&str; 2] = ["-o", "commit=3600,checkpoint=3600,without=files_ahead"];

/// Longer than the helper holds on to a mount without work. On a busy machine it may come late to letting go.
const HELPER_RESTS: Duration = Duration::from_millis(500);
const HELPER_TRIES: usize = 10;

/// How others claim a device, mkfs for one.
const CLAIM: OFlags = OFlags::RDONLY.union(OFlags::EXCL).union(OFlags::CLOEXEC);

/// Times that a file may be made durable by others' sync(2) before the daemon is killed.
const SYNCS_OF_OTHERS_MAX: usize = 5;

/// Everything below, one after the other, on one volume.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("is about PandoFS alone".to_owned()));
    }
    if !volume::has_block_mounts() {
        return Err(Failure::Skipped("needs Linux 6.18".to_owned()));
    }
    let mut volume = Volume::create_on_loop_device(context, VOLUME_BYTES, &OPTIONS)?;
    let types = at("cannot read", Path::new("/proc/mounts"), fs::read_to_string("/proc/mounts"))?;
    let line = format!("{} {} fuseblk.pando ", volume.image().display(), volume.root.display());
    expect(types.contains(&line), &format!("the mount is listed as{line}"))?;
    unmount_closes(context, &mut volume)?;
    dead_mount_goes(context, &mut volume)?;
    abort_leaves_it_usable(&mut volume)?;
    snapshot_keeps_it(context, &mut volume)?;
    nothing_is_written_to_what_others_have(&mut volume)?;
    sync_reaches_it(&mut volume)?;
    helper_lets_go(&mut volume)?;
    volume.finish()?;
    killed_while_it_unmounts(context)
}

/// When umount(2) has returned, the last checkpoint is on the device, and the device is free; before it is neither.
fn unmount_closes(context: &Context, volume: &mut Volume) -> Outcome {
    write(&volume.root.join("large"), &vec![b'x'; 64 << 20])?;
    expect(claim(volume)? == Err(Errno::BUSY), "nobody else can claim the device of a mounted volume")?;
    tool::run(Command::new("umount").arg("-i").arg(&volume.root))?;
    // At once: the daemon may still be about to end.
    expect(claim(volume)? == Ok(()), "the device is free when umount(2) returns")?;
    let copy = context.work.join("copy.img");
    let mut device = at("cannot open", volume.image(), File::open(volume.image()))?;
    let mut file = at("cannot create", &copy, File::create(&copy))?;
    at("cannot copy", &copy, io::copy(&mut device, &mut file))?;
    volume.await_daemon(true)?;
    let info = tool::output(context.program("pando").args(["info", "--json"]).arg(&copy), "")?;
    expect(info.contains("\"clean\": true"), &format!("it is closed when umount(2) returns: {info}"))?;
    at("cannot remove", &copy, fs::remove_file(&copy))?;
    volume.mount()
}

/// The kernel keeps the claim of a mount whose daemon was killed; the next mount of the volume takes it away, wherever that was.
fn dead_mount_goes(context: &Context, volume: &mut Volume) -> Outcome {
    tool::sync(&volume.root)?;
    // The kernel has the attributes of the root afterwards.
    for _ in 0..2 {
        at("cannot stat", &volume.root, fs::metadata(&volume.root))?;
    }
    volume.kill_alone()?;
    expect(claim(volume)? == Err(Errno::BUSY), "the kernel keeps the device of a dead mount")?;
    let elsewhere = Path::new("/mnt/elsewhere");
    tool::create_directory(elsewhere)?;
    context.run("pando", ["mount".as_ref(), volume.image().as_os_str(), elsewhere.as_os_str()])?;
    let listed = at("cannot read", Path::new("/proc/mounts"), fs::read_to_string("/proc/mounts"))?;
    expect(!listed.contains(&format!(" {} ", volume.root.display())), "the dead mount is gone")?;
    expect(fs::metadata(elsewhere.join("large")).is_ok(), "what was synced is there")?;
    context.run("pando", ["umount".as_ref(), elsewhere.as_os_str()])?;
    volume.mount()
}

/// An unmount by force, of a mount in use and of one that is not.
fn abort_leaves_it_usable(volume: &mut Volume) -> Outcome {
    for in_use in [true, false] {
        let user = in_use.then(|| File::open(&volume.root)).transpose();
        let user = at("cannot open", &volume.root, user)?;
        let forced = Command::new("umount").args(["-i", "-f"]).arg(&volume.root).status();
        let forced = at("cannot start umount for", &volume.root, forced)?;
        expect(forced.success() != in_use, "a mount in use is not unmounted, even by force")?;
        drop(user);
        // That the connection broke is an error.
        volume.await_daemon(false)?;
        volume.mount()?;
    }
    Ok(())
}

/// A snapshot that is mounted outlives the mount of the volume, and so does the claim on the device.
fn snapshot_keeps_it(context: &Context, volume: &mut Volume) -> Outcome {
    let (image, place) = (volume.image().to_owned(), Path::new("/mnt/snapshot"));
    tool::create_directory(place)?;
    context
        .run("pando", ["snapshot".as_ref(), "create".as_ref(), volume.root.as_os_str(), "kept".as_ref()])?;
    let mount_snapshot = || {
        let arguments = ["mount", "-o", "snapshot=kept"].map(AsRef::as_ref);
        context.run("pando", arguments.into_iter().chain([image.as_os_str(), place.as_os_str()]))
    };
    mount_snapshot()?;
    write(&volume.root.join("later"), b"later")?;
    tool::run(Command::new("umount").arg("-i").arg(&volume.root))?;
    tool::until("the daemon has the device", || Ok(claim(volume)? == Err(Errno::BUSY)))?;
    let large = at("cannot read", place, fs::read(place.join("large")))?;
    expect(large.len() == 64 << 20 && large.iter().all(|byte| *byte == b'x'), "the snapshot can be read")?;
    context.run("pando", ["umount".as_ref(), place.as_os_str()])?;
    volume.await_daemon(true)?;
    expect(claim(volume)? == Ok(()), "the device is free when all is unmounted")?;
    volume.mount()?;
    expect(fs::metadata(volume.root.join("later")).is_ok(), "what was written last is there")?;
    // One that was unmounted right before keeps nothing, though the daemon may still be about to end it.
    mount_snapshot()?;
    for root in [place, &volume.root] {
        tool::run(Command::new("umount").arg("-i").arg(root))?;
    }
    expect(claim(volume)? == Ok(()), "the device is free when both are unmounted")?;
    volume.await_daemon(true)?;
    volume.mount()
}

/// A daemon that comes to know late that it was unmounted by force finds the device claimed by somebody else.
fn nothing_is_written_to_what_others_have(volume: &mut Volume) -> Outcome {
    write(&volume.root.join("unsynced"), &vec![b'y'; 1 << 20])?;
    volume.signal(Signal::STOP)?;
    tool::run(Command::new("umount").args(["-i", "-f"]).arg(&volume.root))?;
    let claimed = rustix::fs::open(volume.image(), CLAIM, Mode::empty());
    let claimed = at("cannot claim", volume.image(), claimed.map_err(Into::into))?;
    let before = at("cannot read", volume.image(), fs::read(volume.image()))?;
    volume.signal(Signal::CONT)?;
    expect(volume.await_daemon(true).is_err(), "the daemon tells that it could not close the volume")?;
    let after = at("cannot read", volume.image(), fs::read(volume.image()))?;
    expect(before == after, "nothing was written to a device that somebody else has claimed")?;
    drop(claimed);
    volume.mount()
}

/// A daemon that is told to end unmounts, and is killed while the kernel waits for its last checkpoint. It must end all the same: a thread of it that
/// waited for the kernel would keep the connection, and with it the kernel would wait for the thread.
fn killed_while_it_unmounts(context: &Context) -> Outcome {
    // On a device that stands still when it is told to, and that goes with the processes of a test.
    let host = Volume::create_named(context, "host", 3 * VOLUME_BYTES, &[])?;
    let inside = Context { work: host.root.clone(), ..context.clone() };
    let mut volume = Volume::create_on_loop_device(&inside, VOLUME_BYTES, &OPTIONS)?;
    write(&volume.root.join("large"), &vec![b'x'; 16 << 20])?;
    host.signal(Signal::STOP)?;
    let mut unmounting = Command::new("umount");
    let unmounting = unmounting.arg("-i").arg(&volume.root).spawn();
    let mut unmounting = at("cannot start umount for", &volume.root, unmounting)?;
    std::thread::sleep(Duration::from_millis(500));
    let ended = at("cannot wait for umount of", &volume.root, unmounting.try_wait())?;
    let has_device = claim(&volume)?;
    host.signal(Signal::CONT)?;
    expect(ended.is_none() && has_device == Err(Errno::BUSY), "umount(2) waits for the last checkpoint")?;
    let ended = at("cannot wait for umount of", &volume.root, unmounting.wait())?;
    expect(ended.success() && claim(&volume)? == Ok(()), "the device is free when umount(2) returns")?;
    volume.await_daemon(true)?;
    volume.mount()?;

    write(&volume.root.join("large"), &vec![b'z'; 16 << 20])?;
    host.signal(Signal::STOP)?;
    volume.signal(Signal::TERM)?;
    tool::until("it is unmounted, but for the last checkpoint", || {
        let mounts = at("cannot read", Path::new("/proc/mounts"), fs::read_to_string("/proc/mounts"))?;
        Ok(!mounts.contains(&format!(" {} ", volume.root.display())))
    })?;
    expect(claim(&volume)? == Err(Errno::BUSY), "the kernel still has the device")?;
    volume.signal(Signal::KILL)?;
    host.signal(Signal::CONT)?;
    volume.await_daemon(false)?;
    tool::until("the device is free", || Ok(claim(&volume)? == Ok(())))?;
    volume.mount()?;
    volume.finish()?;
    host.finish()
}

/// What sync(2) and syncfs(2) made durable outlives the daemon.
fn sync_reaches_it(volume: &mut Volume) -> Outcome {
    for (name, system_wide) in [("syncfs", false), ("sync", true)] {
        let mut tries = 0;
        while sync_makes_durable(volume, &format!("{name}-{tries}"), system_wide)? {
            tries += 1;
            expect(tries < SYNCS_OF_OTHERS_MAX, "what was not synced is lost, or this would show nothing")?;
        }
    }
    Ok(())
}

/// Whether what was not synced is there as well, as it may be if somebody else has called sync(2) at the same time.
fn sync_makes_durable(volume: &mut Volume, name: &str, system_wide: bool) -> Result<bool, Failure> {
    let unsynced = volume.root.join(format!("{name}-not"));
    write(&volume.root.join(name), name.as_bytes())?;
    match system_wide {
        true => rustix::fs::sync(),
        false => {
            let root = at("cannot open", &volume.root, File::open(&volume.root))?;
            at("cannot sync", &volume.root, rustix::fs::syncfs(&root).map_err(Into::into))?;
        }
    }
    write(&unsynced, b"")?;
    volume.kill()?;
    volume.mount()?;
    expect(volume.root.join(name).exists(), &format!("{name} was made durable"))?;
    Ok(unsynced.exists())
}

/// The helper that reads files ahead has a mount of its own only while it works, and for a moment when it starts.
fn helper_lets_go(volume: &mut Volume) -> Outcome {
    for number in 0..64 {
        write(&volume.root.join(format!("read-{number:02}")), &[number; 4096])?;
    }
    volume.set_options(&[]);
    for _ in 0..HELPER_TRIES {
        volume.remount()?;
        // A listing, and the files in its order: what the helper follows.
        tool::shell(&volume.root, "ls -U > /dev/null; cat read-* > /dev/null")?;
        std::thread::sleep(HELPER_RESTS);
        tool::run(Command::new("umount").arg("-i").arg(&volume.root))?;
        let is_free = claim(volume)? == Ok(());
        volume.await_daemon(true)?;
        volume.mount()?;
        if is_free {
            return Ok(());
        }
    }
    expect(false, "umount(2) waits for the volume to be closed though files were read ahead")
}

fn write(path: &Path, bytes: &[u8]) -> Outcome {
    at("cannot write", path, fs::write(path, bytes))
}

/// What somebody else gets who wants the device alone, as mkfs does.
fn claim(volume: &Volume) -> Result<Result<(), Errno>, Failure> {
    match rustix::fs::open(volume.image(), CLAIM, Mode::empty()) {
        Ok(_) => Ok(Ok(())),
        Err(Errno::BUSY) => Ok(Err(Errno::BUSY)),
        Err(errno) => Err(Failure::Io("cannot open", volume.image().to_owned(), errno.into())),
    }
}

fn expect(is_so: bool, what: &str) -> Outcome {
    if is_so { Ok(()) } else { Err(Failure::Wrong(format!("it is not so that {what}"))) }
}
