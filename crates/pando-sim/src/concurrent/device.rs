//! A device that several threads use at once, and that remembers when each thing was begun and when it had returned.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use pando_device::simulated::{Choice, CrashPoint, Event, Fault, Image, Random};
use pando_device::{Device, DeviceError, ReadRequest, SimulatedDevice, WriteRequest};

/// A write or a flush takes so many microseconds at most, so that others are under way meanwhile.
const PAUSE_US_MAX: u64 = 150;

/// One thing that was done, and when.
#[derive(Clone)]
pub struct TimedEvent {
    /// What it was.
    pub event: Event,
    /// When it was asked for.
    pub begin: u64,
    /// When it had returned.
    pub end: u64,
    /// It has failed, and may have been done all the same.
    pub failed: bool,
}

impl TimedEvent {
    fn is_flush(&self) -> bool {
        self.event == Event::Flush
    }

    /// A flush that kept its promise by then.
    fn has_flushed(&self, moment: u64) -> bool {
        self.is_flush() && !self.failed && self.end <= moment
    }
}

/// A moment at which the power is cut.
pub struct Cut {
    /// What is durable, and what may be lost.
    pub point: CrashPoint,
    /// Calls to write or flush that had not returned.
    pub under_way: usize,
    /// Writes that were there when the last flush ended, and are not durable by it.
    pub passed_by: u64,
}

impl Cut {
    /// Cuts it at a moment of what was done, in the order in which it was begun, to a device that held `base`.
    pub fn at(moment: u64, base: &Image, events: &[TimedEvent], random: &mut Random) -> Self {
        let begun: Vec<_> = events.iter().filter(|event| event.begin <= moment).collect();
        let flushes: Vec<_> = begun.iter().filter(|event| event.has_flushed(moment)).collect();
        let covered = flushes.iter().map(|flush| flush.begin).max().unwrap_or(0);
        let last_flush_end = flushes.iter().map(|flush| flush.end).max().unwrap_or(0);
        let changes = || begun.iter().filter(|event| !event.is_flush());
        let mut point = CrashPoint::start(base.clone());
        for event in changes().filter(|event| event.end < covered) {
            // What has failed is durable or not; what came later in its place lies upon it.
            if !event.failed || random.chance(1, 2) {
                point.push(&event.event);
            }
        }
        point.push(&Event::Flush);
        let mut passed_by = 0;
        for event in changes().filter(|event| event.end >= covered) {
            point.push(&event.event);
            passed_by += u64::from(event.begin < last_flush_end);
        }
        // The requests of one call begin together.
        let mut under_way: Vec<_> =
            begun.iter().filter(|event| event.end > moment).map(|event| event.begin).collect();
        under_way.dedup();
        let under_way = under_way.len();
        Self { point, under_way, passed_by }
    }
}

/// All kept, all lost, `count` others of those that [`CrashPoint::subsets`] has, and one in which the last write is torn.
pub fn some_choices(point: &CrashPoint, count: usize, random: &mut Random) -> Vec<Choice> {
    let mut choices = point.subsets(random.bits());
    let mut chosen: Vec<_> = choices.drain(..choices.len().min(2)).collect();
    for _ in 0..count.min(choices.len()) {
        chosen.push(choices.swap_remove(random.below(choices.len() as u64) as usize));
    }
    if let Some(last) = point.unflushed().len().checked_sub(1) {
        let mut tears = point.tears(last, random.bits());
        if !tears.is_empty() {
            chosen.push(tears.swap_remove(random.below(tears.len() as u64) as usize));
        }
    }
    chosen
}

/// The device. Moments are counted, not measured: each is behind all those before it, whichever thread asked.
pub struct TimedDevice {
    below: SimulatedDevice,
    moments: AtomicU64,
    events: Mutex<Vec<TimedEvent>>,
    random: Mutex<Random>,
}

impl TimedDevice {
    /// A device after a restart.
    pub fn new(image: Image, seed: u64) -> Self {
        let below = SimulatedDevice::from_image(image);
        let random = Mutex::new(Random::new(seed));
        Self { below, moments: AtomicU64::new(0), events: Mutex::default(), random }
    }

    /// The next moment.
    pub fn tick(&self) -> u64 {
        self.moments.fetch_add(1, Ordering::SeqCst) + 1
    }

    /// What was done, in the order in which it was begun.
    pub fn events(&self) -> Vec<TimedEvent> {
        let mut events = self.events.lock().expect("nothing panics with it").clone();
        events.sort_by_key(|event| event.begin);
        events
    }

    /// Lets one of the next so many I/Os fail, or all writes and flushes from there on.
    pub fn fail_within(&self, count: u64, for_good: bool) {
        let number = self.below.io_count() + self.random.lock().expect("nothing panics with it").below(count);
        self.below.set_fault(if for_good { Fault::WritesFrom(number) } else { Fault::At(number) });
    }

    /// How many I/Os have failed.
    pub fn failed_count(&self) -> u64 {
        self.below.failed_count()
    }

    /// What reads see now.
    pub fn image(&self) -> Image {
        self.below.image()
    }

    /// Does something that takes its time.
    fn timed(
        &self,
        events: Vec<Event>,
        act: impl FnOnce() -> Result<(), DeviceError>,
    ) -> Result<(), DeviceError> {
        let begin = self.tick();
        self.pause();
        let result = act();
        self.pause();
        let (end, failed) = (self.tick(), result.is_err());
        let timed = events.into_iter().map(|event| TimedEvent { event, begin, end, failed });
        self.events.lock().expect("nothing panics with it").extend(timed);
        result
    }

    fn pause(&self) {
        let us = self.random.lock().expect("nothing panics with it").below(PAUSE_US_MAX);
        match us {
            0..20 => {}
            20..50 => std::thread::yield_now(),
            _ => std::thread::sleep(Duration::from_micros(us)),
        }
    }
}

impl Device for TimedDevice {
    fn capacity(&self) -> u64 {
        self.below.capacity()
    }

    fn read(&self, batch: &mut [ReadRequest]) -> Result<(), DeviceError> {
        self.below.read(batch)
    }

    fn write(&self, batch: &[WriteRequest]) -> Result<(), DeviceError> {
        self.timed(batch.iter().map(Event::from).collect(), || self.below.write(batch))
    }

    fn write_meanwhile(&self, batch: &[WriteRequest], work: &mut dyn FnMut()) -> Result<(), DeviceError> {
        self.timed(batch.iter().map(Event::from).collect(), || {
            let result = self.below.write(batch);
            work();
            result
        })
    }

    fn flush(&self) -> Result<(), DeviceError> {
        self.timed(vec![Event::Flush], || self.below.flush())
    }

    fn discard(&self, offset: u64, length: u64) -> Result<(), DeviceError> {
        self.timed(vec![Event::Discard { offset, length }], || self.below.discard(offset, length))
    }

    fn name(&self) -> String {
        "simulated device of several threads".to_owned()
    }
}
