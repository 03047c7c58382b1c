//! The states in which a crash at one moment may leave a device.

use std::fmt;
use std::ops::Range;

use super::{Event, Image, Random, SECTOR_SIZE};

/// Seeded subsets of the unflushed events that are tried at each moment.
const SUBSETS: u64 = 20;

/// A moment between two events of a trace: what is durable, and what a crash may lose.
#[derive(Clone)]
pub struct CrashPoint {
    durable: Image,
    unflushed: Vec<Event>,
    flushes: usize,
}

/// What a crash keeps of the unflushed events. Two choices at points between the same flushes that are equal leave the
/// same state, whatever else was written in between.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Choice {
    /// Which events are kept; those behind the end of the list are lost.
    kept: Vec<bool>,
    /// One write of which only some sectors are kept.
    torn: Option<(usize, Vec<bool>)>,
}

impl CrashPoint {
    /// Before the first event.
    pub fn start(image: Image) -> Self {
        Self { durable: image, unflushed: Vec::new(), flushes: 0 }
    }

    /// After the first `prefix` events of a trace.
    pub fn after(image: Image, trace: &[Event], prefix: usize) -> Self {
        let mut point = Self::start(image);
        for event in &trace[..prefix] {
            point.push(event);
        }
        point
    }

    /// Moves one event on.
    pub fn push(&mut self, event: &Event) {
        if *event != Event::Flush {
            self.unflushed.push(event.clone());
            return;
        }
        self.flushes += 1;
        for event in std::mem::take(&mut self.unflushed) {
            apply(&mut self.durable, &event);
        }
    }

    /// What a crash may lose.
    pub fn unflushed(&self) -> &[Event] {
        &self.unflushed
    }

    /// How many flushes there were.
    pub fn flushes(&self) -> usize {
        self.flushes
    }

    /// Everything that is tried: [`CrashPoint::subsets`], and [`CrashPoint::tears`] of every unflushed write that
    /// begins in one of the regions.
    pub fn choices(&self, torn_regions: &[Range<u64>], seed: u64) -> Vec<Choice> {
        let mut choices = self.subsets(seed);
        for (number, event) in self.unflushed.iter().enumerate() {
            if let Event::Write { offset, .. } = event
                && torn_regions.iter().any(|region| region.contains(offset))
            {
                choices.extend(self.tears(number, seed));
            }
        }
        choices
    }

    /// All kept; all lost; each alone lost; each alone kept; seeded subsets.
    pub fn subsets(&self, seed: u64) -> Vec<Choice> {
        let count = self.unflushed.len();
        if count == 0 {
            return vec![Choice::new(Vec::new())];
        }
        let mut subsets = vec![vec![true; count], vec![false; count]];
        // With one event, losing or keeping it alone has been said already.
        for alone in (0..count).filter(|_| count > 1) {
            for kept in [false, true] {
                subsets.push((0..count).map(|i| (i == alone) == kept).collect());
            }
        }
        // All subsets of two events are there by now.
        let mut random = Random::new(seed);
        for _ in (0..SUBSETS).filter(|_| count > 2) {
            subsets.push((0..count).map(|_| random.chance(1, 2)).collect());
        }
        subsets.into_iter().map(Choice::new).collect()
    }

    /// The tears of one unflushed write: the first sectors kept, the last ones kept, for every number of them, and two
    /// seeded mixtures; each with all other unflushed events kept, and with all of them lost. None for a discard.
    pub fn tears(&self, event: usize, seed: u64) -> Vec<Choice> {
        let Event::Write { offset, bytes } = &self.unflushed[event] else { return Vec::new() };
        let count = bytes.len().div_ceil(SECTOR_SIZE);
        let mut masks = Vec::new();
        for cut in 1..count {
            masks.push((0..count).map(|i| i < cut).collect::<Vec<_>>());
            masks.push((0..count).map(|i| i >= cut).collect());
        }
        let mut random = Random::new(seed ^ offset.rotate_left(17));
        for _ in 0..2 {
            masks.push((0..count).map(|_| random.chance(1, 2)).collect());
        }
        // With nothing else unflushed, keeping and losing all others is the same.
        let others = if self.unflushed.len() > 1 { &[true, false][..] } else { &[false] };
        let mut choices = Vec::new();
        for mask in masks {
            for others_kept in others {
                let kept = (0..self.unflushed.len()).map(|i| i != event && *others_kept).collect();
                choices.push(Choice { torn: Some((event, mask.clone())), ..Choice::new(kept) });
            }
        }
        choices
    }

    /// What a crash leaves that keeps this.
    pub fn image(&self, choice: &Choice) -> Image {
        let mut image = self.durable.clone();
        for (number, event) in self.unflushed.iter().enumerate() {
            if choice.kept.get(number) == Some(&true) {
                apply(&mut image, event);
            }
            if let Some((torn, sectors)) = &choice.torn
                && *torn == number
            {
                apply_sectors(&mut image, event, sectors);
            }
        }
        image
    }
}

impl Choice {
    /// Nothing is kept.
    pub fn none() -> Self {
        Self::new(Vec::new())
    }

    fn new(mut kept: Vec<bool>) -> Self {
        let length = kept.iter().rposition(|kept| *kept).map_or(0, |last| last + 1);
        kept.truncate(length);
        Self { kept, torn: None }
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kept.iter().filter(|kept| **kept).count() {
            0 => write!(f, "all unflushed events lost")?,
            count if count == self.kept.len() => write!(f, "the first {count} unflushed events kept")?,
            _ => write!(f, "of the unflushed events kept {}", bits(&self.kept))?,
        }
        match &self.torn {
            Some((torn, sectors)) => write!(f, ", of event {torn} the sectors {}", bits(sectors)),
            None => Ok(()),
        }
    }
}

fn apply(image: &mut Image, event: &Event) {
    match event {
        Event::Write { offset, bytes } => image.write(*offset, bytes),
        Event::Discard { offset, length } => image.discard(*offset, *length),
        Event::Flush => {}
    }
}

/// Applies the sectors of a write that the mask keeps.
fn apply_sectors(image: &mut Image, event: &Event, sectors: &[bool]) {
    let Event::Write { offset, bytes } = event else { return };
    for (i, kept) in sectors.iter().enumerate() {
        if *kept {
            let start = i * SECTOR_SIZE;
            let end = bytes.len().min(start + SECTOR_SIZE);
            image.write(offset + start as u64, &bytes.slice(start..end));
        }
    }
}

fn bits(mask: &[bool]) -> String {
    mask.iter().map(|kept| if *kept { '1' } else { '0' }).collect()
}
