//! What lies under a name: inode records and redirects of any bytes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use pando_fs::schema::NameRecord;

fuzz_target!(|data: &[u8]| {
    let Ok(record) = NameRecord::decode(data) else { return };
    let encoded = match &record {
        NameRecord::Inode(record) => record.encode(),
        NameRecord::Redirect(redirect) => redirect.encode(),
    };
    assert_eq!(NameRecord::decode(&encoded), Ok(record));
});
