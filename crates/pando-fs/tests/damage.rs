//! What a damaged volume, or one that was made for it, says: an error for what is damaged, and the rest can be used.

mod common;

use common::Volume;
use pando_engine::{Batch, Tree};
use pando_fs::Error;
use pando_fs::operations::{Operations, ROOT, waiting};
use pando_fs::schema::{Record, key};

/// The volume after a change of a record that no operation makes, and a crash.
fn with_record(volume: &Volume, metadata_key: &[u8], change: impl FnOnce(&mut Record)) -> Volume {
    let value = volume.fs.engine().get(Tree::Metadata, metadata_key).unwrap().unwrap();
    let mut record = Record::decode(&value).unwrap();
    change(&mut record);
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, metadata_key.to_vec(), record.encode());
    volume.fs.engine().apply(batch).unwrap();
    volume.after_crash()
}

fn is_damage<T>(outcome: Result<T, Error>) -> bool {
    matches!(outcome, Err(Error::Engine(pando_engine::Error::Damaged { .. })))
}

/// A file had the number that the next one without a name was to have: the daemon ended.
#[test]
fn a_number_that_is_in_use_is_given_to_no_temporary_file() {
    let volume = Volume::new();
    let file = volume.file(ROOT, "f");
    volume.write(file, 0, b"mine");
    let next = volume.fs.engine().get(Tree::Metadata, key::INODE_COUNTER).unwrap().unwrap();
    let next = u64::from_le_bytes(next[..].try_into().unwrap());
    let volume = with_record(&volume, &key::child_key(b"", b"f"), |record| record.number = next);
    let file = volume.walk("f").unwrap();
    assert_eq!(file.0, next);
    let temporary = || waiting(&*volume.fs, |fs| fs.make_temporary(&volume.caller, ROOT, 0o600));
    assert!(is_damage(temporary()));
    assert_eq!(volume.fs.engine().get(Tree::Metadata, &key::orphan_key(next)).unwrap(), None);
    assert_eq!(volume.read(file, 0, 9), b"mine");
    // The next number is that of no other.
    let temporary = temporary().unwrap().attributes.inode;
    volume.write(temporary, 0, b"x");
    volume.fs.link(temporary, ROOT, b"named").unwrap();
    volume.fs.forget(file, 1);
    volume.fs.unlink(ROOT, b"f").unwrap();
    volume.assert_clean();
}
