//! Which thread makes a sync, for whom.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use pando_fuse::Transport;
use rustix::io::Errno;
use rustix::thread::CpuSet;

use crate::common::memory_fs::MemoryFs;
use crate::common::mounted::{Mounted, until, with_fuse};

#[test]
fn syncs_that_wait_are_made_together_and_each_hears_how_they_ended() {
    with_fuse("syncs_that_wait_are_made_together_and_each_hears_how_they_ended", || {
        const CALLERS: usize = 8;
        let memory = Arc::new(MemoryFs::new());
        memory.sync_is_short.store(false, Ordering::Relaxed);
        let mounted = Mounted::new(memory.clone(), |_| ());
        let files: Vec<File> =
            (0..CALLERS).map(|name| File::create(mounted.path().join(name.to_string())).unwrap()).collect();
        for fails in [false, true] {
            memory.sync_fails.store(fails, Ordering::Relaxed);
            // All come while the first two syncs are under way, but on a machine that stands still for so long.
            until(|| {
                memory.syncs.lock().clear();
                *memory.sync_takes.lock() = Duration::from_millis(50);
                let start = Barrier::new(CALLERS);
                std::thread::scope(|scope| {
                    for file in &files {
                        scope.spawn(|| {
                            start.wait();
                            let errno = file.sync_all().err().and_then(|error| error.raw_os_error());
                            assert_eq!(errno, fails.then_some(Errno::NOSPC.raw_os_error()));
                        });
                    }
                });
                memory.syncs.lock().len() <= 3
            });
        }
        assert!(memory.syncing.lock().1 <= 2, "no more at a time");
        drop(files);
        mounted.unmount();
    });
}

#[test]
fn a_lone_caller_is_synced_by_the_thread_of_its_core() {
    with_fuse("a_lone_caller_is_synced_by_the_thread_of_its_core", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |_| ());
        let file = File::create(mounted.path().join("f")).unwrap();
        let over_ring = mounted.transport() == Transport::Uring;
        let synced_by_core = || {
            let threads = std::mem::take(&mut *memory.syncs.lock());
            threads.iter().filter(|thread| thread.starts_with("pando-ring-")).count()
        };
        let first_core = || {
            let mut core = CpuSet::new();
            core.set(0);
            rustix::thread::sched_setaffinity(None, &core).unwrap();
        };
        let sync = |times| (0..times).for_each(|_| file.sync_all().unwrap());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                first_core();
                // Whatever came from this core before.
                (0..100).for_each(|_| file.write_all_at(b"x", 0).unwrap());
                sync(20);
                // On a busy machine a moment may look like a slow device.
                assert_eq!(synced_by_core() > 0, over_ring);
                memory.sync_is_short.store(false, Ordering::Relaxed);
                sync(20);
                assert_eq!(synced_by_core(), 0, "they may take long");
                memory.sync_is_short.store(true, Ordering::Relaxed);
                *memory.sync_takes.lock() = Duration::from_millis(2);
                sync(20);
                assert!(synced_by_core() <= 1, "the device is slow");
                *memory.sync_takes.lock() = Duration::ZERO;
                sync(100);
            });
        });
        synced_by_core();
        let turns = Barrier::new(2);
        std::thread::scope(|scope| {
            for own in 0..2 {
                let (turns, sync) = (&turns, &sync);
                scope.spawn(move || {
                    first_core();
                    for turn in 0..100 {
                        turns.wait();
                        if turn % 2 == own {
                            sync(1);
                        }
                    }
                });
            }
        });
        assert!(synced_by_core() < 10, "its core has two callers");
        drop(file);
        mounted.unmount();
    });
}
