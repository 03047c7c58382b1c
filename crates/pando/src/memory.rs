//! How this process gets its memory.
//!
//! Whoever serves a volume wants huge pages: without them a cold read of a large file is slower by a third. A command that says
//! a sentence to a daemon and ends would clear 6 MiB with them, since the allocator spreads its first few blocks over three, for
//! which a virtual machine may first have to ask its host: a clone that takes 5 ms came to 30. So programs start with small pages
//! (`.cargo/config.toml` makes that the allocator's default), and those that keep nodes in memory start anew with huge ones.

use std::env;
use std::os::unix::process::CommandExt;
use std::process::Command;

/// Where the allocator reads, before `main`, whether to ask for huge pages.
const ALLOW_HUGE_PAGES: &str = "MIMALLOC_ALLOW_THP";

/// It shall ask for them, and give memory back in whole ones: sequential writes and cold reads are a tenth faster than with 1, which splits them.
const WHOLE: &str = "2";

/// The cache of a volume gets this part of the machine's memory, unless told: what it holds is needed to change it, and a working set
/// that does not fit is read and written again and again. The rest is for the kernel's cache of file contents and for programs.
const CACHE_SHARE: u64 = 4;

/// Bytes of memory for the cache of a volume whose mount names none.
pub fn default_cache_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    // The kernel counts in its own unit.
    let bytes = system.totalram * u64::from(system.mem_unit);
    bytes / CACHE_SHARE
}

/// Small pages from here on, for this process and those that it starts: for an allocator that was built with a default of its own.
pub fn use_small_pages() {
    // A kernel without huge pages has nothing to refuse.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Huge pages, for whoever keeps nodes in memory. Unless it was started with them the program begins anew, with the same
/// arguments: to be called before anything is read, printed or changed.
pub fn use_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(false);
    if env::var_os(ALLOW_HUGE_PAGES).is_some() {
        return;
    }
    let Ok(program) = env::current_exe() else { return };
    let mut arguments = env::args_os();
    let name = arguments.next().unwrap_or_default();
    // Comes back only where it failed; small pages do then.
    let _ = Command::new(program).arg0(name).args(arguments).env(ALLOW_HUGE_PAGES, WHOLE).exec();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_cache_is_a_part_of_the_machines_memory() {
        let meminfo = std::fs::read_to_string("/proc/meminfo").unwrap();
        let total = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap();
        let total: u64 = total.trim().strip_suffix(" kB").unwrap().parse().unwrap();
        assert_eq!(default_cache_bytes(), (total << 10) / 4);
    }
}
