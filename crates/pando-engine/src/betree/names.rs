//! What the nodes on a way down call their keys. Lifting shortens names; a goto or xf changes how they begin (THESIS 4).

use std::borrow::Cow;

use bytes::Bytes;
use pando_format::{Bound, HEIGHT_MAX, KEY_LENGTH_MAX, KeyRange};

use super::lifting::edge_prefix;

/// Bytes of what a node may call a key: as if each way down put a key's worth in front of it. Names of what nobody can ask for any more, since ranges moved and were cloned
/// often, may be longer than a key, but nowhere near as long.
pub(crate) const NAMES_LENGTH_MAX: usize = (HEIGHT_MAX as usize + 1) * KEY_LENGTH_MAX;

/// What a node calls its keys: a full key begins with `prefix`, and the node has `local` in the place of it. Only below an xf
/// or a goto is `local` not empty.
#[derive(Clone)]
pub(crate) struct Names {
    /// See there.
    pub(crate) prefix: Bytes,
    /// See there.
    pub(crate) local: Bytes,
}

impl Names {
    /// The names of a root: full keys.
    pub(crate) fn root() -> Self {
        Self { prefix: Bytes::new(), local: Bytes::new() }
    }

    /// A bound between full keys as the node has it.
    pub(crate) fn to_local(&self, bound: &Bound) -> Bound {
        let rest = bound.strip(&self.prefix);
        if self.local.is_empty() { rest } else { rest.prepend(&self.local) }
    }

    /// A bound between the node's keys, for full ones.
    pub(crate) fn to_full(&self, bound: &Bound) -> Bound {
        let rest = if self.local.is_empty() { bound.clone() } else { bound.strip(&self.local) };
        rest.prepend(&self.prefix)
    }

    /// A range of full keys as the node has it.
    pub(crate) fn range_to_local(&self, range: &KeyRange) -> KeyRange {
        KeyRange::new(self.to_local(&range.lower), self.to_local(&range.upper))
    }

    /// A range of the node's keys as full ones.
    pub(crate) fn range_to_full(&self, range: &KeyRange) -> KeyRange {
        KeyRange::new(self.to_full(&range.lower), self.to_full(&range.upper))
    }

    /// A full key as the node has it.
    pub(crate) fn key_to_local<'a>(&self, key: &'a [u8]) -> Cow<'a, [u8]> {
        let rest = &key[self.prefix.len()..];
        if self.local.is_empty() { Cow::Borrowed(rest) } else { Cow::Owned([&self.local, rest].concat()) }
    }

    /// The names of a node below a way that takes off `strip` bytes and puts `prepend` there, for the node's keys in `bounds`;
    /// `None` if they do not share what is taken off, or are longer than so many ways can make them, which only damage can bring about.
    pub(crate) fn below(&self, bounds: &KeyRange, strip: usize, prepend: &[u8]) -> Option<Self> {
        let gone = edge_prefix(bounds, strip)?;
        let own = self.local.len();
        let prefix = match gone.get(own..) {
            None | Some([]) => self.prefix.clone(),
            Some(lifted) => [&self.prefix, lifted].concat().into(),
        };
        let kept = &self.local[strip.min(own)..];
        let names = Self { prefix, local: [prepend, kept].concat().into() };
        (names.prefix.len().max(names.local.len()) <= NAMES_LENGTH_MAX).then_some(names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_way_makes_names_longer_for_ever() {
        let long = vec![b'z'; KEY_LENGTH_MAX];
        let below = |names: &Names| names.below(&KeyRange::all(), 0, &long);
        let ways = std::iter::successors(Some(Names::root()), below).count() - 1;
        assert_eq!(ways, usize::from(HEIGHT_MAX) + 1);
    }
}
