//! I/O buffers: memory aligned to 4 KiB, so that direct I/O can use it, and shared without a copy as [`Bytes`].

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use bytes::Bytes;

use crate::BLOCK_SIZE;

/// Owned memory that starts at a 4 KiB boundary.
pub struct Buffer {
    memory: NonNull<u8>,
    length: usize,
}

// SAFETY: a Buffer owns its memory alone, like a Box<[u8]>.
unsafe impl Send for Buffer {}
// SAFETY: shared access only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Zeroed memory of `length` bytes, rounded up to a whole number of blocks (at least one).
    pub fn zeroed(length: usize) -> Self {
        let length = length.max(1).next_multiple_of(BLOCK_SIZE);
        let layout = Self::layout(length);
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(memory) = NonNull::new(memory) else { handle_alloc_error(layout) };
        Self { memory, length }
    }

    /// Gives the memory up as shared, immutable bytes; nothing is copied.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self)
    }

    fn layout(length: usize) -> Layout {
        Layout::from_size_align(length, BLOCK_SIZE).expect("a buffer's length fits the address space")
    }
}

impl Deref for Buffer {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` points to `length` initialised bytes owned by self.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.length) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in deref, and self is borrowed mutably.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.length) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: allocated in `zeroed` with this very layout.
        unsafe { dealloc(self.memory.as_ptr(), Self::layout(self.length)) }
    }
}
