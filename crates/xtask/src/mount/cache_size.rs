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
    let group = Group::enter();
    match &group {
        Some(group) => eprintln!("in {}", group.own.display()),
        None => eprintln!("no control group with a limit can be made here"),
    }
    volume.mount()?;
    gets(&volume, if group.is_some() { default.min(LIMIT / SHARE) } else { default })?;
    volume.finish()
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

/// A control group with a limit, in which this process is until it is dropped.
struct Group {
    own: PathBuf,
    parent: PathBuf,
}

impl Group {
    /// Whichever of the two versions of control groups limits memory on this machine.
    fn enter() -> Option<Group> {
        let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
        groups.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let (controllers, path) = (fields.next()?, fields.next()?);
            let (hierarchy, limit) = match controllers {
                "" => ("/sys/fs/cgroup", "memory.max"),
                "memory" => ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                _ => return None,
            };
            let parent = Path::new(hierarchy).join(path.trim_start_matches('/'));
            let group = Group { own: parent.join(format!("pando-test-{}", std::process::id())), parent };
            fs::create_dir(&group.own).ok()?;
            set(&group.own.join(limit), &LIMIT.to_string()).ok()?;
            set(&group.own.join("cgroup.procs"), "0").ok()?;
            Some(group)
        })
    }
}

/// Makes no file: what is no control group has none of that name.
fn set(file: &Path, value: &str) -> io::Result<()> {
    OpenOptions::new().write(true).open(file)?.write_all(value.as_bytes())
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = set(&self.parent.join("cgroup.procs"), "0");
        let _ = fs::remove_dir(&self.own);
    }
}
