//! Takes an engine and its model through the same steps and compares every answer.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::SimulatedDevice;
use pando_engine::{
    Background, Batch, Difference, Engine, Error, FormatOptions, KeyRange, Lsn, Operation, Options,
    ScanLimit, Tree,
};

use crate::model::{Digest, History, Map};
use crate::workload::{RECORD_BYTES_MAX, Step};

/// Bytes of a simulated volume.
pub const CAPACITY: u64 = 64 << 20;

/// Misses that a query may have in a row before it counts as stuck: more than there are parts in a volume.
const MISSES_MAX: usize = 20_000;

/// Steps between two looks at every node of trees of more than [`CHECKED_EACH_STEP`] nodes, unless told otherwise.
const CHECK_EVERY: usize = 1000;

/// Up to so many nodes, trees are looked at after each step.
const CHECKED_EACH_STEP: u64 = 200;

/// Memory of the messages that one record may bring, in bytes: the longest, and as much again for what messages weigh.
const RECORD_MESSAGES_BYTES_MAX: usize = 2 * RECORD_BYTES_MAX;

/// A key and its value.
const LARGEST_ENTRY: usize = 5 << 10;

/// Scans that may give nothing in a row before one counts as stuck.
const EMPTY_PIECES_MAX: usize = 100_000;

/// Small nodes, so that little data makes a deep tree.
pub fn format_options() -> FormatOptions {
    FormatOptions {
        volume_id: *b"simulated volume",
        node_bytes: Some(8 << 10),
        basement_bytes: Some(1 << 10),
        fanout: Some(4),
        log_bytes: Some(1 << 20),
        ..FormatOptions::default()
    }
}

/// A small cache, so that nodes are evicted, and no threads.
pub fn options() -> Options {
    Options { cache_bytes: 512 << 10, background: Background::Manual, ..Options::default() }
}

/// Makes an empty volume.
pub fn format(device: &Arc<SimulatedDevice>, format: &FormatOptions) -> Result<(), Error> {
    Engine::format(device.clone(), format)
}

/// An engine on a device, and what must be in it.
pub struct Runner {
    device: Arc<SimulatedDevice>,
    engine: Engine,
    history: History,
    /// The LSN of the last record.
    lsn: Lsn,
    /// Records that are durable, since a sync or checkpoint behind them has returned.
    durable: usize,
    /// Steps between two looks at every node of a large tree.
    check_every: usize,
}

impl Runner {
    /// Formats a volume and opens it.
    pub fn format(device: Arc<SimulatedDevice>, format: &FormatOptions) -> Result<Self, Error> {
        self::format(&device, format)?;
        Self::open(device, History::new())
    }

    /// Opens a volume that holds what the history says.
    pub fn open(device: Arc<SimulatedDevice>, history: History) -> Result<Self, Error> {
        let engine = Engine::open(device.clone(), options())?;
        let durable = history.length();
        Ok(Self { device, engine, history, lsn: Lsn(0), durable, check_every: CHECK_EVERY })
    }

    /// Looks at every node each so many steps, also where there are many.
    pub fn check_every(mut self, steps: usize) -> Self {
        self.check_every = steps;
        self
    }

