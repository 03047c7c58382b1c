//! What a trace says: traffic by phase, the dynamic layout score (FAST17 3.3), and what flash would see of it.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::{Deserialize, Serialize};

use super::round::{LOAD, UNMOUNT};
use super::{Event, What};
use crate::row::Series;

/// Erase blocks that writes are counted in (SSDFS).
pub const ERASE_BLOCKS: [u64; 3] = [128 << 10, 512 << 10, 8 << 20];
/// What a layout is scored in.
const BLOCK: u64 = 4096;
/// Requests of which the kernel tells the end and not the beginning: those it makes for itself.
const BACKGROUND: &str = "background";

/// The phases in which a load, and what it left, is written.
const OF_THE_LOAD: [&str; 2] = [LOAD, UNMOUNT];

/// What a row did to its device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// In the order in which they began first.
    pub phases: Vec<Phase>,
    /// Bytes that the load wrote; 0 where that says nothing.
    pub load_bytes: u64,
    /// Erase blocks of each size that were written to, by the load and by what it left to be written.
    pub erase_blocks: [u64; 3],
    /// Requests to the file system's daemon during the load, by kind; nothing of a file system without one.
    pub round_trips: BTreeMap<String, u64>,
    /// Where the serving threads of PandoFS waited for each other during the load; nothing where the kernel does not tell.
    #[serde(default)]
    pub lock_waits: Option<LockWaits>,
    /// What the load counted itself.
    pub series: Vec<Series>,
}

/// Waits of threads for locks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LockWaits {
    /// How often one slept until another let go.
    pub count: u64,
    /// How long, all in all.
    pub waited_us: u64,
    /// How long there was something to watch.
    pub watched_us: u64,
}

impl LockWaits {
    fn of(events: &[Event]) -> LockWaits {
        let time = |event: Option<&Event>| event.map_or(0, |event| event.time_us);
        let watched_us = time(events.last()) - time(events.first());
        let mut waits = LockWaits { watched_us, ..LockWaits::default() };
        let mut since = HashMap::new();
        for event in events {
            match event.what {
                What::Waits(thread) => {
                    since.insert(thread, event.time_us);
                }
                // Every call ends so, and only waits begin with an event.
                What::GoesOn(thread) => {
                    if let Some(begin) = since.remove(&thread) {
                        waits.count += 1;
                        waits.waited_us += event.time_us.saturating_sub(begin);
                    }
                }
                _ => {}
            }
        }
        waits
    }

    fn and(self, other: LockWaits) -> LockWaits {
        LockWaits {
            count: self.count + other.count,
            waited_us: self.waited_us + other.waited_us,
            watched_us: self.watched_us + other.watched_us,
        }
    }

    /// How many threads waited at a time, in the mean.
    pub fn threads(&self) -> f64 {
        self.waited_us as f64 / self.watched_us.max(1) as f64
    }
}

/// Traffic of a phase.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// mount, load, unmount, or format.
    pub name: String,
    /// Requests.
    pub reads: u64,
    /// Bytes.
    pub read_bytes: u64,
    /// Requests.
    pub writes: u64,
    /// Bytes.
    pub written_bytes: u64,
    /// Requests.
    pub discards: u64,
    /// Bytes.
    pub discarded_bytes: u64,
    /// Requests.
    pub flushes: u64,
    /// Layout score of its reads.
    pub layout: Option<Layout>,
}

/// How contiguous reads are: the dynamic layout score. The paper knows no tolerance: a block is contiguous if it is the next of the device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// Share of the blocks read that follow the block read before them.
    pub by_block: f64,
    /// Share of the requests that begin where the one before ended.
    pub by_request: f64,
}

impl Layout {
    /// Of reads, in the order in which they were issued; none of fewer than two blocks.
    pub fn of(events: &[Event]) -> Option<Layout> {
        let reads = events.iter().filter_map(|event| match event.what {
            What::Read(first, bytes) => Some((first, first + bytes)),
            _ => None,
        });
        let (mut requests, mut blocks, mut contiguous, mut before) = (0_u64, 0_u64, 0_u64, None);
        for (first, end) in reads {
            requests += 1;
            blocks += (end - first).div_ceil(BLOCK);
            contiguous += u64::from(before == Some(first));
            before = Some(end);
        }
        // The first of all has none before it.
        let (pairs, breaks) = (requests.checked_sub(1)?, requests - 1 - contiguous);
        let by_request = if pairs == 0 { 1.0 } else { contiguous as f64 / pairs as f64 };
        let steps = blocks.checked_sub(1).filter(|steps| *steps > 0)?;
        Some(Layout { by_block: (steps - breaks) as f64 / steps as f64, by_request })
    }
}

