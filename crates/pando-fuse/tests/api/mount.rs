//! System calls on a real mount of a file system in memory.

use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, UNIX_EPOCH};

use pando_fuse::{MountError, MountOptions, Session, Transport, VfsOption, ioctl, mount_point, mount_table};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, StatxFlags, XattrFlags};
use rustix::io::Errno;
use rustix::process::Uid;
use tempfile::TempDir;

use crate::common::memory_fs::MemoryFs;
use crate::common::mounted::{Mounted, until, with_fuse};

#[test]
fn files_and_directories() {
    with_fuse("files_and_directories", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let root = mounted.path();
        let file = root.join("file");
        fs::write(&file, "hello").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"hello");

        let long: Vec<u8> = (0..5_000_000u32).map(|i| (i % 251) as u8).collect();
        fs::write(root.join("long"), &long).unwrap();
        assert!(fs::read(root.join("long")).unwrap() == long);

        let mut appending = File::options().append(true).open(&file).unwrap();
        appending.write_all(b" there").unwrap();
        let mut other = File::options().append(true).open(&file).unwrap();
        other.write_all(b"!").unwrap();
        appending.write_all(b"!").unwrap();
        assert_eq!(fs::read(&file).unwrap(), b"hello there!!");

        let short = File::options().write(true).truncate(true).open(&file).unwrap();
        assert_eq!(short.metadata().unwrap().len(), 0);
        short.write_all_at(b"x", 99).unwrap();
        drop((appending, other, short));
        assert_eq!(fs::metadata(&file).unwrap().len(), 100);

        fs::create_dir(root.join("d")).unwrap();
        fs::rename(&file, root.join("d/renamed")).unwrap();
        assert_eq!(fs::metadata(&file).unwrap_err().kind(), ErrorKind::NotFound);
        assert_eq!(fs::remove_dir(root.join("d")).unwrap_err().kind(), ErrorKind::DirectoryNotEmpty);
        symlink("d/renamed", root.join("link")).unwrap();
        assert_eq!(fs::read_link(root.join("link")).unwrap().to_str(), Some("d/renamed"));
        assert_eq!(fs::metadata(root.join("link")).unwrap().len(), 100);
        fs::hard_link(root.join("d/renamed"), root.join("second")).unwrap();
        assert_eq!(fs::metadata(root.join("second")).unwrap().nlink(), 2);

        let statfs = rustix::fs::statvfs(root).unwrap();
        assert_eq!((statfs.f_blocks * statfs.f_frsize, statfs.f_namemax), (1 << 30, 255));
        mounted.unmount();
    });
}

/// What attributes tell of can be read of a memory map: in pages, the kernel, if it is not to ask, says the same size or a larger one. Without
/// further care that is wrong for most of the sizes that are told, with it for none, unless a thread waits long for a core.
#[test]
fn hardly_anybody_hears_of_a_page_before_the_kernel() {
    with_fuse("hardly_anybody_hears_of_a_page_before_the_kernel", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let path = mounted.path().join("log");
        let mut log = File::options().append(true).create_new(true).open(&path).unwrap();
        let file = File::open(&path).unwrap();
        let enough = AtomicBool::new(false);
        let pages = |how| {
            let told = rustix::fs::statx(&file, "", AtFlags::EMPTY_PATH | how, StatxFlags::SIZE).unwrap();
            told.stx_size.div_ceil(4096)
        };
        let (mut looks, mut early) = (0, 0);
        std::thread::scope(|scope| {
            let appending = scope.spawn(|| {
                while !enough.load(Ordering::Relaxed) {
                    log.write_all(&[7; 4096]).unwrap();
                }
            });
            let (mut last, mut last_early) = (0, 0);
            while looks < 1000 && !appending.is_finished() {
                let told = pages(AtFlags::empty());
                let known = pages(AtFlags::STATX_DONT_SYNC);
                looks += u64::from(told != last);
                last = told;
                // Once for each size: while a thread waits for a core it can be asked for a thousand times.
                early += u64::from(told > known && told != last_early);
                if told > known {
                    last_early = told;
                }
            }
            enough.store(true, Ordering::Relaxed);
        });
        assert!(early < looks / 100, "{early} of {looks}");
        drop((log, file));
        mounted.unmount();
    });
}

