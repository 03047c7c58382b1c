//! The states in which a crash at one moment may leave a device.

use std::ops::Range;

use super::{Event, Image, Random, SECTOR_SIZE};

/// Seeded subsets of the unflushed writes that are tried at each moment.
const SUBSETS: u64 = 20;

/// A moment between two events of a trace: what is durable, and what a crash may lose.
#[derive(Clone)]
pub struct CrashPoint {
    durable: Image,
    unflushed: Vec<Event>,
}

/// One state a crash may leave.
pub struct CrashState {
    /// What was kept and what was lost, for messages.
    pub description: String,
    /// What is on the device.
    pub image: Image,
}

/// How a state is made from the unflushed events.
enum Choice {
    Keep(Vec<bool>),
    /// One write keeps the sectors of the mask; the others are all kept or all lost.
    Tear {
        torn: usize,
        sectors: Vec<bool>,
        others_kept: bool,
    },
}

impl CrashPoint {
    /// Before the first event.
    pub fn start(image: Image) -> Self {
        Self { durable: image, unflushed: Vec::new() }
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
        for event in std::mem::take(&mut self.unflushed) {
            apply(&mut self.durable, &event);
        }
    }

    /// How many events a crash may lose.
    pub fn unflushed(&self) -> usize {
        self.unflushed.len()
    }

    /// The states that are tried: all kept; all lost; each alone lost; each alone kept; seeded subsets; and each tear
    /// of each unflushed write that begins in one of the regions: the first sectors kept, the last sectors kept, and
    /// two seeded mixtures, with all other unflushed events kept or lost. States are made one at a time.
    pub fn states<'a>(
        &'a self,
        torn_regions: &'a [Range<u64>],
        seed: u64,
    ) -> impl Iterator<Item = CrashState> + 'a {
        let choices = self.subsets(seed).into_iter().map(Choice::Keep);
        let torn = (0..self.unflushed.len()).flat_map(move |torn| self.tears(torn, torn_regions, seed));
        choices.chain(torn).map(|choice| self.state(&choice))
    }

    fn subsets(&self, seed: u64) -> Vec<Vec<bool>> {
        let count = self.unflushed.len();
        if count == 0 {
            return vec![Vec::new()];
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
        subsets
    }

    fn tears(&self, torn: usize, regions: &[Range<u64>], seed: u64) -> Vec<Choice> {
        let Event::Write { offset, bytes } = &self.unflushed[torn] else { return Vec::new() };
        if !regions.iter().any(|region| region.contains(offset)) {
            return Vec::new();
        }
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
        let others = if self.unflushed.len() > 1 { &[true, false][..] } else { &[true] };
        let choice = |(sectors, others_kept)| Choice::Tear { torn, sectors, others_kept };
        masks
            .into_iter()
            .flat_map(|mask| others.iter().map(move |kept| (mask.clone(), *kept)))
            .map(choice)
            .collect()
    }

    fn state(&self, choice: &Choice) -> CrashState {
        let mut image = self.durable.clone();
        for (i, event) in self.unflushed.iter().enumerate() {
            match choice {
                Choice::Keep(kept) if kept[i] => apply(&mut image, event),
                Choice::Tear { torn, sectors, .. } if *torn == i => apply_sectors(&mut image, event, sectors),
                Choice::Tear { others_kept: true, .. } => apply(&mut image, event),
                Choice::Keep(_) | Choice::Tear { .. } => {}
            }
        }
        CrashState { description: self.describe(choice), image }
    }

    fn describe(&self, choice: &Choice) -> String {
        match choice {
            Choice::Keep(kept) => format!("of {} unflushed events kept: {}", kept.len(), bits(kept)),
            Choice::Tear { torn, sectors, others_kept } => {
                let others = if *others_kept { "kept" } else { "lost" };
                let count = self.unflushed.len();
                format!(
                    "unflushed event {torn} of {count} torn: sectors {}, all others {others}",
                    bits(sectors)
                )
            }
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
