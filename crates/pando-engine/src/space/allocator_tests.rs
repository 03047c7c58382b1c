//! The allocator against a map of one state per unit, and what a long life does to it.

use pando_format::{Extent, Region};
use proptest::prelude::*;

use super::allocator::{Allocator, EXTENTS_MAX, Interval, SpaceCounters};
use super::free_map::Run;
use crate::Error;

const UNIT: u64 = 4096;
const BASE: u64 = 10 * UNIT;
const UNITS: usize = 96;

fn allocator() -> Allocator {
    Allocator::new(&[Region { device: 0, offset: BASE, length: UNITS as u64 * UNIT }])
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Unit {
    Free,
    Used,
    Deferred(Interval),
}

/// One state for each unit.
struct Model {
    units: Vec<Unit>,
}

impl Model {
    fn change(&mut self, run: impl Into<Run>, from: Unit, to: Unit) {
        let run = run.into();
        assert!(run.offset.is_multiple_of(UNIT) && run.length.is_multiple_of(UNIT));
        let first = ((run.offset - BASE) / UNIT) as usize;
        for unit in &mut self.units[first..first + (run.length / UNIT) as usize] {
            assert_eq!(*unit, from, "{run:?}");
            *unit = to;
        }
    }

    fn longest_free(&self) -> usize {
        self.units
            .chunk_by(|a, b| a == b)
            .filter(|run| run[0] == Unit::Free)
            .map(<[_]>::len)
            .max()
            .unwrap_or(0)
    }

    fn bytes(&self, wanted: impl Fn(Unit) -> bool) -> u64 {
        self.units.iter().filter(|unit| wanted(**unit)).count() as u64 * UNIT
    }
}

#[derive(Debug, Clone)]
enum Step {
    Allocate { units: u64, part_units: u64 },
    Free { which: usize, give_back: bool, with_cut: bool },
    Cut,
    Release,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (1u64..24, 1u64..6).prop_map(|(units, part_units)| Step::Allocate { units, part_units }),
        3 => (any::<usize>(), prop::bool::weighted(0.2), any::<bool>())
            .prop_map(|(which, give_back, with_cut)| Step::Free { which, give_back, with_cut }),
        1 => Just(Step::Cut),
        1 => Just(Step::Release),
    ]
}

/// Bytes in use by the present state.
fn used(allocator: &Allocator) -> u64 {
    let SpaceCounters { capacity, free, deferred, .. } = allocator.counters();
    capacity - free - deferred
}