#[test]
fn access_control_lists_are_taken_where_the_kernel_checks_them() {
    with_fuse("access_control_lists_are_taken_where_the_kernel_checks_them", || {
        // Owner 6, user 7 4, group 0, mask 4, others 0.
        let entries = [(1, 6, -1), (2, 4, 7), (4, 0, -1), (16, 4, -1), (32, 0, -1_i32)];
        let mut list = vec![2, 0, 0, 0];
        for (tag, permissions, id) in entries {
            list.extend([tag, 0, permissions, 0]);
            list.extend(id.to_le_bytes());
        }
        for (checked, expected) in [(true, Ok(())), (false, Err(Errno::OPNOTSUPP))] {
            let mounted =
                Mounted::new(Arc::new(MemoryFs::new()), |options| options.default_permissions = checked);
            let file = mounted.path().join("file");
            fs::write(&file, "").unwrap();
            let name = "system.posix_acl_access";
            assert_eq!(rustix::fs::setxattr(&file, name, &list, XattrFlags::empty()), expected, "{checked}");
            let found = rustix::fs::getxattr(&file, name, &mut [0_u8; 100]);
            assert_eq!(found.ok(), checked.then_some(list.len()));
            assert_eq!(rustix::fs::removexattr(&file, name), expected, "{checked}");
            mounted.unmount();
        }
    });
}

#[test]
fn creating_is_exclusive_and_keeps_the_mode() {
    with_fuse("creating_is_exclusive_and_keeps_the_mode", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        for name in ["first", "second"] {
            // The first CREATE is answered differently from those that the kernel no longer sends.
            let path = mounted.path().join(name);
            let mut options = File::options();
            options.read(true).write(true).create_new(true).mode(0o400);
            let mut file = options.open(&path).unwrap();
            file.write_all(b"written through the descriptor that made it").unwrap();
            assert_eq!(file.metadata().unwrap().permissions().mode() & 0o7777, 0o400);
            assert_eq!(options.open(&path).unwrap_err().kind(), ErrorKind::AlreadyExists);
        }
        mounted.unmount();
    });
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    with_fuse("an_unlinked_file_lives_while_it_is_open", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |_| ());
        let path = mounted.path().join("file");
        fs::write(&path, "still here").unwrap();
        let mut file = File::open(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let mut text = String::new();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "still here");
        assert_eq!(memory.inodes(), 2);
        drop(file);
        until(|| memory.inodes() == 1);
        mounted.unmount();
    });
}

#[test]
fn listings_are_complete_and_count_their_references() {
    with_fuse("listings_are_complete_and_count_their_references", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |_| ());
        let mut expected: Vec<_> = (0..3000).map(|i| format!("{i:04}{}", "x".repeat(i % 200))).collect();
        for name in &expected {
            File::create(mounted.path().join(name)).unwrap();
        }
        expected.sort();
        for _ in 0..2 {
            let mut found = Vec::new();
            for entry in fs::read_dir(mounted.path()).unwrap() {
                let entry = entry.unwrap();
                assert!(entry.metadata().unwrap().is_file());
                found.push(entry.file_name().into_string().unwrap());
            }
            found.sort();
            assert_eq!(found, expected);
        }
        for name in &expected {
            fs::remove_file(mounted.path().join(name)).unwrap();
        }
        // The kernel gives back a reference for every entry it was told of: one too many trips the file system's
        // own check, one too few keeps an inode.
        assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 0);
        until(|| memory.references() == 0 && memory.inodes() == 1);
        mounted.unmount();
    });
}

