//! Memory that is there before it is needed.
//!
//! The first write to fresh memory waits for the kernel to find and to clear it, and in a virtual machine for the host to give
//! it: 0.1 ms a MiB at best, 3 ms where the host has taken free memory back. A volume that fills its cache would make each of
//! its callers wait for that. So a thread does it beforehand, a step ahead of the allocator.
//!
//! How far the allocator has come shows in its memory: it takes large regions of address space, and uses them from their
//! lower ends. What is populated is resident whether it is used or not, so the first piece of each step is left out, the *wire*: as soon
//! as that is resident, the next step is populated, while the allocator has one before it. So nothing is populated more than two steps
//! beyond what the allocator has used.

use std::ffi::c_void;
use std::fs;
use std::ops::Range;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::mm::Advice;

use crate::maps::Mapping;

/// Regions of the allocator that are smaller are none in which it goes on for long.
const REGION_BYTES_MIN: usize = 256 << 20;

/// Bytes populated by one call: the largest pages that memory comes in.
const PIECE: usize = 2 << 20;

/// How long to sleep between two looks, at least and at most: a sixteenth of the time that it has been since memory was taken.
const WAITS: [Duration; 2] = [Duration::from_millis(4), Duration::from_millis(128)];

/// Huge pages are as large as a piece where pages are of this size. Larger ones would reach over the wire, and each step bring the next.
const PAGE_BYTES: usize = 4096;

/// A thread that keeps memory ahead of the allocator, until this is dropped.
pub struct Ahead {
    stop: Arc<Stop>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Stop {
    wanted: Mutex<bool>,
    changed: Condvar,
}

impl Ahead {
    /// Keeps memory ahead in steps of so many bytes, two at most. `None`, and nothing is done, where no thread can be had or pages are not
    /// of 4 KiB.
    ///
    /// # Panics
    /// If the bytes are no multiple of 2 MiB, or none.
    pub fn start(step: usize) -> Option<Self> {
        assert!(step > 0 && step.is_multiple_of(PIECE), "a step is made of whole pieces");
        if rustix::param::page_size() != PAGE_BYTES {
            return None;
        }
        Self::begin(Frontier::new(0..0, step))
    }

