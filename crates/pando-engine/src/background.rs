//! Work behind the scenes, as steps over a scheduler that is handed in: threads of the engine's own, or the caller's one
//! thread in simulation.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use pando_format::Tree;
use parking_lot::{Condvar, Mutex};

use crate::betree::tree::HEALING_DUE;
use crate::cache::read_ahead;
use crate::checkpoint::Occasion;
use crate::checkpoint_turns::CheckpointTurns;
use crate::options::Background;
use crate::volume::Volume;
use crate::{Error, Result};

/// How long a thread that waits for background work sleeps before it looks again by itself.
const WAIT_MAX: Duration = Duration::from_millis(100);

/// For how long a tree may keep nodes that are covered by a range delete, and edges that moves have left in its root. Of moves and deletes one
/// after the other each would have to wake the thread that takes them out, and give way to it.
const TIDYING_GATHERS: Duration = Duration::from_millis(10);

/// Who is to be woken.
pub(crate) struct Signals {
    background: Background,
    state: Mutex<State>,
    tree: Condvar,
    log: Condvar,
    checkpoint: Condvar,
    progress: Condvar,
    /// Set when a checkpoint would give something that somebody waits for.
    checkpoint_wanted: AtomicBool,
    /// Checkpoints that changes wait for.
    pub(crate) turns: CheckpointTurns,
}

#[derive(Default)]
struct State {
    tree: bool,
    /// What a tree has to do may gather.
    tree_soon: bool,
    log: bool,
    stop: bool,
    /// How often there was progress.
    rounds: u64,
}

impl Signals {
    pub(crate) fn new(background: Background) -> Self {
        Self {
            background,
            state: Mutex::default(),
            tree: Condvar::new(),
            log: Condvar::new(),
            checkpoint: Condvar::new(),
            progress: Condvar::new(),
            checkpoint_wanted: AtomicBool::new(false),
            turns: CheckpointTurns::default(),
        }
    }

    /// Says that a checkpoint begins.
    pub(crate) fn checkpoint_begins(&self) {
        self.turns.begin();
    }

    /// Says that the checkpoint that began last is durable, and what it released is free.
    pub(crate) fn checkpoint_is_done(&self) {
        self.turns.end();
        self.progress();
    }

    /// True if a checkpoint has begun and is not done.
    pub(crate) fn checkpoint_runs(&self) -> bool {
        self.turns.is_running()
    }

    /// Lets changes wait until a whole checkpoint is done that begins from now on.
    pub(crate) fn await_checkpoint(&self) {
        self.turns.await_next();
        self.want_checkpoint();
    }

    /// Wakes whoever waits for room.
    pub(crate) fn progress(&self) {
        self.state.lock().rounds += 1;
        self.progress.notify_all();
    }

    /// True if the threads are to end.
    pub(crate) fn is_stopping(&self) -> bool {
        self.state.lock().stop
    }

    /// How often there was progress so far, for [`Volume::wait_for_progress`]: to be asked before what is waited for is looked at.
    pub(crate) fn rounds(&self) -> u64 {
        self.state.lock().rounds
    }

    fn wake_tree(&self) {
        self.wake(&self.tree, |state| !std::mem::replace(&mut state.tree, true));
    }

    fn wake_tree_soon(&self) {
        self.wake(&self.tree, |state| !state.tree && !std::mem::replace(&mut state.tree_soon, true));
    }

    fn wake_log(&self) {
        self.wake(&self.log, |state| !std::mem::replace(&mut state.log, true));
    }

    /// Wakes a thread if the note of why is new. Nobody else who notes something waits until the thread's core is awake.
    fn wake(&self, thread: &Condvar, note: impl FnOnce(&mut State) -> bool) {
        if self.background == Background::Threads {
            let is_new = note(&mut self.state.lock());
            if is_new {
                thread.notify_one();
            }
        }
    }

    /// Asks for a checkpoint soon.
    pub(crate) fn want_checkpoint(&self) {
        if !self.checkpoint_wanted.swap(true, Ordering::Relaxed) {
            self.wake(&self.checkpoint, |_| true);
        }
    }

    /// Tells the threads to end.
    pub(crate) fn stop(&self) {
        self.state.lock().stop = true;
        self.tree.notify_all();
        self.log.notify_all();
        self.checkpoint.notify_all();
        self.progress.notify_all();
    }
}

impl Volume {
    /// Says that a tree has work for its maintenance.
    pub(crate) fn wake_maintenance(&self) {
        self.signals.wake_tree();
    }

