//! Memory that is at hand before anything is timed.
//!
//! A virtual machine whose free memory goes back to its host (free page reporting, a balloon) gets it again page by page,
//! when somebody first writes to it, and that can take longer than what is to be measured: 2 to 3 ms a MiB has been seen,
//! which is a third of the bandwidth of a disk. Whoever runs first after a pause would pay for it, and whoever comes next
//! not. So each measurement finds as much free memory as it may need, fresh from use.

use std::fs;

use memmap2::{Advice, MmapMut};

use crate::error::{Error, at};

/// Writes to `bytes` of free memory, no more than half of what is available, and frees it again.
pub fn take(bytes: u64) -> Result<(), Error> {
    let bytes = bytes.min(available() / 2);
    // Without memory to write to there is nothing to map, which mmap(2) refuses.
    let Some(length) = usize::try_from(bytes).ok().filter(|length| *length > 0) else { return Ok(()) };
    let what = std::path::Path::new("memory");
    let map = at("cannot map", what, MmapMut::map_anon(length))?;
    // Larger pages take a fifth of the time; a kernel without them serves as well.
    let _ = map.advise(Advice::HugePage);
    at("cannot write to", what, map.advise(Advice::PopulateWrite))
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
}
