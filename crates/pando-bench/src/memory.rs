//! Memory that is at hand before anything is timed.
//!
//! A virtual machine whose free memory goes back to its host (free page reporting, a balloon) gets it again page by page,
//! when somebody first writes to it, and that can take longer than what is to be measured: 2 to 3 ms a MiB has been seen,
//! which is a third of the bandwidth of a disk. Whoever runs first after a pause would pay for it, and whoever comes next
//! not. So each measurement finds as much free memory as it may need, fresh from use.

use std::fs;

use memmap2::{Advice, MmapMut};
use rustix::io::Errno;

use crate::error::{Error, at};

/// Writes to `bytes` of free memory, no more than half of what is available, and frees it again.
pub fn take(bytes: u64) -> Result<(), Error> {
    let bytes = bytes.min(available() / 2);
    // Without memory to write to there is nothing to map, which mmap(2) refuses.
    let Some(length) = usize::try_from(bytes).ok().filter(|length| *length > 0) else { return Ok(()) };
    let what = std::path::Path::new("memory");
    let mut map = at("cannot map", what, MmapMut::map_anon(length))?;
    // Larger pages take a fifth of the time; a kernel without them serves as well.
    let _ = map.advise(Advice::HugePage);
    match map.advise(Advice::PopulateWrite) {
        // It is from Linux 5.14.
        Err(error) if error.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => {
            touch(&mut map);
            Ok(())
        }
        written => at("cannot write to", what, written),
    }
}

/// Writes to each page.
fn touch(bytes: &mut [u8]) {
    bytes.iter_mut().step_by(rustix::param::page_size()).for_each(|byte| *byte = 1);
    std::hint::black_box(bytes);
}

/// Bytes that programs can have without swapping; 0 where the kernel does not tell.
fn available() -> u64 {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let number = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) << 10
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_what_there_is() {
        assert!(available() > 1 << 20);
        take(0).unwrap();
        take(3 << 20).unwrap();
    }

    #[test]
    fn each_page_is_written_to_where_the_kernel_does_not_do_it() {
        let page = rustix::param::page_size();
        let mut bytes = vec![0; 3 * page + 1];
        touch(&mut bytes);
        let written = bytes.iter().enumerate().filter(|(_, byte)| **byte != 0).map(|(place, _)| place);
        assert_eq!(written.collect::<Vec<_>>(), [0, page, 2 * page, 3 * page]);
    }
}
