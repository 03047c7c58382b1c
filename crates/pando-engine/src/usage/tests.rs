//! Counts of space beside one that looks at all nodes as they are in memory.

use std::collections::{BTreeMap, BTreeSet};

use pando_device::simulated::Random;
use pando_format::{Bound, KeyRange, NodeId, Tree};

use super::{Count, OwnerUsage, Pinned, Usage};
use crate::betree::node::Body;
use crate::small_volume::{change, small_volume};
use crate::{Batch, Engine, Error, Result};

fn open() -> Engine {
    small_volume(8 << 10, 1 << 10).0
}

/// Everything from `a` to `d` by its first letter, and the rest but for `e`, which is nobody's.
fn owners() -> Vec<Vec<KeyRange>> {
    let rest = vec![
        KeyRange::new(Bound::least(), Bound::before(&b"a"[..])),
        KeyRange::new(Bound::after(&b"e"[..]), Bound::greatest()),
    ];
    let letters = [b"a", b"b", b"c", b"d"].map(|letter| vec![KeyRange::prefix(&letter[..])]);
    std::iter::once(rest).chain(letters).collect()
}

/// The nodes that an owner leads to, found one by one.
struct Brute<'a> {
    engine: &'a Engine,
    found: BTreeSet<NodeId>,
}

impl Brute<'_> {
    /// `own` and `wanted` are full keys; `prefix` is what the ways have lifted. Without them all of the node counts.
    fn visit(&mut self, id: NodeId, seen: Option<(&KeyRange, &KeyRange, &[u8])>) {
        if !self.found.insert(id) && seen.is_none() {
            return;
        }
        let volume = self.engine.volume();
        let node = volume.node(id).unwrap();
        volume.load_all(&node).unwrap();
        let state = node.state.read();
        let Body::Interior(interior) = &state.body else { return };
        for (index, child) in interior.children.iter().enumerate() {
            let gotos = child.buffer.get().unwrap().gotos();
            let Some((own, wanted, prefix)) = seen else {
                gotos.iter().for_each(|goto| self.visit(goto.target, None));
                if !child.id.is_empty() {
                    self.visit(child.id, None);
                }
                continue;
            };
            let full = |bound: &Bound| bound.prepend(prefix);
            let lower = if index == 0 { own.lower.clone() } else { full(&interior.pivots[index - 1]) };
            let upper = interior.pivots.get(index).map_or(own.upper.clone(), full);
            let bounds = KeyRange::new(lower, upper);
            let is_wanted = |range: &KeyRange| !range.intersection(&bounds).intersection(wanted).is_empty();
            for goto in gotos {
                if is_wanted(&KeyRange::new(full(&goto.range.lower), full(&goto.range.upper))) {
                    self.visit(goto.target, None);
                }
            }
            if child.id.is_empty() || !is_wanted(&bounds) {
                continue;
            }
            if child.xf.is_some() || volume.is_shared(child.id) {
                self.visit(child.id, None);
            } else {
                let lifted = &bounds.lower.bytes[..prefix.len() + child.strip as usize];
                self.visit(child.id, Some((&bounds, wanted, lifted)));
            }
        }
    }
}

fn brute(engine: &Engine, owners: &[Vec<KeyRange>]) -> Usage {
    let volume = engine.volume();
    let bytes: BTreeMap<NodeId, u64> =
        volume.table.pages().entries().map(|(id, entry)| (id, super::bytes_of(entry))).collect();
    let mut usage = Usage { used: bytes.values().sum(), ..Usage::default() };
    let mut found = Vec::new();
    for ranges in owners {
        let mut brute = Brute { engine, found: BTreeSet::new() };
        for tree in Tree::ALL {
            let root = volume.root(tree).read().id;
            for range in ranges {
                brute.visit(root, Some((&KeyRange::all(), range, &[])));
            }
        }
        found.push(brute.found);
    }
    for nodes in &found {
        let referenced = nodes.iter().map(|id| bytes[id]).sum();
        let alone = nodes.iter().filter(|id| found.iter().filter(|nodes| nodes.contains(id)).count() == 1);
        usage.owners.push(OwnerUsage { referenced, exclusive: alone.map(|id| bytes[id]).sum() });
    }
    for (id, bytes) in bytes {
        match found.iter().filter(|nodes| nodes.contains(&id)).count() {
            0 => usage.unowned += bytes,
            1 => {}
            _ => usage.shared += bytes,
        }
    }
    usage
}

fn assert_consistent(usage: &Usage) {
    let exclusive: u64 = usage.owners.iter().map(|owner| owner.exclusive).sum();
    assert_eq!(exclusive + usage.shared + usage.unowned, usage.used, "US-2: {usage:?}");
    for owner in &usage.owners {
        assert!(owner.exclusive <= owner.referenced && owner.referenced <= owner.exclusive + usage.shared);
    }
}

/// Seeds to run: `PANDO_SEED` alone, if it is set.
fn seeds(usual: u64) -> std::ops::Range<u64> {
    let one = std::env::var("PANDO_SEED").ok().map(|seed| seed.parse::<u64>().unwrap());
    one.map_or(0..usual, |seed| seed..seed + 1)
}

