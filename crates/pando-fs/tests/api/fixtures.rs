//! Records as the first version wrote them, in folders of `fixtures/format-1`: they find a layout that drifts, and are the
//! seeds of the fuzz targets of these names. `PANDO_WRITE_FIXTURES=1 cargo test -p pando-fs --test api fixtures` writes them
//! anew; do that only together with a change of the format's version, into a new folder.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use bytes::Bytes;
use pando_fs::operations::FileType;
use pando_fs::schema::{NameRecord, Record, Redirect, Timestamp, Xattr, XattrValue};
use pando_fs::{InodeNumber, Snapshot};

/// The fixture, which must be what this version makes of the same sample.
fn exact(name: &str, encoded: &[u8]) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/format-1").join(name);
    if std::env::var_os("PANDO_WRITE_FIXTURES").is_some() {
        std::fs::create_dir_all(path.parent().expect("a fixture lies in a folder")).unwrap();
        std::fs::write(&path, encoded).unwrap();
    }
    let bytes = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert!(bytes == encoded, "{name} is encoded differently today");
    bytes
}

#[test]
fn inode_records() {
    let time = |seconds| Timestamp { seconds, nanoseconds: 999_999_999 };
    let mut record = Record::new(FileType::Symlink, 0x0102_0304_0506_0708, time(-1));
    (record.mode, record.uid, record.gid, record.device) = (0o4751, 1000, u32::MAX - 1, 0x803);
    (record.size, record.blocks, record.entries, record.links, record.flags) = (11, 12, 13, 14, 1);
    (record.accessed, record.modified, record.changed) = (time(1), time(1 << 33), time(i64::MIN));
    record.target = Bytes::from_static(b"over/there");
    record.parked = Bytes::from_static(b"\0\0f");
    record.xattrs = vec![
        Xattr { name: "user.a".into(), value: XattrValue::Inline("value".into()) },
        Xattr { name: "security.b".into(), value: XattrValue::Large(60_000) },
    ];
    let bytes = exact("name_record/inode.bin", &record.encode());
    assert_eq!(NameRecord::decode(&bytes), Ok(NameRecord::Inode(record)));
}

#[test]
fn redirects() {
    let redirect = Redirect { number: 0x0102_0304_0506_0708, file_type: FileType::Regular };
    let bytes = exact("name_record/redirect.bin", &redirect.encode());
    assert_eq!(NameRecord::decode(&bytes), Ok(NameRecord::Redirect(redirect)));
}

#[test]
fn snapshots() {
    let taken = UNIX_EPOCH + Duration::new(1_700_000_000, 123_456_789);
    let snapshot = Snapshot {
        name: Bytes::from_static(b"today"),
        number: InodeNumber(0x8877_6655_4433_2211),
        taken,
        writable: false,
        origin: None,
    };
    let bytes = exact("snapshot/entry.bin", &snapshot.encode());
    assert_eq!(Snapshot::decode(b"today", &bytes), Some(snapshot.clone()));
    let received = Snapshot { origin: Some((*b"another's volume", 77)), ..snapshot.clone() };
    let bytes = exact("snapshot/received.bin", &received.encode());
    assert_eq!(Snapshot::decode(b"today", &bytes), Some(received));
    let snapshot = Snapshot { writable: true, ..snapshot };
    let bytes = exact("snapshot/writable.bin", &snapshot.encode());
    assert_eq!(Snapshot::decode(b"today", &bytes), Some(snapshot));
}
