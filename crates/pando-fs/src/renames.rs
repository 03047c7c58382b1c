//! Pairs of names that have gone and names that have come and lead to the same inode: renames.
//!
//! Where directories come or go, only the topmost is known at first. What finds its other half is compared inside, under both
//! its paths; of what does not, the directories are opened, those that were born later first, since nothing can be their other half, and the
//! search goes on with what is in them. Names of a file with several links are a pair only if one has gone and one has come: with more, which
//! became which cannot be told.

use std::collections::{BTreeMap, HashMap, HashSet};

use bytes::Bytes;

use crate::Result;
use crate::difference::{Entry, Found, Identity, Walk, What, path_of, shown_path, subtree};
use crate::operations::FileType;
use crate::schema::{Timestamp, key};

/// A file that has moved is sent as that if it is so large; smaller ones need not be remembered.
const MOVED_FILE_BYTES: u64 = 64 << 10;

/// A name that is there on one side only.
#[derive(Debug, Clone)]
pub(crate) struct Gone {
    pub(crate) path_key: Bytes,
    pub(crate) found: Found,
}

impl Gone {
    fn is_worth_a_move(&self) -> bool {
        let Found { record, linked, .. } = &self.found;
        match record.file_type {
            FileType::Directory => true,
            FileType::Regular => !linked && record.size >= MOVED_FILE_BYTES,
            _ => false,
        }
    }
}

/// What has become of directories and large files; by their path keys.
#[derive(Debug, Default)]
pub(crate) struct FoundMoves {
    /// Old and new place.
    pub(crate) moved: Vec<(FileType, [Bytes; 2])>,
    /// On the old side only.
    pub(crate) gone: Vec<(FileType, Bytes)>,
}

/// What is kept of it.
struct Kept {
    gone: Gone,
    /// What lies in it is among the names.
    opened: bool,
}

/// What is known while renames are looked for.
#[derive(Default)]
pub(crate) struct Pairs {
    /// On the old side only, and on the new side only, by what they lead to.
    names: [BTreeMap<Identity, Vec<Kept>>; 2],
    /// Those that may be pairs.
    ready: Vec<Identity>,
    /// When the old side was.
    taken: Option<Timestamp>,
    /// Directories that have not been opened.
    closed: [Vec<Identity>; 2],
    /// Those of the new side that were born later than the old side.
    closed_later: Vec<Identity>,
    /// The old paths of directories that were renamed, by their new ones.
    renamed: HashMap<Bytes, Bytes>,
    /// Only directories and large files are looked at; what has become of them is kept.
    moves: Option<FoundMoves>,
    /// Path keys, on either side, that have been told of: one half of a rename is met again where the directory above is compared later, and
    /// names of a file with several links where it has changed.
    told: [HashSet<Bytes>; 2],
}

impl Pairs {
    pub(crate) fn new(taken: Option<Timestamp>) -> Self {
        Self { taken, ..Self::default() }
    }

    /// What finds nothing but the moves that are worth sending.
    pub(crate) fn of_moves(taken: Option<Timestamp>) -> Self {
        Self { taken, moves: Some(FoundMoves::default()), ..Self::default() }
    }

    pub(crate) fn into_moves(self) -> FoundMoves {
        self.moves.unwrap_or_default()
    }

    pub(crate) fn add(&mut self, side: usize, gone: Gone) {
        if self.told[side].contains(&gone.path_key) || self.moves.is_some() && !gone.is_worth_a_move() {
            return;
        }
        let identity = gone.found.identity;
        self.ready.push(identity);
        if gone.found.record.file_type == FileType::Directory {
            let when = |time: Timestamp| (time.seconds, time.nanoseconds);
            let born = when(gone.found.record.born);
            let later = side == 1 && self.taken.is_some_and(|taken| born > when(taken));
            let closed = if later { &mut self.closed_later } else { &mut self.closed[side] };
            closed.push(identity);
        }
        self.names[side].entry(identity).or_default().push(Kept { gone, opened: false });
    }

