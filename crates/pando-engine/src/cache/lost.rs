//! What could not be read a moment ago.
//!
//! A query that misses it again is told so, and need not wait for the device once more. A scan goes down to the basement node whatever waits above, so
//! without this it could only be missing something for ever; who is told what is lost may ask for single keys instead, whose messages answer
//! alone. After a moment it is tried again: a bus or a controller may have erred.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use pando_format::{NodeId, PartEntry};
use parking_lot::Mutex;

use crate::betree::node::Body;
use crate::betree::part::Part;
use crate::volume::Volume;
use crate::{Error, Miss};

/// For so long nobody tries again.
const MOMENT: Duration = Duration::from_secs(5);

/// Nor for longer than this, however long other reads take to fail meanwhile.
const LONGEST: Duration = Duration::from_secs(60);

/// So many are remembered: of a device that fails as a whole all are lost.
const LOST_MAX: usize = 1024;

/// A piece of a node, as it was written: another image of the node has others.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Piece {
    /// With the generation of the image.
    Header(u64),
    /// First block and checksum of a part.
    Part(u32, u64),
}

impl Piece {
    pub(super) fn of(entry: &PartEntry) -> Self {
        Self::Part(entry.offset, entry.checksum)
    }
}

/// Why a piece could not be read.
struct Failure {
    error: Error,
    tried: Instant,
    /// Later by what other reads have taken since to fail.
    since: Instant,
}

impl Failure {
    fn is_over(&self) -> bool {
        self.since.elapsed() >= MOMENT || self.tried.elapsed() >= LONGEST
    }
}

/// What could not be read. Lock order: behind every node.
#[derive(Default)]
pub(crate) struct Lost {
    pieces: Mutex<HashMap<(NodeId, Piece), Failure>>,
    /// False as long as there are none.
    any: AtomicBool,
    /// Nodes of which it has been said that they are written with damage in them.
    told: Mutex<HashSet<NodeId>>,
}

impl Lost {
    /// Remembers what could not be read, which was begun at that time. Other errors say nothing of what lies there.
    pub(super) fn note(&self, node: NodeId, piece: Piece, error: &Error, begun: Instant) {
        if !error.is_unreadable() {
            return;
        }
        let mut pieces = self.pieces.lock();
        // A device may take half a minute for an error. Who needs several of these pieces would find the first forgotten each time.
        let now = Instant::now();
        for failure in pieces.values_mut() {
            failure.since = (failure.since + (now - begun)).min(now);
        }
        if pieces.len() >= LOST_MAX {
            pieces.retain(|_, failure| !failure.is_over());
        }
        if pieces.len() >= LOST_MAX {
            pieces.clear();
        }
        pieces.insert((node, piece), Failure { error: error.clone(), tried: now, since: now });
        self.any.store(true, Ordering::Relaxed);
    }

    /// True once for each node that is written with damage in it.
    pub(super) fn is_news(&self, node: NodeId) -> bool {
        self.told.lock().insert(node)
    }

    fn error(&self, node: NodeId, piece: Piece) -> Option<Error> {
        if !self.any.load(Ordering::Relaxed) {
            return None;
        }
        let pieces = self.pieces.lock();
        let failure = pieces.get(&(node, piece))?;
        (!failure.is_over()).then(|| failure.error.clone())
    }
}

impl Volume {
    /// The error of a query that needs a part of a node which is not in memory.
    pub(crate) fn missing<T: Clone>(&self, node: NodeId, index: usize, part: &Part<T>) -> Error {
        self.lost_part(node, part).unwrap_or(Error::Miss(Miss { node, part: Some(index as u32) }))
    }

    /// Why a part could not be read.
    pub(crate) fn lost_part<T: Clone>(&self, node: NodeId, part: &Part<T>) -> Option<Error> {
        self.cache.lost.error(node, Piece::of(part.stored()?))
    }

    /// Why the header of a node could not be read.
    pub(crate) fn lost_header(&self, node: NodeId) -> Option<Error> {
        self.cache.lost.error(node, Piece::Header(self.table.generation(node)?))
    }

    /// Why what is missing could not be read.
    pub(super) fn lost(&self, miss: Miss) -> Option<Error> {
        let Some(node) = self.cache.peek(miss.node) else { return self.lost_header(miss.node) };
        let index = miss.part? as usize;
        match &node.state.read().body {
            Body::Leaf(leaf) => self.lost_part(node.id, &leaf.basements.get(index)?.part),
            Body::Interior(interior) => self.lost_part(node.id, &interior.children.get(index)?.buffer),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_other_reads_take_is_not_counted_up_to_a_minute() {
        let lost = Lost::default();
        let error = Error::Damaged { what: "it is rotten".to_owned() };
        let now = Instant::now();
        let [first, second] = [NodeId(1), NodeId(2)];
        lost.note(first, Piece::Header(1), &error, now);
        let since = |by: Duration| {
            let mut pieces = lost.pieces.lock();
            let failure = pieces.get_mut(&(first, Piece::Header(1))).unwrap();
            (failure.tried, failure.since) = (failure.tried - by, failure.since - by);
        };
        since(Duration::from_secs(20));
        assert_eq!(lost.error(first, Piece::Header(1)), None, "the moment is over");
        lost.note(second, Piece::Header(1), &error, now - Duration::from_secs(20));
        assert_eq!(
            lost.error(first, Piece::Header(1)),
            Some(error.clone()),
            "another read took all that time"
        );
        assert_eq!(lost.error(first, Piece::Header(2)), None, "it is another image");
        since(Duration::from_secs(41));
        lost.note(second, Piece::Header(1), &error, now - Duration::from_secs(41));
        assert_eq!(lost.error(first, Piece::Header(1)), None, "it would never be tried again");
    }
}
