//! Where nodes lie on the device: free space, and the table from node ids to places.
//!
//! Data path: a checkpoint or write-back asks the [`allocator`] for a place, writes the node there and
//! records the place in the [`block_table`]. The place a node had before stays untouched until the checkpoint
//! is durable.
//!
//! * CP-1 nothing reachable from the last durable checkpoint, or named by a binding record after it, is
//!   overwritten or discarded before the next one is durable.
//! * SP-2 every byte of the node space is free, deferred, or in use by exactly one node or table page.
//!
//! [`allocator::Allocator`] is the wall behind which placement can change: nothing outside this folder knows
//! how free space is kept, so zones can take the place of free extents.

pub(crate) mod allocator;
pub(crate) mod block_table;
pub(crate) mod free_map;
mod table_store;

#[cfg(test)]
mod allocator_tests;
#[cfg(test)]
mod block_table_tests;
