//! The maintenance token of a tree (TREE-2), and who comes first.
//!
//! A clone or a move has somebody who waits for it, and holds the token for microseconds; flushes and healing have nobody, and hold it
//! while they read from the device. So the holder looks, between two small steps, whether a clone waits, and lets it go first.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::{Mutex, MutexGuard};

/// How often work for a checkpoint goes on after a clone has come in between.
pub(super) const PAUSES_MAX: usize = 64;

/// See the module.
#[derive(Default)]
pub(crate) struct Maintenance {
    token: Mutex<()>,
    /// Clones that wait for the token.
    clones_waiting: AtomicUsize,
    /// Set where background work has found it taken, or wanted.
    turned_away: AtomicBool,
}

impl Maintenance {
    /// Waits for the token.
    pub(crate) fn wait(&self) -> Token<'_> {
        Token(Some(self.token.lock()))
    }

    /// The token, if nobody has it and no clone waits for it. Who does not get it leaves a note, and nobody but who wakes them
    /// takes that off again: it may be another's.
    pub(crate) fn try_take(&self) -> Option<Token<'_>> {
        self.take_if_free().or_else(|| {
            self.turned_away.store(true, Ordering::SeqCst);
            // Who gave it back just before has not seen the note.
            self.take_if_free()
        })
    }

    fn take_if_free(&self) -> Option<Token<'_>> {
        if self.is_wanted() { None } else { self.token.try_lock().map(|guard| Token(Some(guard))) }
    }

    /// Takes the note off: true if somebody has found the token taken. Who gave it back wakes them then.
    pub(crate) fn take_turned_away(&self) -> bool {
        self.turned_away.swap(false, Ordering::SeqCst)
    }

    /// True if the holder is to give it back soon, and to come again later.
    pub(crate) fn is_wanted(&self) -> bool {
        self.clones_waiting.load(Ordering::SeqCst) > 0
    }

    /// Says that a clone is going to wait for the token.
    pub(crate) fn announce_clone(&self) -> Waiting<'_> {
        self.clones_waiting.fetch_add(1, Ordering::SeqCst);
        Waiting(self)
    }
}

/// A clone that waits.
pub(crate) struct Waiting<'a>(&'a Maintenance);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.clones_waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The right to change which nodes there are. Goes to whoever has waited longest.
pub(crate) struct Token<'a>(Option<MutexGuard<'a, ()>>);

impl Drop for Token<'_> {
    fn drop(&mut self) {
        if let Some(guard) = self.0.take() {
            MutexGuard::unlock_fair(guard);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maintenance that was turned away was woken up to a second late if a checkpoint came in between.
    #[test]
    fn who_gets_the_token_leaves_the_note_of_who_did_not() {
        let maintenance = Maintenance::default();
        let held = maintenance.try_take().expect("it is free");
        assert!(maintenance.try_take().is_none());
        drop(held);
        // Before whoever had it has looked for the note.
        drop(maintenance.try_take().expect("it is free again"));
        assert!(maintenance.take_turned_away(), "nobody wakes who was turned away");
        drop(maintenance.try_take());
        assert!(!maintenance.take_turned_away(), "nobody was turned away since");
    }
}