proptest! {
    #[test]
    fn agrees_with_one_state_per_unit(steps in prop::collection::vec(step(), 1..200)) {
        let allocator = allocator();
        let mut model = Model { units: vec![Unit::Free; UNITS] };
        let mut current = Interval::FIRST;
        let mut cuts: Vec<Interval> = Vec::new();
        let mut live: Vec<Vec<Extent>> = Vec::new();
        for step in steps {
            match step {
                Step::Allocate { units, part_units } => {
                    let borders = (1..).map(|n| n * part_units * UNIT);
                    let borders: Vec<u64> = borders.take_while(|border| *border < units * UNIT).collect();
                    let longest = model.longest_free() as u64;
                    match allocator.allocate(units * UNIT - 1, &borders) {
                        Some(extents) => {
                            let mut end = 0;
                            for (n, &extent) in extents.iter().enumerate() {
                                model.change(extent, Unit::Free, Unit::Used);
                                end += u64::from(extent.length);
                                prop_assert!(n + 1 == extents.len() || borders.contains(&end));
                            }
                            prop_assert_eq!(end, units * UNIT);
                            prop_assert!(extents.len() <= EXTENTS_MAX);
                            prop_assert_eq!(extents.len() == 1, longest >= units);
                            live.push(extents);
                        }
                        None => prop_assert!(longest < units),
                    }
                }
                Step::Free { which, give_back, with_cut } if !live.is_empty() => {
                    let extents = live.swap_remove(which % live.len());
                    for extent in extents {
                        if give_back {
                            allocator.give_back(extent);
                            model.change(extent, Unit::Used, Unit::Free);
                        } else if let Some(&interval) = cuts.last().filter(|_| with_cut) {
                            allocator.free_with(interval, extent);
                            model.change(extent, Unit::Used, Unit::Deferred(interval));
                        } else {
                            allocator.free_later(extent);
                            model.change(extent, Unit::Used, Unit::Deferred(current));
                        }
                    }
                }
                Step::Free { .. } => {}
                Step::Cut => {
                    let interval = allocator.cut();
                    prop_assert_eq!(interval, current);
                    current = interval.next();
                    cuts.push(interval);
                }
                Step::Release => {
                    if cuts.is_empty() {
                        continue;
                    }
                    let interval = cuts.remove(0);
                    let mut discarded: Vec<Run> = Vec::new();
                    let bytes = allocator.release(interval, |run| discarded.push(run));
                    prop_assert_eq!(bytes, discarded.iter().map(|run| run.length).sum::<u64>());
                    prop_assert!(discarded.windows(2).all(|pair| pair[0].end() < pair[1].offset));
                    for run in discarded {
                        model.change(run, Unit::Deferred(interval), Unit::Free);
                    }
                    prop_assert!(!model.units.contains(&Unit::Deferred(interval)));
                }
            }
            let counters = allocator.counters();
            prop_assert_eq!(counters.free, model.bytes(|unit| unit == Unit::Free));
            prop_assert_eq!(used(&allocator), model.bytes(|unit| unit == Unit::Used));
            // FM-1.
            let runs = model.units.chunk_by(|a, b| (*a == Unit::Free) == (*b == Unit::Free));
            prop_assert_eq!(allocator.free_runs().len(), runs.filter(|run| run[0] == Unit::Free).count());
        }
    }
}

#[test]
fn reserving_what_is_in_use_or_outside_is_damage() {
    let allocator = allocator();
    let extent = |offset, length| Extent { device: 0, offset, length };
    let unit = UNIT as u32;
    assert_eq!(allocator.reserve(extent(BASE + UNIT, 2 * unit)), Ok(()));
    let wrong = [
        extent(BASE + UNIT, 2 * unit),
        extent(BASE, 2 * unit),
        extent(BASE + 2 * UNIT, 2 * unit),
        extent(BASE - UNIT, 2 * unit),
        extent(BASE + (UNITS as u64 - 1) * UNIT, 2 * unit),
        extent(BASE + 10 * UNIT, unit + 1),
        extent(BASE + 10 * UNIT + 1, unit),
        extent(BASE + 10 * UNIT, 0),
        extent(u64::MAX - UNIT + 1, unit),
        Extent { device: 1, ..extent(BASE + 10 * UNIT, unit) },
    ];
    for extent in wrong {
        assert!(matches!(allocator.reserve(extent), Err(Error::Damaged { .. })), "{extent:?}");
    }
    assert_eq!(used(&allocator), 2 * UNIT);
}

#[test]
fn large_nodes_lie_one_behind_the_other_and_small_ones_fill_the_gaps() {
    let allocator = Allocator::new(&[Region { device: 0, offset: 0, length: 64 << 20 }]);
    let gap = allocator.allocate(8192, &[]).expect("the space is empty");
    let first = allocator.allocate(4 << 20, &[]).expect("the space is empty");
    allocator.give_back(gap[0]);
    let small = allocator.allocate(4096, &[]).expect("there is a gap");
    let second = allocator.allocate(3 << 20, &[]).expect("there is room");
    assert_eq!(small[0].offset, gap[0].offset);
    assert_eq!(second[0].offset, first[0].end());
}

#[test]
#[should_panic(expected = "SP-2")]
fn freeing_twice_in_one_interval_is_caught_at_the_release() {
    let allocator = allocator();
    let extent = allocator.allocate(UNIT, &[]).expect("the space is empty")[0];
    allocator.free_later(extent);
    allocator.free_later(extent);
    let interval = allocator.cut();
    allocator.release(interval, |_| {});
}

