//! Which allocator a process has.
//!
//! A block that is written lives until its leaf is, and another thread frees it. Measured on random writes of 4 KiB: with the C
//! library's allocator 5.8 page faults and 1.1 calls of mprotect a write, with mimalloc next to none. But mimalloc spreads its first
//! few blocks, and what it notes of its regions, over ninety pages more, and a program that says a sentence to a daemon and ends is a
//! fifth slower for that. So whoever keeps nodes in memory starts with it, and says so in the environment; others have the C library's.

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU8, Ordering};

use mimalloc::MiMalloc;

/// Which variable of the environment gives a process mimalloc, which reads there, before `main`, whether to ask for huge pages: 0 for
/// none, 1, or 2 to give memory back in whole ones only.
pub const KEEPS_NODES: &str = match NAME.to_str() {
    Ok(name) => name,
    Err(_) => unreachable!(),
};

const NAME: &CStr = c"MIMALLOC_ALLOW_THP";

/// The allocator of a program that may start anew to keep nodes in memory.
pub struct Allocator {
    kind: AtomicU8,
}

const UNKNOWN: u8 = 0;
const COMMAND: u8 = 1;
const NODES: u8 = 2;

impl Allocator {
    /// One for `#[global_allocator]`.
    #[allow(clippy::new_without_default, reason = "it is for a static")]
    pub const fn new() -> Self {
        Self { kind: AtomicU8::new(UNKNOWN) }
    }

    #[inline]
    fn keeps_nodes(&self) -> bool {
        match self.kind.load(Ordering::Relaxed) {
            UNKNOWN => self.find_out(),
            kind => kind == NODES,
        }
    }

    /// The first block is asked for before `main`, when there is one thread, and nobody can have changed the environment: who comes
    /// later finds what was found then.
    #[cold]
    fn find_out(&self) -> bool {
        // SAFETY: the name ends with a zero byte. No other thread is there that could change the environment meanwhile, and what is
        // returned is only compared with null.
        let keeps_nodes = !unsafe { libc::getenv(NAME.as_ptr()) }.is_null();
        self.kind.store(if keeps_nodes { NODES } else { COMMAND }, Ordering::Relaxed);
        keeps_nodes
    }
}

// SAFETY: every block of a process comes from one of two allocators that keep the contract of `GlobalAlloc`, and goes back to the same,
// since `keeps_nodes` says the same from the first block on. None of these functions allocates itself, or unwinds.
unsafe impl GlobalAlloc for Allocator {
    #[inline]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: the caller keeps what is asked of it, which is the same for both.
        unsafe { if self.keeps_nodes() { MiMalloc.alloc(layout) } else { System.alloc(layout) } }
    }

    #[inline]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if self.keeps_nodes() { MiMalloc.alloc_zeroed(layout) } else { System.alloc_zeroed(layout) }
        }
    }

    #[inline]
    unsafe fn dealloc(&self, block: *mut u8, layout: Layout) {
        // SAFETY: as above; the block is from the same allocator.
        unsafe {
            if self.keeps_nodes() { MiMalloc.dealloc(block, layout) } else { System.dealloc(block, layout) }
        }
    }

    #[inline]
    unsafe fn realloc(&self, block: *mut u8, layout: Layout, bytes: usize) -> *mut u8 {
        // SAFETY: as above.
        unsafe {
            if self.keeps_nodes() {
                MiMalloc.realloc(block, layout, bytes)
            } else {
                System.realloc(block, layout, bytes)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Blocks of every kind, of an allocator that takes this environment's part.
    fn has_blocks(allocator: &Allocator) {
        let layout = Layout::from_size_align(100, 64).unwrap();
        // SAFETY: the layout is of more than no bytes; the block is used within it, grows by a layout of the same alignment, and goes
        // back once, with what it grew to.
        unsafe {
            let block = allocator.alloc_zeroed(layout);
            assert!(!block.is_null() && block.addr().is_multiple_of(64));
            assert!((0..100).all(|at| *block.add(at) == 0));
            block.write_bytes(7, 100);
            let block = allocator.realloc(block, layout, 100_000);
            assert!(!block.is_null() && block.addr().is_multiple_of(64));
            assert!((0..100).all(|at| *block.add(at) == 7));
            allocator.dealloc(block, Layout::from_size_align(100_000, 64).unwrap());
            let block = allocator.alloc(layout);
            assert!(!block.is_null());
            allocator.dealloc(block, layout);
        }
    }

    #[test]
    fn each_kind_takes_back_what_it_gave() {
        for kind in [COMMAND, NODES] {
            let allocator = Allocator { kind: AtomicU8::new(kind) };
            has_blocks(&allocator);
            assert_eq!(allocator.kind.into_inner(), kind);
        }
    }

    #[test]
    fn the_environment_says_it_once() {
        let allocator = Allocator::new();
        has_blocks(&allocator);
        let wanted = if std::env::var_os(KEEPS_NODES).is_some() { NODES } else { COMMAND };
        assert_eq!(allocator.kind.into_inner(), wanted);
    }
}
