//! Check: every reachable byte is read and verified, and what it says is compared with the invariants (design 4 and 6).
//!
//! The check walks the trees of an open volume on which nothing else is going on, from the roots down, with the bounds
//! that the way to a node gives it. What is wrong is collected; the walk goes on with the next node. Memory: some 150 bytes for each
//! node that there is, eight for each edge.
//!
//! | invariant | where it is checked |
//! |---|---|
//! | BT-1 | `order.rs`: messages above against messages below, key by key |
//! | BT-2 | here: keys and messages inside the bounds of their edge |
//! | BT-3 | here: each way leads to a node of the height it says |
//! | BT-4 | here: names against counts |
//! | BT-5 | `sharing.rs`: what was shared all the time since the last checkpoint is as it was then; and whoever changes a node asserts it |
//! | BT-6 | `sizes.rs`: sizes are told, and compared with bounds by who knows that maintenance has nothing left to do |
//! | SP-1 | here: no delete waits where none is looked for |

mod order;
mod sharing;
mod sizes;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_format::{KeyRange, Msn, NodeId, Tree};

use self::order::Edge;
pub use self::sizes::Sizes;
use crate::betree::interior::{Child, Interior};
use crate::betree::node::{Body, Node};
use crate::space::block_table::Pages;
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
    /// How large nodes are (BT-6).
    pub sizes: Sizes,
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

    /// How many nodes there are: what a check has to look at. Takes a moment for each thousand of them.
    pub fn node_count(&self) -> u64 {
        self.volume().table.count()
    }
}

/// Problems that a check tells of; where there are so many, there may be more.
pub const PROBLEMS_MAX: usize = 10_000;

struct Check<'a> {
    volume: &'a Volume,
    report: CheckReport,
    /// What is known of the nodes of the block table.
    known: HashMap<NodeId, Known>,
    /// The table of the last checkpoint (BT-5).
    checkpoint: Pages,
    /// What an interior node names has not been counted: it cannot be read, or is not what the way to it says.
    names_are_missing: bool,
    /// How often the comparison of a range may still go one node down (BT-1).
    looks_left: u64,
    progress: &'a mut dyn FnMut(u64, u64),
}

/// What is known of a node.
#[derive(Clone, Default)]
struct Known {
    /// How many edges, gotos and roots name it (BT-4).
    references: u32,
    seen: Seen,
    /// What the first way to it says that it is (BT-3).
    way: Option<(Tree, u8)>,
    /// It differs from what the last checkpoint wrote.
    has_changed: bool,
    /// How many names it has had since the last checkpoint without interruption; behind an xf or goto it counts for two (BT-5).
    lasting: u32,
    /// The newest message that waits in it or below its edges (BT-1).
    waiting: Msn,
    /// The same of messages that were applied, too.
    newest: Msn,
    /// What its edges and gotos name.
    names: Vec<NodeId>,
}

#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Seen {
    #[default]
    Not,
    /// Behind an xf or goto, which tell only what is seen of it.
    InPart,
    /// With the bounds of all its keys.
    Whole,
}

/// How the check comes to a node.
struct Visit {
    id: NodeId,
    tree: Tree,
    height: u8,
    /// The bounds of all its keys; `None` behind an xf or goto, which tell only what is seen of it.
    own: Option<KeyRange>,
}

