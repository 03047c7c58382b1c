//! Each test of reads and writes runs on a file and, where root may set one up, on a loop device, with io_uring and
//! with threads.

use std::process::Command;

use super::*;
use crate::Buffer;

const CAPACITY: u64 = 8 << 20;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// A block device over a file, taken apart at the end of the test.
struct LoopDevice(String);

impl LoopDevice {
    fn attach(image: &Path) -> Option<Self> {
        Self::attach_with(&[], image)
    }

    fn attach_with(options: &[&str], image: &Path) -> Option<Self> {
        let output =
            Command::new("losetup").args(["--find", "--show"]).args(options).arg(image).output().ok()?;
        output.status.success().then(|| Self(String::from_utf8_lossy(&output.stdout).trim().to_owned()))
    }

    /// Runs the test of this name with a new image and, where it can be had, a loop device over it.
    fn with(name: &str, test: impl FnOnce(&str)) {
        let directory = tempfile::tempdir().unwrap();
        let image = directory.path().join("image");
        drop(FileDevice::create(&image, CAPACITY).unwrap());
        match Self::attach(&image) {
            Some(looped) => test(&looped.0),
            None => println!("SKIPPED {name}: losetup refused"),
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// Runs a test on every kind of device that can be had here.
fn on_each_device(test: impl Fn(FileDevice)) {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, CAPACITY).unwrap());
    for with_rings in [true, false] {
        test(open(&image, with_rings));
    }
    let Some(looped) = LoopDevice::attach(&image) else {
        println!("skipped on a loop device: losetup refused");
        return;
    };
    for with_rings in [true, false] {
        let device = open(looped.0.as_ref(), with_rings);
        assert!(device.is_block_device);
        test(device);
    }
}

/// Moves batches by io_uring where the kernel offers it, or by threads.
fn open(path: &Path, with_rings: bool) -> FileDevice {
    let mut device = FileDevice::open(path, Access::Exclusive).unwrap();
    if !with_rings {
        device.rings = None;
    }
    device
}

#[test]
fn one_of_two_loop_devices_over_a_file_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, CAPACITY).unwrap());
    let half = (CAPACITY / 2).to_string();
    let attach = |options: &[&str]| LoopDevice::attach_with(options, &image);
    let devices = [attach(&[]), attach(&[]), attach(&["--sizelimit", &half]), attach(&["--offset", &half])];
    let [Some(one), Some(other), Some(front), Some(back)] = devices else {
        println!("SKIPPED one_of_two_loop_devices_over_a_file_is_opened: losetup refused");
        return;
    };
    let open = |looped: &LoopDevice, access| FileDevice::open(&looped.0, access);
    let is_refused = |looped: &LoopDevice, access| matches!(open(looped, access), Err(DeviceError::InUse { device }) if device == looped.0);
    let device = open(&one, Access::Exclusive).unwrap();
    assert!(is_refused(&other, Access::Exclusive) && is_refused(&other, Access::ReadOnly));
    assert!(is_refused(&back, Access::Exclusive));
    drop(device);
    let device = open(&other, Access::ReadOnly).unwrap();
    assert!(is_refused(&one, Access::Exclusive));
    drop((device, open(&one, Access::ReadOnly).unwrap()));
    let device = open(&front, Access::Exclusive).unwrap();
    assert!(open(&back, Access::Exclusive).is_ok() && is_refused(&one, Access::Exclusive));
    drop(device);
    assert!(open(&one, Access::Exclusive).is_ok());
    // A loop device may be over a block device, too.
    let Some(above) = LoopDevice::attach(Path::new(&one.0)) else {
        println!(
            "SKIPPED one_of_two_loop_devices_over_a_file_is_opened: losetup refused a loop device over another"
        );
        return;
    };
    assert!(is_refused(&one, Access::Exclusive));
    assert!(open(&above, Access::Exclusive).is_ok());
}

