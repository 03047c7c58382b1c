//! Interest: whether programs look at what they list.
//!
//! Listings may carry attributes (READDIRPLUS). To programs that look at each file, as `ls -l`, `rm -r` and `grep -r` do, that saves a
//! round trip a file. For programs that want names alone, as find does, the kernel sets up inodes that nobody needs, which takes longer than
//! the listing itself. Programs do not say what they are, and of attributes that the kernel has we do not hear when they are used. So one
//! file of a listing, its *mark*, goes without: who looks at files asks for it. A program that has left several marks in a row gets
//! attributes of directories alone, into which it will go, until a file that went without is asked for.
//!
//! Who asks does not matter: programs list with one thread and look with others. But the kernel keeps listings as they were, and gives them
//! to the next program that lists: when another thread looks at files that went without attributes, the listings of the first one are forgotten.

use std::sync::atomic::{AtomicBool, Ordering};

use pando_fs::{InodeNumber, ListAttributes};
use parking_lot::Mutex;

use crate::recent::Recent;

/// Marks in a row that nobody asked for, until a program gets names alone. Twice as many each time that it was found to look at files
/// nevertheless, up to [`MARKS_MAX`].
const MARKS_MIN: u32 = 8;

/// See [`MARKS_MIN`]. Whoever is given names by another program lags behind it by as many as go into one command line.
const MARKS_MAX: u32 = 1024;

/// Directories with files that went without attributes, in each of which a thread has looked at one, after which it is known to look at files.
const SURE: u32 = 4;

/// One of so many listings has a mark then.
const SURE_ROUND: u32 = 16;

/// Directories in which files went without attributes that are remembered: a program that is given what another lists looks late.
const DIRECTORIES_MAX: usize = 1 << 14;

/// Threads that list directories and are remembered.
const PROGRAMS_MAX: usize = 64;

/// What is known of the programs that list directories.
#[derive(Default)]
pub(crate) struct Interest {
    state: Mutex<State>,
    /// Set once files went without attributes: as long as nothing is listed, lookups pay no more than a look at it.
    has_marks: AtomicBool,
}

struct State {
    /// The one that listed last stands last.
    programs: Vec<Program>,
    /// Directories in which files went without attributes.
    listings: Recent<InodeNumber, Listing>,
}

/// The last listing of a directory.
struct Listing {
    caller: u32,
    /// Whether none of its files has attributes.
    names_alone: bool,
    /// The kernel has all of it. What it has of one that goes on it would not complete if that were taken from it.
    is_whole: bool,
    /// A file was looked up since.
    looked: bool,
}

/// A thread of a program.
struct Program {
    caller: u32,
    /// Marks in a row that nobody asked for.
    marks: u32,
    /// So many, and it gets names alone.
    marks_needed: u32,
    names_alone: bool,
    /// Marks that were asked for since it last got names alone.
    looked: u32,
    listings: u32,
    /// Another thread that looks at files which this one listed by names alone, and in how many directories it has done so.
    follower: Option<(u32, u32)>,
}

impl Default for State {
    fn default() -> Self {
        Self { programs: Vec::new(), listings: Recent::new(DIRECTORIES_MAX) }
    }
}

impl Interest {
    /// Whose attributes a listing is to carry that a thread with this number begins, or goes on with.
    pub(crate) fn attributes(&self, caller: u32, begins: bool) -> ListAttributes {
        // Programs whom this process cannot see have no number, all of them.
        if caller == 0 {
            return ListAttributes::OfAll;
        }
        let mut state = self.state.lock();
        let program = state.program(caller);
        program.listings = program.listings.wrapping_add(u32::from(begins));
        let is_sure = program.looked >= SURE && !program.listings.is_multiple_of(SURE_ROUND);
        match begins {
            _ if program.names_alone => ListAttributes::OfDirectories,
            true if !is_sure => ListAttributes::OfAllButOneFile,
            _ => ListAttributes::OfAll,
        }
    }