#[test]
fn who_lists_and_does_not_look_gets_names_alone() {
    const DIRECTORIES: usize = 40;
    const FILES: usize = 5;
    with_fuse("who_lists_and_does_not_look_gets_names_alone", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |_| ());
        for directory in 0..DIRECTORIES {
            let directory = mounted.path().join(format!("{directory:02}"));
            fs::create_dir(&directory).unwrap();
            (0..FILES).for_each(|file| fs::write(directory.join(file.to_string()), "content").unwrap());
        }
        mounted.unmount();
        memory.take_back();
        // Each program is a thread of its own, by which it is known.
        let directories_of = |path: &Path| -> Vec<_> {
            let mut directories: Vec<_> =
                fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).collect();
            directories.sort();
            directories
        };
        let list = |path: &Path| {
            let directories = directories_of(path);
            directories
                .iter()
                .for_each(|directory| assert_eq!(fs::read_dir(directory).unwrap().count(), FILES));
        };
        let look = |path: &Path| {
            for directory in directories_of(path) {
                for entry in fs::read_dir(directory).unwrap() {
                    assert_eq!(entry.unwrap().metadata().unwrap().len(), 7);
                }
            }
        };
        let run = |program: &(dyn Fn(&Path) + Sync), mounted: &Mounted| {
            std::thread::scope(|scope| scope.spawn(|| program(mounted.path())).join()).unwrap();
            memory.known_files()
        };
        let mounted = Mounted::new(memory.clone(), |_| ());
        assert_eq!(run(&list, &mounted), 8 * (FILES - 1));
        // The kernel keeps those listings until another program has looked into four directories.
        let listings = || memory.listings.load(Ordering::Relaxed);
        let list_last = |path: &Path| assert_eq!(fs::read_dir(path.join("39")).unwrap().count(), FILES);
        let before = listings();
        run(&list_last, &mounted);
        assert_eq!(listings(), before);
        let follow = |path: &Path| {
            for directory in 20..24 {
                assert_eq!(fs::metadata(path.join(format!("{directory}/0"))).unwrap().len(), 7);
            }
        };
        run(&follow, &mounted);
        until(|| {
            run(&list_last, &mounted);
            listings() > before
        });
        assert_eq!(run(&look, &mounted), DIRECTORIES * FILES);
        mounted.unmount();
        memory.take_back();
        let mounted = Mounted::new(memory.clone(), |_| ());
        memory.files_looked_up.store(0, Ordering::Relaxed);
        assert_eq!(run(&look, &mounted), DIRECTORIES * FILES);
        let marks = memory.files_looked_up.load(Ordering::Relaxed);
        assert!((1..=8).contains(&marks), "{marks} files of {} were asked for", DIRECTORIES * FILES);
        mounted.unmount();
    });
}

#[test]
fn calls_beyond_reading_and_writing() {
    with_fuse("calls_beyond_reading_and_writing", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |_| ());
        let (a, b) = (mounted.path().join("a"), mounted.path().join("b"));
        fs::write(&a, "aaaa").unwrap();
        fs::write(&b, "bbbbbbbb").unwrap();

        let cwd = rustix::fs::CWD;
        let rename = |flags| rustix::fs::renameat_with(cwd, &a, cwd, &b, flags);
        assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
        assert_eq!(rename(RenameFlags::EXCHANGE), Ok(()));
        assert_eq!(fs::read(&a).unwrap(), b"bbbbbbbb");
        assert_eq!(rename(RenameFlags::WHITEOUT | RenameFlags::NOREPLACE), Err(Errno::EXIST));
        let hidden = mounted.path().join("hidden");
        let hide = |from, to| rustix::fs::renameat_with(cwd, from, cwd, to, RenameFlags::WHITEOUT);
        assert_eq!(hide(&a, &hidden), Ok(()));
        let whiteout = fs::metadata(&a).unwrap();
        assert!(whiteout.file_type().is_char_device(), "{whiteout:?}");
        assert_eq!((whiteout.rdev(), whiteout.mode() & 0o7777), (0, 0));
        assert_eq!(hide(&hidden, &a), Ok(()));
        assert_eq!(fs::read(&a).unwrap(), b"bbbbbbbb");

        let file = File::options().read(true).write(true).open(&a).unwrap();
        rustix::fs::fallocate(&file, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, 2, 4).unwrap();
        assert_eq!(fs::read(&a).unwrap(), b"bb\0\0\0\0bb");
        assert_eq!(
            rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096),
            Err(Errno::OPNOTSUPP)
        );
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100).unwrap();
        assert_eq!(file.metadata().unwrap().len(), 100);
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(5)), Ok(100));
        assert_eq!(rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(100)), Err(Errno::NXIO));
        let target = File::options().read(true).write(true).open(&b).unwrap();
        let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), &target, Some(&mut 4), 2);
        assert_eq!(copied, Ok(2));
        assert_eq!(fs::read(&b).unwrap(), b"aaaabb");

        rustix::fs::setxattr(&a, "user.x", b"value", XattrFlags::CREATE).unwrap();
        assert_eq!(rustix::fs::setxattr(&a, "user.x", b"", XattrFlags::CREATE), Err(Errno::EXIST));
        let mut value = [0u8; 16];
        assert_eq!(rustix::fs::getxattr(&a, "user.x", &mut value), Ok(5));
        assert_eq!(rustix::fs::getxattr(&a, "user.x", &mut [0u8; 2]), Err(Errno::RANGE));
        assert_eq!(rustix::fs::listxattr(&a, &mut value), Ok(7));
        rustix::fs::removexattr(&a, "user.x").unwrap();
        assert_eq!(rustix::fs::getxattr(&a, "user.x", &mut value), Err(Errno::NODATA));

        let early = UNIX_EPOCH - Duration::new(5, 250_000_000);
        file.set_modified(early).unwrap();
        assert_eq!(file.metadata().unwrap().modified().unwrap(), early);

        file.sync_all().unwrap();
        File::open(mounted.path()).unwrap().sync_all().unwrap();
        assert_eq!(memory.syncs.lock().len(), 2);
        drop((file, target));
        mounted.unmount();
    });
}