/// Nodes of odd lengths are replaced for a long time on a space that is 90 % full: every one still finds a
/// place, and the pieces stay few.
#[test]
fn a_long_life_on_a_nearly_full_space_keeps_nodes_whole() {
    const SPACE: u64 = 1 << 30;
    const PART: u64 = 128 << 10;
    let allocator = Allocator::new(&[Region { device: 0, offset: 0, length: SPACE }]);
    let mut random = 0x9E37_79B9_7F4A_7C15u64;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let (mut live, mut pieces, mut nodes): (Vec<Vec<Extent>>, usize, usize) = (Vec::new(), 0, 0);
    for round in 0..200 {
        for _ in 0..16 {
            let bytes = if draw(4) == 0 { 4096 + draw(256 << 10) } else { (2 << 20) + draw(2 << 20) };
            while used(&allocator) + bytes > SPACE / 10 * 9 {
                let node = live.swap_remove(draw(live.len() as u64) as usize);
                node.into_iter().for_each(|extent| allocator.give_back(extent));
            }
            let borders: Vec<u64> = (1..).map(|n| n * PART).take_while(|border| *border < bytes).collect();
            let node = allocator.allocate(bytes, &borders);
            let node = node.unwrap_or_else(|| panic!("round {round}: {:?}", allocator.counters()));
            (pieces, nodes) = (pieces + node.len(), nodes + 1);
            live.push(node);
        }
    }
    assert!(pieces * 10 < nodes * 15, "{pieces} pieces of {nodes} nodes");
}

/// A message buffer of 8 MiB met a volume whose longest free run had 3 MiB: its checkpoint failed, although a tenth of the
/// volume was free.
#[test]
fn a_part_longer_than_every_gap_is_cut() {
    let allocator = Allocator::new(&[Region { device: 0, offset: 0, length: 12 * UNIT }]);
    let used: Vec<_> = (0..4).map(|_| allocator.allocate(3 * UNIT, &[]).unwrap()).collect();
    [&used[0], &used[2]].into_iter().flatten().for_each(|extent| allocator.give_back(*extent));
    assert_eq!(allocator.allocate(5 * UNIT, &[UNIT]), None);
    let lengths = |extents: &[Extent]| extents.iter().map(|extent| extent.length).collect::<Vec<_>>();
    let extents = allocator.allocate_scattered(5 * UNIT).unwrap();
    assert_eq!(lengths(&extents), [3 * UNIT as u32, 2 * UNIT as u32]);
    assert_eq!(allocator.allocate_scattered(2 * UNIT), None);
    assert_eq!(allocator.counters().free, UNIT);
}

/// A volume that had lived on its brim had 11 MB free in runs of 50 KB, and a checkpoint found no place for a node of 1 MiB.
#[test]
fn runs_too_short_for_nodes_are_free_but_not_usable() {
    let allocator = Allocator::new(&[Region { device: 0, offset: 0, length: 12 * UNIT }]);
    allocator.set_node_bytes(8 * UNIT);
    let usable = |units: u64| {
        let counters = allocator.counters();
        assert_eq!(counters.usable, units * UNIT, "{counters:?}");
    };
    usable(12);
    let first = allocator.allocate(UNIT, &[]).unwrap();
    let second = allocator.allocate(8 * UNIT, &[]).unwrap();
    usable(3);
    first.into_iter().for_each(|extent| allocator.give_back(extent));
    usable(3);
    assert_eq!(allocator.counters().free, 4 * UNIT);
    second.into_iter().for_each(|extent| allocator.give_back(extent));
    usable(12);
}

/// What was allocated across the border of two regions could not be freed, nor be found in use at the next mount.
#[test]
fn an_extent_may_lie_in_two_regions_that_touch() {
    let region = |from: u64, units: u64| Region { device: 0, offset: from * UNIT, length: units * UNIT };
    let regions = [region(8, 4), region(0, 3), region(3, 5)];
    let allocator = Allocator::new(&regions);
    let extents = allocator.allocate(12 * UNIT, &[]).unwrap();
    assert_eq!(extents.len(), 1);
    Allocator::new(&regions).reserve(extents[0]).unwrap();
    allocator.give_back(extents[0]);
    assert_eq!(allocator.counters().free, 12 * UNIT);
}
