//! The redo log: logical operations in LSN order, durable before the trees are.
//!
//! Data path: `Engine::apply` appends a record under its sequencer and goes on; the record waits in memory
//! ([`redo_log`]). When enough has gathered, when a second has passed or on fsync, records are packed into
//! batches ([`batch`]) and written to a circular [`region`]; fsync adds one device flush for all callers that
//! wait. After a crash [`replay`] gives the records back.
//!
//! * LOG-1 a batch is never rewritten, and no block of the region is written again before a durable
//!   checkpoint has made its records unnecessary.
//! * LOG-2 records are in LSN order without gaps, so what replay finds is a prefix of the operations.
//! * LOG-3 a batch is believed only if volume, epoch, sequence, checksum, and the checksum of the batch
//!   before it agree. Recovery starts a new epoch, so batches that lie behind a hole can never come back.
//! * LOG-4 after a failed write or flush nothing is acknowledged any more.
//!
//! Lock order: nothing is locked under the log's mutex but the signals. It is never held across device I/O.

pub(crate) mod batch;
pub(crate) mod late_binding;
pub(crate) mod redo_log;
mod region;
pub(crate) mod replay;

#[cfg(test)]
mod late_binding_tests;
#[cfg(test)]
mod redo_log_tests;
#[cfg(test)]
mod replay_tests;