impl Volume {
    fn check(&self, progress: &mut dyn FnMut(u64, u64)) -> Result<CheckReport> {
        let table = self.table.pages();
        let nodes_known = table.entries().count() as u64;
        let mut check = Check {
            volume: self,
            report: CheckReport { nodes_known, ..CheckReport::default() },
            known: table.entries().map(|(id, _)| (id, Known::default())).collect(),
            checkpoint: self.table.stored(),
            names_are_missing: false,
            looks_left: order::looks_max(nodes_known),
            progress,
        };
        for tree in Tree::ALL {
            let root = self.root(tree).read().clone();
            let height = root.height;
            check.named(Visit { id: root.id, tree, height, own: Some(KeyRange::all()) })?;
        }
        // What is doomed has no name, but names others until it is taken apart. Its leaves are not read.
        for (id, entry) in table.entries().filter(|(_, entry)| entry.pending_reclamation && entry.height > 0)
        {
            check.node(Visit { id, tree: entry.tree, height: entry.height, own: None }, true)?;
        }
        let mut nodes_behind: u64 = 0;
        for (id, entry) in table.entries() {
            let counted = check.known[&id].references;
            if counted < entry.references && check.names_are_missing {
                nodes_behind += 1;
            } else if counted != entry.references {
                check.problem(
                    id,
                    &format!(
                        "BT-4: {counted} edges, gotos and roots lead to it, and the block table says {}",
                        entry.references
                    ),
                );
            } else if (counted == 0) != entry.pending_reclamation {
                check.problem(id, "BT-4: nodes without a name, and no others, wait for reclamation");
            }
        }
        if nodes_behind > 0 {
            check.note(format!(
                "BT-4: nodes with fewer names than the block table says, which may lie behind those that cannot be \
                 read: {nodes_behind}"
            ));
        }
        check.shared_nodes();
        Ok(check.report)
    }
}

impl Check<'_> {
    fn problem(&mut self, id: NodeId, what: &str) {
        self.note(format!("node {}: {what}", id.0));
    }

    /// A volume made to harm may have as many as it has keys.
    fn note(&mut self, what: String) {
        if self.report.problems.len() < PROBLEMS_MAX {
            self.report.problems.push(what);
        }
    }

    /// What is known of a node; `None` if the block table has no such node.
    fn known(&mut self, id: NodeId) -> Option<&mut Known> {
        self.known.get_mut(&id)
    }

    /// Counts a name of a node and checks the node and everything below it, if that has not been done yet.
    fn named(&mut self, visit: Visit) -> Result<()> {
        if let Some(known) = self.known(visit.id) {
            known.references += 1;
        }
        self.node(visit, true)
    }

    /// Checks a node and everything below it; `counts` if what it names has not been counted yet.
    fn node(&mut self, visit: Visit, counts: bool) -> Result<()> {
        let Visit { id, tree, height, own } = visit;
        let seen = if own.is_some() { Seen::Whole } else { Seen::InPart };
        let (before, way) = self.known(id).map_or((Seen::Not, None), |known| (known.seen, known.way));
        if way.is_some_and(|way| way != (tree, height)) {
            self.problem(
                id,
                &format!("BT-3: ways lead to it in two trees, or at two heights, one of them {height}"),
            );
            return Ok(());
        }
        if before >= seen {
            return Ok(());
        }
        if let Some(known) = self.known(id) {
            (known.seen, known.way) = (seen, Some((tree, height)));
        }
        // Seen before, but without its bounds: only they are checked now.
        let is_first = before == Seen::Not;
        let counts = counts && is_first;
        let node = match self.volume.node(id) {
            Ok(node) => node,
            Err(error) if error.is_unreadable() => {
                self.unreadable(id, height, is_first, error);
                return Ok(());
            }
            Err(error) => return Err(error),
        };
        // What is wrong with one part says nothing of the others, nor of what is below.
        for (_, error) in self.volume.load_readable(&node)? {
            self.unreadable(id, height, is_first, error);
        }
        if is_first {
            self.report.nodes += 1;
            self.report.bytes += self.volume.stored_length(id) as u64;
            (self.progress)(self.report.nodes, self.report.nodes_known);
        }
        let (mut below, mut edges) = (Vec::new(), Vec::new());
        {
            let state = node.state.read();
            if state.height != height || node.tree != tree {
                self.names_are_missing |= state.height > 0;
                self.problem(
                    id,
                    &format!("BT-3: a way in the {tree:?} tree says that its height is {height}"),
                );
                return Ok(());
            }
            for what in broken(&state, own.as_ref()) {
                self.problem(id, &what);
            }
            if is_first {
                self.first_look(&node, &state);
            }
            if own.is_some() && !self.volume.is_shared(id) {
                let is_root = self.volume.root(tree).read().id == id;
                self.size_of(&state, is_root);
            }
            if let Body::Interior(interior) = &state.body {
                let deletes_wait = self.volume.deletes_wait.load(Ordering::Acquire);
                if own.is_some() && !deletes_wait && interior.children.iter().any(Child::holds_deletes) {
                    self.problem(id, "SP-1: deletes wait here that nobody would look for");
                }
                self.ways_of(id, tree, height, interior, own.as_ref(), &mut below);
                edges = Edge::of(interior);
            }
        }
        drop(node);
        for visit in below {
            if counts {
                self.named(visit)?;
            } else {
                self.node(visit, false)?;
            }
        }
        self.order_below(id, &edges, own.as_ref())?;
        while self.volume.wants_eviction() && self.volume.evict()? {}
        Ok(())
    }

    /// A node, or a part of one, cannot be read. What that of an interior node names is not known.
    fn unreadable(&mut self, id: NodeId, height: u8, is_first: bool, error: Error) {
        self.names_are_missing |= height > 0;
        match error {
            _ if !is_first => {}
            Error::Damaged { what } => self.note(what),
            error => self.problem(id, &error.to_string()),
        }
    }

    /// The ways that lead on from an interior node.
    fn ways_of(
        &mut self,
        id: NodeId,
        tree: Tree,
        height: u8,
        interior: &Interior,
        own: Option<&KeyRange>,
        below: &mut Vec<Visit>,
    ) {
        for (index, child) in interior.children.iter().enumerate() {
            let inner = index > 0 && index < interior.pivots.len();
            let bounds = match own {
                Some(own) => Some(interior.bounds_below(index, own)),
                None => inner.then(|| interior.bounds_below(index, &KeyRange::all())),
            };
            let own = match bounds {
                Some(Ok((bounds, _))) => Some(bounds),
                Some(Err(_)) => {
                    let what = "has no room, or lifts more than its keys share";
                    self.problem(id, &format!("BT-2: edge {index} {what}"));
                    None
                }
                None => None,
            };
            if let (Some(seen), Some(xf)) = (&own, &child.xf)
                && !KeyRange::new(xf.lower.clone(), xf.upper.clone()).covers(seen)
            {
                self.problem(id, &format!("INT-3: edge {index} shows more than its xf lets through"));
            }
            if !child.id.is_empty() {
                let own = own.filter(|_| child.xf.is_none());
                below.push(Visit { id: child.id, tree, height: height.saturating_sub(1), own });
            }
            for goto in child.buffer.get().iter().flat_map(|buffer| buffer.gotos()) {
                if goto.height >= height.saturating_sub(1) {
                    self.problem(id, &format!("BT-3: {goto} is not below the edges beside it"));
                }
                below.push(Visit { id: goto.target, tree, height: goto.height, own: None });
            }
        }
    }
}

