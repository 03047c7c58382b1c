//! Random changes on one volume that follow each other to another, snapshot by snapshot.

use bytes::Bytes;
use pando_device::simulated::Random;
use pando_fs::InodeNumber;
use pando_fs::operations::{FileType, Operations, ROOT, RenameMode, WriteMode, XattrMode, changing, waiting};

use super::moves::moves_in;
use super::{assert_nothing_is_left, contents, receive, send, take};
use crate::common::Volume;

fn scribble(volume: &Volume, random: &mut Random) {
    let (fs, caller) = (&*volume.fs, &volume.caller);
    for _ in 0..40 {
        // Each with where it lies.
        let mut found = vec![(ROOT, &b""[..], ROOT)];
        for at in 0.. {
            // Some of them are found in others.
            let Some((.., above)) = found.get(at).copied().filter(|_| at < 12) else { break };
            found.extend([&b"a"[..], b"b", b"c"].into_iter().filter_map(|name| {
                let found = waiting(fs, |fs| fs.lookup(above, name)).ok()?.attributes;
                (found.file_type == FileType::Directory).then_some((above, name, found.inode))
            }));
        }
        let directories: Vec<InodeNumber> = found.iter().map(|(.., inode)| *inode).collect();
        let moved = found[random.below(found.len() as u64) as usize];
        let pick = |random: &mut Random| directories[random.below(directories.len() as u64) as usize];
        let (from, to) = (pick(random), pick(random));
        let name = |random: &mut Random| ["a", "b", "c", "d", "e"][random.below(5) as usize].as_bytes();
        let (old, new) = (name(random), name(random));
        let found = waiting(fs, |fs| fs.lookup(from, old)).map(|entry| entry.attributes);
        // What cannot be done is refused, and that is no matter here.
        let _ = match (random.below(13), found) {
            (10.., _) => {
                let name = [&b"a"[..], b"b", b"c"][random.below(3) as usize];
                let mode = if random.chance(1, 3) { RenameMode::Exchange } else { RenameMode::NoReplace };
                changing(fs, |fs| fs.rename(moved.0, moved.1, to, name, mode)).map(drop)
            }
            (0..3, _) | (_, Err(_)) if random.chance(1, 2) => {
                changing(fs, |fs| fs.make_directory(caller, from, old, 0o755)).map(drop)
            }
            (0..3, _) | (_, Err(_)) => {
                changing(fs, |fs| fs.make_node(caller, from, old, FileType::Regular, 0o644, 0)).map(drop)
            }
            (3, Ok(found)) if found.file_type == FileType::Directory => {
                changing(fs, |fs| fs.remove_directory(from, old))
            }
            (3, _) => changing(fs, |fs| fs.unlink(from, old)),
            (4, Ok(found)) => changing(fs, |fs| fs.link(found.inode, to, new)).map(drop),
            (5, Ok(found)) => changing(fs, |fs| fs.clone_tree(caller, &[], found.inode, to, new)),
            (6, _) => changing(fs, |fs| fs.rename(from, old, to, new, RenameMode::Exchange)).map(drop),
            (7, _) => changing(fs, |fs| fs.rename(from, old, to, new, RenameMode::Replace)).map(drop),
            (8, Ok(found)) => {
                let value = vec![random.bits() as u8; random.below(2000) as usize];
                changing(fs, |fs| fs.set_xattr(found.inode, b"user.x", &value, XattrMode::Set, false))
            }
            (_, Ok(found)) => {
                let bytes = Bytes::from(vec![random.bits() as u8; random.below(30_000) as usize]);
                let offset = random.below(50_000);
                changing(fs, |fs| fs.write(found.inode, offset, bytes.clone(), WriteMode::PLAIN))
            }
        };
    }
}

#[test]
fn chains_of_changes_end_in_the_same() {
    let seeds = pando_sim::seeds(12);
    let (mut moves, all) = (0, seeds.len() >= 12);
    for seed in seeds {
        println!("PANDO_SEED={seed}");
        let mut random = Random::new(seed);
        let (volume, other) = (Volume::new(), Volume::new());
        let mut base: Option<String> = None;
        for round in 0..6 {
            scribble(&volume, &mut random);
            if random.chance(1, 2) {
                while volume.fs.engine().background_step().unwrap() {}
            }
            let name = format!("s{round}");
            take(&volume.fs, &name);
            let stream = send(&volume.fs, &name, base.as_deref());
            moves += moves_in(&stream).len();
            scribble(&other, &mut random);
            receive(&other.fs, &stream).unwrap_or_else(|error| panic!("PANDO_SEED={seed}: {error}"));
            assert!(contents(&other.fs, &name) == contents(&volume.fs, &name), "PANDO_SEED={seed}, {name}");
            assert_nothing_is_left(&other.fs);
            if let Some(base) = base.filter(|_| random.chance(1, 2)) {
                changing(&*volume.fs, |fs| fs.delete_snapshot(base.as_bytes())).unwrap();
                changing(&*other.fs, |fs| fs.delete_snapshot(base.as_bytes())).unwrap();
            }
            base = Some(name);
        }
        other.assert_clean();
        volume.assert_clean();
    }
    println!("{moves} moves");
    assert!(moves >= 50 || !all, "only {moves} moves");
}
