//! fio's own verification: random writes of many sizes by several jobs, each block with a checksum, read back after a
//! remount. And writes past the kernel's cache that nobody waits for, of a file that others read through it.

use std::process::{Command, Stdio};
use std::time::Duration;

use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome, files_ahead, tool};

const JOBS: &str = "\
[global]
directory=.
size=64m
bsrange=512-128k
bs_unaligned=0
blockalign=512
verify=crc32c
verify_fatal=1
randseed=7
group_reporting=1

[random]
rw=randwrite
numjobs=4
ioengine=psync
fsync=500

[mapped]
rw=randwrite
numjobs=2
bs=4k
bsrange=4k-4k
ioengine=mmap
";

/// Of six times 64 MiB, of which some are written twice and verified once.
const VERIFIED_KIB_MIN: u64 = 6 * (64 << 10) / 2;
/// The place of what was read in fio's terse output.
const READ_KIB: usize = 5;

const DIRECT: &str = "\
[global]
filename=file
size=64m
randseed=7
time_based=1
runtime=3

[past-the-cache]
rw=randwrite
bsrange=4k-64k
blockalign=4k
direct=1
ioengine=libaio
iodepth=64

[read-through-it]
rw=randread
bs=4k
ioengine=psync
numjobs=2

[written-through-it]
rw=randwrite
bs=4k
ioengine=psync
thinktime=100
";

/// How often the daemon is killed, and when at the latest.
const KILLS: u64 = 6;
const KILL_MS_MAX: u64 = 2000;

/// Writes with checksums, verifies at once and again after a remount.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 2 << 30, &[])?;
    let jobs = context.work.join("verify.fio");
    tool::at("cannot write", &jobs, std::fs::write(&jobs, JOBS))?;
    let fio = |volume: &Volume, arguments: &[&str]| {
        let mut command = context.program("fio");
        tool::run(command.current_dir(&volume.root).args(arguments).arg(&jobs))
    };
    fio(&volume, &["--do_verify=1"])?;
    volume.remount()?;
    let mut verify = context.program("fio");
    verify.current_dir(&volume.root).args(["--verify_only", "--output-format=terse"]).arg(&jobs);
    let text = tool::output(&mut verify, "")?;
    // One line for each group of jobs, in it the KiB that were read.
    let lines = text.lines().filter_map(|line| line.split(';').nth(READ_KIB)?.parse::<u64>().ok());
    let read_kib: u64 = lines.sum();
    eprintln!("{read_kib} KiB verified");
    if read_kib < VERIFIED_KIB_MIN {
        return Err(Failure::Wrong(format!("fio has verified {read_kib} KiB only:\n{text}")));
    }
    volume.finish()
}

/// What is read through the cache afterwards is what is stored, whether others only read meanwhile or also write.
pub fn run_direct(context: &Context) -> Outcome {
    let jobs = context.work.join("direct.fio");
    tool::at("cannot write", &jobs, std::fs::write(&jobs, DIRECT))?;
    let stored = context.work.join("stored");
    for transport in ["transport=auto", "transport=dev"] {
        let volume = Volume::create_named(context, transport, 1 << 30, &["-o", transport])?;
        let at_volume = |mut command: Command| tool::run(command.current_dir(&volume.root));
        for sections in [&["--section=past-the-cache", "--section=read-through-it"][..], &[]] {
            let mut fio = context.program("fio");
            fio.args(sections).arg(&jobs);
            at_volume(fio)?;
            let mut dd = Command::new("dd");
            dd.args(["iflag=direct", "bs=1M", "if=file"]).arg(format!("of={}", stored.display()));
            at_volume(dd)?;
            let mut cmp = Command::new("cmp");
            cmp.arg("file").arg(&stored);
            at_volume(cmp)?;
        }
        volume.finish()?;
    }
    Ok(())
}

/// A daemon that is killed while the kernel forgets pages for it ends all the same, and so does who waits for the mount; also behind a lazy unmount.
pub fn run_killed(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("it is about a daemon".to_owned()));
    }
    let jobs = context.work.join("direct.fio");
    // So long that only the kill ends it, on the slowest machine.
    let text = DIRECT.replace("size=64m", "size=16m").replace("runtime=3\n", "runtime=3600\n");
    tool::at("cannot write", &jobs, std::fs::write(&jobs, text))?;
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    for round in 1..=KILLS {
        tool::until("the daemon is looked after", || files_ahead::has_guard(&volume))?;
        let mut fio = context.program("fio");
        fio.args(["--section=past-the-cache", "--section=read-through-it"]).arg(&jobs);
        let fio = fio.current_dir(&volume.root).stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        let mut fio = tool::at("cannot start fio in", &volume.root, fio)?;
        // Not a wait for something: it is to be killed in the midst of it.
        std::thread::sleep(Duration::from_millis(KILL_MS_MAX * round / KILLS));
        if let Some(status) = tool::at("cannot wait for fio in", &context.work, fio.try_wait())? {
            return Err(Failure::Program(format!("fio ended before the kill: {status}")));
        }
        if round % 2 == 0 {
            // Whoever is in it still is served.
            tool::run(Command::new("umount").arg("-l").arg(&volume.root))?;
            volume.kill_alone()?;
        } else {
            volume.kill()?;
        }
        tool::until("the load has ended", || {
            Ok(tool::at("cannot wait for fio in", &context.work, fio.try_wait())?.is_some())
        })?;
        volume.mount()?;
    }
    volume.finish()
}
