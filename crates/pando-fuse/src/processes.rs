//! What /proc tells of those who call.

/// Tells of callers by the number that the kernel gives with each request, if /proc is that of our pid namespace: the /proc of another one, in
/// which `unshare --pid --fork` leaves us, would show a stranger under it.
pub(crate) struct Processes {
    are_shown: bool,
}

/// How far a thread has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Neither waits for anything nor has been stopped.
    pub(crate) is_runnable: bool,
    /// Changes when it gets a core, and now and then while it has one.
    pub(crate) ran: String,
}

impl Processes {
    pub(crate) fn new() -> Self {
        let own = std::fs::read_to_string("/proc/self/status");
        Self { are_shown: own.is_ok_and(|status| is_of_our_namespace(&status)) }
    }

    /// The groups of a process; `None` where /proc does not tell, as for a process of another pid namespace.
    pub(crate) fn groups_of(&self, pid: u32) -> Option<Vec<u32>> {
        let status = self.read(pid, "status")?;
        let groups = field(&status, "Groups:")?;
        Some(groups.split_whitespace().filter_map(|group| group.parse().ok()).collect())
    }

    /// How far a thread has come; `None` where /proc does not tell, as for one that has ended.
    pub(crate) fn progress_of(&self, thread: u32) -> Option<Progress> {
        let stat = self.read(thread, "stat")?;
        // The state is behind the name, which may hold anything.
        let (_, behind) = stat.rsplit_once(") ")?;
        Some(Progress { is_runnable: behind.starts_with('R'), ran: self.read(thread, "schedstat")? })
    }

    fn read(&self, pid: u32, name: &str) -> Option<String> {
        self.are_shown.then(|| std::fs::read_to_string(format!("/proc/{pid}/{name}")).ok())?
    }
}

/// Whether our own status comes from a /proc of our pid namespace: it names one number for each namespace from that of /proc to ours. A kernel
/// without such namespaces names none.
fn is_of_our_namespace(status: &str) -> bool {
    field(status, "NSpid:").is_none_or(|numbers| numbers.split_whitespace().count() == 1)
}

fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    status.lines().find_map(|line| line.strip_prefix(name))
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use rustix::thread::gettid;

    use super::*;

    #[test]
    fn the_groups_of_this_process_are_those_that_the_kernel_says() {
        let mut expected: Vec<u32> =
            rustix::process::getgroups().unwrap().into_iter().map(|group| group.as_raw()).collect();
        let processes = Processes::new();
        let mut found = processes.groups_of(std::process::id()).unwrap();
        expected.sort_unstable();
        found.sort_unstable();
        assert_eq!(found, expected);
        assert_eq!(processes.groups_of(u32::MAX), None);
    }

    #[test]
    fn a_process_has_one_number_in_the_proc_of_its_own_namespace() {
        let status = |numbers: &str| format!("Name:\tpando\nPid:\t4711\nNSpid:\t{numbers}\nGroups:\t7 \n");
        assert!(is_of_our_namespace(&status("4711")));
        assert!(!is_of_our_namespace(&status("4711\t1")));
        assert!(is_of_our_namespace("Name:\tpando\nPid:\t4711\nGroups:\t7 \n"));
        assert_eq!(Processes { are_shown: false }.groups_of(std::process::id()), None);
    }

    #[test]
    fn a_thread_waits_or_runs_and_ends() {
        let processes = Processes::new();
        let (say, number) = mpsc::channel();
        let (end, ended) = mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            say.send(gettid()).unwrap();
            let _ = ended.recv();
        });
        let number = number.recv().unwrap().as_raw_pid().cast_unsigned();
        while processes.progress_of(number).unwrap().is_runnable {
            std::thread::yield_now();
        }
        let waiting = processes.progress_of(number);
        assert_eq!(processes.progress_of(number), waiting);
        assert!(processes.progress_of(gettid().as_raw_pid().cast_unsigned()).unwrap().is_runnable);
        drop(end);
        thread.join().unwrap();
        // It is there for a moment after it has been joined.
        while processes.progress_of(number).is_some() {
            std::thread::yield_now();
        }
    }
}