#[test]
fn one_of_two_names_of_a_partition_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    drop(FileDevice::create(&image, CAPACITY).unwrap());
    let attach = || LoopDevice::attach_with(&["--partscan"], &image);
    let (Some(one), Some(other)) = (attach(), attach()) else {
        println!("SKIPPED one_of_two_names_of_a_partition_is_opened: losetup refused");
        return;
    };
    // Without a table, since not every kernel reads each kind; in sectors, from 1 MiB and from 4 MiB on.
    let add = |looped: &LoopDevice, part: &str, start: &str| {
        let done = Command::new("addpart").args([&looped.0, part, start, "4096"]).status();
        done.is_ok_and(|status| status.success())
    };
    if ![&one, &other].into_iter().all(|looped| add(looped, "1", "2048") && add(looped, "2", "8192")) {
        println!("SKIPPED one_of_two_names_of_a_partition_is_opened: addpart refused");
        return;
    }
    let open =
        |looped: &LoopDevice, part| FileDevice::open(format!("{}p{part}", looped.0), Access::Exclusive);
    let device = open(&one, 1).unwrap();
    assert!(open(&one, 2).is_ok(), "the other partition of the same device");
    assert!(matches!(open(&other, 1), Err(DeviceError::InUse { .. })));
    drop(device);
    assert!(open(&other, 1).is_ok());
}

fn block_filled_with(fill: u8) -> Bytes {
    let mut buffer = Buffer::zeroed(BLOCK_SIZE);
    buffer.fill(fill);
    buffer.freeze()
}

fn read(device: &FileDevice, offset: u64, length: usize) -> Result<Vec<u8>, DeviceError> {
    let mut batch = [ReadRequest { offset, buffer: Buffer::zeroed(length) }];
    device.read(&mut batch)?;
    Ok(batch[0].buffer.to_vec())
}

/// Of one request, of several, and of more than a ring holds; inside one another, as whoever serializes meanwhile does it.
#[test]
fn other_work_is_done_once_while_a_batch_is_written() {
    on_each_device(|device| {
        for count in [0, 1, 3, 100] {
            let batch_at = |first: u64| -> Vec<_> {
                let request = |block| WriteRequest {
                    offset: block * BLOCK,
                    pieces: vec![block_filled_with(block as u8)],
                };
                (first..first + count).map(request).collect()
            };
            let mut order = Vec::new();
            let outer = device.write_meanwhile(&batch_at(0), &mut || {
                order.push("outer");
                let inner = device.write_meanwhile(&batch_at(count), &mut || order.push("inner"));
                assert_eq!(inner, Ok(()));
            });
            assert_eq!(outer, Ok(()));
            assert_eq!(order, ["outer", "inner"]);
            for block in 0..2 * count {
                assert_eq!(read(&device, block * BLOCK, BLOCK_SIZE).unwrap(), [block as u8; BLOCK_SIZE]);
            }
        }
        let mut worked = 0;
        let outside = [WriteRequest { offset: CAPACITY, pieces: vec![block_filled_with(1)] }];
        let refused = device.write_meanwhile(&outside, &mut || worked += 1);
        assert!(matches!(refused, Err(DeviceError::OutOfRange { .. })));
        assert_eq!(worked, 1, "also if the batch is refused");
    });
}

/// What is in flight then must have landed before memory is given back.
#[test]
fn a_panic_of_other_work_comes_when_the_batch_is_written() {
    on_each_device(|device| {
        let batch: Vec<_> = (0..8)
            .map(|block| WriteRequest { offset: block * BLOCK, pieces: vec![block_filled_with(7)] })
            .collect();
        let write = || device.write_meanwhile(&batch, &mut || panic!("on purpose"));
        assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(write)).is_err());
        assert_eq!(read(&device, 0, 8 * BLOCK_SIZE).unwrap(), [7; 8 * BLOCK_SIZE]);
    });
}

#[test]
fn batches_larger_than_a_ring_are_read_back() {
    on_each_device(|device| {
        let batch: Vec<_> = (0..200_u64)
            .map(|i| {
                let pieces = (0..=i % 3).map(|piece| block_filled_with((i + piece) as u8)).collect();
                WriteRequest { offset: i * 4 * BLOCK, pieces }
            })
            .collect();
        device.write(&batch).unwrap();
        device.flush().unwrap();
        let mut reads: Vec<_> = (0..200)
            .map(|i| ReadRequest { offset: i * 4 * BLOCK, buffer: Buffer::zeroed(3 * BLOCK_SIZE) })
            .collect();
        device.read(&mut reads).unwrap();
        for (write, read) in batch.iter().zip(&reads) {
            let expected = write.pieces.concat();
            assert_eq!(read.buffer[..expected.len()], expected);
        }
    });
}