impl Phase {
    fn of(name: &str, events: &[Event]) -> Phase {
        let mut phase = Phase { name: name.to_owned(), layout: Layout::of(events), ..Phase::default() };
        for event in events {
            match event.what {
                What::Read(_, bytes) => {
                    (phase.reads, phase.read_bytes) = (phase.reads + 1, phase.read_bytes + bytes)
                }
                What::Write(_, bytes) => {
                    (phase.writes, phase.written_bytes) = (phase.writes + 1, phase.written_bytes + bytes);
                }
                What::Discard(_, bytes) => {
                    (phase.discards, phase.discarded_bytes) =
                        (phase.discards + 1, phase.discarded_bytes + bytes);
                }
                What::Flush => phase.flushes += 1,
                _ => {}
            }
        }
        phase
    }
}

impl Summary {
    /// Of a trace whose marks begin the phases, or let one go on; requests to daemons are those of these connections during the phase `load`.
    pub fn of(events: &[Event], connections: &BTreeSet<u64>, load_bytes: u64) -> Summary {
        let mut summary = Summary { load_bytes, ..Summary::default() };
        let mut written: [BTreeSet<u64>; 3] = Default::default();
        let is_mark = |event: &Event| matches!(event.what, What::Mark(_));
        let mut phases: Vec<(&str, Vec<&[Event]>)> = Vec::new();
        for part in events.chunk_by(|_, next| !is_mark(next)) {
            let Some(Event { what: What::Mark(name), .. }) = part.first() else { continue };
            match phases.iter_mut().find(|(before, _)| before == name) {
                Some((_, parts)) => parts.push(part),
                None => phases.push((name, vec![part])),
            }
        }
        for (name, parts) in phases {
            let whole = parts.concat();
            summary.phases.push(Phase::of(name, &whole));
            if OF_THE_LOAD.contains(&name) {
                for (blocks, size) in written.iter_mut().zip(ERASE_BLOCKS) {
                    touch(&whole, size, blocks);
                }
            }
            if name == LOAD {
                summary.round_trips = round_trips(&whole, connections);
                summary.lock_waits = parts.into_iter().map(LockWaits::of).reduce(LockWaits::and);
            }
        }
        summary.erase_blocks = written.map(|blocks| blocks.len() as u64);
        summary
    }

    /// Bytes written to the device by the load and by what it left to be written, over those that it wrote itself.
    pub fn amplification(&self) -> Option<f64> {
        let of_the_load = self.phases.iter().filter(|phase| OF_THE_LOAD.contains(&phase.name.as_str()));
        let device: u64 = of_the_load.map(|phase| phase.written_bytes).sum();
        (self.load_bytes > 0).then(|| device as f64 / self.load_bytes as f64)
    }

    /// The phase of this name.
    pub fn phase(&self, name: &str) -> Option<&Phase> {
        self.phases.iter().find(|phase| phase.name == name)
    }
}

fn touch(events: &[Event], size: u64, blocks: &mut BTreeSet<u64>) {
    for event in events {
        if let What::Write(first, bytes) = event.what {
            blocks.extend(first / size..(first + bytes).div_ceil(size));
        }
    }
}

