//! What has only got another place is not sent anew.

use bytes::Bytes;
use pando_engine::Tree;
use pando_format::send_stream::{
    Chain, FRAME_HEADER_LENGTH, Frame, FrameHeader, KeyChange, Move, Moved, PREAMBLE_LENGTH,
};
use pando_fs::operations::{Operations, ROOT, RenameMode, XattrMode, changing, waiting};
use pando_fs::schema::{Record, Xattr, XattrValue, key};
use pando_fs::send::TransferError;
use pando_fs::{FileSystem, InodeNumber};

use super::{assert_nothing_is_left, contents, filled, receive, send, take};
use crate::common::Volume;

pub fn frames(stream: &[u8]) -> Vec<Frame> {
    let mut rest = Bytes::copy_from_slice(&stream[PREAMBLE_LENGTH..]);
    let mut chain = Chain::default();
    let mut frames = Vec::new();
    while !rest.is_empty() {
        let header = FrameHeader::decode(&rest.split_to(FRAME_HEADER_LENGTH)).unwrap();
        let payload = rest.split_to(header.payload_length as usize);
        frames.push(Frame::decode(&header, &payload, &mut chain).unwrap());
    }
    frames
}

/// The moves of a stream, from where and to where.
pub fn moves_in(stream: &[u8]) -> Vec<(Option<String>, String)> {
    let shown =
        |place: &Bytes| place.iter().map(|byte| if *byte == 0 { '/' } else { *byte as char }).collect();
    let moves = frames(stream).into_iter().flat_map(|frame| match frame {
        Frame::Moves(moves) => moves,
        _ => Vec::new(),
    });
    moves.map(|one| (one.from.as_ref().map(shown), shown(&one.to))).collect()
}

pub fn stream(mut preamble: Vec<u8>, frames: &[Frame]) -> Vec<u8> {
    preamble.truncate(PREAMBLE_LENGTH);
    let mut chain = Chain::default();
    frames.iter().for_each(|frame| preamble.extend(frame.encode(&mut chain)));
    preamble
}

/// Sends what a change has made of [`filled`] to who has it as it was before; gives the stream of the changes.
fn sent_after(change: impl Fn(&Volume)) -> Vec<u8> {
    let (volume, other) = (filled(), Volume::new());
    let b = volume.directory(ROOT, "b");
    let c = volume.directory(b, "c");
    let large = volume.file(c, "large");
    volume.write(large, 0, &vec![9; 300_000]);
    take(&volume.fs, "one");
    receive(&other.fs, &send(&volume.fs, "one", None)).unwrap();
    change(&volume);
    volume.assert_clean();
    take(&volume.fs, "two");
    let changes = send(&volume.fs, "two", Some("one"));
    let received = receive(&other.fs, &changes).unwrap();
    assert!(contents(&other.fs, "two") == contents(&volume.fs, "two"));
    assert!(contents(&other.fs, "one") == contents(&volume.fs, "one"));
    assert_nothing_is_left(&other.fs);
    // Goes on from there, and back.
    let back = send(&other.fs, "one", Some("two"));
    volume.fs.receive_snapshot(&mut &back[..], Some(b"back")).unwrap();
    assert!(contents(&volume.fs, "back") == contents(&volume.fs, "one"));
    volume.assert_clean();
    // The numbers that files show agree among the names of one file, and nowhere else.
    let root = waiting(&*other.fs, |fs| fs.lookup(pando_fs::operations::SNAPSHOTS, b"two")).unwrap();
    assert_eq!(root.attributes.inode, received.number);
    changes
}

fn rename(volume: &Volume, from: &str, to: &str) {
    let split = |path: &str| {
        let (directory, name) = path.rsplit_once('/').unwrap_or(("", path));
        let directory = if directory.is_empty() { ROOT } else { volume.walk(directory).unwrap() };
        (directory, name.to_owned())
    };
    let ((from, name), (to, new_name)) = (split(from), split(to));
    volume.rename(from, &name, to, &new_name).unwrap();
}

fn pair(from: &str, to: &str) -> (Option<String>, String) {
    (Some(from.to_owned()), to.to_owned())
}