#[test]
fn misaligned_memory_and_many_pieces_are_written() {
    on_each_device(|device| {
        let memory = Bytes::from((0..3000 * BLOCK_SIZE / 2 + 1).map(|i| (i % 251) as u8).collect::<Vec<_>>());
        let askew = memory.slice(1..);
        device.write(&[WriteRequest { offset: BLOCK, pieces: vec![askew.clone()] }]).unwrap();
        assert_eq!(read(&device, BLOCK, askew.len()).unwrap(), askew);
        // More pieces than one system call takes.
        let pieces: Vec<_> = (0..1500).map(|i| block_filled_with(i as u8)).collect();
        let request = || WriteRequest { offset: 0, pieces: pieces.clone() };
        device.write(&[request()]).unwrap();
        assert_eq!(read(&device, 0, 1500 * BLOCK_SIZE).unwrap(), pieces.concat());
        let other = WriteRequest { offset: 2000 * BLOCK, pieces: vec![block_filled_with(1)] };
        device.write(&[WriteRequest { offset: 0, pieces: pieces[1..].to_vec() }, other]).unwrap();
        assert_eq!(read(&device, 0, 1499 * BLOCK_SIZE).unwrap(), pieces[1..].concat());
    });
}

#[test]
fn requests_outside_the_device_are_refused() {
    on_each_device(|device| {
        assert!(matches!(read(&device, CAPACITY, BLOCK_SIZE), Err(DeviceError::OutOfRange { .. })));
        let pieces = vec![block_filled_with(1), block_filled_with(2)];
        let write = device.write(&[WriteRequest { offset: CAPACITY - BLOCK, pieces }]);
        assert!(matches!(write, Err(DeviceError::OutOfRange { .. })));
        assert!(matches!(device.discard(CAPACITY, BLOCK), Err(DeviceError::OutOfRange { .. })));
    });
}

#[test]
fn discard_leaves_the_neighbours_alone() {
    on_each_device(|device| {
        let pieces = [1, 2, 3].map(block_filled_with).to_vec();
        device.write(&[WriteRequest { offset: 0, pieces }]).unwrap();
        device.discard(BLOCK, BLOCK).unwrap();
        device.flush().unwrap();
        assert_eq!(read(&device, 0, BLOCK_SIZE).unwrap(), block_filled_with(1));
        assert_eq!(read(&device, 2 * BLOCK, BLOCK_SIZE).unwrap(), block_filled_with(3));
    });
}

#[test]
fn one_writer_or_many_readers() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let is_in_use = |result| matches!(result, Err(DeviceError::InUse { .. }));
    let writer = FileDevice::create(&image, CAPACITY).unwrap();
    assert!(is_in_use(FileDevice::open(&image, Access::Exclusive)));
    assert!(is_in_use(FileDevice::open(&image, Access::ReadOnly)));
    drop(writer);
    let reader = FileDevice::open(&image, Access::ReadOnly).unwrap();
    let _second_reader = FileDevice::open(&image, Access::ReadOnly).unwrap();
    assert!(is_in_use(FileDevice::open(&image, Access::Exclusive)));
    let write = reader.write(&[WriteRequest { offset: 0, pieces: vec![block_filled_with(1)] }]);
    assert!(matches!(write, Err(DeviceError::Io { action: "write", .. })));
}

#[test]
fn a_block_device_in_use_is_refused() {
    LoopDevice::with("a_block_device_in_use_is_refused", |looped| {
        let device = FileDevice::open(looped, Access::Exclusive).unwrap();
        assert_eq!(device.capacity(), CAPACITY);
        assert!(matches!(FileDevice::open(looped, Access::Exclusive), Err(DeviceError::InUse { .. })));
    });
}

