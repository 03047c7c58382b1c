//! fio's own verification: random writes of many sizes by several jobs, each block with a checksum, read back after a
//! remount.

use super::tool;
use super::volume::Volume;
use super::{Context, Outcome};

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
    fio(&volume, &["--verify_only"])?;
    volume.finish()
}
