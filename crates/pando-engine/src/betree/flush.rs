//! Flush: messages move from a node's buffer to the node behind the edge.
//!
//! Everything here runs under the tree's maintenance token (TREE-2). A step reads what it needs from the device with no
//! lock held, then moves the messages under the gate and the locks of parent and child: the parent's is let go as soon as
//! the messages are out, the child's when they are in. A query holds its path's locks, so it sees them in one place.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use pando_device::complain;
use pando_format::{HEIGHT_MAX, KeyRange, NodeId, Tree};

use super::interior::{Child, Lowered, lower};
use super::message_buffer::MessageBuffer;
use super::node::{Body, Node, NodeRef};
use super::part::Part;
use super::token::PAUSES_MAX;
use super::tree::{TreeRoot, root_above};
use crate::apply::space_for;
use crate::room::ROOT_NODES_MAX;
use crate::volume::Volume;
use crate::{Error, Miss, Result};

impl Volume {
    /// Does what maintenance a tree needs most; false if it needs none or somebody else is at it.
    pub(crate) fn maintain(&self, tree: Tree) -> Result<bool> {
        let root = self.root(tree);
        let Some(_token) = root.maintenance.try_take() else { return Ok(false) };
        self.maintain_with_token(tree)
    }

    pub(super) fn maintain_with_token(&self, tree: Tree) -> Result<bool> {
        let root = self.root(tree);
        let overgrown = root.overgrown.lock().pop();
        if let Some((leaf, key)) = overgrown {
            self.split_on_the_way(tree, &key).or_else(|error| self.give_up_on(leaf, error))?;
            return Ok(true);
        }
        if root.unrelieved.swap(false, Ordering::Relaxed) && self.relieve_again(tree)? {
            return Ok(true);
        }
        if self.fit_root(tree)? {
            return Ok(true);
        }
        if self.heal_if_due(tree)? {
            return Ok(true);
        }
        let node = root.read().clone();
        if root.covered.swap(false, Ordering::Relaxed) {
            self.prune(&node, &KeyRange::all())?;
            return Ok(true);
        }
        let is_cut = self.cut_overfull_edges(&node, &KeyRange::all())?;
        let over = match &node.state.read().body {
            Body::Leaf(_) => false,
            Body::Interior(interior) => self.damaged.movable_bytes(interior) > self.shape.node_bytes,
        };
        if over {
            self.relieve(&node, &KeyRange::all())?;
        }
        if over || is_cut {
            self.fit_root(tree)?;
        }
        Ok(over || is_cut)
    }

    /// True if a flush finds room for the leaf that it makes dirty. It may use half of the reserve: that is what it is for.
    /// The other half stays, for nodes that need long runs of free space.
    pub(crate) fn has_space_to_flush(&self) -> bool {
        self.allocator.counters().usable > self.space_to_be_written() + self.space_reserve() / 2
    }

    /// True if there is space for much more than what has to come down.
    pub(super) fn has_space_to_spare(&self) -> bool {
        self.allocator.counters().usable > self.space_to_be_written() + self.space_reserve() * 2
    }

    /// Flushes until the messages that wait in a node and can be moved are within their budget, or a clone waits for the token.
    fn relieve(&self, node: &NodeRef, own: &KeyRange) -> Result<()> {
        let root = self.root(node.tree);
        self.cut_overfull_edges(node, own)?;
        let mut full = Vec::new();
        loop {
            let heaviest = {
                let state = node.state.read();
                let interior = state.interior();
                let movable = self.damaged.movable_bytes(interior);
                if movable <= self.shape.node_bytes || !self.has_space_to_flush() {
                    return Ok(());
                }
                let edges = interior.children.iter().enumerate();
                let sound = edges.filter(|(_, child)| !self.damaged.contains(child.id));
                let waiting = sound.filter(|(_, child)| child.buffer_bytes > 0 && !full.contains(&child.id));
                let Some((index, child)) = waiting.max_by_key(|(_, child)| child.buffer_bytes) else {
                    return Ok(());
                };
                (index, child.id)
            };
            if !self.flush_around_damage(node, own, heaviest)? {
                full.extend(node.state.read().interior().children.get(heaviest.0).map(|child| child.id));
            }
            // Behind a flush, so that clones one after the other do not keep every flush back.
            if root.maintenance.is_wanted() {
                root.unrelieved.store(true, Ordering::Relaxed);
                return Ok(());
            }
        }
    }

