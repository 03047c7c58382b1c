//! Which parts are on their way from the device: nobody reads what somebody else is reading already.
//!
//! Several requests of one sequential reader miss neighbouring parts at the same time. Each claims a run of parts that
//! nobody has claimed, so that the runs are read side by side and each part once; who misses a claimed part waits for it
//! to land. Nobody waits with a claim of his own, so nobody waits for ever.

use std::collections::HashSet;

use pando_format::NodeId;
use parking_lot::{Condvar, Mutex};

/// Parts being read, over all nodes.
#[derive(Default)]
pub(crate) struct InFlight {
    parts: Mutex<HashSet<(NodeId, u32)>>,
    landed: Condvar,
}

/// A run of parts that its holder reads; it lands when this is dropped, whatever came of it.
pub(crate) struct Claim<'a> {
    in_flight: &'a InFlight,
    node: NodeId,
    first: u32,
    count: u32,
}

impl InFlight {
    /// True if somebody is reading the part.
    pub(crate) fn contains(&self, node: NodeId, part: u32) -> bool {
        self.parts.lock().contains(&(node, part))
    }

    /// Claims up to `count` parts from `first` on, as far as they are free. `None` if somebody has read the first in the
    /// meantime: it has landed when this returns, or could not be read.
    pub(crate) fn claim(&self, node: NodeId, first: u32, count: u32) -> Option<Claim<'_>> {
        let mut parts = self.parts.lock();
        if !parts.contains(&(node, first)) {
            return Some(self.take(&mut parts, node, first, count));
        }
        while parts.contains(&(node, first)) {
            self.landed.wait(&mut parts);
        }
        None
    }

    /// The same for who does not wait: `None` if somebody is reading the first.
    pub(crate) fn try_claim(&self, node: NodeId, first: u32, count: u32) -> Option<Claim<'_>> {
        let mut parts = self.parts.lock();
        (!parts.contains(&(node, first))).then(|| self.take(&mut parts, node, first, count))
    }

    fn take(&self, parts: &mut HashSet<(NodeId, u32)>, node: NodeId, first: u32, count: u32) -> Claim<'_> {
        let count = (0..count).take_while(|next| parts.insert((node, first + next))).count() as u32;
        Claim { in_flight: self, node, first, count }
    }
}

impl Claim<'_> {
    /// How many parts it covers, at least one.
    pub(crate) fn count(&self) -> usize {
        self.count as usize
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut parts = self.in_flight.parts.lock();
        for part in self.first..self.first + self.count {
            parts.remove(&(self.node, part));
        }
        self.in_flight.landed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    const NODE: NodeId = NodeId(7);

    #[test]
    fn a_claim_ends_where_another_begins() {
        let in_flight = InFlight::default();
        let behind = in_flight.claim(NODE, 4, 2).unwrap();
        let before = in_flight.claim(NODE, 1, 8).unwrap();
        assert_eq!((before.count(), behind.count()), (3, 2));
        assert!(in_flight.claim(NodeId(8), 4, 1).is_some(), "parts of other nodes are others");
        drop(before);
        assert!(!in_flight.contains(NODE, 3) && in_flight.contains(NODE, 4));
        assert!(in_flight.try_claim(NODE, 4, 1).is_none(), "who does not wait goes without");
        assert_eq!(in_flight.try_claim(NODE, 3, 2).unwrap().count(), 1);
    }

    #[test]
    fn who_misses_a_claimed_part_waits_until_it_lands() {
        let in_flight = InFlight::default();
        let landed = AtomicBool::new(false);
        let claim = in_flight.claim(NODE, 0, 1).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                // Comes before the part has landed, and waits, or afterwards, and claims it anew.
                let _own = in_flight.claim(NODE, 0, 1);
                assert!(landed.load(Ordering::SeqCst));
            });
            landed.store(true, Ordering::SeqCst);
            drop(claim);
        });
    }
}