    /// The only two names of an inode, if it has one on each side.
    fn take_pair(&mut self, identity: &Identity, linked: bool) -> Option<[Kept; 2]> {
        let one = |side: usize| match self.names[side].get(identity).map(Vec::as_slice) {
            Some([kept]) if linked || !kept.gone.found.linked => Some(()),
            _ => None,
        };
        one(0).and(one(1))?;
        let pair = [0, 1].map(|side| self.names[side].remove(identity)?.pop());
        match pair {
            [Some(old), Some(new)] => Some([old, new]),
            _ => None,
        }
    }

    /// Forgets what was found in a directory on one side.
    fn forget_below(&mut self, side: usize, path_key: &[u8]) {
        let (subtree, children) = (subtree(path_key), key::children_prefix(&path_of(path_key)));
        self.names[side].retain(|_, kept| {
            kept.retain(|kept| {
                !kept.gone.path_key.starts_with(&subtree) && !kept.gone.path_key.starts_with(&children)
            });
            !kept.is_empty()
        });
    }

    /// Whether a name of the new side is one that has come, or the new one of a rename.
    pub(crate) fn is_told(&self, new_key: &[u8]) -> bool {
        self.told[1].contains(new_key)
    }

    /// Takes the names that are where they were, on both sides, of files that have several or had.
    fn take_in_place(&mut self) -> Vec<[Gone; 2]> {
        let [old, new] = &self.names;
        let on_both: Vec<_> = new.keys().filter(|identity| old.contains_key(identity)).copied().collect();
        let mut in_place = Vec::new();
        for identity in on_both {
            let [old, new] = [0, 1].map(|side| self.names[side].remove(&identity).unwrap_or_default());
            let mut old: BTreeMap<_, _> =
                old.into_iter().map(|kept| (kept.gone.path_key.clone(), kept)).collect();
            let mut left = Vec::new();
            for kept in new {
                let is_several = |old: &Kept| old.gone.found.linked || kept.gone.found.linked;
                let before = self.old_key(&kept.gone.path_key);
                match old.remove(&before) {
                    Some(before) if is_several(&before) => in_place.push([before.gone, kept.gone]),
                    other => {
                        old.extend(other.map(|other| (before, other)));
                        left.push(kept);
                    }
                }
            }
            for (names, left) in self.names.iter_mut().zip([old.into_values().collect(), left]) {
                if !left.is_empty() {
                    names.insert(identity, left);
                }
            }
        }
        in_place
    }

    /// Where a name of the new side was before the directories above it were renamed.
    pub(crate) fn old_key(&self, new_key: &Bytes) -> Bytes {
        // The nearest first: each has been compared under both its paths.
        let above = new_key.iter().enumerate().rev().filter(|(_, byte)| **byte == 0);
        let moved = above.map(|(end, _)| new_key.split_at(end)).find_map(|(new, rest)| {
            let old = self.renamed.get(new)?;
            Some([old, rest].concat().into())
        });
        moved.unwrap_or_else(|| new_key.clone())
    }
}

