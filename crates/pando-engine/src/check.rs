//! Check: every reachable byte is read and verified, and what it says is compared with the invariants (design 4 and 6).
//!
//! The check walks the trees of an open volume on which nothing else is going on, from the roots down, with the bounds
//! that the way to a node gives it. What is wrong is collected; the walk goes on with the next node.

use std::collections::HashMap;

use bytes::Bytes;
use pando_format::{KeyRange, NodeId, Tree};

use crate::betree::lifting::key_limits;
use crate::betree::node::{Body, Node};
use crate::volume::Volume;
use crate::{Engine, Error, Result};

/// What a check found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// One sentence each, naming the node and the invariant; empty for a sound volume.
    pub problems: Vec<String>,
    /// Nodes read.
    pub nodes: u64,
    /// Bytes of their images.
    pub bytes: u64,
    /// Nodes that the block table knows.
    pub nodes_known: u64,
}

impl Engine {
    /// Reads and verifies every node and part that the trees reach, and compares the block table with what was reached.
    /// Nothing else may go on meanwhile. `progress` is told (nodes done, nodes in all). Waits for the device.
    ///
    /// # Errors
    /// Only what keeps the check from going on; what is wrong with the volume is in the report.
    pub fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        self.volume().check(progress)
    }
}

struct Check<'a> {
    volume: &'a Volume,
    report: CheckReport,
    /// How many edges and roots name a node (BT-4).
    references: HashMap<NodeId, u32>,
    progress: &'a mut dyn FnMut(u64, u64),
}

impl Volume {
    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        let entries = self.table.entries();
        let report = CheckReport { nodes_known: entries.len() as u64, ..CheckReport::default() };
        let mut check = Check { volume: self, report, references: HashMap::new(), progress };
        for tree in Tree::ALL {
            let root = self.root(tree).read().clone();
            let height = root.state.read().height;
            check.node(root.id, tree, height, &KeyRange::all())?;
        }
        for (id, height) in self.table.pending_reclamation() {
            check.doomed(id, height)?;
        }
        for (id, entry) in entries {
            let counted = check.references.get(&id).copied().unwrap_or(0);
            let recorded = if entry.pending_reclamation { counted } else { entry.references };
            if counted == 0 {
                check.problem(id, "BT-4: no edge and no root leads to it, but the block table keeps it");
            } else if counted != recorded {
                check.problem(
                    id,
                    &format!(
                        "BT-4: {counted} edges and roots lead to it, and the block table says {recorded}"
                    ),
                );
            }
        }
        Ok(check.report)
    }
}

impl Check<'_> {
    fn problem(&mut self, id: NodeId, what: &str) {
        self.report.problems.push(format!("node {}: {what}", id.0));
    }

    /// Checks a node and everything below it.
    fn node(&mut self, id: NodeId, tree: Tree, height: u8, own: &KeyRange) -> Result<()> {
        let count = self.references.entry(id).or_default();
        *count += 1;
        if *count > 1 {
            return Ok(());
        }
        let node = match self.volume.node(id).and_then(|node| self.volume.load_all(&node).map(|()| node)) {
            Ok(node) => node,
            Err(Error::Damaged { what }) => {
                self.report.problems.push(what);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        self.report.nodes += 1;
        self.report.bytes += self.volume.stored_length(id) as u64;
        (self.progress)(self.report.nodes, self.report.nodes_known);
        let mut below = Vec::new();
        {
            let state = node.state.read();
            if state.height != height || node.tree != tree {
                self.problem(
                    id,
                    &format!("BT-3: an edge of the {tree:?} tree says that its height is {height}"),
                );
                return Ok(());
            }
            for what in broken(&state, own) {
                self.problem(id, &what);
            }
            if let Body::Interior(interior) = &state.body {
                for (index, child) in interior.children.iter().enumerate() {
                    match interior.bounds_below(index, own) {
                        Ok((bounds, _)) if !child.id.is_empty() => below.push((child.id, bounds)),
                        Ok(_) => {}
                        Err(_) => {
                            self.problem(id, &format!("BT-2: edge {index} lifts more than its keys share"))
                        }
                    }
                }
            }
        }
        for (child, bounds) in below {
            self.node(child, tree, height.saturating_sub(1), &bounds)?;
        }
        while self.volume.wants_eviction() && self.volume.evict()? {}
        Ok(())
    }

    /// Counts what a subtree that waits for reclamation still names. Its leaves are not read.
    fn doomed(&mut self, id: NodeId, height: u8) -> Result<()> {
        *self.references.entry(id).or_default() += 1;
        if height == 0 {
            return Ok(());
        }
        let node = match self.volume.node(id) {
            Ok(node) => node,
            Err(Error::Damaged { what }) => {
                self.report.problems.push(what);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        let children: Vec<NodeId> = match &node.state.read().body {
            Body::Interior(interior) => interior.children.iter().map(|child| child.id).collect(),
            Body::Leaf(_) => Vec::new(),
        };
        for child in children.into_iter().filter(|child| !child.is_empty()) {
            self.doomed(child, height - 1)?;
        }
        Ok(())
    }
}

/// The invariants that a loaded node breaks, given the bounds of its keys.
fn broken(state: &Node, own: &KeyRange) -> Vec<String> {
    let mut broken = Vec::new();
    match &state.body {
        Body::Leaf(leaf) => {
            let mut last: Option<&Bytes> = None;
            for slot in &leaf.basements {
                let Some(basement) = slot.part.get() else { continue };
                for (key, _) in &basement.entries {
                    if last.is_some_and(|last| last >= key) {
                        broken.push("LEAF-2: its keys do not rise".to_owned());
                    }
                    if *key < slot.first_key {
                        broken.push("LEAF-1: a key lies below the first key of its basement node".to_owned());
                    }
                    last = Some(key);
                }
            }
            let ends = leaf.basements.first().zip(last);
            if ends.is_some_and(|(first, last)| !own.contains(&first.first_key) || !own.contains(last)) {
                broken.push("BT-2: a key lies outside the bounds of the edge".to_owned());
            }
        }
        Body::Interior(interior) => {
            if let Some(what) = interior.broken(own) {
                broken.push(what);
            }
            for (index, child) in interior.children.iter().enumerate() {
                let bounds = interior.bounds_of(index, own);
                let Some(buffer) = child.buffer.get() else { continue };
                let mut ends = [buffer.keyed().next(), buffer.keyed().last()].into_iter().flatten();
                if key_limits(&bounds).is_none() && !buffer.is_empty()
                    || ends.any(|(key, _, _)| !bounds.contains(key))
                {
                    broken.push(format!("BT-2: a message for edge {index} lies outside of it"));
                }
            }
        }
    }
    broken
}
