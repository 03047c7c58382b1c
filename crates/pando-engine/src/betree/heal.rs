//! Healing: after surgery on a tree (`range_clone.rs`), the nodes at the ends of the ranges are brought back in shape (BT-6).
//!
//! Surgery leaves edges that show little of what is behind them, and hides keys behind range deletes that wait above. What is cloned
//! or moved next would lead to nodes that hold far more than the range, each clone would add edges near the root, and the
//! tree would grow in height with every clone, whatever it holds. Healing a range may cost as much as writing a leaf or
//! two, so a few surgeries are healed together, but never many: back-pressure sees to that ([`crate::background`]).

use pando_format::{Bound, KeyRange, Side, Tree};

use super::interior::Child;
use super::message_buffer::MessageBuffer;
use super::node::{Body, NodeRef};
use super::tree::HEALING_DUE;
use crate::Result;
use crate::volume::Volume;

/// Flushes through one edge for one way down: range deletes may come to a root as fast as they go.
const FLUSHES_MAX: usize = 2;

/// How often a range is healed for a checkpoint, on the average, until nothing more is joined at its ends.
const HEALINGS_MAX: usize = 8;

impl Volume {
    /// Heals one range if there has been enough surgery; false if there is nothing to do. Only for the holder of the maintenance token.
    pub(crate) fn heal_if_due(&self, tree: Tree) -> Result<bool> {
        let is_due = self.root(tree).wounds.lock().weight >= HEALING_DUE;
        Ok(is_due && self.heal_next(tree)?)
    }

    /// Heals all ranges for a checkpoint, if it is the last one, or space is short. Others leave that to [`Self::heal_if_due`]: what has
    /// moved once often moves again, and a checkpoint behind a few moves has little else to do.
    pub(crate) fn heal_for_checkpoint(&self, is_last: bool) -> Result<()> {
        if !is_last && !self.wants_deletes_down() {
            return Ok(());
        }
        for tree in Tree::ALL {
            // A clone may come between two steps, and leave more to be healed: one that follows the other must not keep a
            // checkpoint for ever.
            let wounds = self.root(tree).wounds.lock().ranges.len();
            let steps = if is_last { usize::MAX } else { wounds * HEALINGS_MAX + 1 };
            for _ in 0..steps {
                let _token = self.root(tree).maintenance.wait();
                if !self.has_space_to_flush() || !self.heal_next(tree)? {
                    break;
                }
            }
        }
        self.wake_turned_away();
        Ok(())
    }

    fn heal_next(&self, tree: Tree) -> Result<bool> {
        let Some(range) = self.root(tree).wounds.lock().pop() else { return Ok(false) };
        match self.heal(tree, &range) {
            Ok(true) => self.root(tree).wounds.lock().ranges.push(range),
            // What cannot be read stays as it is.
            Ok(false) => {}
            Err(error) if error.is_unreadable() => {}
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    /// Heals the nodes at the ends of a range that was cloned to, or moved away. Interior nodes that are seen in part are copied
    /// (INT-3), so that they no longer hold what only others see; neighbours that are small together are joined. True if
    /// some were: others may have come together by that, and the range is to be healed again. Only for the holder of
    /// the maintenance token.
    fn heal(&self, tree: Tree, range: &KeyRange) -> Result<bool> {
        let mut joined = false;
        for bound in [&range.lower, &range.upper] {
            for side in [Side::Before, Side::After] {
                joined |= self.heal_way(tree, bound.clone(), side)?;
            }
        }
        Ok(joined)
    }

    /// Heals the nodes on the way down to one side of a bound, those above first: joining them brings the ones below together.
    fn heal_way(&self, tree: Tree, mut bound: Bound, side: Side) -> Result<bool> {
        let mut node = self.root(tree).read().clone();
        let mut own = KeyRange::all();
        let mut joined = false;
        let mut flushes = 0;
        while node.height > 0 {
            self.load_all(&node)?;
            let index = {
                let state = node.state.read();
                match side {
                    Side::Before => state.interior().index_below(&bound),
                    Side::After => state.interior().index_above(&bound),
                }
            };
            if !self.has_space_to_flush() {
                break;
            }
            if self.cut_if_nothing_shows(&node, &own, index)?
                || self.join_twins(&node, &own)?
                || self.join_with_neighbour(&node, &own, index)?
            {
                joined = true;
                continue;
            }
            // What gotos lead to is in its place, and what range deletes cover is gone, only when they have come down.
            let surgical = |buffer: &MessageBuffer| !buffer.gotos().is_empty() || !buffer.ranges().is_empty();
            let waits = |child: &Child| child.buffer.get().is_some_and(|buffer| surgical(buffer));
            if flushes < FLUSHES_MAX && waits(&node.state.read().interior().children[index]) {
                flushes += 1;
                self.flush_child(&node, &own, index)?;
                continue;
            }
            let (id, translated, lifted) = {
                let state = node.state.read();
                let edge = &state.interior().children[index];
                (edge.id, edge.xf.is_some(), state.interior().bounds_below(index, &own)?.1)
            };
            if id.is_empty() || !translated && self.is_shared(id) || node.height == 1 {
                break;
            }
            let child = self.own_child(&node, &own, index)?;
            own = node.state.read().interior().bounds_below(index, &own)?.0;
            bound = bound.strip(&lifted);
            node = child;
            flushes = 0;
        }
        Ok(joined)
    }

    /// Cuts an edge through which no key of its leaf is seen; true if it did.
    fn cut_if_nothing_shows(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<bool> {
        let (id, visible) = {
            let state = parent.state.read();
            let edge = &state.interior().children[index];
            if edge.xf.is_none() || state.height > 1 {
                return Ok(false);
            }
            (edge.id, state.interior().bounds_below(index, own)?.0)
        };
        let shows = match &self.node(id)?.state.read().body {
            Body::Leaf(leaf) => !leaf.is_empty_in(&visible),
            Body::Interior(_) => true,
        };
        if shows {
            return Ok(false);
        }
        self.load_all(parent)?;
        let _gate = self.gate.read_recursive();
        let mut above = parent.state.write();
        if above.missing_part().is_some() {
            return Ok(false);
        }
        self.cut_edge(parent, &mut above, index);
        self.settle([id], []);
        Ok(true)
    }
}
