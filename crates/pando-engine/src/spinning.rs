//! Locks that threads which each serve a core take for a few microseconds, mostly.
//!
//! Who sleeps until such a lock is let go has to be woken, which takes several times as long as it is held, and holds up in turn
//! whoever waits for what it has locked itself. So it looks for some time first.

use std::hint::spin_loop;

use parking_lot::{Mutex, MutexGuard, RwLock, RwLockWriteGuard};

/// How often it looks. With what is between it took 5.7 us on the processor of `docs/measurements.md`: less than it takes to wake a sleeping core.
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

#[cfg(test)]
mod tests {
    use std::sync::Barrier;

    use super::*;

    #[test]
    fn one_at_a_time_has_the_lock() {
        let (mutex, rwlock) = (Mutex::new(0), RwLock::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        *lock(&mutex) += 1;
                        *write(&rwlock) += 1;
                    }
                });
            }
        });
        assert_eq!((mutex.into_inner(), rwlock.into_inner()), (40_000, 40_000));
    }

    #[test]
    fn who_has_looked_in_vain_sleeps_until_it_is_let_go() {
        let (mutex, rwlock) = (Mutex::new(0), RwLock::new(0));
        let begin = Barrier::new(2);
        std::thread::scope(|scope| {
            let (mut number, read) = (mutex.lock(), rwlock.read());
            let waits = scope.spawn(|| {
                begin.wait();
                (*lock(&mutex), *write(&rwlock))
            });
            begin.wait();
            assert!(look(|| mutex.try_lock()).is_none() && look(|| rwlock.try_write()).is_none());
            *number = 7;
            drop((number, read));
            assert_eq!(waits.join().unwrap(), (7, 0));
        });
    }
}