/// The invariants that a node breaks, given the bounds of its keys if they are known. Parts that could not be read are left out.
fn broken(state: &Node, own: Option<&KeyRange>) -> Vec<String> {
    let mut broken = Vec::new();
    match &state.body {
        Body::Leaf(leaf) => {
            let mut last: Option<&Bytes> = None;
            for slot in &leaf.basements {
                let Some(basement) = slot.part.get() else { continue };
                let (mut falls, mut is_below) = (false, false);
                for (key, _) in basement.entries.iter() {
                    falls |= last.is_some_and(|last| last >= key);
                    is_below |= *key < slot.first_key;
                    last = Some(key);
                }
                if falls {
                    broken.push("LEAF-2: its keys do not rise".to_owned());
                }
                if is_below {
                    broken.push("LEAF-1: a key lies below the first key of its basement node".to_owned());
                }
            }
            let ends = leaf.basements.first().zip(last);
            if own
                .zip(ends)
                .is_some_and(|(own, (first, last))| !own.contains(&first.first_key) || !own.contains(last))
            {
                broken.push("BT-2: a key lies outside the bounds of the edge".to_owned());
            }
        }
        Body::Interior(interior) => {
            let Some(own) = own else { return broken };
            if let Some(what) = interior.broken(own) {
                broken.push(what);
            }
            for (index, child) in interior.children.iter().enumerate() {
                let bounds = interior.bounds_of(index, own);
                let Some(buffer) = child.buffer.get() else { continue };
                if !buffer.targets_lie_inside(&bounds) {
                    broken.push(format!("BT-2: a message for edge {index} lies outside of it"));
                }
            }
        }
    }
    broken
}
