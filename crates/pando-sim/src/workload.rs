//! Seeded sequences of steps: operations on few, short, similar keys, so that they meet each other often.

use bytes::Bytes;
use pando_device::simulated::Random;
use pando_engine::{Bound, Change, FieldUpdate, KeyRange, Operation, Tree};

/// One step of a run.
#[derive(Debug, Clone)]
pub enum Step {
    /// One record.
    Apply(Vec<Operation>),
    /// A point query.
    Get(Tree, Bytes),
    /// A range query, in pieces of at most so many entries.
    Scan(Tree, KeyRange, usize),
    /// A comparison of what lies below two prefixes, in pieces of at most so many differences.
    Compare(Tree, Bytes, Bytes, usize),
    /// Makes everything durable.
    Sync,
    /// Writes a checkpoint.
    Checkpoint,
    /// Does a piece of background work.
    Background,
    /// Does all background work that there is.
    Settle,
    /// Closes the volume and opens it again.
    Reopen,
    /// Makes everything durable, ends without closing and opens the volume again, which replays the log.
    Restart,
    /// Writes a checkpoint, and looks at what is on the device then: nothing in memory and no log helps.
    Look,
}

/// What a sequence is made of.
#[derive(Debug, Clone, Copy)]
pub struct Mix {
    /// Steps in all.
    pub steps: usize,
    /// Operations in a record, at most.
    pub record_length_max: u64,
    /// How often (of 1000 steps) each of these is chosen; what is left are records.
    pub gets: u64,
    /// Range queries.
    pub scans: u64,
    /// Syncs.
    pub syncs: u64,
    /// Checkpoints.
    pub checkpoints: u64,
    /// Pieces of background work.
    pub background: u64,
    /// Reopenings.
    pub reopens: u64,
    /// Restarts without closing.
    pub restarts: u64,
    /// Background work until there is none.
    pub settles: u64,
    /// Looks at what a checkpoint has left on the device.
    pub looks: u64,
    /// Records of one range delete and nothing else.
    pub range_deletes: u64,
    /// Records of nothing but moves and clones.
    pub clones: u64,
    /// Records that delete a clone, its source, or both.
    pub clone_deletes: u64,
    /// Comparisons of a clone with its source, or of two prefixes.
    pub compares: u64,
}

impl Mix {
    /// For comparing answers with the model.
    pub const QUERIES: Self = Self {
        steps: 4000,
        record_length_max: 6,
        gets: 150,
        scans: 100,
        syncs: 10,
        checkpoints: 4,
        background: 100,
        reopens: 2,
        restarts: 0,
        settles: 0,
        looks: 0,
        range_deletes: 0,
        clones: 0,
        clone_deletes: 0,
        compares: 0,
    };

    /// For trees that share many nodes.
    pub const CLONES: Self = Self {
        steps: 2500,
        clones: 60,
        compares: 60,
        reopens: 4,
        checkpoints: 10,
        background: 200,
        ..Self::QUERIES
    };

    /// For crashes: little data, and something durable every now and then.
    pub const CRASHES: Self = Self {
        steps: 400,
        record_length_max: 6,
        gets: 5,
        scans: 5,
        syncs: 60,
        checkpoints: 20,
        background: 100,
        reopens: 5,
        restarts: 0,
        settles: 0,
        looks: 0,
        range_deletes: 0,
        clones: 0,
        clone_deletes: 0,
        compares: 0,
    };

    /// For what a checkpoint leaves out because nobody said that it had changed. A few long records make a tree of some
    /// nodes; then range deletes, background work and checkpoints follow each other, so that most background work meets
    /// nodes that are clean, and no record makes them dirty before the next look.
    pub const CHECKPOINTS: Self = Self {
        steps: 400,
        record_length_max: 60,
        gets: 20,
        scans: 10,
        syncs: 10,
        checkpoints: 200,
        background: 100,
        reopens: 5,
        restarts: 10,
        settles: 150,
        looks: 200,
        range_deletes: 220,
        clones: 0,
        clone_deletes: 0,
        compares: 0,
    };
}

/// Makes a sequence from a seed.
pub fn generate(seed: u64, mix: &Mix) -> Vec<Step> {
    let mut random = Random::new(seed);
    let mut clones = Vec::new();
    let mut steps = Vec::with_capacity(mix.steps);
    for _ in 0..mix.steps {
        let step = step(&mut random, mix, &clones);
        if let Step::Apply(operations) = &step {
            clones.extend(operations.iter().filter_map(|operation| match operation {
                Operation::CloneRange { tree, from, to } => Some((*tree, from.clone(), to.clone())),
                _ => None,
            }));
        }
        steps.push(step);
    }
    steps
}