#[test]
fn a_file_without_a_name_can_be_given_one() {
    with_fuse("a_file_without_a_name_can_be_given_one", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |_| ());
        let directory = File::open(mounted.path()).unwrap();
        for name in ["first", "second"] {
            let flags = OFlags::RDWR | OFlags::TMPFILE;
            let file = rustix::fs::openat(&directory, ".", flags, Mode::from_raw_mode(0o640)).unwrap();
            let mut file = File::from(file);
            file.write_all(b"without a name").unwrap();
            assert_eq!(file.metadata().unwrap().nlink(), 0);
            let path = format!("/proc/self/fd/{}", file.as_raw_fd());
            rustix::fs::linkat(rustix::fs::CWD, path, &directory, name, AtFlags::SYMLINK_FOLLOW).unwrap();
            let path = mounted.path().join(name);
            assert_eq!(fs::read(&path).unwrap(), b"without a name");
            assert_eq!(fs::metadata(&path).unwrap().mode(), 0o100_640);
            assert_eq!(fs::metadata(&path).unwrap().nlink(), 1);
        }
        let flags = OFlags::WRONLY | OFlags::TMPFILE;
        drop(rustix::fs::openat(&directory, ".", flags, Mode::from_raw_mode(0o600)).unwrap());
        drop(directory);
        until(|| memory.inodes() == 3);
        mounted.unmount();
    });
}

#[test]
fn the_time_of_birth_is_told() {
    with_fuse("the_time_of_birth_is_told", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let path = mounted.path().join("file");
        fs::write(&path, "x").unwrap();
        let born = fs::metadata(&path).unwrap().created().unwrap();
        fs::write(&path, "y").unwrap();
        let later = fs::metadata(&path).unwrap();
        assert_eq!(later.created().unwrap(), born);
        assert!(later.modified().unwrap() > born);
        // All else that statx(2) tells comes the same way.
        let statx = rustix::fs::statx(rustix::fs::CWD, &path, AtFlags::STATX_FORCE_SYNC, StatxFlags::ALL);
        let statx = statx.unwrap();
        assert_eq!((statx.stx_size, statx.stx_nlink, statx.stx_ino), (1, 1, later.ino()));
        assert_eq!(u32::from(statx.stx_mode), later.mode());
        assert_eq!(
            (statx.stx_mtime.tv_sec, i64::from(statx.stx_mtime.tv_nsec)),
            (later.mtime(), later.mtime_nsec())
        );
        mounted.unmount();
    });
}

#[test]
fn requests_come_by_the_way_that_was_agreed() {
    with_fuse("requests_come_by_the_way_that_was_agreed", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |_| ());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let root = mounted.path();
                scope.spawn(move || {
                    for i in 0..100 {
                        let path = root.join(format!("{thread}-{i}"));
                        fs::write(&path, [b'x'; 100_000]).unwrap();
                        assert_eq!(fs::metadata(&path).unwrap().len(), 100_000);
                        fs::remove_file(&path).unwrap();
                    }
                });
            }
        });
        let over_ring = mounted.transport() == Transport::Uring;
        for thread in memory.threads.lock().iter() {
            assert_eq!(thread.starts_with("pando-ring-"), over_ring, "{thread}");
        }
        until(|| memory.references() == 0);
        mounted.unmount();
    });
}

