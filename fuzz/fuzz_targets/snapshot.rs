//! Entries of the table of snapshots: whatever decodes is encoded so that it decodes to the same.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pando_fs::Snapshot;

fuzz_target!(|data: &[u8]| {
    let Some(snapshot) = Snapshot::decode(b"name", data) else { return };
    assert_eq!(Snapshot::decode(b"name", &snapshot.encode()), Some(snapshot));
});