    fn begin(frontier: Frontier) -> Option<Self> {
        let stop = Arc::new(Stop::default());
        let seen = stop.clone();
        let thread = std::thread::Builder::new().name("pando-memory".to_owned());
        let thread = thread.spawn(move || run(frontier, &seen)).ok()?;
        Some(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Ahead {
    fn drop(&mut self) {
        *self.stop.wanted.lock() = true;
        self.stop.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(mut frontier: Frontier, stop: &Stop) {
    let [least, most] = WAITS;
    let mut taken = Instant::now();
    loop {
        // The allocator goes on above; or it is one that has no such regions.
        if frontier.is_at_end()
            && let Ok(maps) = fs::read_to_string("/proc/self/maps")
            && let Some(region) = region_above(&maps, frontier.region.end)
        {
            frontier = Frontier::new(region, frontier.step);
        }
        match frontier.advance() {
            Ok(true) => taken = Instant::now(),
            Ok(false) => {}
            // Before Linux 5.14 the kernel could not; and without memory there is none to have ahead.
            Err(_) => return,
        }
        let wait = (taken.elapsed() / 16).clamp(least, most);
        let mut wanted = stop.wanted.lock();
        if !*wanted {
            stop.changed.wait_for(&mut wanted, wait);
        }
        if *wanted {
            return;
        }
    }
}

/// How much of a region has been populated.
struct Frontier {
    region: Range<usize>,
    /// The wire: all below has been populated, and once anything has, the rest of the step that begins here.
    at: usize,
    step: usize,
    has_begun: bool,
}

impl Frontier {
    fn new(region: Range<usize>, step: usize) -> Self {
        Self { at: region.start.next_multiple_of(PIECE), region, step, has_begun: false }
    }

    fn is_at_end(&self) -> bool {
        self.at >= self.region.end
    }

    /// A part of the step that is so many steps above the wire.
    fn part(&self, steps: usize, part: Range<usize>) -> Range<usize> {
        let start = self.at + steps * self.step;
        (start + part.start).min(self.region.end)..(start + part.end).min(self.region.end)
    }

    /// Populates another step if the allocator has come to the wire, or beyond all that is populated; whether it had.
    fn advance(&mut self) -> rustix::io::Result<bool> {
        let whole = 0..self.step;
        // Before the first step there is no wire.
        let here = if self.has_begun { 0..PIECE } else { whole.clone() };
        if !is_any_resident(&self.part(0, here))? && !is_any_resident(&self.part(1, whole.clone()))? {
            return Ok(false);
        }
        populate(&self.part(0, whole.clone()))?;
        populate(&self.part(1, PIECE..self.step))?;
        self.at = self.part(0, whole).end;
        self.has_begun = true;
        Ok(true)
    }
}

/// Makes all pages of a range resident that are not.
fn populate(range: &Range<usize>) -> rustix::io::Result<()> {
    for start in range.clone().step_by(PIECE) {
        let length = PIECE.min(range.end - start);
        // SAFETY: this changes no byte of any memory, and needs none to be there: it does what a write of what is there would.
        unsafe { rustix::mm::madvise(start as *mut c_void, length, Advice::LinuxPopulateWrite)? };
    }
    Ok(())
}

/// Whether any page of a range is in memory. Fails with ENOMEM where part of it is not mapped.
fn is_any_resident(range: &Range<usize>) -> rustix::io::Result<bool> {
    if range.is_empty() {
        return Ok(false);
    }
    let mut pages = vec![0u8; range.len().div_ceil(rustix::param::page_size())];
    // SAFETY: it writes a byte for each page of the range, for which there is room, and nothing else.
    let done = unsafe { libc::mincore(range.start as *mut c_void, range.len(), pages.as_mut_ptr()) };
    if done != 0 {
        let error = std::io::Error::last_os_error();
        return Err(rustix::io::Errno::from_io_error(&error).unwrap_or(rustix::io::Errno::NOMEM));
    }
    Ok(pages.iter().any(|page| page & 1 == 1))
}

/// The next region above an address, as the allocator takes them, of the mappings of a process.
fn region_above(maps: &str, address: usize) -> Option<Range<usize>> {
    let mut ranges = maps.lines().filter_map(writable_mapping);
    ranges.find(|range| range.start >= address && range.len() >= REGION_BYTES_MIN)
}

/// The range of a line of /proc/PID/maps, if it is memory of no file, to be written.
fn writable_mapping(line: &str) -> Option<Range<usize>> {
    let mapping = Mapping::parse(line)?;
    (mapping.permissions == "rw-p" && mapping.inode == 0).then_some(mapping.range)
}

#[cfg(test)]
mod tests {
    use std::ptr;

    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    use super::*;

    const STEP: usize = 4 * PIECE;

    /// Memory of our own, as an allocator has it.
    struct Region(Range<usize>);

    impl Region {
        fn new(length: usize) -> Self {
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            let protection = ProtFlags::READ | ProtFlags::WRITE;
            // SAFETY: new memory at an address of the kernel's choice.
            let start =
                unsafe { mmap_anonymous(ptr::null_mut(), length, protection, flags) }.unwrap() as usize;
            Self(start..start + length)
        }

        /// Bytes at an address of it.
        fn write(&self, address: usize, byte: u8) {
            assert!(self.0.contains(&address));
            // SAFETY: it is ours, mapped, and used by nobody else meanwhile.
            unsafe { (address as *mut u8).write(byte) };
        }

        fn read(&self, address: usize) -> u8 {
            assert!(self.0.contains(&address));
            // SAFETY: as above.
            unsafe { (address as *const u8).read() }
        }

        fn is_resident(&self, offset: usize) -> bool {
            let page = self.0.start + offset;
            is_any_resident(&(page..page + rustix::param::page_size())).unwrap()
        }
    }

    impl Drop for Region {
        fn drop(&mut self) {
            // SAFETY: nothing refers to it any more.
            unsafe { munmap(self.0.start as *mut c_void, self.0.len()) }.unwrap();
        }
    }

    #[test]
    fn memory_is_a_step_ahead_of_its_use() {
        let region = Region::new(4 * STEP + STEP / 2);
        let mut frontier = Frontier::new(region.0.clone(), STEP);
        let begin = frontier.at;
        let at = |offset: usize| begin - region.0.start + offset;
        let is_wire = |step: usize| {
            let [wire, behind] = [step * STEP, step * STEP + PIECE];
            !region.is_resident(at(wire))
                && !region.is_resident(at(behind - 4096))
                && region.is_resident(at(behind))
        };
        assert_eq!(frontier.advance(), Ok(false), "nobody has used it");
        region.write(begin + 5, 7);
        match frontier.advance() {
            Err(rustix::io::Errno::INVAL) => {
                println!("SKIPPED memory_is_a_step_ahead_of_its_use: the kernel is older than 5.14");
                return;
            }
            advanced => assert_eq!(advanced, Ok(true)),
        }
        assert!(region.is_resident(at(STEP - 4096)) && is_wire(1));
        assert!(region.is_resident(at(2 * STEP - 4096)) && !region.is_resident(at(2 * STEP)));
        assert_eq!((region.read(begin + 5), region.read(begin + STEP - 1)), (7, 0), "nothing has changed");
        assert_eq!(frontier.advance(), Ok(false), "what is above the wire is there, not used");
        region.write(begin + STEP + 9, 9);
        assert_eq!(frontier.advance(), Ok(true), "the wire is used");
        assert!(region.is_resident(at(STEP + PIECE - 4096)) && is_wire(2));
        assert!(region.is_resident(at(3 * STEP - 4096)) && !region.is_resident(at(3 * STEP)));
        assert_eq!(region.read(begin + STEP + 9), 9);
        region.write(begin + 3 * STEP + PIECE, 1);
        assert_eq!(frontier.advance(), Ok(true), "the wire was passed over");
        assert!(region.is_resident(at(2 * STEP)) && is_wire(3));
        region.write(begin + 3 * STEP, 1);
        assert_eq!(frontier.advance(), Ok(true), "as far as the region goes");
        assert_eq!(frontier.at, begin + 4 * STEP);
        region.write(begin + 4 * STEP, 1);
        assert_eq!(frontier.advance(), Ok(true), "less than a step is left");
        assert!(frontier.is_at_end());
        assert_eq!(frontier.advance(), Ok(false));
    }

    #[test]
    fn a_thread_follows_what_is_used_until_it_is_dropped() {
        let region = Region::new(6 * STEP);
        let mut frontier = Frontier::new(region.0.clone(), STEP);
        let begin = frontier.at - region.0.start;
        region.write(frontier.at, 1);
        if frontier.advance() == Err(rustix::io::Errno::INVAL) {
            println!(
                "SKIPPED a_thread_follows_what_is_used_until_it_is_dropped: the kernel is older than 5.14"
            );
            return;
        }
        let ahead = Ahead::begin(frontier).unwrap();
        let populated = |end: usize| {
            let patience = Instant::now() + Duration::from_secs(60);
            while !region.is_resident(end - 4096) {
                assert!(Instant::now() < patience, "memory below {end} is not there");
                std::thread::sleep(Duration::from_millis(1));
            }
        };
        for step in 1..3 {
            region.write(region.0.start + begin + step * STEP, 1);
            populated(begin + (step + 2) * STEP);
            assert!(!region.is_resident(begin + (step + 2) * STEP), "no more than two steps");
        }
        drop(ahead);
        region.write(region.0.start + begin + 3 * STEP, 1);
        std::thread::sleep(4 * WAITS[1]);
        assert!(!region.is_resident(begin + 5 * STEP - 4096), "it goes on");
    }

    #[test]
    fn large_regions_are_found() {
        let region = Region::new(REGION_BYTES_MIN);
        let maps = fs::read_to_string("/proc/self/maps").unwrap();
        let above = |range: &Range<usize>| region_above(&maps, range.end);
        let mut regions = std::iter::successors(region_above(&maps, 0), above);
        assert!(regions.any(|range| range.start <= region.0.start && region.0.end <= range.end));
    }

    #[test]
    fn small_regions_are_passed_over() {
        let maps = "10000000-1ffff000 rw-p 00000000 00:00 0 \n20000000-30000000 rw-p 00000000 00:00 0 \n";
        assert_eq!(region_above(maps, 0), Some(0x2000_0000..0x3000_0000));
        assert_eq!(region_above(maps, 0x2000_0001), None);
    }

    #[test]
    fn mappings_of_memory_are_told_from_those_of_files() {
        assert_eq!(
            writable_mapping("7f00a000-7f00b000 rw-p 00000000 00:00 0 "),
            Some(0x7f00_a000..0x7f00_b000)
        );
        let named = "7f00a000-7f00b000 rw-p 00000000 00:00 0                          [anon:heap]";
        assert_eq!(writable_mapping(named), Some(0x7f00_a000..0x7f00_b000));
        assert_eq!(writable_mapping("7f00a000-7f00b000 r--p 00000000 00:00 0 "), None);
        assert_eq!(writable_mapping("7f00a000-7f00b000 rw-p 00000000 08:01 77   /usr/bin/a"), None);
        assert_eq!(writable_mapping(""), None);
    }
}