/// The kernel gives the number to the next mount at once, unless another test is faster.
#[test]
fn an_unmounter_touches_no_later_mount_with_its_device_number() {
    with_fuse("an_unmounter_touches_no_later_mount_with_its_device_number", || {
        let directory = TempDir::new().unwrap();
        let mut options = MountOptions::new(PathBuf::from("/dev/earlier"));
        options.transport = Transport::Device;
        let earlier = Session::mount(Arc::new(MemoryFs::new()), directory.path(), &options).unwrap();
        assert!(earlier.unmounter().is_mounted());
        mount_point::unmount(directory.path(), false).unwrap();
        let later = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        assert!(!earlier.unmounter().is_mounted());
        assert!(!earlier.unmounter().unmount(true).unwrap());
        drop(earlier);
        assert!(later.unmounter().is_mounted());
        later.unmount();
    });
}

#[test]
fn an_aborted_connection_is_an_error_and_leaves_no_mount() {
    with_fuse("an_aborted_connection_is_an_error_and_leaves_no_mount", || {
        let mut mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let (_, minor) = mounted.unmounter().device().split_once(':').unwrap();
        let abort = format!("/sys/fs/fuse/connections/{minor}/abort");
        if let Err(error) = fs::write(&abort, "1") {
            eprintln!("SKIPPED an_aborted_connection_is_an_error_and_leaves_no_mount: {abort}: {error}");
            return;
        }
        assert!(mounted.end().is_err());
        assert_eq!(mount_table::mounted_at(mounted.path()).unwrap(), None);
    });
}

/// The kernel aborts the connection before it finds the mount in use. That was taken for an unmount, and a dead mount stayed.
#[test]
fn an_unmount_by_force_that_fails_is_an_error_and_leaves_no_mount() {
    with_fuse("an_unmount_by_force_that_fails_is_an_error_and_leaves_no_mount", || {
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "SKIPPED an_unmount_by_force_that_fails_is_an_error_and_leaves_no_mount: only root has force"
            );
            return;
        }
        let mut mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let inside = File::open(mounted.path()).unwrap();
        let forced = mount_point::unmount_by_force(mounted.path(), false);
        assert!(matches!(forced, Err(MountError::Busy { .. })));
        assert_eq!(mounted.end().unwrap_err().kind(), ErrorKind::ConnectionAborted);
        assert_eq!(mount_table::mounted_at(mounted.path()).unwrap(), None);
        drop(inside);
    });
}

#[test]
fn an_unmount_by_force_of_what_nobody_uses_is_one() {
    with_fuse("an_unmount_by_force_of_what_nobody_uses_is_one", || {
        for _ in 0..100 {
            let mut mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
            mount_point::unmount_by_force(mounted.path(), false).unwrap();
            mounted.end().unwrap();
        }
    });
}

#[test]
fn requests_without_room_go_through_the_pool() {
    with_fuse("requests_without_room_go_through_the_pool", || {
        let mut memory = MemoryFs::new();
        memory.busy_every = 3;
        let memory = Arc::new(memory);
        let mounted = Mounted::new(memory.clone(), |_| ());
        std::thread::scope(|scope| {
            for thread in 0..4 {
                let root = mounted.path();
                scope.spawn(move || {
                    for i in 0..50 {
                        let path = root.join(format!("{thread}-{i}"));
                        fs::write(&path, path.as_os_str().as_encoded_bytes()).unwrap();
                        assert_eq!(fs::read(&path).unwrap(), path.as_os_str().as_encoded_bytes());
                    }
                });
            }
        });
        assert_eq!(fs::read_dir(mounted.path()).unwrap().count(), 200);
        mounted.unmount();
        assert!(memory.waited.load(Ordering::Relaxed) > 0);
    });
}

