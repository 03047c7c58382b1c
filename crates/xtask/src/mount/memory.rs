//! The daemon's memory: with a cache of 256 MiB, a working set of 2 GiB (4 GiB with `--full`), written and read, keeps
//! the peak of its resident memory under 640 MiB.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::pattern::{Random, fill};
use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Failure, Outcome};

const MIB: u64 = 1 << 20;
const PEAK_MAX_KIB: u64 = 640 * 1024;
const LARGE_FILE_BYTES: u64 = 256 * MIB;
const SMALL_FILE_BYTES: u64 = 64 << 10;

/// How many of each there are.
struct Load {
    large_files: u64,
    small_files: u64,
    overwrites: u64,
}

const LOAD: Load = Load { large_files: 4, small_files: 16 * 1024, overwrites: 10_000 };
const LOAD_FULL: Load = Load { large_files: 8, small_files: 32 * 1024, overwrites: 20_000 };

/// Large files, small files, random overwrites, and reading all of it.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 6 << 30, &["--cache", "256M"])?;
    let load = if context.full { LOAD_FULL } else { LOAD };
    write(&volume.root, &load)?;
    below_limit(&volume, "after writing")?;
    read(&volume.root, &load)?;
    below_limit(&volume, "after reading")?;
    volume.remount()?;
    read(&volume.root, &load)?;
    below_limit(&volume, "after reading from cold")?;
    volume.finish()
}

fn write(root: &Path, load: &Load) -> Outcome {
    let mut chunk = vec![0; MIB as usize];
    for number in 0..load.large_files {
        let path = root.join(format!("large-{number}"));
        let mut file = at("cannot create", &path, File::create(&path))?;
        for index in 0..LARGE_FILE_BYTES / MIB {
            fill(&mut chunk, number << 32 | index);
            at("cannot write", &path, file.write_all(&chunk))?;
        }
    }
    let small = root.join("small");
    tool::create_directory(&small)?;
    for number in 0..load.small_files {
        let path = small.join(number.to_string());
        fill(&mut chunk[..SMALL_FILE_BYTES as usize], number);
        at("cannot write", &path, fs::write(&path, &chunk[..SMALL_FILE_BYTES as usize]))?;
    }
    let mut random = Random::new(1);
    for _ in 0..load.overwrites {
        let path = root.join(format!("large-{}", random.below(load.large_files)));
        let file = at("cannot open", &path, File::options().write(true).open(&path))?;
        let offset = random.below(LARGE_FILE_BYTES / 4096) * 4096;
        // Only bytes that `read` does not compare.
        at("cannot write", &path, file.write_all_at(&[1; 8], offset + 4088))?;
    }
    tool::sync(root)
}

fn read(root: &Path, load: &Load) -> Outcome {
    let (mut found, mut wanted) = (vec![0; MIB as usize], vec![0; MIB as usize]);
    for number in 0..load.large_files {
        let path = root.join(format!("large-{number}"));
        let file = at("cannot open", &path, File::open(&path))?;
        for index in 0..LARGE_FILE_BYTES / MIB {
            at("cannot read", &path, file.read_exact_at(&mut found, index * MIB))?;
            fill(&mut wanted, number << 32 | index);
            let equal = found
                .chunks(4096)
                .zip(wanted.chunks(4096))
                .all(|(found, wanted)| found[..4088] == wanted[..4088]);
            if !equal {
                return Err(Failure::Wrong(format!("{} differs in the MiB {index}", path.display())));
            }
        }
    }
    for number in 0..load.small_files {
        let path = root.join("small").join(number.to_string());
        fill(&mut wanted[..SMALL_FILE_BYTES as usize], number);
        if at("cannot read", &path, fs::read(&path))? != wanted[..SMALL_FILE_BYTES as usize] {
            return Err(Failure::Wrong(format!("{} has other contents than were written", path.display())));
        }
    }
    Ok(())
}

/// The kernel's own account of the daemon's peak (VmHWM).
fn below_limit(volume: &Volume, when: &str) -> Outcome {
    // ext4 has no daemon.
    let Some(id) = volume.daemon_id() else { return Ok(()) };
    let path = format!("/proc/{id}/status");
    let status = at("cannot read", path.as_ref(), fs::read_to_string(&path))?;
    let peak = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))
        .and_then(|rest| rest.split_whitespace().next());
    let peak_kib: u64 = peak
        .and_then(|number| number.parse().ok())
        .ok_or_else(|| Failure::Wrong(format!("{path} has no VmHWM in KiB")))?;
    eprintln!("peak resident memory {when}: {} MiB", peak_kib / 1024);
    if peak_kib >= PEAK_MAX_KIB {
        let message = format!(
            "peak resident memory {when}: {} MiB, limit {} MiB",
            peak_kib / 1024,
            PEAK_MAX_KIB / 1024
        );
        return Err(Failure::Wrong(message));
    }
    Ok(())
}
