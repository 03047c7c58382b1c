//! Writes past the kernel's cache that are handed in and not waited for (io_submit, io_uring), of which the kernel leaves more to the daemon.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{AtFlags, CWD, StatxFlags, StatxTimestamp, statx};

use super::tool::{self, at};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

const FILE_BYTES: usize = 16 << 20;

/// What the daemon makes durable by itself in this time has no part in it.
const NEVER: &str = "commit=3600";

/// How often a file is written while somebody looks at its times.
const ROUNDS: usize = 6;
const ROUNDS_FULL: usize = 12;

/// One that is to be durable (`O_DSYNC`, or a mount with `-o sync`) is when it is told of: the daemon is killed then.
pub fn run_durable(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("it is about a daemon".to_owned()));
    }
    let cases = [
        ("transport=auto", "async", "dsync"),
        ("transport=dev", "async", "dsync"),
        ("transport=auto", "sync", "none"),
    ];
    for (number, (transport, by_mount, by_file)) in cases.into_iter().enumerate() {
        let options = ["-o", transport, "-o", NEVER, "-o", by_mount];
        let mut volume = Volume::create_named(context, &number.to_string(), 1 << 30, &options)?;
        let path = new_file(&volume)?;
        let sync = format!("--sync={by_file}");
        tool::run(fio(context, &path).args(["--bs=4k", "--io_size=4k", "--rw=write", &sync]))?;
        volume.kill()?;
        volume.mount()?;
        let mut stored = [0; 4096];
        at("cannot read", &path, File::open(&path).and_then(|file| file.read_exact_at(&mut stored, 0)))?;
        if stored != [0xaa; 4096] {
            return Err(Failure::Wrong(
                "a write that was to be durable, and was told of, is not there".to_owned(),
            ));
        }
        volume.finish()?;
    }
    Ok(())
}

/// Whoever looks at the file while they are under way has nobody see old times afterwards.
pub fn run_times(context: &Context) -> Outcome {
    for transport in ["transport=auto", "transport=dev"] {
        let volume = Volume::create_named(context, transport, 1 << 30, &["-o", transport])?;
        let path = new_file(&volume)?;
        for round in 1..=if context.full { ROUNDS_FULL } else { ROUNDS } {
            let mut load = fio(context, &path);
            load.args(["--bs=256k", "--io_size=16m", "--rw=randwrite", "--iodepth=32"]);
            let load = load.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
            let mut load = at("cannot start fio for", &path, load)?;
            let status = loop {
                if let Some(status) = at("cannot wait for fio with", &path, load.try_wait())? {
                    break status;
                }
                modified(&path, AtFlags::empty())?;
            };
            if !status.success() {
                return Err(Failure::Program(format!("round {round}: fio ended with {status}")));
            }
            let [kept, stored] = [AtFlags::STATX_DONT_SYNC, AtFlags::STATX_FORCE_SYNC]
                .map(|flag| modified(&path, flag).map(|time| (time.tv_sec, time.tv_nsec)));
            let (kept, stored) = (kept?, stored?);
            if kept != stored {
                let text = format!(
                    "round {round}: the kernel has {kept:?} as time of modification, the file {stored:?}"
                );
                return Err(Failure::Wrong(text));
            }
        }
        volume.finish()?;
    }
    Ok(())
}

/// A file of zeros, all of it durable.
fn new_file(volume: &Volume) -> Result<std::path::PathBuf, Failure> {
    let path = volume.root.join("file");
    let made = File::create(&path).and_then(|file| {
        file.write_all_at(&vec![0; FILE_BYTES], 0)?;
        file.sync_all()
    });
    at("cannot write", &path, made)?;
    Ok(path)
}

fn fio(context: &Context, path: &Path) -> Command {
    let mut fio = context.program("fio");
    fio.args(["--name=handed-in", "--ioengine=libaio", "--direct=1", "--buffer_pattern=0xaa"]);
    fio.args(["--invalidate=0", "--overwrite=1"]).arg(format!("--filesize={FILE_BYTES}"));
    fio.arg(format!("--filename={}", path.display()));
    fio
}

fn modified(path: &Path, flags: AtFlags) -> Result<StatxTimestamp, Failure> {
    let status = statx(CWD, path, flags, StatxFlags::MTIME).map_err(std::io::Error::from);
    Ok(at("cannot look at", path, status)?.stx_mtime)
}