/// A volume was opened for writing twice, once as a file and once through the loop device over it.
#[test]
fn a_file_and_the_loop_device_over_it_are_not_open_both() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let other_name = directory.path().join("other name");
    let is_in_use = |result| matches!(result, Err(DeviceError::InUse { .. }));
    let held = FileDevice::create(&image, CAPACITY).unwrap();
    std::fs::hard_link(&image, &other_name).unwrap();
    let Some(looped) = LoopDevice::attach(&image) else {
        println!("SKIPPED a_file_and_the_loop_device_over_it_are_not_open_both: losetup refused");
        return;
    };
    assert!(is_in_use(FileDevice::open(&looped.0, Access::Exclusive)));
    assert!(is_in_use(FileDevice::open(&looped.0, Access::ReadOnly)));
    drop(held);
    for access in [Access::Exclusive, Access::ReadOnly] {
        assert!(is_in_use(FileDevice::open(&image, access)));
        assert!(is_in_use(FileDevice::open(&other_name, access)));
        drop(FileDevice::open(&looped.0, access).unwrap());
    }
    drop(looped);
    FileDevice::open(&image, Access::Exclusive).unwrap();
}

/// The requests of a killed process's rings held its lock for some milliseconds more, and a volume mounted again at once was in use.
#[test]
fn a_file_that_is_let_go_of_in_a_moment_is_opened() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    let other = FileDevice::create(&image, CAPACITY).unwrap();
    std::thread::scope(|scope| {
        let opened = scope.spawn(|| FileDevice::open(&image, Access::Exclusive));
        std::thread::sleep(5 * BUSY_PAUSE);
        drop(other);
        opened.join().unwrap().unwrap();
    });
}

/// A child of another thread held a closed descriptor until it executed its program, so that a device opened again at once
/// was in use.
#[test]
fn a_block_device_that_is_let_go_of_in_a_moment_is_opened() {
    LoopDevice::with("a_block_device_that_is_let_go_of_in_a_moment_is_opened", |looped| {
        let other =
            rustix::fs::open(looped, OFlags::RDONLY | OFlags::EXCL | OFlags::CLOEXEC, Mode::empty()).unwrap();
        std::thread::scope(|scope| {
            let opened = scope.spawn(|| FileDevice::open(looped, Access::Exclusive));
            std::thread::sleep(5 * BUSY_PAUSE);
            drop(other);
            opened.join().unwrap().unwrap();
        });
    });
}

#[test]
fn nothing_is_left_of_a_file_that_cannot_be_made() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    // No file has so many bytes.
    assert!(matches!(FileDevice::create(&image, u64::MAX - BLOCK), Err(DeviceError::Io { .. })));
    assert!(!image.exists());
}

#[test]
fn creating_does_not_overwrite() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    std::fs::write(&image, b"precious").unwrap();
    assert!(matches!(FileDevice::create(&image, CAPACITY), Err(DeviceError::Io { .. })));
    assert_eq!(std::fs::read(&image).unwrap(), b"precious");
    assert!(FileDevice::open(directory.path(), Access::ReadOnly).is_err(), "a directory is no device");
}

#[test]
fn a_file_that_was_cut_gives_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let image = directory.path().join("image");
    for with_rings in [true, false] {
        std::fs::write(&image, vec![7; 10 * BLOCK_SIZE + 17]).unwrap();
        let device = open(&image, with_rings);
        assert_eq!(device.capacity(), 10 * BLOCK, "the odd bytes at the end are no block");
        File::options().write(true).open(&image).unwrap().set_len(3 * BLOCK).unwrap();
        let mut batch: Vec<_> = [0, 6]
            .map(|block| ReadRequest { offset: block * BLOCK, buffer: Buffer::zeroed(BLOCK_SIZE) })
            .into();
        let error = device.read(&mut batch).unwrap_err();
        assert!(matches!(error, DeviceError::OutOfRange { offset, .. } if offset == 6 * BLOCK), "{error}");
        assert!(read(&device, 2 * BLOCK, 2 * BLOCK_SIZE).is_err());
    }
}
