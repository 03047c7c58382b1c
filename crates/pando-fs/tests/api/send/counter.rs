//! The counter of inode numbers of who receives.

use std::sync::Arc;

use pando_device::SimulatedDevice;
use pando_engine::Tree;
use pando_format::send_stream::Frame;
use pando_fs::FileSystem;
use pando_fs::operations::{Operations, ROOT, changing};
use pando_fs::schema::number::COUNTED_END;
use pando_fs::schema::{Record, key};
use pando_fs::send::TransferError;

use super::crash::{open, small};
use super::moves::{frames, stream};
use super::{filled, names, receive, send, take};
use crate::common::Volume;

fn counter(fs: &FileSystem) -> u64 {
    let value = fs.engine().waiting(|| fs.engine().get(Tree::Metadata, key::INODE_COUNTER)).unwrap().unwrap();
    u64::from_le_bytes(value[..].try_into().unwrap())
}

/// The stream as a sender with this counter would have sent it.
fn with_counter(sent: &[u8], counter: u64) -> Vec<u8> {
    let mut frames = frames(sent);
    let Some(Frame::Begin(begin)) = frames.first_mut() else { panic!("no beginning") };
    begin.counter = counter;
    stream(sent.to_vec(), &frames)
}

/// The beginning of a stream that was refused later made what this volume sends unacceptable to all others, for good.
#[test]
fn a_stream_that_is_refused_leaves_the_counter_as_it_was() {
    let (volume, other) = (filled(), Volume::new());
    take(&volume.fs, "one");
    let sent = with_counter(&send(&volume.fs, "one", None), COUNTED_END);
    other.file(ROOT, "before");
    let before = counter(&other.fs);
    assert!(matches!(receive(&other.fs, &sent[..sent.len() - 1]), Err(TransferError::CutOff)));
    assert!(matches!(receive(&other.fs, &[&sent[..], b"x"].concat()), Err(TransferError::GoesOn)));
    assert_eq!(counter(&other.fs), before);
    let beyond = with_counter(&sent, COUNTED_END + 1);
    assert!(matches!(receive(&other.fs, &beyond), Err(TransferError::Refused(_))));
    assert_eq!(counter(&other.fs), before);
    assert!(other.file(ROOT, "after").0 < before);
    other.assert_clean();
}

#[test]
fn what_a_volume_sends_is_accepted_however_high_its_counter_is() {
    let (volume, other, third) = (filled(), Volume::new(), Volume::new());
    take(&volume.fs, "one");
    receive(&other.fs, &with_counter(&send(&volume.fs, "one", None), COUNTED_END)).unwrap();
    assert!(counter(&other.fs) > COUNTED_END);
    // Numbers of its own, and of another mount.
    other.file(ROOT, "first");
    let other = other.remount(false);
    other.file(ROOT, "second");
    other.assert_clean();
    take(&other.fs, "two");
    for name in ["one", "two"] {
        receive(&third.fs, &send(&other.fs, name, None)).unwrap();
    }
    third.assert_clean();
}

/// A snapshot that was there without the counter that belongs to it had numbers which were given out again.
#[test]
fn the_counter_comes_with_what_was_received_and_no_earlier() {
    const SENDER: u64 = 1 << 30;
    let volume = filled();
    take(&volume.fs, "one");
    let sent = with_counter(&send(&volume.fs, "one", None), SENDER);
    let device = Arc::new(SimulatedDevice::new(64 << 20));
    FileSystem::format(device.clone(), &small()).unwrap();
    let fs = open(device.clone()).unwrap();
    let records = Arc::new(std::sync::Mutex::new(Vec::new()));
    let (states, observed, engine) = (records.clone(), device.clone(), fs.engine().clone());
    fs.observe_records(move || {
        // Durable up to here: what a crash then leaves.
        engine.sync().unwrap();
        states.lock().unwrap().push(observed.image());
    });
    receive(&fs, &sent).unwrap();
    let states = std::mem::take(&mut *records.lock().unwrap());
    let mut received = 0;
    for (number, image) in states.into_iter().enumerate() {
        let fs = open(Arc::new(SimulatedDevice::from_image(image))).unwrap();
        let is_received = !names(&fs).is_empty();
        assert_eq!(counter(&fs) > SENDER, is_received, "record {number}");
        if is_received {
            received += 1;
            drop(changing(&*fs, |fs| fs.roll_back(b"one")).unwrap());
            let caller = pando_fs::operations::Caller { uid: 0, gid: 0, umask: 0 };
            let made = changing(&*fs, |fs| fs.make_directory(&caller, ROOT, b"new", 0o755)).unwrap();
            assert!(made.attributes.inode.0 > SENDER);
            assert_eq!(fs.check().unwrap().problems, []);
        }
    }
    assert_eq!(received, 1);
}

/// An image that was copied makes the same deltas of the same numbers. A tree that lay under one of them came back under it, and showed the
/// numbers that the counter had given out.
#[test]
fn deltas_of_the_other_copy_of_an_image_are_not_made_again() {
    let volume = filled().remount(false);
    let there = volume.copied();
    take(&there.fs, "state");
    drop(changing(&*there.fs, |fs| fs.roll_back(b"state")).unwrap());
    take(&there.fs, "one");
    let sent = send(&there.fs, "one", None);
    let rolled_back = root_delta(&there.fs, key::ROOT);
    let volume = volume.remount(false);
    // What is received here gets the number that was the roll back's there.
    let state = there.walk(".snapshots/state").unwrap();
    (0..100).find(|number| volume.file(ROOT, &format!("new {number}")) == state).unwrap();
    let snapshot = receive(&volume.fs, &sent).unwrap();
    assert_ne!(root_delta(&volume.fs, &key::snapshot_prefix(snapshot.number.0)), rolled_back);
    volume.assert_clean();
}

fn root_delta(fs: &FileSystem, root: &[u8]) -> u64 {
    let value = fs.engine().waiting(|| fs.engine().get(Tree::Metadata, root)).unwrap().unwrap();
    Record::decode(&value).unwrap().delta
}
