//! Listings that the kernel keeps, of a file system in memory.

use std::fs::{self, File};
use std::mem::MaybeUninit;
use std::os::unix::fs::MetadataExt;
use std::sync::Arc;

use rustix::fs::RawDir;

use crate::common::memory_fs::MemoryFs;
use crate::common::mounted::{Mounted, with_fuse};

/// The kernel went on to list the number of the directory that it had been in.
#[test]
fn a_directory_that_comes_to_another_lists_that_as_its_parent() {
    with_fuse("a_directory_that_comes_to_another_lists_that_as_its_parent", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let root = mounted.path();
        for directory in ["a", "b", "a/d"] {
            fs::create_dir(root.join(directory)).unwrap();
        }
        let number = |path: &str| root.join(path).metadata().unwrap().ino();
        let parent_listed = |path: &str| {
            let mut buffer = [MaybeUninit::uninit(); 4096];
            let mut entries = RawDir::new(File::open(root.join(path)).unwrap(), &mut buffer);
            let mut parent = None;
            // To the end, or the kernel keeps nothing.
            while let Some(entry) = entries.next() {
                let entry = entry.unwrap();
                parent = parent.or((entry.file_name() == c"..").then_some(entry.ino()));
            }
            parent.unwrap()
        };
        for _ in 0..2 {
            assert_eq!(parent_listed("a/d"), number("a"));
        }
        fs::rename(root.join("a/d"), root.join("b/e")).unwrap();
        assert_eq!(parent_listed("b/e"), number("b"));
        mounted.unmount();
    });
}
