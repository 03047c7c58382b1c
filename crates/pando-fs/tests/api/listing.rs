//! Listings: cookies, changes meanwhile, and what a complete listing saves.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use pando_engine::{Batch, Tree};
use pando_fs::operations::{DirectoryEntry, FileType, ListAttributes, Operations, ROOT, waiting};
use pando_fs::schema::{Record, Timestamp, key};
use pando_fs::{Error, InodeNumber};

use crate::common::Volume;

/// Reads on behind a cookie, at most `room` names; the last cookie comes back with the names.
fn part(volume: &Volume, directory: InodeNumber, cookie: u64, room: usize) -> (u64, Vec<String>) {
    let (mut names, mut last) = (Vec::new(), cookie);
    let mut emit = |entry: &DirectoryEntry| {
        let fits = names.len() < room;
        if fits {
            names.push(String::from_utf8_lossy(&entry.name).into_owned());
            last = entry.cookie;
        }
        fits
    };
    volume.fs.read_directory(directory, cookie, ListAttributes::OfNone, &mut emit).unwrap();
    (last, names)
}

fn numbered(numbers: impl IntoIterator<Item = usize>) -> Vec<String> {
    numbers.into_iter().map(|number| format!("{number:06}")).collect()
}

/// The names of a listing that carry attributes, whose references are given back.
fn with_attributes(volume: &Volume, directory: InodeNumber, attributes: ListAttributes) -> Vec<String> {
    let mut entries = Vec::new();
    let mut emit = |entry: &DirectoryEntry| {
        entries.push(entry.clone());
        true
    };
    volume.fs.read_directory(directory, 2, attributes, &mut emit).unwrap();
    let with = entries.iter().filter(|entry| entry.attributes.is_some());
    with.inspect(|entry| volume.fs.forget(entry.inode, 1))
        .map(|entry| String::from_utf8_lossy(&entry.name).into_owned())
        .collect()
}

/// A copy out of a volume made for it wrote where such names led.
#[test]
fn what_leads_out_of_a_directory_is_not_handed_out_as_a_name() {
    for bad in [&b"../evil"[..], b"..", b".", b"/etc", b""] {
        let volume = Volume::new();
        let top = volume.directory(ROOT, "top");
        volume.file(top, "!first");
        let record = Record::new(FileType::Regular, 1 << 50, Timestamp { seconds: 0, nanoseconds: 0 });
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, key::child_key(b"\0top", bad), record.encode());
        volume.fs.engine().apply(batch).unwrap();
        let mut handed_out = Vec::new();
        let mut cookie = 0;
        let refused = loop {
            let (before, mut after) = (cookie, cookie);
            let read = volume.fs.read_directory(
                top,
                before,
                ListAttributes::OfAll,
                &mut |entry: &DirectoryEntry| {
                    handed_out.push(entry.name.clone());
                    after = entry.cookie;
                    true
                },
            );
            cookie = after;
            if read.is_err() || cookie == before {
                break read;
            }
        };
        assert!(
            matches!(&refused, Err(Error::Engine(error)) if error.to_string().contains("FS-2")),
            "{bad:?}: {refused:?}"
        );
        assert!(!handed_out.iter().skip(2).any(|name| name == bad), "{bad:?}: {handed_out:?}");
        if bad != b"." && bad != b".." {
            assert!(matches!(volume.fs.lookup(top, bad), Err(Error::NotFound)), "{bad:?}");
        }
    }
}

#[test]
fn listings_carry_the_attributes_that_are_wanted() {
    let volume = Volume::new();
    let top = volume.directory(ROOT, "top");
    for name in ["a", "c", "d"] {
        let file = volume.file(top, name);
        volume.fs.forget(file, 1);
    }
    volume.directory(top, "b");
    // Known, and named twice elsewhere, so that its record is.
    let linked = volume.file(ROOT, "linked");
    for name in ["e", "f"] {
        volume.fs.link(linked, top, name.as_bytes()).unwrap();
    }
    let list = |attributes| with_attributes(&volume, top, attributes);
    assert_eq!(list(ListAttributes::OfAll), ["a", "b", "c", "d", "e", "f"]);
    assert_eq!(list(ListAttributes::OfNone), [""; 0]);
    assert_eq!(list(ListAttributes::OfDirectories), ["b"]);
    assert_eq!(list(ListAttributes::OfAllButOneFile), ["b", "c", "d", "e", "f"]);
    // Of what somebody knows nobody would ask.
    let known = volume.fs.lookup(top, b"a").unwrap().attributes.inode;
    assert_eq!(list(ListAttributes::OfAllButOneFile), ["a", "b", "d", "e", "f"]);
    volume.fs.forget(known, 1);
    assert_eq!(list(ListAttributes::OfAllButOneFile), ["b", "c", "d", "e", "f"]);
    for name in ["a", "c", "d"] {
        volume.fs.unlink(top, name.as_bytes()).unwrap();
    }
    volume.fs.forget(linked, 3);
    assert_eq!(list(ListAttributes::OfAllButOneFile), ["b", "f"], "a file with several names is one, too");
}