fn nothing(at: &str) -> (Option<String>, String) {
    (None, at.to_owned())
}

const LITTLE: usize = 12_000;

#[test]
fn a_directory_that_was_moved_is_sent_as_that() {
    let changes = sent_after(|volume| rename(volume, "a", "moved"));
    assert_eq!(moves_in(&changes), [nothing("/a"), pair("/a", "/moved")]);
    assert!(changes.len() < LITTLE, "{}", changes.len());
    // With changes inside, into a directory that is new.
    let changes = sent_after(|volume| {
        volume.directory(ROOT, "new");
        rename(volume, "a", "new/a");
        let fs = &*volume.fs;
        volume.write(volume.walk("new/a/f50").unwrap(), 5000, b"changed");
        changing(fs, |fs| fs.unlink(volume.walk("new/a/deep")?, b"linked")).unwrap();
        fs.link(volume.walk("new/a/f10").unwrap(), ROOT, b"a link").unwrap();
        fs.set_xattr(volume.walk("new/a").unwrap(), b"user.a", &[8; 2000], XattrMode::Set, false).unwrap();
        volume.file(volume.walk("new/a/deep").unwrap(), "more");
    });
    assert_eq!(moves_in(&changes), [nothing("/a"), pair("/a", "/new/a")]);
    assert!(changes.len() < LITTLE + 20_000, "{}", changes.len());
}

/// The table of snapshots was read and sorted for each two moves.
#[test]
fn moves_are_received_as_fast_beside_many_snapshots() {
    let volume = Volume::new();
    for number in 0..200 {
        let directory = volume.directory(ROOT, &format!("d{number}"));
        volume.write(volume.file(directory, "f"), 0, b"data");
    }
    take(&volume.fs, "one");
    for number in 0..200 {
        volume.rename(ROOT, &format!("d{number}"), ROOT, &format!("moved{number}")).unwrap();
    }
    take(&volume.fs, "two");
    let (whole, changes) = (send(&volume.fs, "one", None), send(&volume.fs, "two", Some("one")));
    let scans = [10, 1000].map(|snapshots| {
        let other = Volume::new();
        receive(&other.fs, &whole).unwrap();
        (0..snapshots).for_each(|number| take(&other.fs, &format!("s{number}")));
        let before = other.fs.engine().stats().scans;
        receive(&other.fs, &changes).unwrap();
        other.fs.engine().stats().scans - before
    });
    println!("{scans:?} scans");
    assert!(moves_in(&changes).len() >= 200 && scans[1] < scans[0] + 10, "{scans:?}");
}

#[test]
fn directories_that_were_moved_out_of_each_other_are_found() {
    let changes = sent_after(|volume| {
        rename(volume, "a/deep", "out");
        rename(volume, "a", "b/a");
        rename(volume, "b", "new b");
    });
    let expected = [
        nothing("/a"),
        nothing("/b"),
        pair("/b", "/new b"),
        pair("/a", "/new b/a"),
        nothing("/new b/a/deep"),
        pair("/a/deep", "/out"),
    ];
    assert_eq!(moves_in(&changes), expected);
    assert!(changes.len() < LITTLE, "{}", changes.len());
    // Each takes the other's place.
    let changes = sent_after(|volume| {
        let exchange = |fs: &FileSystem| fs.rename(ROOT, b"a", ROOT, b"b", RenameMode::Exchange);
        changing(&*volume.fs, exchange).unwrap();
    });
    assert_eq!(moves_in(&changes), [pair("/b", "/a"), pair("/a", "/b")]);
    assert!(changes.len() < LITTLE, "{}", changes.len());
    // Another one has come to its place.
    let changes = sent_after(|volume| {
        rename(volume, "b", "a/b");
        let b = volume.directory(ROOT, "b");
        volume.file(b, "c");
    });
    assert_eq!(moves_in(&changes), [pair("/b", "/a/b"), nothing("/b")]);
    assert!(changes.len() < LITTLE, "{}", changes.len());
    // It is where it was, and what it lies in is another.
    let changes = sent_after(|volume| {
        rename(volume, "b", "old b");
        volume.directory(ROOT, "b");
        rename(volume, "old b/c", "b/c");
        changing(&*volume.fs, |fs| fs.remove_directory(ROOT, b"old b")).unwrap();
    });
    assert_eq!(moves_in(&changes), [nothing("/b"), pair("/b/c", "/b/c")]);
    assert!(changes.len() < LITTLE, "{}", changes.len());
}

