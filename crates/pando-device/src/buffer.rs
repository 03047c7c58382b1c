//! I/O buffers: memory aligned to 4 KiB, so that direct I/O can use it, and shared without a copy as [`Bytes`].
//!
//! Large memory is kept for the next buffer when one is dropped: the page faults of 4 MiB of fresh memory cost ten
//! times as much as overwriting it (2.4 ms against 0.1 to 0.2 ms on a two-core virtual machine), more than reading
//! them from a fast device.
//!
//! Invariant MEM-1: every byte of a [`Memory`] is initialised, from its allocation on, so that old contents are at
//! worst somebody's old bytes.

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;
use parking_lot::Mutex;

use crate::BLOCK_SIZE;

/// Memory smaller than this comes from the allocator, which is good at it.
const KEPT_LENGTH_MIN: usize = 64 * 1024;
/// Memory larger than this is given back to the system.
const KEPT_LENGTH_MAX: usize = 8 * 1024 * 1024;
/// Bytes kept in all.
const KEPT_TOTAL_MAX: usize = 48 * 1024 * 1024;

static KEPT: Mutex<Kept> = Mutex::new(Kept { free: Vec::new(), bytes: 0 });

/// Owned memory that starts at a 4 KiB boundary.
pub struct Buffer {
    /// `None` only while the buffer is being dropped.
    memory: Option<Memory>,
    length: usize,
}

impl Buffer {
    /// Zeroed memory of `length` bytes, rounded up to a whole number of blocks (at least one).
    pub fn zeroed(length: usize) -> Self {
        let mut buffer = Self::empty(length);
        // The lock is let go before memory is cleared.
        match take_kept(buffer.length) {
            Some(memory) => {
                buffer.memory = Some(memory);
                buffer.fill(0);
            }
            None => buffer.memory = Some(Memory::allocate(capacity_for(buffer.length))),
        }
        buffer
    }

    /// Memory of `length` bytes, rounded up as in [`Buffer::zeroed`], that holds anything. For whoever overwrites all
    /// of it, as a read does; what is left of the old bytes must not get out.
    pub fn for_overwrite(length: usize) -> Self {
        let mut buffer = Self::empty(length);
        let kept = take_kept(buffer.length);
        buffer.memory = Some(kept.unwrap_or_else(|| Memory::allocate(capacity_for(buffer.length))));
        buffer
    }

    /// Gives the memory up as shared, immutable bytes; nothing is copied.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn empty(length: usize) -> Self {
        Self { memory: None, length: length.max(1).next_multiple_of(BLOCK_SIZE) }
    }

    fn start(&self) -> NonNull<u8> {
        self.memory.as_ref().expect("a buffer has memory until it is dropped").start
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the memory has at least `length` bytes, initialised (MEM-1) and owned by self.
        unsafe { std::slice::from_raw_parts(self.start().as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.start().as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Some(memory) = self.memory.take()
            && is_kept(memory.capacity)
        {
            // What is too much goes back to the system after the lock is let go.
            let _surplus = KEPT.lock().keep(memory);
        }
    }
}

/// An allocation of `capacity` initialised bytes.
struct Memory {
    start: NonNull<u8>,
    capacity: usize,
}

// SAFETY: a Memory owns its bytes alone, like a Box<[u8]>.
unsafe impl Send for Memory {}
// SAFETY: shared access only reads.
unsafe impl Sync for Memory {}

impl Memory {
    fn allocate(capacity: usize) -> Self {
        let layout = Self::layout(capacity);
        // SAFETY: the layout's size is not zero, since a buffer has at least one block.
        let start = unsafe { alloc_zeroed(layout) };
        let Some(start) = NonNull::new(start) else { handle_alloc_error(layout) };
        Self { start, capacity }
    }

    fn layout(capacity: usize) -> Layout {
        Layout::from_size_align(capacity, BLOCK_SIZE).expect("a buffer's length fits the address space")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: allocated in `allocate` with this very layout.
        unsafe { dealloc(self.start.as_ptr(), Self::layout(self.capacity)) }
    }
}

/// Memory that waits for its next buffer: few enough pieces (at most 768) to be looked through.
struct Kept {
    free: Vec<Memory>,
    bytes: usize,
}

impl Kept {
    /// Memory of the class of this length, the one dropped last, since the processor's cache may still hold it.
    fn take(&mut self, length: usize) -> Option<Memory> {
        let capacity = capacity_for(length);
        let found = self.free.iter().rposition(|memory| memory.capacity == capacity)?;
        self.bytes -= capacity;
        Some(self.free.remove(found))
    }

    /// Keeps the memory, and hands back what is to be freed for that: of much that is kept, the oldest goes first.
    fn keep(&mut self, memory: Memory) -> Vec<Memory> {
        self.bytes += memory.capacity;
        self.free.push(memory);
        let mut surplus = 0;
        while self.bytes > KEPT_TOTAL_MAX {
            self.bytes -= self.free[surplus].capacity;
            surplus += 1;
        }
        self.free.drain(..surplus).collect()
    }
}

/// True of lengths of which memory is kept.
fn is_kept(length: usize) -> bool {
    (KEPT_LENGTH_MIN..=KEPT_LENGTH_MAX).contains(&length)
}

/// Kept memory for this length. Who needs little does not meet others at the lock.
fn take_kept(length: usize) -> Option<Memory> {
    is_kept(length).then(|| KEPT.lock().take(length)).flatten()
}

/// The capacity of the class a length belongs to: four classes for each power of two, so that at most a fifth of the
/// memory lies idle behind the buffer.
fn capacity_for(length: usize) -> usize {
    if !is_kept(length) {
        return length;
    }
    let octave = (length - 1).next_power_of_two() / 2;
    length.next_multiple_of((octave / 4).max(BLOCK_SIZE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_whole_blocks_at_aligned_addresses() {
        for length in [0, 1, 4096, 4097, 65_536, 100_000, 5 << 20, 9 << 20] {
            for buffer in [Buffer::zeroed(length), Buffer::for_overwrite(length)] {
                assert_eq!(buffer.len(), length.max(1).next_multiple_of(BLOCK_SIZE));
                assert!(buffer.as_ptr().addr().is_multiple_of(BLOCK_SIZE));
            }
        }
    }

    #[test]
    fn a_zeroed_buffer_is_zero_on_memory_that_was_used() {
        for length in [4096, 70_000, 1 << 20] {
            for _ in 0..4 {
                let mut buffer = Buffer::zeroed(length);
                assert!(buffer.iter().all(|byte| *byte == 0));
                buffer.fill(0xff);
            }
        }
    }

    #[test]
    fn classes_waste_at_most_a_fifth() {
        for length in (1..=KEPT_LENGTH_MAX / BLOCK_SIZE).map(|blocks| blocks * BLOCK_SIZE) {
            let capacity = capacity_for(length);
            assert!(capacity >= length && capacity - length <= capacity / 5, "{length} {capacity}");
            assert_eq!(capacity_for(capacity), capacity, "a class holds its own capacity");
        }
    }

    #[test]
    fn what_is_kept_is_bounded_and_found_again() {
        let mut kept = Kept { free: Vec::new(), bytes: 0 };
        let mut freed = 0;
        for _ in 0..20 {
            freed += kept.keep(Memory::allocate(4 << 20)).len();
        }
        assert_eq!((kept.free.len(), freed), (12, 8));
        assert!(kept.take(1 << 20).is_none());
        assert!(kept.take((4 << 20) - 1).is_some());
        assert_eq!(kept.bytes, 11 * (4 << 20));
        assert!(!is_kept(4096), "the allocator is good at it");
    }
}