#[test]
fn a_listing_during_changes_neither_skips_nor_repeats() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    for name in numbered(0..1000) {
        volume.file(directory, &name);
    }
    let (mut cookie, mut names) = part(&volume, directory, 0, 502);
    assert_eq!(names.split_off(2), numbered(0..500));
    // The name that the listing stands on goes, and so does half of what lies ahead; names come before and behind.
    for name in numbered((499..1000).step_by(2)) {
        volume.fs.unlink(directory, name.as_bytes()).unwrap();
    }
    volume.file(directory, "000000a");
    volume.file(directory, "zzz");
    let mut rest = Vec::new();
    loop {
        let (next, names) = part(&volume, directory, cookie, 7);
        if names.is_empty() {
            break;
        }
        rest.extend(names);
        cookie = next;
    }
    let expected = [numbered((500..1000).step_by(2)), vec!["zzz".to_owned()]].concat();
    assert_eq!(rest, expected);
}

#[test]
fn a_listing_goes_back_to_where_telldir_was() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    for name in numbered(0..300) {
        volume.file(directory, &name);
    }
    let (told, _) = part(&volume, directory, 0, 102);
    let (later, _) = part(&volume, directory, told, 100);
    assert_eq!(part(&volume, directory, told, 3).1, numbered(100..103));
    assert_eq!(part(&volume, directory, later, 3).1, numbered(200..203));
    assert_eq!(part(&volume, directory, 0, 4).1, [vec![".".into(), "..".into()], numbered(0..2)].concat());
    assert_eq!(part(&volume, directory, told, 3).1, numbered(100..103));
}

/// The cookie of each name.
fn cookies(volume: &Volume, directory: InodeNumber) -> Vec<(String, u64)> {
    let mut cookies = Vec::new();
    let mut at = 0;
    loop {
        let (before, cookie) = (cookies.len(), at);
        let mut emit = |entry: &DirectoryEntry| {
            cookies.push((String::from_utf8_lossy(&entry.name).into_owned(), entry.cookie));
            at = entry.cookie;
            true
        };
        volume.fs.read_directory(directory, cookie, ListAttributes::OfNone, &mut emit).unwrap();
        if cookies.len() == before {
            return cookies.split_off(2);
        }
    }
}

#[test]
fn a_cookie_is_the_same_for_all_and_good_in_the_midst_of_a_reply() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    // More than are looked at near the latest replies.
    let names = numbered(0..6000);
    for name in &names {
        volume.file(directory, name);
    }
    let listed = cookies(&volume, directory);
    assert_eq!(listed.iter().map(|(name, _)| name).collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
    assert_eq!(cookies(&volume, directory), listed);
    for index in [5998, 0, 77, 4000] {
        assert_eq!(part(&volume, directory, listed[index].1, 1).1, [names[index + 1].clone()]);
    }
    assert_eq!(part(&volume, directory, listed[5999].1, 1).1, [""; 0]);
    // The kernel may forget the directory and come back.
    volume.fs.forget(directory, 1);
    let directory = volume.walk("d").unwrap();
    assert_eq!(part(&volume, directory, listed[77].1, 1).1, [names[78].clone()]);
}

#[test]
fn a_cookie_outlives_its_name() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    for name in numbered(0..500) {
        volume.file(directory, &name);
    }
    let listed = cookies(&volume, directory);
    for name in numbered(100..110) {
        volume.fs.unlink(directory, name.as_bytes()).unwrap();
    }
    volume.rename(directory, "000110", directory, "zzz").unwrap();
    volume.rename(directory, "000111", ROOT, "elsewhere").unwrap();
    for (name, cookie) in &listed[99..112] {
        assert_eq!(part(&volume, directory, *cookie, 2).1, numbered(112..114), "{name}");
    }
}

/// It would otherwise end there, and leave out what follows.
#[test]
fn a_listing_whose_place_is_lost_begins_again() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    for name in numbered(0..3) {
        volume.file(directory, &name);
    }
    let listed = cookies(&volume, directory);
    volume.fs.unlink(directory, b"000001").unwrap();
    assert_eq!(part(&volume, directory, listed[1].1, 3).1, numbered([2]));
    for _ in 0..5000 {
        let file = volume.file(directory, "x");
        volume.fs.unlink(directory, b"x").unwrap();
        volume.fs.forget(file, 1);
    }
    assert_eq!(part(&volume, directory, listed[1].1, 3).1, numbered([2]), "one name takes one place");
    for number in 0..5000 {
        let name = format!("x{number}");
        let file = volume.file(directory, &name);
        volume.fs.unlink(directory, name.as_bytes()).unwrap();
        volume.fs.forget(file, 1);
    }
    assert_eq!(part(&volume, directory, listed[1].1, 3).1, numbered([0, 2]));
    // The name is there again.
    volume.file(directory, "000001");
    assert_eq!(part(&volume, directory, 0, 4).0, listed[1].1);
    assert_eq!(part(&volume, directory, listed[1].1, 3).1, numbered([2]));
}