    /// Sees to it, before a checkpoint, that the roots find places on the device, however long they have become: where free space is in short
    /// runs, messages are flushed. A clone may come in between, and it goes on then; but not for ever, where one follows the other.
    pub(crate) fn shorten_roots(&self) -> Result<()> {
        // On a full volume nobody else does.
        for tree in Tree::ALL.into_iter().filter(|_| !self.damaged.is_empty()) {
            let _token = self.root(tree).maintenance.wait();
            let root = self.root(tree).read().clone();
            self.cut_overfull_edges(&root, &KeyRange::all())?;
        }
        for _ in 0..PAUSES_MAX {
            let flushes = self.stats.flushes.load(Ordering::Relaxed);
            let mut paused = false;
            // Both in each round: while one is flushed the other grows.
            for tree in Tree::ALL {
                if self.roots_find_places() {
                    break;
                }
                let maintenance = &self.root(tree).maintenance;
                let _token = maintenance.wait();
                let root = self.root(tree).read().clone();
                if root.height > 0 {
                    self.relieve(&root, &KeyRange::all())?;
                }
                // To join or to split what is behind the edges of an interior node takes space, and makes its messages no fewer.
                if root.height == 0 || self.has_space_to_flush() {
                    self.fit_root(tree)?;
                }
                paused |= maintenance.is_wanted();
            }
            if !paused && self.stats.flushes.load(Ordering::Relaxed) == flushes {
                break;
            }
        }
        self.wake_turned_away();
        Ok(())
    }

    /// True if the longest runs of free space hold both roots, and what comes into them until the cut.
    fn roots_find_places(&self) -> bool {
        let length = |tree| self.root(tree).read().state.read().write_estimate();
        let roots: usize = Tree::ALL.map(length).iter().sum();
        (roots + self.shape.node_bytes) as u64 <= self.allocator.longest_node_bytes()
    }

    /// True if they hold the roots also with a change of so many bytes in them, as far as can be told without waiting, or these are as short as flushes
    /// make them: then a node's worth more finds a place in any eight runs that are usable.
    pub(crate) fn roots_take(&self, bytes: u64) -> bool {
        let waiting = Tree::ALL.map(|tree| self.root(tree).load(&self.damaged).0);
        let longest = waiting.into_iter().max().unwrap_or(0);
        if longest <= self.shape.node_bytes {
            return true;
        }
        // All that waits behind an edge goes down together, to a node in which two nodes' worth may wait already, and which needs a place, too. Beside
        // messages there are pivots, edges and the ends of parts, and deletes are not asked.
        let roots = waiting.iter().sum::<usize>() + self.shape.node_bytes * 5 / 2;
        longest <= ROOT_NODES_MAX * self.shape.node_bytes
            && roots as u64 + space_for(bytes) <= self.allocator.longest_node_bytes()
    }

    /// Goes on where a clone came before a flush: with the first node in memory in which more messages wait than should. False if
    /// there is none.
    fn relieve_again(&self, tree: Tree) -> Result<bool> {
        let root = self.root(tree).read().clone();
        let found = root.height > 1 && self.relieve_below(&root, &KeyRange::all())?;
        if found {
            // There may be others.
            self.root(tree).unrelieved.store(true, Ordering::Relaxed);
            self.fit_root(tree)?;
        }
        Ok(found)
    }

    fn relieve_below(&self, node: &NodeRef, own: &KeyRange) -> Result<bool> {
        self.load_all(node)?;
        let mut index = 0;
        while index < node.state.read().interior().children.len() {
            match self.relieve_behind(node, own, index) {
                Ok(false) => {}
                // What is behind other edges is no worse for that.
                Err(error) if error.is_unreadable() => {}
                found => return found,
            }
            index += 1;
        }
        Ok(false)
    }