/// Deletes one of the last clones, its source, or both: behind the last name of a subtree there is something to reclaim.
fn delete_clones(random: &mut Random, clones: &[(Tree, Bytes, Bytes)]) -> Vec<Operation> {
    let recent = &clones[clones.len().saturating_sub(4)..];
    if recent.is_empty() {
        return vec![clone(random)];
    }
    let (tree, from, to) = recent[random.below(recent.len() as u64) as usize].clone();
    let prefixes = match random.below(4) {
        0 => vec![from],
        1 => vec![to],
        _ => vec![from, to],
    };
    let delete = |prefix| Operation::DeleteRange { tree, range: KeyRange::prefix(prefix) };
    prefixes.into_iter().map(delete).collect()
}

/// A comparison, as a rule of one of the last clones with its source, in either order.
fn compare(random: &mut Random, clones: &[(Tree, Bytes, Bytes)]) -> Step {
    let recent = &clones[clones.len().saturating_sub(8)..];
    let (tree, mut old, mut new) = match recent.len() as u64 {
        0 => (tree(random), directory(random).into(), directory(random).into()),
        _ if random.chance(1, 4) => (tree(random), directory(random).into(), directory(random).into()),
        length => recent[random.below(length) as usize].clone(),
    };
    if random.chance(1, 2) {
        std::mem::swap(&mut old, &mut new);
    }
    Step::Compare(tree, old, new, 1 + random.below(50) as usize)
}

fn step(random: &mut Random, mix: &Mix, clones: &[(Tree, Bytes, Bytes)]) -> Step {
    let mut choice = random.below(1000);
    let mut is_below = |share: u64| {
        let chosen = choice < share;
        choice = choice.saturating_sub(share);
        chosen
    };
    if is_below(mix.gets) {
        Step::Get(tree(random), key(random))
    } else if is_below(mix.scans) {
        let range = if random.chance(1, 20) { KeyRange::all() } else { range(random) };
        Step::Scan(tree(random), range, 1 + random.below(200) as usize)
    } else if is_below(mix.syncs) {
        Step::Sync
    } else if is_below(mix.checkpoints) {
        Step::Checkpoint
    } else if is_below(mix.background) {
        Step::Background
    } else if is_below(mix.reopens) {
        Step::Reopen
    } else if is_below(mix.restarts) {
        Step::Restart
    } else if is_below(mix.settles) {
        Step::Settle
    } else if is_below(mix.looks) {
        Step::Look
    } else if is_below(mix.range_deletes) {
        Step::Apply(vec![Operation::DeleteRange { tree: tree(random), range: range(random) }])
    } else if is_below(mix.clones) {
        let count = 1 + random.below(3);
        Step::Apply((0..count).map(|_| clone(random)).collect())
    } else if is_below(mix.clone_deletes) {
        Step::Apply(delete_clones(random, clones))
    } else if is_below(mix.compares) {
        compare(random, clones)
    } else {
        let count = 1 + random.below(mix.record_length_max);
        let mut operations: Vec<_> = (0..count).map(|_| operation(random)).collect();
        // A quarter of the log is as much as a record can have, and the smallest log here is 1 MiB.
        let mut bytes = 0;
        operations.retain(|operation| {
            bytes += operation.length();
            bytes <= RECORD_BYTES_MAX
        });
        Step::Apply(operations)
    }
}

/// Bytes of the operations of a record, at most.
pub const RECORD_BYTES_MAX: usize = 240 << 10;

/// One operation on the keys of this module.
pub fn operation(random: &mut Random) -> Operation {
    let tree = tree(random);
    match random.below(1000) {
        0..450 => Operation::Put { tree, key: key(random), value: value(random) },
        450..530 => Operation::PutRun {
            tree,
            prefix: key(random),
            first: [0, 1, 254, 255, 65_530][random.below(5) as usize] + random.below(8),
            bytes: run(random),
        },
        530..650 => {
            let offset = if random.chance(1, 8) { random.below(5000) } else { random.below(64) } as u32;
            let change = Change::Patch { offset, bytes: bytes(random, 32) };
            Operation::Change { tree, key: present_key(random), change }
        }
        650..700 => {
            let change = Change::Truncate { length: random.below(200) as u32 };
            Operation::Change { tree, key: present_key(random), change }
        }
        700..800 => {
            let fields = (0..1 + random.below(3)).map(|_| field(random)).collect();
            Operation::Change { tree, key: present_key(random), change: Change::Update { fields } }
        }
        800..930 => Operation::Delete { tree, key: present_key(random) },
        930..980 => Operation::DeleteRange { tree, range: range(random) },
        _ => clone(random),
    }
}

fn tree(random: &mut Random) -> Tree {
    Tree::ALL[random.below(2) as usize]
}

/// The bytes keys are made of: those at the ends of the order among them.
const LETTERS: [u8; 6] = [0x00, 0x01, b'a', b'b', 0xfe, 0xff];

