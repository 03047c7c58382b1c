use std::collections::HashSet;

use super::*;
use crate::Buffer;

const CAPACITY: u64 = 1 << 20;

fn write(device: &SimulatedDevice, block: u64, fill: u8) -> Result<(), DeviceError> {
    let pieces = vec![Bytes::from(vec![fill; BLOCK_SIZE])];
    device.write(&[WriteRequest { offset: block * BLOCK_SIZE as u64, pieces }])
}

fn first_byte(image: &Image, block: u64) -> u8 {
    image.block(block)[0]
}

/// The first bytes of blocks 0 to 3 in every crash state after a prefix of the device's trace.
fn outcomes(device: &SimulatedDevice, prefix: usize) -> HashSet<[u8; 4]> {
    let point = CrashPoint::after(Image::zeroed(CAPACITY), &device.trace(), prefix);
    let images = point.choices(&[], 1).into_iter().map(|choice| point.image(&choice));
    images.map(|image| [0, 1, 2, 3].map(|block| first_byte(&image, block))).collect()
}

/// SD-1, SD-2.
#[test]
fn flushed_writes_survive_and_unflushed_ones_may_not() {
    let device = SimulatedDevice::new(CAPACITY);
    write(&device, 0, 1).unwrap();
    device.flush().unwrap();
    write(&device, 0, 2).unwrap();
    write(&device, 1, 3).unwrap();
    assert_eq!(outcomes(&device, 0), HashSet::from([[0, 0, 0, 0]]));
    assert_eq!(outcomes(&device, 1), HashSet::from([[0, 0, 0, 0], [1, 0, 0, 0]]));
    assert_eq!(outcomes(&device, 2), HashSet::from([[1, 0, 0, 0]]));
    let both = [[1, 0, 0, 0], [2, 0, 0, 0], [1, 3, 0, 0], [2, 3, 0, 0]];
    assert_eq!(outcomes(&device, 4), HashSet::from(both));
}

/// SD-3.
#[test]
fn each_write_is_lost_alone_and_kept_alone() {
    let device = SimulatedDevice::new(CAPACITY);
    for block in 0..4 {
        write(&device, block, 1).unwrap();
    }
    let outcomes = outcomes(&device, 4);
    for alone in 0..4 {
        let kept: [u8; 4] = std::array::from_fn(|i| u8::from(i == alone));
        assert!(outcomes.contains(&kept) && outcomes.contains(&kept.map(|byte| 1 - byte)), "{alone}");
    }
    let point = CrashPoint::after(Image::zeroed(CAPACITY), &device.trace(), 4);
    assert_eq!(point.choices(&[], 1).len(), 2 + 2 * 4 + 20);
}

/// SD-3.
#[test]
fn a_write_in_a_torn_region_is_torn_at_every_sector() {
    let device = SimulatedDevice::new(CAPACITY);
    write(&device, 2, 9).unwrap();
    let point = CrashPoint::after(Image::zeroed(CAPACITY), &device.trace(), 1);
    assert_eq!(
        point.choices(std::slice::from_ref(&(0..4096)), 1).len(),
        2,
        "block 2 lies outside the region"
    );
    let kept_sectors: HashSet<Vec<bool>> = point
        .choices(std::slice::from_ref(&(0..CAPACITY)), 1)
        .iter()
        .map(|choice| point.image(choice).block(2).chunks(SECTOR_SIZE).map(|sector| sector[0] == 9).collect())
        .collect();
    for cut in 0..=8 {
        assert!(kept_sectors.contains(&(0..8).map(|i| i < cut).collect::<Vec<_>>()), "prefix {cut}");
        assert!(kept_sectors.contains(&(0..8).map(|i| i >= cut).collect::<Vec<_>>()), "suffix {cut}");
    }
}

#[test]
fn equal_choices_between_the_same_flushes_are_equal_states() {
    let device = SimulatedDevice::new(CAPACITY);
    for block in 0..3 {
        write(&device, block, 1).unwrap();
    }
    let [early, late] =
        [2, 3].map(|prefix| CrashPoint::after(Image::zeroed(CAPACITY), &device.trace(), prefix));
    let both_kept = &early.subsets(1)[0];
    let found = late.subsets(1).into_iter().find(|choice| choice == both_kept).unwrap();
    assert_eq!([0, 1, 2].map(|block| first_byte(&late.image(&found), block)), [1, 1, 0]);
}

