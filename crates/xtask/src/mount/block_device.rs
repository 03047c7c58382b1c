//! A volume on a block device, which the kernel mounts as one: sync(2) reaches it, its unmount ends when it is closed, and nobody else gets the device.

use std::fs::{self, File};
use std::io;
use std::path::Path;
use std::process::Command;

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use super::tool::{self, at};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

const VOLUME_BYTES: u64 = 256 << 20;

/// Longer than a test takes: what is durable became so by being asked for. And the helper that reads files ahead has a mount of its own while it starts and
/// works: an unmount that comes then ends before the last mount does.
const OPTIONS: [&str; 2] = ["-o", "commit=3600,checkpoint=3600,without=files_ahead"];

/// From this version on the kernel passes on sync(2) of a block device.
const SYNC_SINCE: (u32, u32) = (6, 18);

/// Everything below, one after the other, on one volume.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("is about PandoFS alone".to_owned()));
    }
    let mut volume = Volume::create_on_loop_device(context, VOLUME_BYTES, &OPTIONS)?;
    let types = at("cannot read", Path::new("/proc/mounts"), fs::read_to_string("/proc/mounts"))?;
    let line = format!("{} {} fuseblk.pando ", volume.image().display(), volume.root.display());
    expect(types.contains(&line), &format!("the mount is listed as{line}"))?;
    unmount_closes(context, &mut volume)?;
    dead_mount_goes(context, &mut volume)?;
    abort_leaves_it_usable(&mut volume)?;
    snapshot_keeps_it(context, &mut volume)?;
    sync_reaches_it(&mut volume)?;
    volume.finish()
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
    let arguments = ["mount", "-o", "snapshot=kept"].map(AsRef::as_ref);
    context.run("pando", arguments.into_iter().chain([image.as_os_str(), place.as_os_str()]))?;
    write(&volume.root.join("later"), b"later")?;
    tool::run(Command::new("umount").arg("-i").arg(&volume.root))?;
    tool::until("the daemon has the device", || Ok(claim(volume)? == Err(Errno::BUSY)))?;
    let large = at("cannot read", place, fs::read(place.join("large")))?;
    expect(large.len() == 64 << 20 && large.iter().all(|byte| *byte == b'x'), "the snapshot can be read")?;
    context.run("pando", ["umount".as_ref(), place.as_os_str()])?;
    volume.await_daemon(true)?;
    expect(claim(volume)? == Ok(()), "the device is free when all is unmounted")?;
    volume.mount()?;
    expect(fs::metadata(volume.root.join("later")).is_ok(), "what was written last is there")
}

/// What sync(2) and syncfs(2) made durable outlives the daemon.
fn sync_reaches_it(volume: &mut Volume) -> Outcome {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split('.').map_while(|number| number.parse().ok());
    let version = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    for (name, system_wide) in [("syncfs", false), ("sync", true)] {
        write(&volume.root.join(name), name.as_bytes())?;
        write(&volume.root.join("not-synced-before"), b"")?;
        match system_wide {
            true => rustix::fs::sync(),
            false => {
                let root = at("cannot open", &volume.root, File::open(&volume.root))?;
                at("cannot sync", &volume.root, rustix::fs::syncfs(&root).map_err(Into::into))?;
            }
        }
        write(&volume.root.join("not-synced"), b"")?;
        volume.kill()?;
        volume.mount()?;
        let is_there = |name: &str| volume.root.join(name).exists();
        expect(!is_there("not-synced"), "what was not synced is lost, or this would show nothing")?;
        if version >= SYNC_SINCE {
            expect(is_there(name) && is_there("not-synced-before"), &format!("{name}(2) made all durable"))?;
        }
    }
    Ok(())
}

fn write(path: &Path, bytes: &[u8]) -> Outcome {
    at("cannot write", path, fs::write(path, bytes))
}

/// What somebody else gets who wants the device alone, as mkfs does.
fn claim(volume: &Volume) -> Result<Result<(), Errno>, Failure> {
    match rustix::fs::open(volume.image(), OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()) {
        Ok(_) => Ok(Ok(())),
        Err(Errno::BUSY) => Ok(Err(Errno::BUSY)),
        Err(errno) => Err(Failure::Io("cannot open", volume.image().to_owned(), errno.into())),
    }
}

fn expect(is_so: bool, what: &str) -> Outcome {
    if is_so { Ok(()) } else { Err(Failure::Wrong(format!("it is not so that {what}"))) }
}
