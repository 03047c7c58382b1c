//! Locks that are taken for a few microseconds at a time, by threads that each serve a core.
//!
//! Who sleeps until such a lock is let go has to be woken, which takes several times as long as it is held, and holds up in turn
//! whoever waits for what it has locked itself. So it looks for some time first.

use std::hint::spin_loop;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

/// How often it looks. With what is between, about 30 us on a processor of 2023: less than it takes to wake a sleeping core.
const LOOKS: usize = 40;

/// Pauses of the processor from one look to the next.
const PAUSES: usize = 16;

/// Locks a mutex.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    look(|| mutex.try_lock()).unwrap_or_else(|| mutex.lock())
}

/// Locks for a change.
pub(crate) fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    look(|| lock.try_write()).unwrap_or_else(|| lock.write())
}

fn look<G>(mut at: impl FnMut() -> Option<G>) -> Option<G> {
    for _ in 0..LOOKS {
        let guard = at();
        if guard.is_some() {
            return guard;
        }
        (0..PAUSES).for_each(|_| spin_loop());
    }
    None
}
