//! What has moved between a base and a snapshot, for a stream: so that a receiver takes it from its base.
//!
//! A [`Move`] says that the keys at a place of the snapshot are at first those at a place of the base, which stays as it is; so the order of the
//! moves says only which of two places that lie in each other holds. The changes of a stream begin from there, whatever the moves say: a move
//! that was not found, or that is none, makes a stream longer and never wrong.
//!
//! [`crate::renames`] finds the moves.

use std::collections::BTreeMap;

use bytes::Bytes;
use pando_engine::{Bound, KeyRange, Tree};
use pando_format::send_stream::{Move, Moved};

use crate::difference::{TreeSide, Walk, path_of};
use crate::operations::FileType;
use crate::schema::key;
use crate::{FileSystem, Result};

/// Ranges of a tree that lie, or lay, at one place: index and prefix.
pub(crate) fn ranges(what: Moved, place: &Bytes) -> Vec<(Tree, Bytes)> {
    match what {
        Moved::Directory => {
            let subtree = key::subtree_prefix(place);
            vec![
                (Tree::Metadata, subtree.clone()),
                (Tree::Metadata, key::link_name_key(&subtree)),
                (Tree::Data, subtree),
            ]
        }
        Moved::File => vec![(Tree::Data, key::data_prefix(place))],
    }
}

/// Whether this can be a place.
pub(crate) fn is_place(what: Moved, place: &[u8]) -> bool {
    if place.len() > key::METADATA_KEY_LENGTH_MAX {
        return false;
    }
    match what {
        Moved::Directory => !place.is_empty() && key::is_path(place),
        Moved::File => key::split_path_key(place).is_some(),
    }
}

/// The moves from a base to a snapshot, outer places before those in them.
pub(crate) fn find(fs: &FileSystem, base: &TreeSide, new: &TreeSide) -> Result<Vec<Move>> {
    let side = |side: &TreeSide| TreeSide::new(side.prefix.clone(), side.snapshot.clone());
    let found = Walk::moves(fs, [side(base), side(new)])?;
    let is_directory = |file_type: FileType| file_type == FileType::Directory;
    let kind = |file_type| if is_directory(file_type) { Moved::Directory } else { Moved::File };
    // Where directories are now, by the subtrees that they were.
    let mut came_to: BTreeMap<Bytes, Bytes> = BTreeMap::new();
    for (_, [old, new]) in found.moved.iter().filter(|(file_type, _)| is_directory(*file_type)) {
        came_to.insert(key::subtree_prefix(&path_of(old)), key::subtree_prefix(&path_of(new)));
    }
    // By what their keys begin with, which brings outer places before inner ones; with what those of the base begin with.
    let mut moves: BTreeMap<Bytes, (Move, Bytes)> = BTreeMap::new();
    let mut add = |moved: Move, was: &Bytes| {
        let prefix = |place| ranges(moved.what, place).pop().expect("each kind of move has data").1;
        moves.insert(prefix(&moved.to), (moved.clone(), prefix(was)));
    };
    // What is there no more first: what has come to its place since holds.
    let left = found.moved.iter().map(|(file_type, [old, _])| (*file_type, old));
    for (file_type, old) in left.chain(found.gone.iter().map(|(file_type, old)| (*file_type, old))) {
        let was = if is_directory(file_type) { path_of(old) } else { old.clone() };
        add(Move { what: kind(file_type), from: None, to: carried(&came_to, &was) }, &was);
    }
    for (file_type, [old, new]) in &found.moved {
        let places = [old, new].map(|key| if is_directory(*file_type) { path_of(key) } else { key.clone() });
        let [was, to] = places;
        add(Move { what: kind(*file_type), from: Some(was.clone()), to }, &was);
    }
    // What does not come along needs not be taken away.
    let mut open: Vec<(Bytes, Option<Bytes>)> = Vec::new();
    moves.retain(|prefix, (moved, was)| {
        while open.last().is_some_and(|(outer, _)| !prefix.starts_with(outer)) {
            open.pop();
        }
        let comes_from = match open.last() {
            None => Some(prefix.clone()),
            Some((to, from)) => from.as_ref().map(|from| [from, &prefix[to.len()..]].concat().into()),
        };
        let is_needed = moved.from.is_some() || comes_from.as_ref() == Some(was);
        if is_needed {
            open.push((prefix.clone(), moved.from.is_some().then(|| was.clone())));
        }
        is_needed
    });
    Ok(moves.into_values().map(|(moved, _)| moved).collect())
}

/// Where a place of the base comes to with the innermost directory above it that has moved.
fn carried(came_to: &BTreeMap<Bytes, Bytes>, place: &Bytes) -> Bytes {
    let ends = place.iter().enumerate().skip(1).filter(|(_, byte)| **byte == 0).map(|(at, _)| at + 1);
    let above = ends.rev().find_map(|end| came_to.get(&place[..end]).map(|to| (to, end)));
    above.map_or(place.clone(), |(to, end)| [&to[..], &place[end..]].concat().into())
}

/// A part of the keys of a tree, and where in the base they come from.
pub(crate) struct Segment {
    /// What the keys begin with in the snapshot.
    pub(crate) to: Bytes,
    /// What they begin with in the base, if they are there.
    pub(crate) from: Option<Bytes>,
    /// The part, without what they begin with.
    pub(crate) part: KeyRange,
}

/// All keys of a tree that begin so, in parts that come from one place each.
pub(crate) fn segments(tree: Tree, whole: &Bytes, moves: &[Move]) -> Vec<Segment> {
    let mut places: Vec<(Bytes, Option<Bytes>)> = Vec::new();
    for Move { what, from, to } in moves {
        let from = from.as_ref().map(|from| ranges(*what, from));
        for (index, (of, to)) in ranges(*what, to).into_iter().enumerate() {
            if of == tree && to.starts_with(whole) {
                places.push((to, from.as_ref().map(|from| from[index].1.clone())));
            }
        }
    }
    places.sort();
    let mut segments = Vec::new();
    let mut lower = Bound::before(whole.clone());
    let mut cut = |(to, from): &(Bytes, Option<Bytes>), upper: Bound| {
        let part = KeyRange::new(lower.strip(to), upper.strip(to));
        lower = upper;
        if !part.is_empty() {
            segments.push(Segment { to: to.clone(), from: from.clone(), part });
        }
    };
    let mut open = vec![(whole.clone(), Some(whole.clone()))];
    for place in places {
        while let Some(outer) = open.pop_if(|outer| !place.0.starts_with(&outer.0)) {
            cut(&outer, Bound::after(outer.0.clone()));
        }
        if let Some(outer) = open.last() {
            cut(outer, Bound::before(place.0.clone()));
        }
        open.push(place);
    }
    while let Some(outer) = open.pop() {
        cut(&outer, Bound::after(outer.0.clone()));
    }
    segments
}
