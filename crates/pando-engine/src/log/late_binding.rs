//! Which values the log leaves out: runs of blocks that fill at least half of a leaf which is written now anyway.
//!
//! FAST16 section 3: a large write would go to the device twice, in the log and in its leaf. When a batch is written, each
//! leaf that holds enough of the batch's runs is written first, and binding records say where in it the bytes lie.

use pando_format::Lsn;
use pando_format::log_record::Binding;

use super::batch::{Binder, Record};
use crate::Result;
use crate::volume::Volume;

impl Binder for Volume {
    fn bind(&self, _first: Lsn, _records: &[Record]) -> Result<Vec<Binding>> {
        Ok(Vec::new())
    }
}