impl Walk<'_> {
    /// Finds the renames among the names that have come and gone, and tells of all of them.
    pub(crate) fn pair(&mut self) -> Result<()> {
        if self.pairs.is_none() {
            return Ok(());
        }
        loop {
            while let Some(identity) = self.pairs().ready.pop() {
                if let Some(pair) = self.pairs().take_pair(&identity, false) {
                    self.renamed(pair)?;
                }
            }
            if !self.open_one()? {
                break;
            }
        }
        if self.pairs().moves.is_some() {
            let [old, _] = std::mem::take(&mut self.pairs().names);
            let gone = old.into_values().flatten().map(|kept| kept.gone);
            let gone = gone.map(|gone| (gone.found.record.file_type, gone.path_key));
            if let Some(moves) = &mut self.pairs().moves {
                moves.gone.extend(gone);
            }
            return Ok(());
        }
        self.in_place()?;
        let several: Vec<_> = self.pairs().names[0].keys().copied().collect();
        for identity in several {
            if let Some(pair) = self.pairs().take_pair(&identity, true) {
                self.renamed(pair)?;
            }
        }
        for (side, what) in [(0, What::Deleted), (1, What::Created)] {
            let names = std::mem::take(&mut self.pairs().names[side]);
            let mut left: Vec<_> = names.into_values().flatten().map(|kept| kept.gone).collect();
            left.sort_by_cached_key(|gone| path_of(&gone.path_key));
            for gone in left {
                let file_type = gone.found.record.file_type;
                (self.emit)(&Entry::whole(what.clone(), shown_path(&gone.path_key), file_type))?;
                if side == 1 && gone.found.linked {
                    self.pairs().told[side].insert(gone.path_key);
                }
            }
        }
        Ok(())
    }

    /// Takes out names of files with several links that lead to the same inode on both sides: they lie in directories that have come and gone.
    fn in_place(&mut self) -> Result<()> {
        for [old, new] in self.pairs().take_in_place() {
            // Others are told of by [`Walk::linked`].
            if !(old.found.linked && new.found.linked) {
                let path = shown_path(&new.path_key);
                self.changed(&old.found.record, &new.found.record, &path, What::Changed)?;
            }
        }
        Ok(())
    }

    fn pairs(&mut self) -> &mut Pairs {
        self.pairs.as_mut().expect("renames are looked for")
    }

    fn renamed(&mut self, pair: [Kept; 2]) -> Result<()> {
        let is_directory = pair[1].gone.found.record.file_type == FileType::Directory;
        for (side, kept) in pair.iter().enumerate().filter(|(_, kept)| kept.opened) {
            self.pairs().forget_below(side, &kept.gone.path_key);
        }
        let [old, new] = pair.map(|kept| kept.gone);
        for (told, gone) in self.pairs().told.iter_mut().zip([&old, &new]) {
            told.insert(gone.path_key.clone());
        }
        if let Some(moves) = &mut self.pairs().moves {
            let file_type = new.found.record.file_type;
            moves.moved.push((file_type, [old.path_key.clone(), new.path_key.clone()]));
        }
        let what = What::Renamed(shown_path(&old.path_key));
        if old.path_key != new.path_key {
            self.changed(&old.found.record, &new.found.record, &shown_path(&new.path_key), what)?;
        } else {
            let path = shown_path(&new.path_key);
            self.changed(&old.found.record, &new.found.record, &path, What::Changed)?;
        }
        if is_directory {
            let paths = [path_of(&old.path_key), path_of(&new.path_key)];
            self.pairs().renamed.insert(paths[1].clone(), paths[0].clone());
            self.below(paths)?;
        }
        Ok(())
    }

    /// Adds the names in a directory that has no other half so far; false if there is none left.
    fn open_one(&mut self) -> Result<bool> {
        let pairs = self.pairs();
        let (side, identity) = match (pairs.closed_later.pop(), pairs.closed[0].pop()) {
            (Some(later), old) => {
                pairs.closed[0].extend(old);
                (1, later)
            }
            (None, Some(old)) => (0, old),
            (None, None) => match pairs.closed[1].pop() {
                Some(new) => (1, new),
                None => return Ok(false),
            },
        };
        let Some(kept) = pairs.names[side].get_mut(&identity).and_then(|names| names.first_mut()) else {
            return Ok(true);
        };
        // It was forgotten with what lies above, and found again by another way.
        if kept.opened {
            return Ok(true);
        }
        kept.opened = true;
        let children = key::children_prefix(&path_of(&kept.gone.path_key));
        self.list(side, &children, |walk, gone| {
            walk.pairs().add(side, gone);
            Ok(())
        })?;
        Ok(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_renamed_directory_tells_where_a_name_was() {
        let renamed = [("\0b", "\0a"), ("\0b\0d", "\0c"), ("\0x\0y", "\0z")];
        let renamed = renamed.map(|(new, old)| (Bytes::from(new), Bytes::from(old)));
        let pairs = Pairs { renamed: renamed.into(), ..Pairs::default() };
        let was = |path, name| pairs.old_key(&key::child_key(path, name));
        assert_eq!(was(b"\0b", b"n"), key::child_key(b"\0a", b"n"));
        assert_eq!(was(b"\0b\0e", b"n"), key::child_key(b"\0a\0e", b"n"));
        assert_eq!(was(b"\0b\0d\0f", b"n"), key::child_key(b"\0c\0f", b"n"));
        for path in [&b""[..], b"\0bb", b"\0x", b"\0y"] {
            assert_eq!(was(path, b"b"), key::child_key(path, b"b"));
        }
    }
}