    /// Wakes maintenance if it has found a token taken that is free now.
    pub(crate) fn wake_turned_away(&self) {
        let turned_away = Tree::ALL.map(|tree| self.root(tree).maintenance.take_turned_away());
        if turned_away.contains(&true) {
            self.wake_maintenance();
        }
    }

    /// Looks, after a change, at who has something to do now.
    pub(crate) fn wake_workers(&self) {
        if self.log.wants_write_out() {
            self.signals.wake_log();
        }
        if self.wants_eviction()
            || self.trees_want_maintenance()
            || self.cache.dirty_bytes() > self.dirty_goal()
        {
            self.signals.wake_tree();
        } else if self.trees_want_tidying() {
            self.signals.wake_tree_soon();
        }
        // One that runs gives room when it is done, and looks then whether that is enough.
        if !self.signals.checkpoint_runs() && self.checkpoint_is_due() {
            self.signals.want_checkpoint();
        }
    }

    /// True if the log or the space needs a checkpoint before its time.
    fn checkpoint_is_due(&self) -> bool {
        self.log_needs_checkpoint() || self.wants_space(0)
    }

    /// True if half of the log is in use.
    pub(crate) fn log_needs_checkpoint(&self) -> bool {
        self.log.used_bytes() >= self.log.capacity() / 2
    }

    fn trees_want_maintenance(&self) -> bool {
        Tree::ALL.into_iter().any(|tree| {
            let load = self.root_load(tree);
            load.bytes > self.shape.node_bytes
                || load.edges > self.shape.fanout * 2
                || load.wounds >= HEALING_DUE
        })
    }

    fn trees_want_tidying(&self) -> bool {
        Tree::ALL.into_iter().any(|tree| self.root(tree).covered.load(Ordering::Relaxed))
    }

    /// Sleeps until some background work is done that was not when there had been so many rounds of it, or a moment has passed. True if it
    /// slept.
    pub(crate) fn wait_for_progress(&self, rounds: u64) -> bool {
        let mut state = self.signals.state.lock();
        let waits = !state.stop && state.rounds == rounds;
        if waits {
            self.signals.progress.wait_for(&mut state, WAIT_MAX);
        }
        waits
    }

    /// One step of whatever is to be done; false if there is nothing.
    pub(crate) fn background_step(&self) -> Result<bool> {
        if self.log.wants_write_out() {
            self.log.write_ripe(self)?;
            return Ok(true);
        }
        if self.tree_step()? {
            return Ok(true);
        }
        if self.signals.checkpoint_wanted.swap(false, Ordering::Relaxed) || self.checkpoint_is_due() {
            self.checkpoint(Occasion::Running)?;
            return Ok(true);
        }
        Ok(false)
    }

    /// One step of maintenance, reclamation or eviction; false if there is nothing.
    pub(crate) fn tree_step(&self) -> Result<bool> {
        // Without room for what a flush makes dirty, only a checkpoint helps.
        if self.has_space_to_flush() {
            for tree in Tree::ALL {
                if self.maintain(tree)? {
                    return Ok(true);
                }
            }
        }
        if self.reclaim_doomed()? {
            return Ok(true);
        }
        if self.options.read_only {
            return Ok(false);
        }
        match self.shrink_cache() {
            Err(Error::NoSpace) => {
                // A checkpoint writes the same nodes, and releases where they lay before.
                self.signals.want_checkpoint();
                Ok(false)
            }
            other => other,
        }
    }

    fn shrink_cache(&self) -> Result<bool> {
        if self.wants_eviction() && self.evict()? {
            return Ok(true);
        }
        if self.cache.dirty_bytes() > self.dirty_goal() {
            return self.write_back_one();
        }
        Ok(false)
    }

    fn tree_thread(&self) {
        loop {
            {
                let mut state = self.signals.state.lock();
                if !state.tree && !state.tree_soon && !state.stop {
                    self.signals.tree.wait_for(&mut state, WAIT_MAX * 10);
                }
                if state.tree_soon && !state.tree && !state.stop {
                    self.signals.tree.wait_for(&mut state, TIDYING_GATHERS);
                }
                if state.stop {
                    return;
                }
                (state.tree, state.tree_soon) = (false, false);
            }
            loop {
                match self.tree_step() {
                    Ok(true) => self.signals.progress(),
                    Ok(false) => break,
                    Err(error) => {
                        self.background_failed("maintenance", &error);
                        break;
                    }
                }
                if self.signals.is_stopping() {
                    return;
                }
            }
        }
    }