fn round_trips(events: &[Event], connections: &BTreeSet<u64>) -> BTreeMap<String, u64> {
    let mut counts = BTreeMap::new();
    let mut under_way = HashMap::new();
    for event in events {
        let kind = match &event.what {
            What::Sent(connection, request, kind) if connections.contains(connection) => {
                under_way.insert((connection, request), ());
                kind.as_str()
            }
            What::Answered(connection, request) if connections.contains(connection) => {
                if under_way.remove(&(connection, request)).is_some() {
                    continue;
                }
                BACKGROUND
            }
            _ => continue,
        };
        *counts.entry(kind.to_owned()).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn events(all: &[What]) -> Vec<Event> {
        all.iter().map(|what| Event { time_us: 0, what: what.clone() }).collect()
    }

    fn mark(name: &str) -> What {
        What::Mark(name.to_owned())
    }

    #[test]
    fn a_layout_is_as_good_as_its_reads_are_contiguous() {
        let whole = events(&[What::Read(0, 8192), What::Write(0, 512), What::Read(8192, 4096)]);
        assert_eq!(Layout::of(&whole), Some(Layout { by_block: 1.0, by_request: 1.0 }));
        let torn = events(&[What::Read(0, 8192), What::Read(40960, 8192), What::Read(49152, 4096)]);
        assert_eq!(Layout::of(&torn), Some(Layout { by_block: 0.75, by_request: 0.5 }));
        assert_eq!(
            Layout::of(&events(&[What::Read(0, 8192)])),
            Some(Layout { by_block: 1.0, by_request: 1.0 })
        );
        assert_eq!(Layout::of(&events(&[What::Read(0, 4096)])), None);
        assert_eq!(Layout::of(&[]), None);
    }

    #[test]
    fn phases_are_kept_apart_and_erase_blocks_counted_once() {
        let kib = 1 << 10;
        let all = events(&[
            mark("mount"),
            What::Write(0, 4096),
            mark("load"),
            What::Write(1 << 20, 4096),
            What::Write((1 << 20) + 4096, 4096),
            What::Write((1 << 20) + 127 * kib, 2 * kib),
            What::Discard(0, 4096),
            What::Flush,
            mark("unmount"),
            What::Write(9 << 20, 8192),
            What::Read(0, 4096),
        ]);
        let summary = Summary::of(&all, &BTreeSet::new(), 9216);
        let written: Vec<_> =
            summary.phases.iter().map(|phase| (phase.name.as_str(), phase.written_bytes)).collect();
        assert_eq!(written, [("mount", 4096), ("load", 10240), ("unmount", 8192)]);
        let load = summary.phase("load").unwrap();
        assert_eq!((load.writes, load.discards, load.discarded_bytes, load.flushes), (3, 1, 4096, 1));
        assert_eq!(summary.erase_blocks, [3, 2, 2]);
        assert_eq!(summary.amplification(), Some(2.0));
        assert_eq!(Summary::of(&all, &BTreeSet::new(), 0).amplification(), None);
    }

    /// The formats of a row that makes several volumes were a part of its load.
    #[test]
    fn a_phase_goes_on_behind_another() {
        let write = |bytes| What::Write(0, bytes);
        let once = ["mount", "load", "unmount", "format"].into_iter().zip([1, 20, 300, 4000]);
        let twice = once.clone().chain(once);
        let all: Vec<_> = twice.flat_map(|(name, bytes)| [mark(name), write(bytes)]).collect();
        let summary = Summary::of(&events(&all), &BTreeSet::new(), 320);
        let written: Vec<_> =
            summary.phases.iter().map(|phase| (phase.name.as_str(), phase.written_bytes)).collect();
        assert_eq!(written, [("mount", 2), ("load", 40), ("unmount", 600), ("format", 8000)]);
        assert_eq!((summary.amplification(), summary.erase_blocks), (Some(2.0), [1, 1, 1]));
        assert_eq!(summary.lock_waits, Some(LockWaits::default()));
    }

    #[test]
    fn waits_for_locks_are_those_of_the_load() {
        let at = |time_us, what| Event { time_us, what };
        let all = [
            at(0, mark("mount")),
            at(1, What::Waits(7)),
            at(2, What::GoesOn(7)),
            at(10, mark("load")),
            at(20, What::Waits(7)),
            at(30, What::Waits(8)),
            at(35, What::GoesOn(8)),
            // It woke somebody.
            at(36, What::GoesOn(8)),
            at(60, What::GoesOn(7)),
            at(110, What::Flush),
            at(120, mark("unmount")),
        ];
        let waits = Summary::of(&all, &BTreeSet::new(), 0).lock_waits.unwrap();
        assert_eq!(waits, LockWaits { count: 2, waited_us: 45, watched_us: 100 });
        assert_eq!(waits.threads(), 0.45);
    }

    #[test]
    fn round_trips_are_those_of_the_load_on_its_connection() {
        let sent = |connection, request, kind: &str| What::Sent(connection, request, kind.to_owned());
        let all = events(&[
            mark("mount"),
            sent(5, 1, "INIT"),
            mark("load"),
            sent(5, 2, "LOOKUP"),
            What::Answered(5, 2),
            sent(5, 3, "LOOKUP"),
            What::Answered(5, 9),
            sent(6, 3, "READ"),
            mark("unmount"),
            sent(5, 4, "DESTROY"),
        ]);
        let expected = [("LOOKUP".to_owned(), 2), (BACKGROUND.to_owned(), 1)];
        assert_eq!(Summary::of(&all, &BTreeSet::from([5]), 0).round_trips, BTreeMap::from(expected));
        assert!(Summary::of(&all, &BTreeSet::new(), 0).round_trips.is_empty());
    }
}