/// The kernel went on to believe that there was no clone.
#[test]
fn a_change_whose_sync_fails_is_refused_and_there() {
    with_fuse("a_change_whose_sync_fails_is_refused_and_there", || {
        let memory = Arc::new(MemoryFs::new());
        let mounted = Mounted::new(memory.clone(), |options| {
            options.vfs_options = vec![VfsOption::parse("dirsync").unwrap()];
        });
        let clone = mounted.path().join("clone");
        assert!(!clone.exists());
        memory.sync_fails.store(true, Ordering::Relaxed);
        assert_eq!(fs::create_dir(mounted.path().join("made")).unwrap_err().kind(), ErrorKind::StorageFull);
        let [source, directory] = [(); 2].map(|()| File::open(mounted.path()).unwrap());
        let cloned = ioctl::clone_tree(source.as_fd(), directory.as_fd(), b"clone");
        assert_eq!((cloned, memory.inodes()), (Err(Errno::NOSPC), 3));
        assert!(clone.is_dir());
        drop((source, directory));
        mounted.unmount();
    });
}

#[test]
fn the_mount_looks_as_asked() {
    with_fuse("the_mount_looks_as_asked", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |options| {
            options.vfs_options = ["ro", "noexec"].map(|name| VfsOption::parse(name).unwrap()).to_vec();
        });
        let entry = mount_table::mounted_at(mounted.path()).unwrap().unwrap();
        assert_eq!(entry.source.to_str(), Some("/dev/a volume"));
        assert_eq!(&entry.device, mounted.unmounter().device());
        assert!(mount_table::mounted().unwrap().contains(&entry));
        let refused = fs::write(mounted.path().join("file"), "").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnlyFilesystem);

        let inside = File::open(mounted.path()).unwrap();
        assert!(matches!(mounted.unmounter().unmount(false), Err(MountError::Busy { .. })));
        drop(inside);
        let path = mounted.path().to_owned();
        let unmounter = mounted.unmounter().clone();
        mounted.unmount();
        assert_eq!(mount_table::mounted_at(path.parent().unwrap()).unwrap(), None);
        unmounter.unmount(false).unwrap();
    });
}

#[test]
fn writeback_keeps_appended_records_in_order() {
    with_fuse("writeback_keeps_appended_records_in_order", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |options| options.writeback = true);
        let path = mounted.path().join("log");
        let mut log = File::options().append(true).create(true).open(&path).unwrap();
        let mut expected = Vec::new();
        for i in 0..2000 {
            let line = format!("line {i}\n");
            log.write_all(line.as_bytes()).unwrap();
            expected.extend_from_slice(line.as_bytes());
            if i % 300 == 0 {
                log.sync_data().unwrap();
            }
        }
        drop(log);
        assert!(fs::read(&path).unwrap() == expected);
        mounted.unmount();
    });
}

#[test]
fn a_change_of_owner_takes_set_id_bits_off() {
    with_fuse("a_change_of_owner_takes_set_id_bits_off", || {
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let path = mounted.path().join("program");
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4755);
        if std::os::unix::fs::chown(&path, Some(12), Some(13)).is_err() {
            eprintln!("SKIPPED a_change_of_owner_takes_set_id_bits_off: only root can change owners");
            return;
        }
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid(), metadata.mode() & 0o7777), (12, 13, 0o755));
        mounted.unmount();
    });
}

/// With KILLPRIV_V2 the kernel leaves the bits to us and goes on believing in the old mode, so that a program which a
/// stranger has just overwritten would still run with its owner's rights.
#[test]
fn a_write_by_a_stranger_takes_set_id_bits_off() {
    with_fuse("a_write_by_a_stranger_takes_set_id_bits_off", || {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED a_write_by_a_stranger_takes_set_id_bits_off: only root can become a stranger");
            return;
        }
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let path = mounted.path().join("program");
        for script in ["printf x >> program", "printf x 1<> program", ": > program"] {
            fs::write(&path, "a program").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o4777)).unwrap();
            let mut stranger = Command::new("sh");
            stranger.args(["-c", script]).current_dir(mounted.path()).uid(65534).gid(65534);
            assert!(stranger.status().unwrap().success(), "{script}");
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777, "{script}");
            fs::set_permissions(&path, Permissions::from_mode(0o4777)).unwrap();
            File::options().append(true).open(&path).unwrap().write_all(b"by root").unwrap();
            assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o4777, "root may keep them");
        }
        mounted.unmount();
    });
}

