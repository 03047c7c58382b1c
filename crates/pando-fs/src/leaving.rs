//! Files that were unlinked a moment ago and that the kernel is about to forget.
//!
//! What an unlinked file holds is free only behind the last `forget` ([`crate::orphan`]). The kernel sends that once it has the
//! answer to the unlink, and another thread serves it: whoever deletes something on a full volume and writes at once would find it
//! as full as before. So a change that does not fit waits for the forgets that are on their way. A file that has not been
//! forgotten for [`FORGET_TIME`] is held open by somebody, and nobody waits for it.
//!
//! Nor can a new file have the name of one whose data lie there still: it takes the forgets first that have come ([`Error::Unforgotten`]).
//!
//! One lock, held for no call.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

#[cfg(doc)]
use crate::Error;
use crate::hash::NumberMap;
use crate::operations::InodeNumber;

/// From an unlink to its forget: far less, unless the machine has much else to do.
const FORGET_TIME: Duration = Duration::from_secs(1);

/// See the module.
#[derive(Default)]
pub(crate) struct Leaving {
    state: Mutex<State>,
    forgotten: Condvar,
}

#[derive(Default)]
struct State {
    files: NumberMap<InodeNumber, Unlinked>,
    /// A change was refused for want of space since the last wait.
    refused: bool,
    /// Forgets wait until somebody looks for them.
    gather: bool,
}

struct Unlinked {
    at: Instant,
    /// Somebody has looked for its forget since.
    looked_for: bool,
}

impl Unlinked {
    /// When its forget should have come.
    fn expected_by(&self) -> Instant {
        self.at + FORGET_TIME
    }
}

impl State {
    /// When the last forget is to be expected, if one is.
    fn expected_by(&mut self) -> Option<Instant> {
        let now = Instant::now();
        self.files.retain(|_, file| now < file.expected_by());
        self.files.values().map(Unlinked::expected_by).max()
    }
}

impl Leaving {
    /// A file with contents has lost its last name.
    pub(crate) fn unlinked(&self, number: InodeNumber) {
        self.state.lock().files.insert(number, Unlinked { at: Instant::now(), looked_for: false });
    }

    /// See [`crate::Operations::forgets_gather`].
    pub(crate) fn forgets_gather(&self) {
        self.state.lock().gather = true;
    }

    /// True if its forget may have come by now, and nobody has looked for it yet: the caller does.
    pub(crate) fn may_leave_at_once(&self, number: InodeNumber) -> bool {
        let mut state = self.state.lock();
        let gather = state.gather;
        let Some(file) = state.files.get_mut(&number).filter(|_| gather) else { return false };
        Instant::now() < file.expected_by() && !std::mem::replace(&mut file.looked_for, true)
    }

    /// It was deleted, or has a name again.
    pub(crate) fn is_settled(&self, number: InodeNumber) {
        let mut state = self.state.lock();
        if state.files.remove(&number).is_some() && state.files.is_empty() {
            self.forgotten.notify_all();
        }
    }

    /// A change does not fit: true if it may once the kernel has forgotten what is to be expected.
    pub(crate) fn may_make_room(&self) -> bool {
        let mut state = self.state.lock();
        state.refused = state.expected_by().is_some();
        state.refused
    }

    /// Behind such a refusal, waits for the forgets, for [`FORGET_TIME`] at most if nothing is unlinked meanwhile.
    pub(crate) fn await_forgets(&self) {
        let mut state = self.state.lock();
        if !std::mem::take(&mut state.refused) {
            return;
        }
        let Some(expected_by) = state.expected_by() else { return };
        while !state.files.is_empty() && !self.forgotten.wait_until(&mut state, expected_by).timed_out() {}
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    const ONE: InodeNumber = InodeNumber(1);
    const TWO: InodeNumber = InodeNumber(2);

    #[test]
    fn nobody_waits_where_nothing_is_on_its_way() {
        let leaving = Leaving::default();
        assert!(!leaving.may_make_room());
        leaving.unlinked(ONE);
        leaving.is_settled(ONE);
        assert!(!leaving.may_make_room());
        leaving.await_forgets();
    }

    #[test]
    fn a_refused_change_waits_until_all_are_forgotten() {
        let leaving = Arc::new(Leaving::default());
        leaving.unlinked(ONE);
        leaving.unlinked(TWO);
        assert!(leaving.may_make_room());
        let kernel = leaving.clone();
        let forgets = std::thread::spawn(move || [ONE, TWO].map(|number| kernel.is_settled(number)));
        leaving.await_forgets();
        assert!(!leaving.may_make_room());
        forgets.join().unwrap();
    }

    #[test]
    fn the_forget_of_a_file_is_looked_for_once() {
        let leaving = Leaving::default();
        leaving.unlinked(ONE);
        assert!(!leaving.may_leave_at_once(ONE), "none gather");
        leaving.forgets_gather();
        assert!(!leaving.may_leave_at_once(TWO));
        assert!(leaving.may_leave_at_once(ONE) && !leaving.may_leave_at_once(ONE));
        leaving.unlinked(ONE);
        assert!(leaving.may_leave_at_once(ONE), "it had a name again");
        leaving.unlinked(ONE);
        std::thread::sleep(FORGET_TIME);
        assert!(!leaving.may_leave_at_once(ONE), "it is held open");
    }

    #[test]
    fn a_file_that_is_held_open_is_not_waited_for_again() {
        let leaving = Leaving::default();
        leaving.unlinked(ONE);
        assert!(leaving.may_make_room());
        leaving.await_forgets();
        assert!(!leaving.may_make_room());
        leaving.is_settled(ONE);
    }
}