    fn relieve_behind(&self, node: &NodeRef, own: &KeyRange, index: usize) -> Result<bool> {
        let (child, bounds) = {
            let state = node.state.read();
            let edge = &state.interior().children[index];
            // What has been cloned since is relieved when it is copied, and what is not in memory when it is flushed into.
            if edge.id.is_empty() || edge.xf.is_some() || self.is_shared(edge.id) {
                return Ok(false);
            }
            let Some(child) = self.cache.peek(edge.id) else { return Ok(false) };
            let height = state.height - 1;
            child.expect_height(Some(height))?;
            (child, state.interior().bounds_below(index, own)?.0)
        };
        let is_full = || {
            let child = child.state.read();
            // Brought in shape, it may have been joined with the neighbour in front of it, and is no more.
            !child.dropped && self.damaged.movable_bytes(child.interior()) > self.shape.node_bytes
        };
        if is_full() {
            self.bring_in_shape(node, own, index, &child)?;
            // Damage may keep its messages where they are.
            return Ok(!is_full() || self.root(node.tree).maintenance.is_wanted());
        }
        let found = child.height > 1 && self.relieve_below(&child, &bounds)?;
        if found {
            self.bring_in_shape(node, own, index, &child)?;
        }
        Ok(found)
    }

    /// Flushes an edge. If damage behind it is in the way, its messages stay where they are, and queries find them there;
    /// the node is not tried again before the volume is opened anew. False if they stay because the node behind it has no room for them now.
    pub(super) fn flush_around_damage(
        &self,
        node: &NodeRef,
        own: &KeyRange,
        (index, id): (usize, NodeId),
    ) -> Result<bool> {
        let flush = || {
            let has_room = self.make_room_behind(node, own, index)?;
            if has_room {
                self.flush_child(node, own, index)?;
            }
            Ok(has_room)
        };
        flush().or_else(|error| self.give_up_on(id, error).map(|()| true))
    }

