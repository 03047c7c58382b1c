//! The lifted Be-tree: messages, nodes, flush, split and merge, queries, range operations.

pub(crate) mod ballast;
pub(crate) mod compare;
#[cfg(test)]
mod damage_tests;
pub(crate) mod damaged;
pub(crate) mod entries;
mod flush;
pub(crate) mod heal;
#[cfg(test)]
mod heal_tests;
pub(crate) mod interior;
pub(crate) mod leaf;
pub(crate) mod lifting;
pub(crate) mod merge;
pub(crate) mod message_buffer;
#[cfg(test)]
mod message_buffer_tests;
pub(crate) mod names;
pub(crate) mod node;
pub(crate) mod part;
pub(crate) mod query;
pub(crate) mod range_clone;
#[cfg(test)]
mod range_clone_tests;
pub(crate) mod scan;
pub(crate) mod sharing;
pub(crate) mod sink;
#[cfg(test)]
mod sink_tests;
pub(crate) mod split;
mod straight;
#[cfg(test)]
mod straight_tests;
pub(crate) mod token;
#[cfg(test)]
mod token_tests;
pub(crate) mod tree;
#[cfg(test)]
mod unreadable_tests;
