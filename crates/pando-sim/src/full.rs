//! Fills a small volume to the brim (SP-1) and empties it again. The promises checked:
//!
//! * FULL-1 what does not fit is refused with [`Error::NoSpace`] and leaves no trace; there is no other error.
//! * FULL-2 a full volume can be read, synced, checkpointed, closed and opened.
//! * FULL-3 deleting always works, and two checkpoints later the space is back.

use std::sync::Arc;

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_device::simulated::Random;
use pando_engine::{Background, Engine, Error, FormatOptions, KeyRange, Operation, Options, Tree};

use crate::model::Map;
use crate::runner::{apply, contents, difference, format};

/// Bytes of the volume.
pub const CAPACITY: u64 = 64 << 20;

/// Percent of the free space of an empty volume that must be back.
const BACK_MIN: u64 = 95;
/// Percent of the space that values must fill before a volume may be called full.
const FILLED_MIN: u64 = 50;

/// What a volume is filled with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Filling {
    /// Values of 200 bytes, each under its own key in no order; deleted one by one.
    SmallValues,
    /// One run of blocks, as a large file; deleted by one range.
    LargeRun,
    /// Blocks of a run, written over and over until twice the volume has been written; deleted by ranges.
    Overwrites,
}

/// Fills and empties a volume.
///
/// # Errors
/// The first broken promise.
pub fn run(filling: Filling) -> Result<(), String> {
    let device = Arc::new(SimulatedDevice::untraced(CAPACITY));
    format(&device, &FormatOptions::default()).map_err(|error| format!("format: {error}"))?;
    let mut volume = Volume { engine: open(&device)?, device, map: Map::default(), value_bytes: 0 };
    let empty = volume.engine.space();

    volume.fill(filling)?;
    if volume.value_bytes * 100 < empty.available * FILLED_MIN {
        return Err(format!("{} bytes fill a volume with {} available", volume.value_bytes, empty.available));
    }
    volume.settle("full")?;
    volume.delete_all(filling)?;
    for _ in 0..2 {
        volume.do_background_work()?;
        volume.engine.checkpoint().map_err(|error| format!("checkpoint of an emptied volume: {error}"))?;
    }
    volume.check_free(empty.free)?;
    volume.settle("emptied")?;
    volume.check_free(empty.free)?;
    let put = Operation::Put { tree: Tree::Data, key: "new".into(), value: vec![1; 4096].into() };
    volume.apply(&[put]).map_err(|error| format!("writing to an emptied volume: {error}"))?;
    volume.check("used again")
}

fn open(device: &Arc<SimulatedDevice>) -> Result<Engine, String> {
    let options = Options { cache_bytes: 16 << 20, background: Background::Manual, ..Options::default() };
    Engine::open(device.clone(), options).map_err(|error| format!("open: {error}"))
}

struct Volume {
    device: Arc<SimulatedDevice>,
    engine: Engine,
    map: Map,
    /// Bytes of values written, without those written over.
    value_bytes: u64,
}

impl Volume {
    fn apply(&mut self, operations: &[Operation]) -> Result<(), Error> {
        apply(&self.engine, operations)?;
        self.map.apply(operations);
        Ok(())
    }

    /// Applies until there is no space, at most `records` times.
    fn apply_until_full(
        &mut self,
        records: u64,
        mut next: impl FnMut(u64) -> (Operation, u64),
    ) -> Result<bool, String> {
        for number in 0..records {
            let (operation, bytes) = next(number);
            match self.apply(&[operation]) {
                Ok(()) => self.value_bytes += bytes,
                Err(Error::NoSpace) => return Ok(true),
                Err(error) => return Err(format!("record {number} of a filling: {error}")),
            }
        }
        Ok(false)
    }