/// SD-4.
#[test]
fn a_discarded_range_is_garbage_at_once_and_may_come_back_until_the_flush() {
    let device = SimulatedDevice::new(CAPACITY);
    write(&device, 0, 1).unwrap();
    device.flush().unwrap();
    device.discard(0, BLOCK_SIZE as u64).unwrap();
    assert_eq!(first_byte(&device.image(), 0), DISCARDED_BYTE);
    assert_eq!(outcomes(&device, 3), HashSet::from([[1, 0, 0, 0], [DISCARDED_BYTE, 0, 0, 0]]));
    device.flush().unwrap();
    assert_eq!(outcomes(&device, 4), HashSet::from([[DISCARDED_BYTE, 0, 0, 0]]));
}

/// SD-5, SD-6.
#[test]
fn the_chosen_io_fails_and_a_failed_write_is_done_in_part() {
    let device = SimulatedDevice::new(CAPACITY);
    device.set_fault(Fault::At(1));
    write(&device, 0, 1).unwrap();
    let error = write(&device, 1, 2).unwrap_err();
    assert!(matches!(error, DeviceError::Io { action: "write", offset: 4096, code: 5, .. }), "{error}");
    let torn = device.image().block(1);
    assert_eq!((torn[2047], torn[2048]), (2, 0));
    device.flush().unwrap();
    assert_eq!((device.io_count(), device.failed()), (3, vec!["write"]));
}

#[test]
fn reads_go_on_where_only_writes_fail() {
    let device = SimulatedDevice::new(CAPACITY);
    device.set_fault(Fault::WritesFrom(0));
    let mut batch = [ReadRequest { offset: 0, buffer: Buffer::zeroed(4096) }];
    device.read(&mut batch).unwrap();
    assert!(device.flush().is_err() && device.discard(0, 4096).is_err());
    device.set_fault(Fault::From(0));
    assert!(device.read(&mut batch).is_err());
}

/// SD-2.
#[test]
fn a_failed_flush_makes_nothing_durable() {
    let device = SimulatedDevice::new(CAPACITY);
    device.set_fault(Fault::At(1));
    write(&device, 0, 1).unwrap();
    device.flush().unwrap_err();
    assert!(outcomes(&device, device.trace_length()).contains(&[0; 4]));
}

#[test]
fn flipped_bits_stay_in_their_range() {
    let device = SimulatedDevice::new(CAPACITY);
    device.flip_bits(4096..8192, 5, 3);
    let image = device.image();
    assert!(
        (0..CAPACITY / 4096)
            .filter(|block| *block != 1)
            .all(|block| image.block(block).iter().all(|b| *b == 0))
    );
    assert!(image.block(1).iter().any(|byte| *byte != 0));
}

#[test]
fn requests_outside_the_device_are_refused() {
    let device = SimulatedDevice::new(CAPACITY);
    assert!(matches!(write(&device, CAPACITY / 4096, 1), Err(DeviceError::OutOfRange { .. })));
    assert_eq!(device.trace_length(), 0);
}

#[test]
fn the_blocks_that_decided_are_those_read_before_they_were_written() {
    let device = SimulatedDevice::new(CAPACITY);
    for block in 0..4 {
        write(&device, block, 1 + block as u8).unwrap();
    }
    let image = device.image();
    let device = SimulatedDevice::from_image(image.clone());
    device.note_reads();
    let read = |block: u64, blocks: usize| {
        let buffer = Buffer::zeroed(blocks * BLOCK_SIZE);
        device.read(&mut [ReadRequest { offset: block * BLOCK_SIZE as u64, buffer }]).unwrap();
    };
    write(&device, 1, 9).unwrap();
    read(0, 2);
    write(&device, 0, 9).unwrap();
    device.discard(2 * BLOCK_SIZE as u64, BLOCK_SIZE as u64).unwrap();
    read(2, 3);
    let blocks = device.blocks_read();
    assert_eq!(
        blocks.iter().map(|(block, bytes)| (*block, bytes[0])).collect::<Vec<_>>(),
        [(0, 1), (3, 4), (4, 0)]
    );
    assert!(blocks.iter().all(|(block, bytes)| image.shares(*block, bytes)));
    assert!(!device.image().shares(0, &blocks[0].1));
}