#[test]
fn counts_are_those_of_all_nodes_looked_at_one_by_one() {
    let letters = [&b"A"[..], b"a", b"b", b"c", b"d", b"e", b"z"];
    let mut shared = 0;
    for seed in seeds(30) {
        println!("PANDO_SEED={seed}");
        let mut random = Random::new(seed);
        let engine = open();
        let one = |random: &mut Random| letters[random.below(letters.len() as u64) as usize];
        for _ in 0..40 {
            let letter = one(&mut random);
            let mut batch = Batch::new();
            let tree = Tree::ALL[random.below(2) as usize];
            match random.below(6) {
                0 => batch.delete_range(tree, KeyRange::prefix(letter)),
                1 | 2 => {
                    let to = one(&mut random);
                    if to != letter {
                        batch.clone_range(tree, letter, to);
                    }
                }
                _ => {
                    let start = random.below(500);
                    for number in start..start + random.below(300) {
                        let key = [letter, format!("{number:05}").as_bytes()].concat();
                        batch.put(tree, key, vec![number as u8; 60]);
                    }
                }
            }
            engine.changing(300 << 10, || engine.waiting(|| engine.apply(batch.clone()))).unwrap();
            for _ in 0..random.below(40) {
                engine.background_step().unwrap();
            }
            if random.chance(1, 4) {
                engine.checkpoint().unwrap();
                let usage = engine.usage(&owners()).unwrap();
                assert_consistent(&usage);
                assert_eq!(usage, brute(&engine, &owners()));
                shared += u64::from(usage.shared > 64 << 10);
            }
        }
    }
    assert!(shared > 10 || seeds(30).end - seeds(30).start == 1, "too little is shared: {shared}");
}

/// What is read is as it was at the checkpoint, whatever is written meanwhile.
#[test]
fn a_count_is_that_of_its_checkpoint_while_others_are_written() {
    let engine = open();
    let fill = |round: u8| {
        for chunk in 0..20u32 {
            let mut batch = Batch::new();
            for number in chunk * 100..chunk * 100 + 100 {
                batch.put(Tree::Data, format!("a{number:05}").into_bytes(), vec![round; 500]);
            }
            engine.changing(300 << 10, || engine.apply(batch.clone())).unwrap();
        }
        while engine.background_step().unwrap() {}
        engine.checkpoint().unwrap();
    };
    fill(0);
    let before = engine.usage(&owners()).unwrap();
    let pinned = super::Pinned::new(engine.volume());
    let free = engine.volume().allocator.counters().free;
    for round in 1..3 {
        fill(round);
    }
    assert!(!pinned.is_lost(), "{:?}", engine.volume().allocator.counters());
    assert_eq!(super::Count::new(&pinned).all(&owners()).unwrap(), before);
    let held = engine.volume().allocator.counters();
    assert!(held.deferred > 0 && held.free < free);
    drop(pinned);
    assert!(engine.volume().allocator.counters().free > held.free);
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, [""; 0]);
}

/// A volume without room to keep a checkpoint does not keep it.
#[test]
fn a_full_volume_is_not_kept_full_by_a_count() {
    let engine = open();
    let pinned = super::Pinned::new(engine.volume());
    let mut round = 0u32;
    while !pinned.is_lost() {
        round += 1;
        assert!(round < 1000, "it is kept");
        for chunk in 0..20u32 {
            let mut batch = Batch::new();
            for number in chunk * 50..chunk * 50 + 50 {
                batch.put(Tree::Data, format!("a{number:05}").into_bytes(), vec![round as u8; 4000]);
            }
            engine.changing(300 << 10, || engine.apply(batch.clone())).unwrap();
        }
        while engine.background_step().unwrap() {}
        engine.checkpoint().unwrap();
    }
    assert!(super::Count::new(&pinned).all(&owners()).is_err());
    drop(pinned);
    assert_consistent(&engine.usage(&owners()).unwrap());
    assert_eq!(engine.check(&mut |_, _| {}).unwrap().problems, [""; 0]);
}

/// On a crafted image a node may lead to itself, or to one above it, and many edges to one that the block table counts once.
#[test]
fn ways_that_cannot_be_are_not_followed() {
    let engine = open();
    fill_until_high(&engine);
    engine.checkpoint().unwrap();
    let pinned = Pinned::new(engine.volume());
    let root = pinned.live.metadata.node;
    let height = pinned.entry(root).unwrap().height;
    assert!(height > 0, "it has no edges");
    let mut count = Count::new(&pinned);
    count.usage.owners.push(OwnerUsage::default());
    let mut follow = |height| count.part(root, height, 1, &KeyRange::all(), &KeyRange::all());
    let is_damaged = |counted: &Result<()>| matches!(counted, Err(Error::Damaged { .. }));
    let higher = follow(height + 1);
    assert!(is_damaged(&higher), "{higher:?}");
    follow(height).unwrap();
    let again = follow(height);
    assert!(is_damaged(&again), "{again:?}");
}

/// Puts so much into the metadata tree that its root has nodes below it.
fn fill_until_high(engine: &Engine) {
    for number in 0..1000u32 {
        change(engine, |batch| batch.put(Tree::Metadata, number.to_be_bytes().to_vec(), vec![1; 100]));
    }
    while engine.background_step().unwrap() {}
}