    fn log_thread(&self) {
        let mut last_sync = Instant::now();
        loop {
            {
                let mut state = self.signals.state.lock();
                // Who is woken in between for a burst waits for the rest alone.
                let left = self.options.log_interval.saturating_sub(last_sync.elapsed());
                if !state.log && !state.stop {
                    self.signals.log.wait_for(&mut state, left.max(Duration::from_millis(1)));
                }
                if state.stop {
                    return;
                }
                state.log = false;
            }
            let due = last_sync.elapsed() >= self.options.log_interval;
            let result = if due {
                last_sync = Instant::now();
                self.log.sync_to(self.log.appended_lsn(), self).map(|_| ())
            } else {
                self.log.write_ripe(self)
            };
            if let Err(error) = result {
                self.background_failed("the log", &error);
            }
        }
    }

    fn checkpoint_thread(&self) {
        let mut last = Instant::now();
        let mut last_lsn = self.log.appended_lsn();
        loop {
            {
                let mut state = self.signals.state.lock();
                let left = self.options.checkpoint_interval.saturating_sub(last.elapsed());
                if !state.stop && !self.signals.checkpoint_wanted.load(Ordering::Relaxed) {
                    self.signals.checkpoint.wait_for(&mut state, left.max(Duration::from_millis(1)));
                }
                if state.stop {
                    return;
                }
            }
            let wanted = self.signals.checkpoint_wanted.swap(false, Ordering::Relaxed);
            let due = last.elapsed() >= self.options.checkpoint_interval;
            if !wanted && !due {
                continue;
            }
            last = Instant::now();
            let lsn = self.log.appended_lsn();
            if wanted || lsn != last_lsn {
                last_lsn = lsn;
                if let Err(error) = self.checkpoint(Occasion::Running) {
                    self.background_failed("a checkpoint", &error);
                }
            }
        }
    }

    fn background_failed(&self, what: &str, error: &Error) {
        // Said once, by whoever notices first; a failure of the log, which foreground calls meet, is first noticed here.
        self.poison(&format_args!("{what} failed: {error}"));
    }
}

/// A thread that panics leaves things half done, and others waiting for the rest. So the volume takes no changes any more, which all who
/// wait are told. Its locks have been let go by then.
struct Panics<'a> {
    volume: &'a Volume,
    name: &'a str,
}

impl Drop for Panics<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let why = format!("the thread {} panicked", self.name);
            self.volume.log.fail(&why);
            self.volume.poison(&why);
        }
    }
}

/// What a thread does until it is told to end.
type Work = fn(&Volume);

/// Starts the threads of a volume, or none.
pub(crate) fn start(volume: &Arc<Volume>) -> std::io::Result<Vec<JoinHandle<()>>> {
    let mut threads = Vec::new();
    if volume.options.background == Background::Manual {
        return Ok(threads);
    }
    let writers: [(&str, Work); 3] = [
        ("pando-tree", Volume::tree_thread),
        ("pando-log", Volume::log_thread),
        ("pando-checkpt", Volume::checkpoint_thread),
    ];
    let readers = [("pando-ahead", Volume::read_ahead_thread as Work); read_ahead::THREADS];
    let writers = writers.into_iter().filter(|_| !volume.options.read_only);
    for (name, run) in writers.chain(readers) {
        let own = volume.clone();
        let run = move || {
            let _panics = Panics { volume: &own, name };
            run(&own);
        };
        match std::thread::Builder::new().name(name.to_owned()).spawn(run) {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                // Else those before it would go on with a volume that nobody has.
                stop(volume, &mut threads);
                return Err(error);
            }
        }
    }
    // A replay leaves work behind, and wakes nobody.
    volume.wake_workers();
    Ok(threads)
}

/// Ends the threads of a volume, and waits for them.
pub(crate) fn stop(volume: &Volume, threads: &mut Vec<JoinHandle<()>>) {
    volume.signals.stop();
    volume.cache.read_ahead.stop();
    for thread in threads.drain(..) {
        // A panic there has been reported by the runtime already.
        let _ = thread.join();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::small_volume::{change, small_volume};

    /// What was done between a look and the wait went unnoticed, and whoever waited for room slept for a tenth of a second.
    #[test]
    fn progress_before_the_wait_is_no_wait() {
        let (engine, _) = small_volume(16 << 10, 2 << 10);
        let volume = engine.volume();
        let rounds = volume.signals.rounds();
        change(&engine, |batch| batch.put(Tree::Metadata, &b"key"[..], &b"value"[..]));
        engine.sync().unwrap();
        assert!(volume.signals.rounds() > rounds, "a batch was written, and there is room in the log");
        assert!(!volume.wait_for_progress(rounds));
        assert!(volume.wait_for_progress(volume.signals.rounds()));
    }
}