/// FALLOCATE and COPY_FILE_RANGE do not say that the bits are to go.
#[test]
fn an_allocation_and_a_copy_by_a_stranger_take_set_id_bits_off() {
    with_fuse("an_allocation_and_a_copy_by_a_stranger_take_set_id_bits_off", || {
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "SKIPPED an_allocation_and_a_copy_by_a_stranger_take_set_id_bits_off: only root can become a stranger"
            );
            return;
        }
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let path = mounted.path().join("program");
        fs::write(&path, "a program").unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let changes: [(&str, &(dyn Fn() + Sync)); 3] = [
            ("an allocation", &|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100).unwrap()),
            ("a hole", &|| rustix::fs::fallocate(&file, hole, 0, 4).unwrap()),
            ("a copy", &|| {
                let copied = rustix::fs::copy_file_range(&file, Some(&mut 0), &file, Some(&mut 50), 10);
                assert_eq!(copied, Ok(10));
            }),
        ];
        let mode = || {
            // What the kernel executes by: the mode alone, as it believes it to be.
            let statx = rustix::fs::statx(rustix::fs::CWD, &path, AtFlags::empty(), StatxFlags::MODE);
            u32::from(statx.unwrap().stx_mode) & 0o7777
        };
        for (what, change) in changes {
            fs::set_permissions(&path, Permissions::from_mode(0o4755)).unwrap();
            change();
            assert_eq!(mode(), 0o4755, "{what}: root may keep them");
            let stranger = || {
                let nobody = Uid::from_raw(65534);
                rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
                change();
            };
            std::thread::scope(|scope| scope.spawn(stranger).join()).unwrap();
            assert_eq!(mode(), 0o755, "{what}");
        }
        drop(file);
        mounted.unmount();
    });
}

#[test]
fn trusted_attributes_are_shown_to_root_alone() {
    with_fuse("trusted_attributes_are_shown_to_root_alone", || {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED trusted_attributes_are_shown_to_root_alone: only root can become a stranger");
            return;
        }
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let path = mounted.path().join("file");
        fs::write(&path, "").unwrap();
        for name in ["trusted.a", "user.a", "trusted.b", "user.b"] {
            rustix::fs::setxattr(&path, name, b"value", XattrFlags::CREATE).unwrap();
        }
        let file = File::open(&path).unwrap();
        let list = || {
            let mut names = [0_u8; 100];
            let length = rustix::fs::flistxattr(&file, &mut names).unwrap();
            assert_eq!(rustix::fs::flistxattr(&file, &mut vec![0_u8; length]), Ok(length));
            assert_eq!(rustix::fs::flistxattr(&file, &mut vec![0_u8; length - 1]), Err(Errno::RANGE));
            String::from_utf8(names[..length].to_vec()).unwrap()
        };
        assert_eq!(list(), "trusted.a\0trusted.b\0user.a\0user.b\0");
        let stranger = || {
            let nobody = Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            assert_eq!(list(), "user.a\0user.b\0");
        };
        std::thread::scope(|scope| scope.spawn(stranger).join()).unwrap();
        drop(file);
        mounted.unmount();
    });
}

/// Nobody else looks at them: the kernel alone knows who has CAP_FOWNER.
#[test]
fn the_kernel_checks_sticky_bits() {
    with_fuse("the_kernel_checks_sticky_bits", || {
        if !rustix::process::geteuid().is_root() {
            eprintln!("SKIPPED the_kernel_checks_sticky_bits: only root can become a stranger");
            return;
        }
        let mounted = Mounted::new(Arc::new(MemoryFs::new()), |_| ());
        let directory = mounted.path().join("tmp");
        fs::create_dir(&directory).unwrap();
        fs::set_permissions(&directory, Permissions::from_mode(0o1777)).unwrap();
        fs::write(directory.join("file"), "").unwrap();
        let opened = File::open(&directory).unwrap();
        let stranger = || {
            let nobody = Uid::from_raw(65534);
            rustix::thread::set_thread_res_uid(nobody, nobody, nobody).unwrap();
            assert_eq!(rustix::fs::unlinkat(&opened, "file", AtFlags::empty()), Err(Errno::PERM));
            assert_eq!(rustix::fs::renameat(&opened, "file", &opened, "other"), Err(Errno::PERM));
        };
        std::thread::scope(|scope| scope.spawn(stranger).join()).unwrap();
        drop(opened);
        mounted.unmount();
    });
}
