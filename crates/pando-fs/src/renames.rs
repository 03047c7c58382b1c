//! Pairs of names that have gone and names that have come and lead to the same inode: renames.
//!
//! Where directories come or go, only the topmost is known at first. What finds its other half is compared inside, under both
//! its paths; of what does not, the directories are opened, those that were born later first, since nothing can be their other half, and the
//! search goes on with what is in them. Names of a file with several links are a pair only if one has gone and one has come: with more, which
//! became which cannot be told.

use std::collections::{BTreeMap, HashSet};

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
    /// New and old paths of directories that were renamed.
    renamed: Vec<(Bytes, Bytes)>,
    /// Only directories and large files are looked at; what has become of them is kept.
    moves: Option<FoundMoves>,
    /// Path keys, on either side, that are one half of a rename: they are met again where the directory above is compared later.
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

    /// Where a name of the new side was before the directories above it were renamed.
    pub(crate) fn old_key(&self, new_key: &Bytes) -> Bytes {
        let above = self
            .renamed
            .iter()
            .filter(|(new, _)| new_key.starts_with(new) && new_key.get(new.len()) == Some(&0));
        match above.max_by_key(|(new, _)| new.len()) {
            Some((new, old)) => [&old[..], &new_key[new.len()..]].concat().into(),
            None => new_key.clone(),
        }
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
            self.pairs().renamed.push((paths[1].clone(), paths[0].clone()));
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