    /// The device below.
    pub fn device(&self) -> &Arc<SimulatedDevice> {
        &self.device
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What was applied.
    pub fn history(&self) -> &History {
        &self.history
    }

    /// How many records are known to be durable.
    pub fn durable(&self) -> usize {
        self.durable
    }

    /// Does one step. The inner error is the engine's; the outer one says where it differs from the model.
    pub fn step(&mut self, step: &Step) -> Result<Result<(), Error>, String> {
        match step {
            Step::Apply(operations) => return self.apply(operations),
            Step::Get(tree, key) => {
                let found = match waiting(&self.engine, || self.engine.get(*tree, key)) {
                    Ok(found) => found,
                    Err(error) => return Ok(Err(error)),
                };
                let expected = self.history.now().get(*tree, key);
                if found.as_ref() != expected {
                    return Err(format!(
                        "get {tree:?} {key:?} gave {}, not {}",
                        brief(found.as_ref()),
                        brief(expected)
                    ));
                }
            }
            Step::Scan(tree, range, piece) => return self.scan(*tree, range, *piece),
            Step::Compare(tree, old, new, piece) => return self.compare(*tree, [old, new], *piece),
            Step::Sync => match self.engine.sync() {
                Ok(lsn) if lsn < self.lsn => return Err(format!("sync reached {lsn:?}, not {:?}", self.lsn)),
                Ok(_) => self.durable = self.history.length(),
                Err(error) => return Ok(Err(error)),
            },
            Step::Checkpoint => match self.engine.checkpoint() {
                Ok(()) => self.durable = self.history.length(),
                Err(error) => return Ok(Err(error)),
            },
            Step::Background => {
                if let Err(error) = self.engine.background_step() {
                    return Ok(Err(error));
                }
            }
            Step::Settle => loop {
                match self.engine.background_step() {
                    Ok(true) => {}
                    Ok(false) => break,
                    Err(error) => return Ok(Err(error)),
                }
            },
            Step::Reopen => {
                if let Err(error) = self.engine.close() {
                    return Ok(Err(error));
                }
                self.durable = self.history.length();
                return Ok(self.open_again());
            }
            Step::Restart => {
                if let Err(error) = self.engine.sync() {
                    return Ok(Err(error));
                }
                self.durable = self.history.length();
                return Ok(self.open_again());
            }
            Step::Look => {
                if let Err(error) = self.engine.checkpoint() {
                    return Ok(Err(error));
                }
                self.durable = self.history.length();
                self.look()?;
            }
        }
        Ok(Ok(()))
    }

    fn open_again(&mut self) -> Result<(), Error> {
        self.engine = Engine::open(self.device.clone(), options())?;
        Ok(())
    }

    /// Opens a copy of the device, on which nobody else works, and compares and checks all of it.
    fn look(&self) -> Result<(), String> {
        let copy = Arc::new(SimulatedDevice::from_image(self.device.image()));
        let options = Options { read_only: true, ..options() };
        let engine = Engine::open(copy, options).map_err(|error| format!("a copy does not open: {error}"))?;
        let problems = engine.check(&mut |_, _| {}).map_err(|error| error.to_string())?.problems;
        if !problems.is_empty() {
            return Err(format!("the checkpoint on the device is broken: {}", problems.join("; ")));
        }
        if contents(&engine)? != self.history.now().digest() {
            return Err(format!("on the device {}", difference(&engine, self.history.now())));
        }
        Ok(())
    }

    /// Does all steps and then compares all contents and looks at every node; any error of the engine is a failure.
    pub fn run(&mut self, steps: &[Step]) -> Result<(), String> {
        self.run_looking(steps, |_, _| false)
    }

    /// The same with a look at every node behind each step as long as there are few, and each so many steps beyond. Then maintenance does
    /// all that it has to do, sizes are compared with their bounds, and the contents with the model once more.
    pub fn run_checked(&mut self, steps: &[Step]) -> Result<(), String> {
        let check_every = self.check_every;
        self.run_looking(steps, |runner, number| {
            runner.engine.node_count() <= CHECKED_EACH_STEP || number % check_every == check_every - 1
        })?;
        self.check_sizes()?;
        self.check_contents()
    }

    fn run_looking(&mut self, steps: &[Step], looks: impl Fn(&Self, usize) -> bool) -> Result<(), String> {
        for (number, step) in steps.iter().enumerate() {
            let outcome = self.step(step).map_err(|what| format!("step {number}: {what}"))?;
            outcome.map_err(|error| format!("step {number} ({}): {error}", name(step)))?;
            if looks(self, number) {
                self.check_nodes().map_err(|what| format!("after step {number}: {what}"))?;
            }
        }
        self.check_contents()?;
        self.check_nodes()
    }

    /// A tree in which maintenance has nothing left to do is in shape (BT-6). A root is so exactly. Below it, what a root had too much
    /// of when it was split stays until the next flush there, and so do edges that a healing left, or a leaf that grew by messages
    /// straight from above.
    fn check_sizes(&self) -> Result<(), String> {
        while self.engine.background_step().map_err(|error| error.to_string())? {}
        let report = self.engine.check(&mut |_, _| {}).map_err(|error| error.to_string())?;
        if !report.problems.is_empty() {
            return Err(report.problems.join("; "));
        }
        let sizes = report.sizes;
        let superblock = self.engine.superblock();
        let (node_bytes, fanout) = (superblock.node_bytes as usize, superblock.fanout as usize);
        let root = sizes.roots_of_one_edge == 0
            && sizes.root_edges <= fanout
            && sizes.root_message_bytes <= node_bytes;
        let root_bytes_max = node_bytes * 4 + RECORD_MESSAGES_BYTES_MAX;
        let below = sizes.edges <= fanout * 2
            && sizes.message_bytes <= root_bytes_max
            && sizes.leaf_bytes <= node_bytes * 3 + LARGEST_ENTRY;
        if root && below { Ok(()) } else { Err(format!("BT-6: {sizes:?} in nodes of {node_bytes} bytes")) }
    }

    /// Looks at every node, its references and its invariants.
    pub fn check_nodes(&self) -> Result<(), String> {
        let report = self.engine.check(&mut |_, _| {}).map_err(|error| error.to_string())?;
        if report.problems.is_empty() { Ok(()) } else { Err(report.problems.join("; ")) }
    }

    /// Compares what differs below two prefixes, as the engine and as the model sees it.
    fn compare(&self, tree: Tree, prefixes: [&Bytes; 2], piece: usize) -> Result<Result<(), Error>, String> {
        let limit = ScanLimit { entries: piece, bytes: usize::MAX };
        let mut found = Vec::new();
        let mut rest = Some(KeyRange::all());
        let mut empty = 0;
        while let Some(range) = rest {
            let compare = || self.engine.compare(tree, prefixes[0], prefixes[1], &range, limit);
            let compared = match waiting(&self.engine, compare) {
                Ok(compared) => compared,
                Err(error) => return Ok(Err(error)),
            };
            empty = if compared.differences.is_empty() { empty + 1 } else { 0 };
            if empty > EMPTY_PIECES_MAX
                || compared.rest.as_ref().is_some_and(|rest| rest.lower <= range.lower)
            {
                return Err(format!("a comparison of {tree:?} {prefixes:?} does not get on from {range:?}"));
            }
            found.extend(compared.differences);
            rest = compared.rest;
        }
        let below = |prefix: &Bytes| {
            let range = KeyRange::prefix(prefix.clone());
            let found = self.history.now().range(tree, &range);
            found.map(|(key, value)| (key.slice(prefix.len()..), value.clone())).collect::<BTreeMap<_, _>>()
        };
        let [old, new] = prefixes.map(below);
        let keys: BTreeSet<_> = old.keys().chain(new.keys()).collect();
        let difference = |key: &Bytes| Difference {
            key: key.clone(),
            old: old.get(key).cloned(),
            new: new.get(key).cloned(),
        };
        let expected: Vec<_> = keys.into_iter().map(difference).filter(|one| one.old != one.new).collect();
        if found == expected {
            return Ok(Ok(()));
        }
        let at = found.iter().zip(&expected).take_while(|(found, expected)| found == expected).count();
        let one = |differences: &[Difference]| match differences.get(at) {
            None => "nothing more".to_owned(),
            Some(Difference { key, old, new }) => {
                format!("{key:?}: {} and {}", brief(old.as_ref()), brief(new.as_ref()))
            }
        };
        let (found, expected) = (one(&found), one(&expected));
        Err(format!("a comparison of {tree:?} {prefixes:?} found {found} instead of {expected}"))
    }

    /// Compares everything.
    pub fn check_contents(&self) -> Result<(), String> {
        for tree in Tree::ALL {
            self.scan(tree, &KeyRange::all(), 1000)?.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn apply(&mut self, operations: &[Operation]) -> Result<Result<(), Error>, String> {
        match apply(&self.engine, operations) {
            Ok(lsn) if lsn <= self.lsn => return Err(format!("LSN {lsn:?} follows {:?}", self.lsn)),
            Ok(lsn) => self.lsn = lsn,
            Err(error) => return Ok(Err(error)),
        }
        self.history.push(operations);
        Ok(Ok(()))
    }

    fn scan(&self, tree: Tree, range: &KeyRange, piece: usize) -> Result<Result<(), Error>, String> {
        let found = match scan(&self.engine, tree, range, piece)? {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        let expected: Vec<_> = self.history.now().range(tree, range).collect();
        for (found, expected) in found.iter().zip(&expected) {
            if (&found.0, &found.1) != *expected {
                let found = format!("{:?} = {}", found.0, brief(Some(&found.1)));
                let expected = format!("{:?} = {}", expected.0, brief(Some(expected.1)));
                return Err(format!("scan of {tree:?} {range:?} gave {found}, not {expected}"));
            }
        }
        if found.len() != expected.len() {
            let odd = found
                .get(expected.len())
                .map(|(key, _)| key)
                .or(expected.get(found.len()).map(|(key, _)| *key));
            let (found, expected) = (found.len(), expected.len());
            return Err(format!(
                "scan of {tree:?} {range:?} gave {found} entries, not {expected}; the first odd one: {odd:?}"
            ));
        }
        Ok(Ok(()))
    }
}

/// As [`Engine::waiting`], but a query whose parts throw each other out of the cache for ever is a failure, not a hang.
///
/// # Panics
/// If the query is stuck.
pub fn waiting<T>(engine: &Engine, mut query: impl FnMut() -> Result<T, Error>) -> Result<T, Error> {
    for _ in 0..MISSES_MAX {
        match query() {
            Err(Error::Miss(miss)) => engine.fetch(miss)?,
            other => return other,
        }
    }
    panic!("a query missed {MISSES_MAX} times: the cache keeps nothing of what it needs");
}

/// Applies one record.
pub fn apply(engine: &Engine, operations: &[Operation]) -> Result<Lsn, Error> {
    let bytes: usize = operations.iter().map(Operation::length).sum();
    engine.changing(bytes as u64, || waiting(engine, || engine.apply(batch(operations))))
}

/// The operations as a batch; one that only takes away is let through on a full volume.
pub fn batch(operations: &[Operation]) -> Batch {
    let only_takes =
        operations.iter().all(|op| matches!(op, Operation::Delete { .. } | Operation::DeleteRange { .. }));
    let mut batch = if only_takes { Batch::reclaiming() } else { Batch::new() };
    for operation in operations.iter().cloned() {
        match operation {
            Operation::Put { tree, key, value } => batch.put(tree, key, value),
            Operation::PutRun { tree, prefix, first, bytes } => batch.put_run(tree, prefix, first, bytes),
            Operation::Delete { tree, key } => batch.delete(tree, key),
            Operation::Change { tree, key, change } => batch.change(tree, key, change),
            Operation::DeleteRange { tree, range } => batch.delete_range(tree, range),
            Operation::MoveRange { tree, from, to } => batch.move_range(tree, from, to),
            Operation::CloneRange { tree, from, to } => batch.clone_range(tree, from, to),
        }
    }
    batch
}

/// Everything in a range, read in pieces. The outer error is a scan that breaks its own rules.
pub fn scan(
    engine: &Engine,
    tree: Tree,
    range: &KeyRange,
    piece: usize,
) -> Result<Result<Vec<(Bytes, Bytes)>, Error>, String> {
    let limit = ScanLimit { entries: piece, bytes: 64 << 10 };
    let mut all = Vec::new();
    let mut rest = Some(range.clone());
    let mut empty_pieces = 0;
    while let Some(range) = rest {
        let found = match waiting(engine, || engine.scan(tree, &range, limit)) {
            Ok(found) => found,
            Err(error) => return Ok(Err(error)),
        };
        if found.entries.len() > piece {
            return Err(format!("a scan for {piece} entries gave {}", found.entries.len()));
        }
        empty_pieces = if found.entries.is_empty() { empty_pieces + 1 } else { 0 };
        if empty_pieces > EMPTY_PIECES_MAX {
            return Err(format!("a scan does not get on at {range:?}"));
        }
        all.extend(found.entries);
        rest = found.rest;
    }
    Ok(Ok(all))
}

/// The digest of everything in an engine.
pub fn contents(engine: &Engine) -> Result<Digest, String> {
    let mut digest = Digest::default();
    for tree in Tree::ALL {
        let found = scan(engine, tree, &KeyRange::all(), 1000)?;
        for (key, value) in found.map_err(|error| error.to_string())? {
            digest.add(tree, &key, &value);
        }
    }
    Ok(digest)
}

/// Says in which keys an engine and a map differ: the first few.
pub fn difference(engine: &Engine, map: &Map) -> String {
    let mut text = String::new();
    let mut count = 0;
    for tree in Tree::ALL {
        let found = match scan(engine, tree, &KeyRange::all(), 1000) {
            Ok(Ok(found)) => found,
            Ok(Err(error)) => return error.to_string(),
            Err(what) => return what,
        };
        let found: std::collections::BTreeMap<_, _> = found.into_iter().collect();
        let all = KeyRange::all();
        let expected: std::collections::BTreeMap<_, _> = map.range(tree, &all).collect();
        let mut keys: Vec<_> = found.keys().chain(expected.keys().copied()).collect();
        keys.sort();
        keys.dedup();
        for key in keys {
            let (found, expected) = (found.get(key), expected.get(key).copied());
            if found != expected {
                count += 1;
                if count <= 3 {
                    let _ = write!(text, "\n  {tree:?} {key:?}: {}, not {}", brief(found), brief(expected));
                }
            }
        }
    }
    format!("{count} keys differ:{text}")
}

fn brief(value: Option<&Bytes>) -> String {
    match value {
        None => "nothing".to_owned(),
        Some(value) if value.len() <= 40 => format!("{value:?}"),
        Some(value) => format!("{} bytes {:?}...", value.len(), value.slice(..24)),
    }
}

/// A step in lines that fit a screen: long values are cut.
pub fn describe(step: &Step) -> String {
    let cut = |text: String| match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    };
    match step {
        Step::Apply(operations) => {
            let lines = operations.iter().map(|operation| format!("\n    {}", cut(format!("{operation:?}"))));
            format!("Apply{}", lines.collect::<String>())
        }
        other => cut(format!("{other:?}")),
    }
}

/// What a step is, for messages.
pub fn name(step: &Step) -> &'static str {
    match step {
        Step::Apply(_) => "apply",
        Step::Get(..) => "get",
        Step::Scan(..) => "scan",
        Step::Compare(..) => "compare",
        Step::Sync => "sync",
        Step::Checkpoint => "checkpoint",
        Step::Background => "background step",
        Step::Reopen => "reopen",
        Step::Settle => "settle",
        Step::Restart => "restart",
        Step::Look => "look",
    }
}
