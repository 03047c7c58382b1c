//! Snapshots that go to another volume, where they are compared with what the model had when they were sent.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_device::{Device, MemoryDevice};
use pando_engine::{Background, FormatOptions};
use pando_fs::operations::{Operations, SNAPSHOTS, changing, waiting};
use pando_fs::send::TransferError;
use pando_fs::{Error, FileSystem, Options};
use pando_sim::model::posix::Id;

use super::run::{Outcome, Run, again, agree, snapshot_name};

/// The other volume.
pub struct Receiver {
    fs: Arc<FileSystem>,
    /// By their names there.
    received: BTreeMap<Vec<u8>, Received>,
}

/// A snapshot there.
struct Received {
    /// Which snapshot it was, if it is one that changes can begin from.
    origin: Option<Id>,
    /// The model's copy of what was sent.
    expected: Id,
}

impl Receiver {
    fn new(run: &Run) -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(256 << 20));
        let format = FormatOptions {
            volume_id: *b"the other volume",
            log_bytes: Some(8 << 20),
            ..pando_sim::runner::format_options()
        };
        FileSystem::format_with_clock(device.clone(), &format, &*run.clock).unwrap();
        let options = Options { background: Background::Manual, ..Options::default() };
        let fs = FileSystem::open_with_clock(device, options, run.clock.clone()).unwrap();
        Self { fs, received: BTreeMap::new() }
    }

    fn names(&self) -> Vec<Vec<u8>> {
        let snapshots = waiting(&*self.fs, FileSystem::snapshots).unwrap();
        let mut names: Vec<_> = snapshots.into_iter().map(|snapshot| snapshot.name.to_vec()).collect();
        names.sort();
        names
    }
}

fn brief<T>(result: Result<T, TransferError>) -> String {
    format!("{:?}", result.map(drop))
}

impl Run {
    /// Sends a snapshot and compares what arrives.
    pub fn send(&mut self, name: u64, base: Option<u64>, to: u64, cut: Option<u64>) -> Outcome {
        let mut receiver = self.receiver.take().unwrap_or_else(|| Receiver::new(self));
        let outcome = self.send_and_compare(&mut receiver, (name, base), &snapshot_name(to), cut);
        self.receiver = Some(receiver);
        outcome
    }

    fn send_and_compare(
        &mut self,
        receiver: &mut Receiver,
        (name, base): (u64, Option<u64>),
        to: &[u8],
        cut: Option<u64>,
    ) -> Outcome {
        let (name, base) = (snapshot_name(name), base.map(snapshot_name));
        let mut stream = Vec::new();
        // A stream that was begun is not made again from its start.
        self.calm.store(true, Ordering::Relaxed);
        let sent = self.fs.send_snapshot(&name, base.as_deref(), &mut stream);
        self.calm.store(false, Ordering::Relaxed);
        let snapshot = self.model.snapshots.get(&name).copied();
        let base = base.map(|base| self.model.snapshots.get(&base).copied());
        let (Some(snapshot), false) = (snapshot, base == Some(None)) else {
            return agree(brief(sent), brief::<()>(Err(TransferError::Volume(Error::NotFound))));
        };
        let base = base.flatten();
        if base.is_some_and(|base| self.model.is_writable(base)) {
            return agree(brief(sent), brief::<()>(Err(TransferError::WritableBase)));
        }
        agree(brief(sent), brief(Ok(())))?;
        if receiver.received.remove(to).is_some() {
            changing(&*receiver.fs, |fs| fs.delete_snapshot(to)).map_err(|error| error.to_string())?;
        }
        let has_base =
            base.is_none_or(|base| receiver.received.values().any(|received| received.origin == Some(base)));
        if let Some(cut) = cut {
            let cut = stream.len() * cut as usize / 1024;
            let received = receiver.fs.receive_snapshot(&mut &stream[..cut], Some(to));
            let is_expected = match &received {
                Err(TransferError::CutOff) => true,
                Err(TransferError::NoBase) => !has_base,
                _ => false,
            };
            agree((is_expected, receiver.names().contains(&to.to_vec())), (true, false)).map_err(|what| {
                format!("cut at {cut} of {} bytes: {}: {what}", stream.len(), brief(received))
            })?;
            self.counts.streams_cut += 1;
        }
        let received = receiver.fs.receive_snapshot(&mut &stream[..], Some(to));
        if !has_base {
            return agree(brief(received), brief::<()>(Err(TransferError::NoBase)));
        }
        agree(brief(received), brief(Ok(())))?;
        self.counts.snapshots_sent += 1;
        self.counts.changes_sent += u64::from(base.is_some());
        let origin = (!self.model.is_writable(snapshot)).then_some(snapshot);
        let expected = self.model.copy_of(snapshot);
        receiver.received.insert(to.to_vec(), Received { origin, expected });
        self.compare_on(receiver, to)
    }

    /// Compares one snapshot on the other volume.
    fn compare_on(&mut self, receiver: &Receiver, name: &[u8]) -> Outcome {
        let names: Vec<_> = receiver.received.keys().cloned().collect();
        agree(receiver.names(), names)?;
        let found =
            again(&receiver.fs, |fs| fs.lookup(SNAPSHOTS, name)).map_err(|error| error.to_string())?;
        let (inode, id) = (found.attributes.inode, receiver.received[name].expected);
        let own = std::mem::replace(&mut self.fs, receiver.fs.clone());
        let compared =
            self.compare_below(inode, id).and_then(|()| self.compare_numbers_below(&[(inode, id)]));
        self.fs = own;
        receiver.fs.forget(inode, 1);
        compared.map_err(|what| format!("received as {:?}: {what}", Bytes::copy_from_slice(name)))
    }

    /// Compares all that was received and is still there.
    pub fn compare_received(&mut self) -> Outcome {
        let Some(receiver) = self.receiver.take() else { return Ok(()) };
        let mut outcome = Ok(());
        for name in receiver.received.keys() {
            outcome = outcome.and_then(|()| self.compare_on(&receiver, name));
        }
        let problems = receiver.fs.check().map(|report| report.problems);
        self.receiver = Some(receiver);
        outcome?;
        agree(problems.map_err(|error| error.to_string())?, Vec::new())
    }
}
