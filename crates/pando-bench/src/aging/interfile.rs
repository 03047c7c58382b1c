//! Files that are created in another order than that of their names (FAST17 5): the directories of the Linux source, each file
//! 4 KiB, copied in the order of a sorted list in which a growing part has been swapped at random.

use std::fs;
use std::path::{Path, PathBuf};

use super::grep_cost::age;
use crate::applications::git::files;
use crate::compleat::source_tree::untar_parts;
use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::owned;
use crate::row::Measurement;
use crate::volume::Volume;

const PARTS: [&str; 6] = ["mm", "kernel", "lib", "fs", "block", "net"];
const FILE_BYTES: usize = 4096;
const ROUNDS: u64 = 10;

/// The sorted list of the files, without the directory in which they are unpacked.
fn names(volume: &Volume) -> Result<Vec<PathBuf>, Error> {
    let place = owned::scratch(&volume.options.directory).join("names");
    let remove =
        || if place.exists() { at("cannot remove", &place, fs::remove_dir_all(&place)) } else { Ok(()) };
    remove()?;
    at("cannot create", &place, fs::create_dir_all(&place))?;
    untar_parts(volume, &place, &PARTS)?;
    let found = files(&place)?;
    remove()?;
    Ok(found.into_iter().filter_map(|path| path.strip_prefix(&place).map(Path::to_owned).ok()).collect())
}

/// The list with a part of it swapped: the first so many of one permutation with the first of another.
fn swapped(count: usize, round: u64) -> Vec<usize> {
    let mut random = Random(31);
    let mut permutations: [Vec<usize>; 2] = [(0..count).collect(), (0..count).collect()];
    permutations.iter_mut().for_each(|permutation| random.shuffle(permutation));
    let [from, to] = permutations;
    let mut order: Vec<usize> = (0..count).collect();
    let part = count * round as usize / ROUNDS as usize;
    from.into_iter().zip(to).take(part).for_each(|(one, other)| order.swap(one, other));
    order
}

/// Ages, and looks at every second round.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    let names = names(volume)?;
    let tree = volume.root.join("interfile");
    age(volume, &tree, (ROUNDS, 2), |round| {
        if tree.exists() {
            at("cannot remove", &tree, fs::remove_dir_all(&tree))?;
        }
        let mut contents = [0; FILE_BYTES];
        for index in swapped(names.len(), round) {
            let path = tree.join(&names[index]);
            let directory = path.parent().unwrap_or(&tree);
            at("cannot create", directory, fs::create_dir_all(directory))?;
            fill(&mut contents, index as u64);
            at("cannot write", &path, fs::write(&path, contents))?;
        }
        volume.sync()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_growing_part_is_out_of_order() {
        let out_of_order = |round| {
            let order = swapped(1000, round);
            let moved = order.iter().enumerate().filter(|(place, index)| place != *index).count();
            let mut sorted = order;
            sorted.sort_unstable();
            assert!(sorted.into_iter().eq(0..1000));
            moved
        };
        let moved = [0, 2, 6, 10].map(out_of_order);
        assert!(
            moved[0] == 0 && moved.windows(2).all(|pair| pair[0] < pair[1]) && moved[3] > 900,
            "{moved:?}"
        );
    }
}