fn directory(random: &mut Random) -> Vec<u8> {
    // The less of two numbers: low ones are more frequent.
    let number = random.below(24).min(random.below(24)) as usize;
    let mut key = vec![0, LETTERS[number % 6]];
    if number >= 6 {
        key.extend([0, LETTERS[number / 6]]);
    }
    key
}

fn key(random: &mut Random) -> Bytes {
    if random.chance(1, 64) {
        let length = random.below(4) as usize;
        return (0..length).map(|_| letter(random)).collect();
    }
    let mut key = directory(random);
    for _ in 0..1 + random.below(5).min(random.below(5)) {
        key.push(letter(random));
    }
    if random.chance(1, 64) {
        key.extend(std::iter::repeat_n(letter(random), random.below(600) as usize));
    }
    key.into()
}

/// A key that is likelier to be there: a short one, or a block of a run.
pub fn present_key(random: &mut Random) -> Bytes {
    let mut key = Vec::from(key(random));
    if random.chance(1, 4) {
        key.extend(random.below(16).to_be_bytes());
    }
    key.into()
}

fn letter(random: &mut Random) -> u8 {
    LETTERS[random.below(6) as usize]
}

fn bytes(random: &mut Random, length: u64) -> Bytes {
    if random.chance(1, 2) {
        return Bytes::from(vec![random.bits() as u8; length as usize]);
    }
    (0..length).map(|_| random.bits() as u8).collect()
}

fn value(random: &mut Random) -> Bytes {
    let length = match random.below(8) {
        0..4 => random.below(40),
        4..7 => random.below(300),
        _ => random.below(4097),
    };
    bytes(random, length)
}

fn run(random: &mut Random) -> Bytes {
    // Long enough to be left out of the log by late binding.
    if random.chance(1, 6) {
        let blocks = 16 + random.below(9);
        return bytes(random, blocks * 4096);
    }
    let odd_end = if random.chance(1, 4) { random.below(4096) } else { 0 };
    let blocks = 1 + random.below(8);
    bytes(random, blocks * 4096 - odd_end)
}

fn field(random: &mut Random) -> FieldUpdate {
    let offset = random.below(40) as u16;
    match random.below(3) {
        0 => {
            let length = 1 + random.below(16);
            FieldUpdate::Set { offset, bytes: bytes(random, length) }
        }
        1 => FieldUpdate::Max { offset, value: random.bits() },
        _ => FieldUpdate::Add { offset, value: random.below(1000) },
    }
}

fn bound(random: &mut Random) -> Bound {
    let key = key(random);
    if random.chance(1, 2) { Bound::before(key) } else { Bound::after(key) }
}

fn range(random: &mut Random) -> KeyRange {
    match random.below(8) {
        // Between two neighbours at most levels; sometimes the wrong way round, which is an empty range.
        0..3 => {
            let mut prefix = directory(random);
            prefix.push(letter(random));
            let lower = [&prefix[..], &[letter(random)]].concat();
            let upper = [&prefix[..], &[letter(random)]].concat();
            KeyRange::new(Bound::before(lower), Bound::after(upper))
        }
        3 => {
            let (a, b) = (bound(random), bound(random));
            if random.chance(1, 8) { KeyRange::new(a, b) } else { narrow(a, b) }
        }
        4 => KeyRange::prefix(directory(random)),
        _ => {
            let mut prefix = directory(random);
            prefix.extend((0..1 + random.below(3)).map(|_| letter(random)));
            KeyRange::prefix(prefix)
        }
    }
}

/// Keeps a range of two unrelated bounds from holding most of the tree.
fn narrow(a: Bound, b: Bound) -> KeyRange {
    let (lower, upper) = if a <= b { (a, b) } else { (b, a) };
    let shared = lower.bytes.iter().zip(&upper.bytes).take_while(|(a, b)| a == b).count();
    if shared >= 2 { KeyRange::new(lower, upper) } else { KeyRange::prefix(lower.bytes) }
}

fn clone(random: &mut Random) -> Operation {
    let tree = tree(random);
    let (from, to) = two_prefixes(random);
    match random.below(8) {
        0..4 => Operation::MoveRange { tree, from, to },
        4..6 => Operation::CloneRange { tree, from, to },
        // Clones of clones would grow without end.
        _ => Operation::DeleteRange { tree, range: KeyRange::prefix(from) },
    }
}

/// Prefixes of which neither begins with the other.
fn two_prefixes(random: &mut Random) -> (Bytes, Bytes) {
    loop {
        let mut prefixes = [directory(random), directory(random)];
        for prefix in &mut prefixes {
            prefix.extend((0..random.below(3)).map(|_| letter(random)));
        }
        let [from, to] = prefixes;
        if !from.starts_with(&to) && !to.starts_with(&from) {
            return (from.into(), to.into());
        }
    }
}
