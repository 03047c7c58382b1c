//! setattr: chmod, chown, utimensat, truncate.

use pando_engine::Batch;

use crate::file::{Edit, check_regular, check_size, kill_set_id_bits};
use crate::operations::{Attributes, InodeNumber, SetAttributes, SetTime};
use crate::schema::Timestamp;
use crate::{Error, FileSystem, Result, acl};

impl FileSystem {
    pub(crate) fn change_attributes(&self, number: InodeNumber, set: &SetAttributes) -> Result<Attributes> {
        let inode = self.writable_inode(number)?;
        let epoch = self.for_change()?;
        let mut state = inode.write()?;
        let now = self.now();
        let (key, prefix) = inode.key_and_data_prefix(*epoch, &state.record)?;
        let mut edit = Edit::new(state.record.clone(), prefix);
        if let Some(size) = set.size {
            check_regular(&inode)?;
            check_size(Some(size))?;
            if size < state.record.size {
                edit.batch = Batch::reclaiming();
            }
            edit.set_size(size);
            edit.record.modified = now;
        }
        let record = &mut edit.record;
        record.uid = set.uid.unwrap_or(record.uid);
        record.gid = set.gid.unwrap_or(record.gid);
        let changes_owner = set.uid.is_some() || set.gid.is_some();
        if let Some(mode) = set.mode {
            acl::change_mode(record, mode & 0o7777)?;
        } else if changes_owner && !inode.is_directory() {
            kill_set_id_bits(record);
        }
        if set.kill_set_id && !inode.is_directory() {
            edit.kill_privileges();
        }
        let record = &mut edit.record;
        record.accessed = time(set.accessed, now, record.accessed);
        record.modified = time(set.modified, now, record.modified);
        record.changed = set.changed.map_or(now, Timestamp::from);
        let (batch, record) = edit.finish(key, true);
        self.store.apply(batch).map_err(Error::of_one_path)?;
        state.set_told_record(record);
        Ok(state.record.attributes(number))
    }
}

fn time(set: Option<SetTime>, now: Timestamp, old: Timestamp) -> Timestamp {
    match set {
        None => old,
        Some(SetTime::Now) => now,
        Some(SetTime::To(time)) => time.into(),
    }
}
