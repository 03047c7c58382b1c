//! Every state a volume went through, record by record.

use std::ops::RangeInclusive;

use pando_engine::Operation;

use super::{Digest, Map};

/// The records of a volume in their order. State n is what n records make; state 0 is the empty volume.
#[derive(Clone, Default)]
pub struct History {
    records: Vec<Vec<Operation>>,
    digests: Vec<Digest>,
    now: Map,
}

impl History {
    /// The history of an empty volume.
    pub fn new() -> Self {
        Self { records: Vec::new(), digests: vec![Digest::default()], now: Map::default() }
    }

    /// How many records there are.
    pub fn length(&self) -> usize {
        self.records.len()
    }

    /// The present state.
    pub fn now(&self) -> &Map {
        &self.now
    }

    /// Adds a record.
    pub fn push(&mut self, operations: &[Operation]) {
        self.now.apply(operations);
        self.records.push(operations.to_vec());
        self.digests.push(self.now.digest());
    }

    /// Forgets all records behind state `length`: a crash has lost them.
    pub fn truncate(&mut self, length: usize) {
        self.now = self.state(length);
        self.records.truncate(length);
        self.digests.truncate(length + 1);
    }

    /// The operations of the records that lead from state `from` to state `to`.
    pub fn between(&self, from: usize, to: usize) -> impl Iterator<Item = &Operation> {
        self.records[from.min(to)..to].iter().flatten()
    }

    /// The last of these states that has the digest.
    pub fn find(&self, digest: Digest, states: RangeInclusive<usize>) -> Option<usize> {
        states.rev().find(|state| self.digests[*state] == digest)
    }

    /// All states with the digest, for messages.
    pub fn find_all(&self, digest: Digest) -> Vec<usize> {
        (0..self.digests.len()).filter(|state| self.digests[*state] == digest).collect()
    }

    /// Makes a state again.
    pub fn state(&self, length: usize) -> Map {
        let mut map = Map::default();
        for record in &self.records[..length] {
            map.apply(record);
        }
        map
    }
}
