//! What a range query or a comparison asks for and gives back.

use bytes::Bytes;

use crate::KeyRange;

/// When a scan stops before its range is done.
#[derive(Debug, Clone, Copy)]
pub struct ScanLimit {
    /// Pairs at most.
    pub entries: usize,
    /// Stops after the pair with which keys and values reach this many bytes.
    pub bytes: usize,
}

/// A piece of a range, in rising order.
#[derive(Debug, Default)]
pub struct Scan {
    /// Keys and values. May be empty although `rest` is not: a scan looks at a bounded part of the tree.
    pub entries: Vec<(Bytes, Bytes)>,
    /// What is left of the range; `None` if it is done.
    pub rest: Option<KeyRange>,
}

/// A key whose value differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// The key, without the prefixes whose keys are compared.
    pub key: Bytes,
    /// Its value below the first prefix; `None` if it has none.
    pub old: Option<Bytes>,
    /// Its value below the second prefix.
    pub new: Option<Bytes>,
}

/// A piece of what differs, in rising order.
#[derive(Debug, Default)]
pub struct Comparison {
    /// May be empty although `rest` is not: a step looks at a bounded part of the tree.
    pub differences: Vec<Difference>,
    /// What is left of the range; `None` if it is done.
    pub rest: Option<KeyRange>,
}