/// In a directory that does not fit into the cache, what was found missing first is missing again when the search begins anew.
#[test]
fn a_search_for_a_cookie_goes_on_where_something_was_missing() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let names = numbered(0..3000);
    for name in &names {
        volume.file(directory, name);
    }
    let listed = cookies(&volume, directory);
    volume.fs.forget(directory, 1);
    let directory = volume.walk("d").unwrap();
    let queries = AtomicUsize::new(0);
    // One chunk is there each time, and not the next.
    volume.fs.interrupt_queries(move || queries.fetch_add(1, Ordering::Relaxed) % 2 == 1);
    let mut found = Vec::new();
    let mut emit = |entry: &DirectoryEntry| {
        found.push(String::from_utf8_lossy(&entry.name).into_owned());
        false
    };
    let mut tries = 0;
    while volume.fs.read_directory(directory, listed[2900].1, ListAttributes::OfNone, &mut emit)
        == Err(Error::Busy)
    {
        tries += 1;
        assert!(tries < 100, "the search begins again each time");
    }
    assert_eq!(found, [names[2901].clone()]);
    assert!(tries > 10, "nothing was missing: this proves nothing");
}

/// Counts the queries of whatever is done from here on.
fn count_queries(volume: &Volume) -> Arc<AtomicUsize> {
    let count = Arc::new(AtomicUsize::new(0));
    let counter = count.clone();
    volume.fs.interrupt_queries(move || {
        counter.fetch_add(1, Ordering::Relaxed);
        false
    });
    count
}

#[test]
fn creating_writing_and_removing_in_a_directory_just_made_reads_nothing() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let queries = count_queries(&volume);
    for name in numbered(0..100) {
        let file = volume.file(directory, &name);
        volume.write(file, 0, &[1; 5000]);
        volume.write(file, 100, &[2; 4]);
        volume.resize(file, 4500);
        volume.fs.unlink(directory, name.as_bytes()).unwrap();
        volume.fs.forget(file, 1);
    }
    volume.fs.remove_directory(ROOT, b"d").unwrap();
    assert_eq!(queries.load(Ordering::Relaxed), 0);
    volume.assert_clean();
}

#[test]
fn a_directory_listed_in_full_answers_absent_names_from_memory() {
    let before = Volume::new();
    let directory = before.directory(ROOT, "d");
    for name in numbered(0..300) {
        before.file(directory, &name);
    }
    let volume = before.after_crash();
    let directory = volume.walk("d").unwrap();
    let queries = count_queries(&volume);
    let absent = || volume.fs.lookup(directory, b"none");
    assert_eq!(absent(), Err(Error::NotFound));
    assert_eq!(queries.swap(0, Ordering::Relaxed), 1);
    assert_eq!(volume.names(directory).len(), 300);
    queries.store(0, Ordering::Relaxed);
    assert_eq!(absent(), Err(Error::NotFound));
    volume.file(directory, "none");
    assert_eq!(queries.load(Ordering::Relaxed), 0);
    assert!(absent().is_ok());
}

/// A first reply of the dots alone, given while the names were not in memory, made the kernel ask once more for each directory.
#[test]
fn the_dots_wait_for_the_names_behind_them() {
    let volume = Volume::new();
    let directories = numbered(0..60);
    for directory in &directories {
        let directory = volume.directory(ROOT, directory);
        for name in numbered(0..30) {
            volume.file(directory, &name);
        }
    }
    let volume = volume.remount(false);
    let mut missed = 0;
    for directory in &directories {
        let entry = waiting(&*volume.fs, |fs| fs.lookup(ROOT, directory.as_bytes())).unwrap();
        let mut names = Vec::new();
        let mut emit = |entry: &DirectoryEntry| {
            names.push(entry.name.clone());
            true
        };
        match volume.fs.read_directory(entry.attributes.inode, 0, ListAttributes::OfNone, &mut emit) {
            Ok(()) => assert!(names.len() > 2, "not the dots alone"),
            Err(Error::Miss(_)) => missed += usize::from(names.is_empty()),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(missed > 0, "the names of some directories do not lie beside its own");
}

#[test]
fn directories_that_are_empty_or_gone_have_their_dots() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    for _ in 0..2 {
        assert_eq!(part(&volume, directory, 0, 9).1, [".", ".."]);
    }
    volume.fs.remove_directory(ROOT, b"d").unwrap();
    assert_eq!(part(&volume, directory, 0, 9).1, [".", ".."]);
}

#[test]
fn a_place_is_known_of_what_has_one_name() {
    let volume = Volume::new();
    let directory = volume.directory(ROOT, "d");
    let file = volume.file(directory, "f");
    assert_eq!(volume.fs.place(file), Some((directory, "f".into())));
    assert_eq!(volume.fs.place(directory), Some((ROOT, "d".into())));
    assert_eq!(volume.fs.place(ROOT), None);
    waiting(&*volume.fs, |fs| fs.link(file, ROOT, b"g")).unwrap();
    assert_eq!(volume.fs.place(file), None);
}