    fn fill(&mut self, filling: Filling) -> Result<(), String> {
        let mut random = Random::new(1);
        let mut noise = |length: usize| -> Bytes {
            std::iter::repeat_with(|| random.bits().to_le_bytes()).flatten().take(length).collect()
        };
        // More than the volume holds.
        let is_full = match filling {
            Filling::SmallValues => self.apply_until_full(2 * CAPACITY / 200, |number| {
                let key = Bytes::copy_from_slice(&number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
                (Operation::Put { tree: Tree::Metadata, key, value: noise(200) }, 200)
            })?,
            Filling::LargeRun => self.apply_until_full(2 * CAPACITY / (256 << 10), |number| {
                (put_run(number * 64, noise(256 << 10)), 256 << 10)
            })?,
            Filling::Overwrites => {
                let is_full = self.apply_until_full(2 * CAPACITY / (64 << 10), |number| {
                    (put_run(number * 16, noise(64 << 10)), 64 << 10)
                })?;
                let blocks = self.map.entries() as u64;
                let mut place = Random::new(2);
                for _ in 0..2 * CAPACITY / 4096 {
                    let operation = put_run(place.below(blocks), noise(4096));
                    match self.apply(&[operation]) {
                        Ok(()) | Err(Error::NoSpace) => {}
                        Err(error) => return Err(format!("an overwrite on a full volume: {error}")),
                    }
                }
                is_full
            }
        };
        if is_full { Ok(()) } else { Err("twice the volume was written and it is not full".to_owned()) }
    }

    fn delete_all(&mut self, filling: Filling) -> Result<(), String> {
        let deletions: Vec<Operation> = match filling {
            Filling::SmallValues => {
                let all = KeyRange::all();
                let keys = self.map.range(Tree::Metadata, &all).map(|(key, _)| key.clone());
                keys.map(|key| Operation::Delete { tree: Tree::Metadata, key }).collect()
            }
            Filling::LargeRun => vec![Operation::DeleteRange { tree: Tree::Data, range: KeyRange::all() }],
            Filling::Overwrites => (0..=255)
                .map(|byte| [PREFIX, &[0, 0, 0, 0, 0, 0, byte]].concat())
                .map(|prefix| Operation::DeleteRange { tree: Tree::Data, range: KeyRange::prefix(prefix) })
                .collect(),
        };
        for deletion in deletions {
            self.apply(&[deletion]).map_err(|error| format!("deleting on a full volume: {error}"))?;
        }
        if self.map.entries() == 0 { Ok(()) } else { Err("the test left something undeleted".to_owned()) }
    }

    /// All that the engine's own threads would do meanwhile.
    fn do_background_work(&self) -> Result<(), String> {
        while self.engine.background_step().map_err(|error| format!("background step: {error}"))? {}
        Ok(())
    }

    fn check_free(&self, before: u64) -> Result<(), String> {
        let free = self.engine.space().free;
        if free * 100 >= before * BACK_MIN {
            Ok(())
        } else {
            Err(format!("of {before} free bytes {free} are back"))
        }
    }

    /// FULL-2: sync, checkpoint, close, open, and look at everything.
    fn settle(&mut self, state: &str) -> Result<(), String> {
        self.check(state)?;
        let failed = |what| move |error| format!("{what} of a volume that was {state}: {error}");
        self.engine.sync().map_err(failed("sync"))?;
        self.engine.checkpoint().map_err(failed("checkpoint"))?;
        self.engine.close().map_err(failed("close"))?;
        self.engine = open(&self.device)?;
        self.check(state)
    }

    fn check(&self, state: &str) -> Result<(), String> {
        if contents(&self.engine)? == self.map.digest() {
            return Ok(());
        }
        Err(format!("a volume that was {state}: {}", difference(&self.engine, &self.map)))
    }
}

const PREFIX: &[u8] = b"\0\0f\0";

fn put_run(first: u64, bytes: Bytes) -> Operation {
    Operation::PutRun { tree: Tree::Data, prefix: Bytes::from_static(PREFIX), first, bytes }
}
