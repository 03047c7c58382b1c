//! Who uses the space: the live tree and each snapshot, alone or together.

use pando_engine::{Bound, KeyRange, OwnerUsage};

use crate::operations::waiting;
use crate::schema::key;
use crate::{FileSystem, Result, Snapshot};

/// How often a count begins anew because snapshots came or went meanwhile.
const TRIES: usize = 5;

/// Bytes on the device that nodes take. `live.exclusive`, those of all snapshots with a name and without, `shared` and `unowned` come to `used`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Of the live tree, with what belongs to no tree: orphans, the table of snapshots.
    pub live: OwnerUsage,
    /// Of each snapshot, in the order in which they were taken. What is exclusive comes back, about, when it is deleted.
    pub snapshots: Vec<(Snapshot, OwnerUsage)>,
    /// Of all snapshots without a name together: those that are being received, and frozen copies.
    pub unnamed: OwnerUsage,
    /// What several of them have in common, counted once.
    pub shared: u64,
    /// What waits to be reclaimed.
    pub unowned: u64,
    /// All of it.
    pub used: u64,
}

impl FileSystem {
    /// Counts who uses the space, as of the last checkpoint, or of a `fresh` one where one can be made. What is newer
    /// seems to use nothing. Waits for the device, while changes go on.
    pub fn usage(&self, fresh: bool) -> Result<Usage> {
        let mut tries = 0;
        loop {
            tries += 1;
            let (snapshots, unnamed) = self.all_snapshots()?;
            if fresh && self.check_writable().is_ok() {
                // Where it fails the volume says so itself, and the last one is there to be counted.
                let _ = self.engine().checkpoint();
            }
            let prefixes = snapshots.iter().map(|snapshot| key::snapshot_prefix(snapshot.number.0));
            let of_unnamed = unnamed.iter().map(|number| KeyRange::prefix(key::snapshot_prefix(*number)));
            let mut owners = vec![outside_snapshots(), of_unnamed.collect()];
            owners.extend(prefixes.map(|prefix| vec![KeyRange::prefix(prefix)]));
            let counted = self.engine().usage(&owners).map_err(crate::Error::Engine)?;
            // Of one that was taken meanwhile a part would seem to be nobody's.
            if tries == TRIES || self.all_snapshots()? == (snapshots.clone(), unnamed) {
                let mut owners = counted.owners.into_iter();
                let live = owners.next().unwrap_or_default();
                let unnamed = owners.next().unwrap_or_default();
                let pando_engine::Usage { shared, unowned, used, .. } = counted;
                let snapshots = snapshots.into_iter().zip(owners).collect();
                return Ok(Usage { live, snapshots, unnamed, shared, unowned, used });
            }
        }
    }

    /// The snapshots that have names, and the numbers of those that have none. In this order, so that one that gets its name meanwhile is not
    /// among both.
    fn all_snapshots(&self) -> Result<(Vec<Snapshot>, Vec<u64>)> {
        Ok((waiting(self, Self::snapshots)?, self.unnamed_snapshots()?))
    }
}

/// The keys of all that lies in no snapshot.
fn outside_snapshots() -> Vec<KeyRange> {
    let tag = vec![key::SNAPSHOT_TAG];
    vec![
        KeyRange::new(Bound::least(), Bound::before(tag.clone())),
        KeyRange::new(Bound::after(tag), Bound::greatest()),
    ]
}
