//! How this process gets its memory.
//!
//! The allocator asks for huge pages, and spreads its first few blocks over three of them. Whoever serves a volume wants that:
//! without huge pages a cold read of a large file is slower by a third. A command that says a sentence to a daemon and
//! ends would clear 6 MiB for it, for which a virtual machine may first have to ask its host: a clone that takes 5 ms came to 30.

/// Small pages from here on, for this process and those that it starts. To be called before anything is allocated.
pub fn use_small_pages() {
    // A kernel without huge pages has nothing to refuse.
    let _ = rustix::thread::disable_transparent_huge_pages(true);
}

/// Huge pages again, for whoever keeps nodes in memory.
pub fn use_huge_pages() {
    let _ = rustix::thread::disable_transparent_huge_pages(false);
}