    /// A listing of this directory for this thread, for which [`Interest::attributes`] was asked, goes out with a file that has none.
    pub(crate) fn note_mark(&self, caller: u32, directory: InodeNumber) {
        let mut state = self.state.lock();
        let names_alone = state.program(caller).names_alone;
        let listing = Listing { caller, names_alone, is_whole: false, looked: false };
        let before = state.listings.insert(directory, listing);
        if before.is_some_and(|before| before.caller == caller && !before.looked) {
            return;
        }
        let program = state.program(caller);
        program.marks += 1;
        if program.marks >= program.marks_needed {
            program.names_alone = true;
            program.looked = 0;
        }
        self.has_marks.store(true, Ordering::Relaxed);
    }

    /// A listing of this directory has come to its end.
    pub(crate) fn note_end(&self, caller: u32, directory: InodeNumber) {
        if self.has_marks.load(Ordering::Relaxed)
            && let Some(listing) = self.state.lock().listings.get_mut(&directory)
        {
            listing.is_whole |= listing.caller == caller;
        }
    }

    /// A thread has looked up a file of this directory. Returns the directories whose listings the kernel had better keep no longer: those
    /// without attributes, for one that goes from directory to directory behind the program that listed them.
    pub(crate) fn note_look(&self, caller: u32, directory: InodeNumber) -> Vec<InodeNumber> {
        if !self.has_marks.load(Ordering::Relaxed) {
            return Vec::new();
        }
        let mut state = self.state.lock();
        let State { programs, listings } = &mut *state;
        let Some(listing) = listings.get_mut(&directory) else { return Vec::new() };
        if std::mem::replace(&mut listing.looked, true) {
            return Vec::new();
        }
        let (lister, names_alone) = (listing.caller, listing.names_alone);
        let Some(program) = programs.iter_mut().find(|program| program.caller == lister) else {
            return Vec::new();
        };
        program.marks = 0;
        program.looked = program.looked.saturating_add(1);
        if std::mem::take(&mut program.names_alone) {
            program.marks_needed = (program.marks_needed * 2).min(MARKS_MAX);
        }
        if !names_alone || lister == caller || !program.is_followed(caller) {
            return Vec::new();
        }
        let mut forgotten = Vec::new();
        for (directory, listing) in listings.iter_mut() {
            if listing.caller == lister && listing.names_alone && listing.is_whole {
                listing.names_alone = false;
                forgotten.push(*directory);
            }
        }
        forgotten
    }
}

impl Program {
    fn new(caller: u32) -> Self {
        let marks_needed = MARKS_MIN;
        Self { caller, marks: 0, marks_needed, names_alone: false, looked: 0, listings: 0, follower: None }
    }

    /// Notes that another thread looked at a file in one more directory; true once it does so again and again.
    fn is_followed(&mut self, by: u32) -> bool {
        let before =
            self.follower.filter(|(follower, _)| *follower == by).map_or(0, |(_, directories)| directories);
        self.follower = Some((by, before.saturating_add(1)));
        before + 1 >= SURE
    }
}

