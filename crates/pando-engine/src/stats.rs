//! Counters of an open volume, since it was opened.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Error;
use crate::betree::interior::Placed;
use crate::cache::write_back::Cause;

/// Adds to a count that the bytes of a volume may bring to its end.
pub(crate) fn add_up(count: &AtomicU64, more: u64) {
    if more == 0 {
        // Most changes free nothing, and other cores use the count.
        return;
    }
    let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |sum| Some(sum.saturating_add(more)));
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Live counters, changed without order.
        #[derive(Debug, Default)]
        pub(crate) struct Counters {
            $($(#[$doc])* pub(crate) $name: AtomicU64,)*
        }

        /// The counters at one instant, and what else describes a running volume.
        #[derive(Debug, Clone, Default, PartialEq, Eq)]
        pub struct Stats {
            $($(#[$doc])* pub $name: u64,)*
            /// Nodes that nothing names any more and that wait to be taken apart.
            pub nodes_doomed: u64,
            /// Memory of the node cache, in bytes.
            pub cache_bytes: u64,
            /// Memory that it may use, in bytes.
            pub cache_bytes_max: u64,
            /// What writing back all dirty nodes would take, in bytes.
            pub dirty_bytes: u64,
            /// The last LSN given out.
            pub last_lsn: u64,
            /// The last LSN known to be durable in the log.
            pub durable_lsn: u64,
            /// Bytes of the log that a recovery would read.
            pub log_used_bytes: u64,
            /// Bytes of the log region.
            pub log_capacity_bytes: u64,
            /// Bytes written to the log.
            pub log_bytes: u64,
        }

        impl Counters {
            /// What the counters say now; the rest is for the caller to fill in.
            pub(crate) fn read(&self) -> Stats {
                Stats { $($name: self.$name.load(Ordering::Relaxed),)* ..Stats::default() }
            }
        }

        impl Stats {
            /// Every number with its name, for output.
            pub fn named(&self) -> Vec<(&'static str, u64)> {
                vec![
                    $((stringify!($name), self.$name),)*
                    ("nodes_doomed", self.nodes_doomed),
                    ("cache_bytes", self.cache_bytes),
                    ("cache_bytes_max", self.cache_bytes_max),
                    ("dirty_bytes", self.dirty_bytes),
                    ("last_lsn", self.last_lsn),
                    ("durable_lsn", self.durable_lsn),
                    ("log_used_bytes", self.log_used_bytes),
                    ("log_capacity_bytes", self.log_capacity_bytes),
                    ("log_bytes", self.log_bytes),
                ]
            }
        }
    };
}

counters! {
    /// Batches applied.
    batches,
    /// Bytes of keys and values that came with them.
    bytes_in,
    /// Point queries, also those that missed.
    gets,
    /// Range queries, also those that missed.
    scans,
    /// Queries that had to wait for the device.
    misses,
    /// Messages that came into a root.
    messages,
    /// Messages that went straight to a leaf instead.
    straight_messages,
    /// Buffers moved down one level.
    flushes,
    /// Memory of the messages in them, in bytes.
    flushed_bytes,
    /// Ranges moved or cloned by gotos.
    ranges_cloned,
    /// Ranges moved or cloned by copying, because they were small.
    ranges_copied,
    /// Gotos that came one level down without becoming edges.
    gotos_flushed,
    /// Gotos that became edges to their targets.
    gotos_converted,
    /// Those among them that took the place of several edges.
    gotos_spanning,
    /// Nodes copied before a change because they had other names.
    shared_nodes_copied,
    /// Nodes split.
    splits,
    /// Nodes merged.
    merges,
    /// Subtrees cut off unread.
    pruned_subtrees,
    /// Nodes taken apart and freed because nothing named them any more.
    nodes_reclaimed,
    /// Node headers read.
    nodes_read,
    /// Reads of parts of nodes.
    parts_read,
    /// Those among them that were made ahead of who needs the parts.
    parts_read_ahead,
    /// Bytes read from the device for nodes.
    bytes_read,
    /// Reads of nodes and parts that failed: the device gave an error, or what lay there is damaged.
    reads_failed,
    /// Nodes written.
    nodes_written,
    /// Bytes written for checkpoints: nodes.
    checkpoint_bytes,
    /// Bytes written to make room in memory.
    eviction_bytes,
    /// Bytes written to bind runs of the log to their places in nodes.
    binding_bytes,
    /// Bytes written for block table pages and superblocks.
    table_bytes,
    /// Bytes discarded.
    discarded_bytes,
    /// Requests for durability.
    syncs,
    /// Checkpoints completed.
    checkpoints,
    /// Time of all checkpoints, in microseconds.
    checkpoint_micros,
    /// Time for which the cut of the last checkpoint held back operations, in microseconds.
    cut_micros,
    /// Runs left out of the log by late binding.
    runs_bound,
    /// Records replayed when the volume was opened.
    records_replayed,
    /// Runs that the replay read from where late binding had left them.
    bound_runs_replayed,
}

impl Counters {
    /// Counts a goto that came down.
    pub(crate) fn count_goto(&self, placed: Placed) {
        if placed == Placed::Waiting {
            self.gotos_flushed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.gotos_converted.fetch_add(1, Ordering::Relaxed);
        if placed == Placed::EdgeForSeveral {
            self.gotos_spanning.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a read that failed, if it did because of what was read.
    pub(crate) fn count_failed_read(&self, error: &Error) {
        if error.is_unreadable() {
            self.reads_failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Counts a node written.
    pub(crate) fn count_written(&self, cause: Cause, bytes: u64) {
        self.nodes_written.fetch_add(1, Ordering::Relaxed);
        let counter = match cause {
            Cause::Checkpoint => &self.checkpoint_bytes,
            Cause::Eviction => &self.eviction_bytes,
            Cause::Binding => &self.binding_bytes,
        };
        counter.fetch_add(bytes, Ordering::Relaxed);
    }
}
