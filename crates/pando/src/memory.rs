//! How this process gets its memory.
//!
//! Whoever serves a volume wants huge pages: without them a cold read of a large file is slower by a third. A command that says
//! a sentence to a daemon and ends has small ones, for which a virtual machine need not ask its host, and the allocator that spreads
//! its first blocks over the fewest ([`pando_device::Allocator`]). Which it is must be known before the first block: so those that keep
//! nodes in memory start anew.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::{env, fs};

use pando_device::KEEPS_NODES;

use crate::mount_options::CACHE_BYTES_MIN;

/// The allocator shall ask for huge pages, and give memory back in whole ones: sequential writes and cold reads are a tenth faster than with 1, which splits them.
const WHOLE: &str = "2";

/// The cache of a volume gets this part of the memory that there is for this process, unless told: what it holds is needed to change it,
/// and a working set that does not fit is read and written again and again. The rest is for the kernel's cache of file contents and for programs.
const CACHE_SHARE: u64 = 4;

/// Bytes of memory for the cache of a volume whose mount names none.
pub fn default_cache_bytes() -> u64 {
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limit = limit_of_groups(&groups, Path::new("/sys/fs/cgroup")).unwrap_or(u64::MAX);
    cache_bytes_of(machine_bytes().min(limit))
}

/// Bytes for the cache, of so much memory.
fn cache_bytes_of(memory: u64) -> u64 {
    (memory / CACHE_SHARE).max(CACHE_BYTES_MIN)
}

fn machine_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // The kernel counts in its own unit.
    system.totalram * u64::from(system.mem_unit)
}

/// The least limit of these control groups, as in `/proc/self/cgroup`, and of those around them (cgroups(7)). Whoever goes beyond it is
/// killed, or held up. A container sees its own group as the root of all.
fn limit_of_groups(groups: &str, root: &Path) -> Option<u64> {
    let limits = groups.lines().filter_map(|line| {
        let (_, rest) = line.split_once(':')?;
        let (controllers, group) = rest.split_once(':')?;
        let (hierarchy, files): (_, &[&str]) = match controllers {
            "" => (root.to_owned(), &["memory.max", "memory.high"]),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                (root.join("memory"), &["memory.limit_in_bytes"])
            }
            _ => return None,
        };
        let around = Path::new(group)
            .ancestors()
            .map(|group| hierarchy.join(group.strip_prefix("/").unwrap_or(group)));
        // What has no limit says so in words, or with a number larger than any memory.
        let limit = |file: &Path| fs::read_to_string(file).ok()?.trim().parse::<u64>().ok();
        around.flat_map(|group| files.iter().filter_map(move |file| limit(&group.join(file)))).min()
    });
    limits.min()
}

/// Small pages from here on, for this process and those that it starts, also where the kernel gives huge ones to who does not ask.
pub fn use_small_pages() {
    // A kernel without huge pages has nothing to refuse.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Huge pages, for whoever keeps nodes in memory. Unless it was started with them the program begins anew, with the same
/// arguments: to be called before anything is read, printed or changed.
pub fn use_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    if env::var_os(KEEPS_NODES).is_some() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    // Comes back only where it failed; small pages do then.
    let _ = Command::new(program).arg0(name).args(arguments).env(KEEPS_NODES, WHOLE).exec();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_a_part_of_the_machines_memory() {
        let total = || -> u64 {
            let meminfo = fs::read_to_string("/proc/meminfo").unwrap();
            let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
            total.trim().strip_suffix(" kB").unwrap().parse::<u64>().unwrap() << 10
        };
        // A virtual machine may be given memory, or lose some, meanwhile.
        let (before, found, after) = (total(), machine_bytes(), total());
        assert!((before.min(after)..=before.max(after)).contains(&found));
        // The tests may run in a group with a limit.
        assert!((CACHE_BYTES_MIN..=machine_bytes() / 4).contains(&default_cache_bytes()));
        assert_eq!(cache_bytes_of(32 << 20), 16 << 20, "no less than a mount may be told");
        assert_eq!(cache_bytes_of(128 << 20), 32 << 20);
    }

    #[test]
    fn the_least_limit_of_the_groups_around_counts() {
        let root = tempfile::tempdir().unwrap();
        let put = |file: &str, text: &str| {
            let path = root.path().join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let limit = |groups| limit_of_groups(groups, root.path());
        assert_eq!(limit("0::/a/b\n"), None);
        put("a/b/memory.max", "max\n");
        assert_eq!(limit("0::/a/b\n"), None);
        put("a/memory.max", "4096000\n");
        assert_eq!(limit("0::/a/b\n"), Some(4_096_000));
        put("a/b/memory.high", "2048000\n");
        assert_eq!(limit("0::/a/b\n"), Some(2_048_000));
        assert_eq!(limit("0::/a\n"), Some(4_096_000));
        assert_eq!(limit("0::/\n"), None);
        // The older hierarchies, one for each controller, of which a container may see only its own group, as the root.
        put("memory/memory.limit_in_bytes", "1024000\n");
        let older = "5:cpu,cpuacct:/a/b\n4:memory:/elsewhere\n0::/\n";
        assert_eq!(limit(older), Some(1_024_000));
        assert_eq!(limit("5:cpu,cpuacct:/a/b\nnonsense\n"), None);
    }
}