    /// True if the node behind an edge may take messages. One in which many more wait than should, because there was no space to bring them
    /// further down, first gets rid of some: with more at each checkpoint it would come to be longer than all free space.
    fn make_room_behind(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<bool> {
        if parent.height < 2 || self.has_space_to_spare() {
            return Ok(true);
        }
        let child = self.child_to_change(parent, own, index)?;
        child.expect_height(Some(parent.height - 1))?;
        let is_overfull = || {
            let waiting = self.damaged.movable_bytes(child.state.read().interior());
            waiting > self.shape.node_bytes * 2
        };
        if is_overfull() {
            let bounds = parent.state.read().interior().bounds_below(index, own)?.0;
            self.relieve(&child, &bounds)?;
        }
        Ok(!is_overfull())
    }

    /// Leaves a node as it is if it cannot be read: nothing is flushed into it, and it is not split, before the volume is opened anew.
    /// Any other error stays one.
    pub(super) fn give_up_on(&self, id: NodeId, error: Error) -> Result<()> {
        if !error.is_unreadable() {
            return Err(error);
        }
        // An edge to nothing stands for many. It leads to a new node by now, which is given up on when it is tried again.
        if !id.is_empty() && self.damaged.insert(id) {
            complain(format_args!(
                "messages for a damaged part of the volume are kept where they are: {error}"
            ));
        }
        Ok(())
    }

    /// Moves the messages of one edge down and brings what is behind it back in shape (BT-6).
    pub(crate) fn flush_child(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<()> {
        if parent.state.read().interior().children[index].buffer_bytes == 0 {
            return Ok(());
        }
        let child = self.child_to_change(parent, own, index)?;
        loop {
            self.load_all(parent)?;
            if let Some(part) = self.part_needed(parent, own, index, &child)? {
                self.fetch(Miss { node: child.id, part: Some(part) })?;
                continue;
            }
            let gate = self.gate.read_recursive();
            let mut above = parent.state.write();
            let mut below = child.state.write();
            let (bounds, prefix) = above.interior().bounds_below(index, own)?;
            // A query may have evicted since what was loaded, and messages may have come.
            if above.missing_part().is_some() {
                continue;
            }
            if missing_below(
                &above.interior().children[index],
                &below,
                above.interior().bounds_of(index, own),
                &prefix,
            )?
            .is_some()
            {
                continue;
            }
            self.mark_dirty(parent, &mut above);
            self.mark_dirty(&child, &mut below);
            let edge_bounds = above.interior().bounds_of(index, own);
            let edge = &mut above.interior_mut().children[index];
            let buffer = std::mem::replace(&mut edge.buffer, Part::new(MessageBuffer::default()));
            let buffer = buffer.into_value().expect("the parent is loaded");
            edge.count_buffer();
            self.account(&mut above);
            drop(above);
            self.stats.flushes.fetch_add(1, Ordering::Relaxed);
            self.stats.flushed_bytes.fetch_add(buffer.bytes() as u64, Ordering::Relaxed);
            let messages = lower(buffer, &edge_bounds, &prefix);
            let may_prune = !messages.ranges.is_empty();
            self.receive(&mut below, messages, &bounds);
            self.account(&mut below);
            drop(below);
            // Pruning may have to read, and a cut would wait for that.
            drop(gate);
            if may_prune {
                self.prune(&child, &bounds)?;
            }
            break;
        }
        self.bring_in_shape(parent, own, index, &child)
    }

    /// Gives messages to a node and settles the counts of what gotos name, before and now.
    pub(crate) fn receive(&self, node: &mut Node, messages: Lowered, bounds: &KeyRange) {
        let targets: Vec<NodeId> = messages.gotos.iter().map(|goto| goto.target).collect();
        let before = match &node.body {
            Body::Interior(interior) if !targets.is_empty() || interior.holds_gotos() => {
                Some([targets, interior.references()].concat())
            }
            _ => None,
        };
        let (placed, freed) = node.body.receive(messages, bounds, &self.shape, node.height);
        placed.into_iter().for_each(|placed| self.stats.count_goto(placed));
        self.ballast.met(freed);
        if let Some(before) = before {
            self.settle(before, node.interior().references());
        }
    }

    /// Cuts off what waiting range deletes cover whole.
    pub(super) fn prune(&self, node: &NodeRef, own: &KeyRange) -> Result<()> {
        loop {
            let gate = self.gate.read_recursive();
            let mut state = node.state.write();
            let Body::Interior(interior) = &state.body else { return Ok(()) };
            // Looked for before the node is marked changed: most flushes prune nothing.
            if !interior.has_covered_edge(own) {
                return Ok(());
            }
            if state.missing_part().is_none() {
                self.prune_loaded(node, &mut state, own);
                return Ok(());
            }
            drop(state);
            drop(gate);
            self.load_all(node)?;
        }
    }

    fn prune_loaded(&self, node: &NodeRef, state: &mut Node, own: &KeyRange) {
        self.mark_dirty(node, state);
        let pruned = state.interior_mut().prune(own);
        self.stats.pruned_subtrees.fetch_add(pruned.len() as u64, Ordering::Relaxed);
        self.let_go(&pruned, node.height);
        self.account(state);
    }

    /// After a flush: empties the child further, splits it or merges it.
    pub(super) fn bring_in_shape(
        &self,
        parent: &NodeRef,
        own: &KeyRange,
        index: usize,
        child: &NodeRef,
    ) -> Result<()> {
        let is_leaf = child.height == 0;
        if !is_leaf {
            let bounds = parent.state.read().interior().bounds_below(index, own)?.0;
            self.relieve(child, &bounds)?;
        }
        let (too_large, too_small) = {
            let state = child.state.read();
            let too_small = match &state.body {
                Body::Leaf(leaf) => leaf.bytes() < self.shape.node_bytes / 4,
                Body::Interior(interior) => self.has_few_edges(interior.children.len()),
            };
            (self.is_too_large(&state.body), too_small)
        };
        if too_large {
            self.split_child(parent, own, index)
        } else if too_small {
            match self.merge_child(parent, own, index) {
                // It is as good as before beside a neighbour that cannot be read.
                Err(error) if error.is_unreadable() => Ok(()),
                done => done,
            }
        } else {
            Ok(())
        }
    }

    /// The node behind an edge, made if the edge leads to nothing, copied if others see it.
    pub(crate) fn child_to_change(&self, parent: &NodeRef, own: &KeyRange, index: usize) -> Result<NodeRef> {
        if !parent.state.read().interior().children[index].id.is_empty() {
            return self.own_child(parent, own, index);
        }
        let _gate = self.gate.read_recursive();
        let mut state = parent.state.write();
        self.mark_dirty(parent, &mut state);
        let height = state.height - 1;
        let full = state.interior().bounds_of(index, own);
        let born = state.interior().children[index].buffer_msn;
        let node = if height == 0 {
            Node::empty_leaf(full, born)
        } else {
            let interior = super::interior::Interior {
                pivots: Vec::new(),
                children: vec![Child::new(NodeId::EMPTY, 0)],
            };
            Node::new(height, Body::Interior(interior), full, born)
        };
        let node = self.add_node(parent.tree, node);
        let edge = &mut state.interior_mut().children[index];
        edge.id = node.id;
        edge.strip = 0;
        self.account(&mut state);
        Ok(node)
    }

    /// The part of the child that the messages of its edge need and that is not in memory.
    pub(super) fn part_needed(
        &self,
        parent: &NodeRef,
        own: &KeyRange,
        index: usize,
        child: &NodeRef,
    ) -> Result<Option<u32>> {
        let above = parent.state.read();
        child.expect_height(Some(above.height - 1))?;
        let below = child.state.read();
        let interior = above.interior();
        let (_, prefix) = interior.bounds_below(index, own)?;
        missing_below(&interior.children[index], &below, interior.bounds_of(index, own), &prefix)
    }

    /// Splits what is too large on the way to a key.
    fn split_on_the_way(&self, tree: Tree, key: &Bytes) -> Result<()> {
        self.fit_root(tree)?;
        let mut node = self.root(tree).read().clone();
        let mut own = KeyRange::all();
        let mut key = key.clone();
        loop {
            if node.height == 0 {
                return Ok(());
            }
            self.load_all(&node)?;
            let (index, id, strip, translated, height) = {
                let state = node.state.read();
                let interior = state.interior();
                let index = interior.index_of(&key);
                let edge = &interior.children[index];
                (index, edge.id, edge.strip as usize, edge.xf.is_some(), state.height - 1)
            };
            // A leaf that has become shared since is split when it is copied.
            if id.is_empty() || translated || self.is_shared(id) {
                return Ok(());
            }
            let child = self.node(id)?;
            child.expect_height(Some(height))?;
            let too_large = self.is_too_large(&child.state.read().body);
            if too_large {
                self.split_child(&node, &own, index)?;
                // The parent may be too large now; the way down begins again above it.
                let full = self.is_too_large(&node.state.read().body);
                if full {
                    self.fit_root(tree)?;
                }
                return Ok(());
            }
            own = node.state.read().interior().bounds_below(index, &own)?.0;
            key = key.slice(strip.min(key.len())..);
            node = child;
        }
    }

    /// Gives a tree a higher root when the old one is too large, a lower one when the old one has a single edge and what is behind it can
    /// be read.
    pub(super) fn fit_root(&self, tree: Tree) -> Result<bool> {
        let node = self.root(tree).read().clone();
        let (too_large, single) = {
            let state = node.state.read();
            let single = matches!(&state.body, Body::Interior(interior) if interior.children.len() == 1);
            (self.is_too_large(&state.body), single)
        };
        // FMT-23: only a crafted volume comes to this height.
        let too_large = too_large
            && node.height < HEIGHT_MAX
            && (node.height == 0 || self.merge_children(&node, &KeyRange::all())?);
        if too_large {
            {
                let _gate = self.gate.read_recursive();
                let mut root = self.root(tree).write();
                let state = node.state.read();
                let above = self.add_root(tree, root_above(&node, state.height + 1, state.born));
                drop(state);
                TreeRoot::replace(&mut root, above);
            }
            let above = self.root(tree).read().clone();
            self.split_child(&above, &KeyRange::all(), 0).or_else(|error| self.give_up_on(node.id, error))?;
        } else if single {
            let child = node.state.read().interior().children[0].id;
            let barred = &self.root(tree).barred;
            if child.is_empty() || NodeId(barred.load(Ordering::Relaxed)) != child {
                match self.lower_root(tree, &node) {
                    Err(error) if error.is_unreadable() => barred.store(child.0, Ordering::Relaxed),
                    done => done?,
                }
            }
        }
        Ok(too_large)
    }
}

/// The part of a node that an edge's messages need and that is not in memory. An interior node is needed whole.
fn missing_below(edge: &Child, below: &Node, bounds: KeyRange, prefix: &[u8]) -> Result<Option<u32>> {
    let buffer = edge.buffer.get();
    edge.expect_messages_inside(&bounds)?;
    let Body::Leaf(leaf) = &below.body else { return Ok(below.missing_part()) };
    let Some(buffer) = buffer else { return Ok(None) };
    let ranges: Vec<_> = buffer
        .ranges()
        .iter()
        .map(|(range, _)| super::lifting::range_below(range, &bounds, prefix))
        .collect();
    let keys = buffer.keyed().map(|(key, _, _)| &key[prefix.len()..]);
    Ok(leaf.missing_for(&ranges, keys))
}
