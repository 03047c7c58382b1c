//! How much memory a daemon takes for nodes: what it is told, else a part of what there is for it, which may be less than the machine has.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::tool::at;
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

/// The limit of the control group.
const LIMIT: u64 = 512 << 20;
/// Unless told, the cache gets this part.
const SHARE: u64 = 4;

/// Mounts with the default, with a size, and with the default in a group that has a limit.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("no other file system has a daemon".to_owned()));
    }
    let mut volume = Volume::create(context, 256 << 20, &[])?;
    let default = volume.counter("cache_bytes_max")?;
    // This test may itself run in a group that has a limit.
    let most = machine_bytes()? / SHARE;
    if !(1..=most).contains(&default) {
        return Err(Failure::Wrong(format!("the cache gets {default} bytes of {most} at the most")));
    }
    volume.umount()?;
    volume.set_options(&["--cache", "64M"]);
    volume.mount()?;
    gets(&volume, 64 << 20)?;
    volume.umount()?;
    volume.set_options(&[]);
    let Some(group) = Group::enter()? else {
        volume.check()?;
        let text =
            "no control group with a limit can be made here; without one the sizes are as they should be";
        return Err(Failure::Skipped(text.to_owned()));
    };
    eprintln!("in {}", group.own.display());
    let result = volume.mount().and_then(|()| gets(&volume, default.min(LIMIT / SHARE)));
    // A group in which there is a daemon cannot be removed.
    let ended = if result.is_ok() { volume.umount() } else { volume.kill() };
    let left = group.leave();
    result.and(ended).and(left)?;
    volume.check()
}

fn gets(volume: &Volume, wanted: u64) -> Outcome {
    let found = volume.counter("cache_bytes_max")?;
    if found == wanted {
        return Ok(());
    }
    Err(Failure::Wrong(format!("the cache gets {found} bytes, not {wanted}")))
}

fn machine_bytes() -> Result<u64, Failure> {
    let path = Path::new("/proc/meminfo");
    let text = at("cannot read", path, fs::read_to_string(path))?;
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:")?.trim().strip_suffix(" kB"));
    let total = total.and_then(|total| total.parse::<u64>().ok());
    total
        .map(|kib| kib << 10)
        .ok_or_else(|| Failure::Wrong("the machine does not tell its memory".to_owned()))
}

/// A control group with a limit, in which this process is until it leaves.
struct Group {
    own: PathBuf,
    parent: PathBuf,
}

impl Group {
    /// Whichever of the two versions of control groups limits memory on this machine, if there is one.
    fn enter() -> Result<Option<Group>, Failure> {
        // The number of this process is the same in each of these tests, which have namespaces of their own.
        let unique = Path::new("/proc/sys/kernel/random/uuid");
        let unique = at("cannot read", unique, fs::read_to_string(unique))?;
        let groups = Path::new("/proc/self/cgroup");
        let groups = at("cannot read", groups, fs::read_to_string(groups))?;
        let entered = groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let (hierarchy, limit) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            let parent = Path::new(hierarchy).join(path.trim_start_matches('/'));
            let group = Group { own: parent.join(format!("pando-test-{}", unique.trim_end())), parent };
            fs::create_dir(&group.own).ok()?;
            let entered = set(&group.own.join(limit), &LIMIT.to_string())
                .and_then(|()| set(&group.own.join("cgroup.procs"), "0"));
            if entered.is_err() {
                // A directory that limits nothing.
                let _ = fs::remove_dir(&group.own);
                return None;
            }
            Some(group)
        });
        Ok(entered)
    }

    fn leave(self) -> Outcome {
        let processes = self.parent.join("cgroup.procs");
        at("cannot go back to", &processes, set(&processes, "0"))?;
        at("cannot remove", &self.own, fs::remove_dir(&self.own))
    }
}

/// Makes no file: what is no control group has none of that name.
fn set(file: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}