#[test]
fn a_large_file_that_was_moved_and_what_has_gone_are_not_sent() {
    let changes = sent_after(|volume| {
        rename(volume, "b/c/large", "a/larger");
        volume.write(volume.walk("a/larger").unwrap(), 200_000, b"changed");
    });
    assert_eq!(moves_in(&changes), [pair("/b/c//large", "/a//larger"), nothing("/b/c//large")]);
    assert!(changes.len() < LITTLE, "{}", changes.len());
    let remove = |volume: &Volume, directory: InodeNumber| {
        for name in volume.names(directory) {
            let unlinked = changing(&*volume.fs, |fs| fs.unlink(directory, name.as_bytes()));
            if unlinked.is_err() {
                assert_eq!(name, "deep");
            }
        }
    };
    let changes = sent_after(|volume| {
        remove(volume, volume.walk("a/deep").unwrap());
        remove(volume, volume.walk("a").unwrap());
        changing(&*volume.fs, |fs| fs.remove_directory(fs_walk(volume, "a"), b"deep")).unwrap();
        changing(&*volume.fs, |fs| fs.remove_directory(ROOT, b"a")).unwrap();
        // What has gone is not taken from what came to its place.
        rename(volume, "b/c", "b/deep");
        rename(volume, "b", "a");
    });
    let expected = [pair("/b", "/a"), nothing("/a/c"), pair("/b/c", "/a/deep"), nothing("/b")];
    assert_eq!(moves_in(&changes), expected);
    assert!(changes.len() < LITTLE, "{}", changes.len());
}

fn fs_walk(volume: &Volume, path: &str) -> InodeNumber {
    volume.walk(path).unwrap()
}

#[test]
fn moves_that_make_no_sense_are_refused() {
    let (volume, other) = (filled(), Volume::new());
    take(&volume.fs, "one");
    rename(&volume, "a", "moved");
    take(&volume.fs, "two");
    let (whole, changes) = (send(&volume.fs, "one", None), send(&volume.fs, "two", Some("one")));
    receive(&other.fs, &whole).unwrap();
    let refused_by = |fs: &FileSystem, stream: &[u8], words: &str| match receive(fs, stream) {
        Err(TransferError::Refused(why)) => assert!(why.contains(words), "{why}"),
        other => panic!("{words}: {other:?}"),
    };
    let refused = |stream: &[u8], words: &str| refused_by(&other.fs, stream, words);
    let directory = |from: Option<&'static [u8]>, to: &'static [u8]| Move {
        what: Moved::Directory,
        from: from.map(Bytes::from_static),
        to: to.into(),
    };
    let file = |one: Move| Move { what: Moved::File, ..one };
    let with = |base: &[u8], one: Move| {
        let mut frames = frames(base);
        frames.insert(1, Frame::Moves(vec![one]));
        stream(base.to_vec(), &frames)
    };
    refused_by(&Volume::new().fs, &with(&whole, directory(None, b"\0a")), "without a base");
    let mut late = frames(&changes);
    let at = late.iter().position(|frame| matches!(frame, Frame::Moves(_))).unwrap();
    let moved = late.remove(at);
    late.insert(late.len() - 1, moved);
    refused(&stream(changes.clone(), &late), "behind changes");
    let bad: [&'static [u8]; 11] = [
        b"",
        b"\0",
        b"a",
        b"\0a\0",
        b"\0a\0\0b",
        b"\0\0a",
        b"\x01aaaaaaaa",
        b"\x05aaaaaaaa",
        b"\0a\0\0\0b",
        b"\0a\0..",
        b"\0a/b",
    ];
    for place in bad {
        refused(&with(&changes, directory(None, place)), "no sense");
        refused(&with(&changes, directory(Some(place), b"\0x")), "no sense");
    }
    let bad: [&'static [u8]; 9] = [
        b"",
        b"\0",
        b"\0a",
        b"\0a\0b",
        b"\x01aaaaaaaa",
        b"\0a\0\0b\0",
        b"\0a\0\0\0b",
        b"\0a\0\0..",
        b"\0..\0\0b",
    ];
    for place in bad {
        refused(&with(&changes, file(directory(None, place))), "no sense");
        refused(&with(&changes, file(directory(Some(place), b"\0\0x"))), "no sense");
    }
    assert_nothing_is_left(&other.fs);
    // Places that are not there, that lie in themselves, and that come twice are allowed to whoever writes streams; what comes of it is a
    // snapshot like any, if not a sound one.
    for one in [
        directory(Some(b"\0none"), b"\0x"),
        directory(Some(b"\0a"), b"\0a\0deep"),
        directory(Some(b"\0a\0deep"), b"\0a"),
    ] {
        let stream = with(&changes, one);
        receive(&other.fs, &stream).unwrap();
        changing(&*other.fs, |fs| fs.delete_snapshot(b"two")).unwrap();
    }
    assert_nothing_is_left(&other.fs);
    receive(&other.fs, &changes).unwrap();
    assert!(contents(&other.fs, "two") == contents(&volume.fs, "two"));
}

