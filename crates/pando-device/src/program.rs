//! The pages of the program itself.
//!
//! A program's code is read from its file when it first runs, a piece at a time, and again where memory was short since. Whoever
//! serves a file system would make its callers wait for that, most of all for an operation that is rare: a clone takes less
//! than a millisecond, and came to 30 when the disk that the program lies on had to be asked.

use std::ffi::c_void;
use std::fs;
use std::ops::Range;
use std::path::Path;

use rustix::mm::Advice;

use crate::maps::Mapping;

/// Reads all code and constants of this program and maps them, so that nothing later waits for them. What cannot be read, or
/// not so on an old kernel (before Linux 5.14), is read when it is needed, as ever.
pub fn read_whole() {
    let ranges = own_mappings();
    // All of it is asked for before any of it is waited for.
    for advice in [Advice::WillNeed, Advice::LinuxPopulateRead] {
        for range in &ranges {
            // SAFETY: neither advice changes what is at an address, whatever that is, or what may be done with it.
            let _ = unsafe { rustix::mm::madvise(range.start as *mut c_void, range.len(), advice) };
        }
    }
}

/// Where the parts of this program's file are mapped that are only read.
fn own_mappings() -> Vec<Range<usize>> {
    let (Ok(program), Ok(maps)) = (fs::read_link("/proc/self/exe"), fs::read_to_string("/proc/self/maps"))
    else {
        return Vec::new();
    };
    maps.lines().filter_map(|line| read_only_mapping(line, &program)).collect()
}

/// The range of a line of /proc/PID/maps, if it is one of the program's file and not writable.
fn read_only_mapping(line: &str, program: &Path) -> Option<Range<usize>> {
    let mapping = Mapping::parse(line)?;
    (mapping.permissions.starts_with("r-") && Path::new(mapping.path) == program).then_some(mapping.range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mappings_of_the_program_are_told_from_others() {
        let program = Path::new("/usr/bin/a b");
        let read = |line| read_only_mapping(line, program);
        assert_eq!(
            read("55d0a000-55d0b000 r-xp 00001000 08:01 77                     /usr/bin/a b"),
            Some(0x55d0_a000..0x55d0_b000)
        );
        assert_eq!(
            read("55d0a000-55d0b000 r--p 00001000 08:01 77   /usr/bin/a b"),
            Some(0x55d0_a000..0x55d0_b000)
        );
        assert_eq!(read("55d0a000-55d0b000 rw-p 00001000 08:01 77   /usr/bin/a b"), None);
        assert_eq!(read("55d0a000-55d0b000 ---p 00001000 08:01 77   /usr/bin/a b"), None);
        assert_eq!(read("55d0a000-55d0b000 r-xp 00001000 08:01 77   /usr/bin/a"), None);
        assert_eq!(read("7ffd0000-7ffd1000 r-xp 00000000 00:00 0"), None);
        assert_eq!(read(""), None);
    }

    /// Bytes of each mapping of [`own_mappings`] that are in memory and mapped.
    fn resident() -> Vec<usize> {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let program = fs::read_link("/proc/self/exe").unwrap();
        let mut lines = smaps.lines();
        let mut found = Vec::new();
        while let Some(line) = lines.next() {
            if read_only_mapping(line, &program).is_some() {
                let rss = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
                found.push(rss.trim().strip_suffix(" kB").unwrap().parse::<usize>().unwrap() * 1024);
            }
        }
        found
    }

    #[test]
    fn all_of_the_program_is_in_memory() {
        let code = own_mappings().swap_remove(0);
        // SAFETY: as in `read_whole`.
        let populated =
            unsafe { rustix::mm::madvise(code.start as *mut c_void, code.len(), Advice::LinuxPopulateRead) };
        if populated == Err(rustix::io::Errno::INVAL) {
            println!("SKIPPED all_of_the_program_is_in_memory: the kernel is older than 5.14");
            return;
        }
        let lengths: Vec<usize> = own_mappings().into_iter().map(|range| range.len()).collect();
        assert!(lengths.len() >= 2, "code and constants are mapped apart: {lengths:?}");
        // A machine that is short of memory may take some back at once.
        let is_whole = || {
            read_whole();
            resident() == lengths
        };
        assert!((0..1000).any(|_| is_whole()), "{:?} of {lengths:?} bytes are in memory", resident());
    }
}