impl State {
    /// What is known of a thread, which is the last one then.
    fn program(&mut self, caller: u32) -> &mut Program {
        let programs = &mut self.programs;
        let known = programs.iter().rposition(|program| program.caller == caller);
        let program = match known {
            Some(index) => programs.remove(index),
            None => {
                if programs.len() == PROGRAMS_MAX {
                    programs.remove(0);
                }
                Program::new(caller)
            }
        };
        programs.push(program);
        programs.last_mut().expect("one was just added")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIND: u32 = 7;
    const GREP: u32 = 100;

    /// A listing of a directory that has files, from beginning to end.
    fn list(interest: &Interest, caller: u32, directory: u64) -> ListAttributes {
        let attributes = interest.attributes(caller, true);
        if attributes != ListAttributes::OfAll {
            interest.note_mark(caller, InodeNumber(directory));
            interest.note_end(caller, InodeNumber(directory));
        }
        attributes
    }

    #[test]
    fn who_lists_and_does_not_look_gets_names_alone() {
        let interest = Interest::default();
        for directory in 0..u64::from(MARKS_MIN) {
            assert_eq!(list(&interest, FIND, directory), ListAttributes::OfAllButOneFile);
            assert_eq!(
                interest.attributes(FIND, false),
                match directory + 1 < u64::from(MARKS_MIN) {
                    true => ListAttributes::OfAll,
                    false => ListAttributes::OfDirectories,
                }
            );
        }
        assert_eq!(list(&interest, FIND, 100), ListAttributes::OfDirectories);
        assert_eq!(list(&interest, FIND + 1, 101), ListAttributes::OfAllButOneFile, "another program");
        interest.note_look(FIND, InodeNumber(99));
        assert_eq!(list(&interest, FIND, 102), ListAttributes::OfDirectories, "a look elsewhere");
    }

    #[test]
    fn who_looks_after_all_is_believed_less_soon() {
        let interest = Interest::default();
        let mut directory = 0;
        let mut lists_until_names_alone = || {
            let mut lists = 0;
            while list(&interest, FIND, directory) != ListAttributes::OfDirectories {
                (lists, directory) = (lists + 1, directory + 1);
            }
            // Whoever looks.
            interest.note_look(GREP, InodeNumber(directory - 2));
            directory += 1;
            lists
        };
        let lists = [(); 9].map(|()| lists_until_names_alone());
        assert_eq!(lists, [8, 16, 32, 64, 128, 256, 512, 1024, 1024]);
    }

    /// As `find | xargs grep` does, some thousands of paths at a time.
    #[test]
    fn who_is_given_names_by_another_program_looks_late() {
        let interest = Interest::default();
        let mut names_alone = 0;
        for lot in (0..5100).collect::<Vec<u64>>().chunks(170) {
            let alone =
                |directory: &&u64| list(&interest, FIND, **directory) == ListAttributes::OfDirectories;
            names_alone += lot.iter().filter(alone).count();
            for directory in lot {
                interest.note_look(GREP, InodeNumber(*directory));
            }
        }
        assert!((1..200).contains(&names_alone), "{names_alone}");
    }

    #[test]
    fn listings_with_names_alone_are_not_left_to_others() {
        let interest = Interest::default();
        for directory in 0..20 {
            list(&interest, FIND, directory);
        }
        for directory in 20..30 {
            list(&interest, FIND + 1, directory);
        }
        // One that goes on.
        let (alone, last) = (u64::from(MARKS_MIN), 30);
        interest.note_mark(FIND, InodeNumber(last));
        let look = |caller, directory| {
            let mut forgotten = interest.note_look(caller, InodeNumber(directory));
            forgotten.sort();
            forgotten.into_iter().map(|directory| directory.0).collect::<Vec<_>>()
        };
        for directory in [0, 1, 2, 3, alone, alone, alone + 1, alone + 2] {
            assert_eq!(look(GREP, directory), [0; 0], "not yet for sure");
        }
        assert_eq!(look(GREP, 28), [0; 0], "what another listed");
        assert_eq!(look(FIND, alone + 3), [0; 0], "itself");
        assert_eq!(look(GREP, alone + 4), (alone..20).collect::<Vec<_>>());
        assert_eq!(look(GREP, alone + 5), [0; 0]);
        interest.note_end(FIND, InodeNumber(last));
        assert_eq!(look(GREP, last), [last]);
    }

    #[test]
    fn who_looks_at_each_mark_meets_few() {
        let interest = Interest::default();
        let mut marks = 0;
        for directory in 0..1000 {
            if list(&interest, FIND, directory) != ListAttributes::OfAll {
                marks += 1;
                interest.note_look(FIND, InodeNumber(directory));
            }
        }
        assert!(marks < 1000 / 10, "{marks}");
        let others = (0..1000)
            .filter(|directory| list(&interest, FIND, 1000 + directory) == ListAttributes::OfDirectories);
        assert!(others.count() > 800, "it may do otherwise one day");
    }

    #[test]
    fn programs_that_were_not_heard_of_for_long_are_forgotten() {
        let interest = Interest::default();
        for directory in 0..=u64::from(MARKS_MIN) {
            list(&interest, FIND, directory);
        }
        for other in 1..=PROGRAMS_MAX as u32 {
            list(&interest, FIND + other, 0);
        }
        assert_eq!(list(&interest, FIND, 100), ListAttributes::OfAllButOneFile);
        assert_eq!(interest.attributes(0, true), ListAttributes::OfAll, "nobody in particular");
    }
}