#[test]
fn names_that_lead_out_of_their_directory_are_refused() {
    let (volume, other) = (filled(), Volume::new());
    take(&volume.fs, "one");
    let whole = send(&volume.fs, "one", None);
    for bad in [&b"\0\0../evil"[..], b"\0\0..", b"\0..\0\0evil", b"\0a/b\0\0evil"] {
        let mut frames = frames(&whole);
        let changes = frames.iter_mut().find_map(|frame| match frame {
            Frame::Changes(changes) => Some(changes),
            _ => None,
        });
        let mut named = changes.unwrap().iter_mut().filter(|change| change.key.starts_with(b"\0\0"));
        named.next().unwrap().key = Bytes::from_static(bad);
        let refused = receive(&other.fs, &stream(whole.clone(), &frames));
        assert!(
            matches!(refused, Err(TransferError::Refused("an entry that makes no sense"))),
            "{refused:?}"
        );
    }
    assert_nothing_is_left(&other.fs);
}

/// Such keys went on into the live tree, by clones and roll backs.
#[test]
fn keys_that_no_volume_has_are_refused() {
    let (volume, other) = (filled(), Volume::new());
    let linked = volume.file(ROOT, "linked");
    volume.fs.link(linked, ROOT, b"twice").unwrap();
    take(&volume.fs, "one");
    let whole = send(&volume.fs, "one", None);
    let bad: [(Tree, u8, &[u8]); 11] = [
        (Tree::Metadata, key::LINK_NAME_TAG, b"\x02"),
        (Tree::Metadata, key::LINK_NAME_TAG, b"\x02x"),
        (Tree::Metadata, key::LINK_NAME_TAG, b"\x02\0\0a/b"),
        (Tree::Metadata, key::LINKED_TAG, b"\x01"),
        (Tree::Metadata, key::LINKED_TAG, b"\x01\0\0\0\0\0\0\0\0\0"),
        (Tree::Data, 0, b"\0x"),
        (Tree::Data, 0, b"\0\0..\0\0\0\0\0\0\0\0\0"),
        (Tree::Data, 0, b"\0\0f\0\0\0\0\0\0\0\0"),
        (Tree::Data, 0, b"\0\0f\0\x01\0\0\0\0\0\0\0"),
        (Tree::Data, 0, b"\0\0f\0\xff"),
        (Tree::Data, 0, b"\x01\0\0\0\0\0\0\0\x01x"),
    ];
    for (tree, tag, bad) in bad {
        let mut frames = frames(&whole);
        let changes = frames.iter_mut().filter_map(|frame| match frame {
            Frame::Changes(changes) => Some(changes.iter_mut()),
            _ => None,
        });
        let change = changes.flatten().find(|change| change.tree == tree && change.key[0] == tag);
        change.unwrap().key = Bytes::from_static(bad);
        let refused = receive(&other.fs, &stream(whole.clone(), &frames));
        let expected = matches!(refused, Err(TransferError::Refused("an entry that makes no sense")));
        assert!(expected, "{}: {refused:?}", bad.escape_ascii());
    }
    assert_nothing_is_left(&other.fs);
}

/// It was kept as long as the stream lasted, and put into the tree at its end.
#[test]
fn a_root_directory_that_no_volume_has_is_refused_at_the_beginning() {
    let (volume, other) = (filled(), Volume::new());
    take(&volume.fs, "one");
    let whole = send(&volume.fs, "one", None);
    for (count, name) in [(1, &b""[..]), (40_000, b"user.x")] {
        let mut frames = frames(&whole);
        let Frame::Begin(begin) = &mut frames[0] else { panic!("no beginning") };
        let mut root = Record::decode(&begin.root).unwrap();
        let xattr = Xattr { name: name.into(), value: XattrValue::Inline(Bytes::new()) };
        root.xattrs = vec![xattr; count];
        begin.root = root.encode();
        let begun = stream(whole.clone(), &frames[..1]);
        let refused = receive(&other.fs, &begun);
        assert!(matches!(refused, Err(TransferError::Refused("no root directory"))), "{refused:?}");
    }
    assert_nothing_is_left(&other.fs);
}

/// A file was read and changed whose key the sender had named as the place of the data of another, in whatever tree.
#[test]
fn records_that_no_volume_has_under_a_name_are_refused() {
    let (volume, other) = (filled(), Volume::new());
    let linked = volume.file(ROOT, "linked");
    volume.fs.link(linked, ROOT, b"twice").unwrap();
    take(&volume.fs, "one");
    let whole = send(&volume.fs, "one", None);
    type Make = fn(&mut Record);
    let bad: [Make; 2] = [
        |record| record.parked = Bytes::from_static(b"\0etc\0\0shadow"),
        |record| record.target = vec![b'x'; 4096].into(),
    ];
    for is_linked in [false, true] {
        for make in bad {
            let mut frames = frames(&whole);
            let changes = frames.iter_mut().filter_map(|frame| match frame {
                Frame::Changes(changes) => Some(changes.iter_mut()),
                _ => None,
            });
            let is_place =
                |key: &[u8]| (key[0] == key::LINKED_TAG) == is_linked && (is_linked || key[0] == 0);
            let is_record = |change: &&mut KeyChange| change.tree == Tree::Metadata && is_place(&change.key);
            let found = changes.flatten().filter(is_record).find_map(|change| {
                let record = Record::decode(change.value.as_ref()?).ok()?;
                Some((change, record))
            });
            let (change, mut record) = found.unwrap();
            make(&mut record);
            change.value = Some(record.encode());
            let refused = receive(&other.fs, &stream(whole.clone(), &frames));
            assert!(
                matches!(refused, Err(TransferError::Refused("an entry that makes no sense"))),
                "{refused:?}"
            );
        }
    }
    assert_nothing_is_left(&other.fs);
}

/// A base that is deleted while a stream comes made moves of nothing.
#[test]
fn a_base_that_goes_meanwhile_ends_it() {
    struct Deleting<'a>(&'a FileSystem, &'a [u8], usize);
    impl std::io::Read for Deleting<'_> {
        fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
            self.2 += 1;
            // Behind the beginning.
            if self.2 == 4 {
                changing(self.0, |fs| fs.delete_snapshot(b"one")).unwrap();
            }
            self.1.read(out)
        }
    }
    let (volume, other) = (filled(), Volume::new());
    take(&volume.fs, "one");
    rename(&volume, "a", "moved");
    take(&volume.fs, "two");
    receive(&other.fs, &send(&volume.fs, "one", None)).unwrap();
    let changes = send(&volume.fs, "two", Some("one"));
    let received = other.fs.receive_snapshot(&mut Deleting(&other.fs, &changes, 0), None);
    let text = received.map(drop).unwrap_err().to_string();
    assert!(text.contains("deleted meanwhile"), "{text}");
    assert_nothing_is_left(&other.fs);
}
