//! What /proc tells of those who call.

use std::os::unix::fs::MetadataExt;

/// Tells of callers by the number that the kernel gives with each request, if /proc is that of our pid namespace: the /proc of another one, in
/// which `unshare --pid --fork` leaves us, would show a stranger under it.
///
/// What each request of many asks for must not need the memory map of a process, as `stat` and `status` do: if the process ended meanwhile, our
/// thread would take the map apart, and might wait for the mount that it serves.
pub(crate) struct Processes {
    are_shown: bool,
    /// Of whom it is told for what they wait; `None` for everybody.
    only: Option<u32>,
}

/// How far a thread has come.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Progress {
    /// Waits for nothing.
    pub(crate) is_runnable: bool,
    /// For how many nanoseconds it has had a core, counted now and then, and how often it got one.
    pub(crate) ran: [u64; 2],
}

impl Processes {
    pub(crate) fn new() -> Self {
        let own = read("self", "status").unwrap_or_default();
        let capabilities = field(&own, "CapEff:").and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
        let sees_all = capabilities.is_some_and(|mask| mask & 1 << SYS_PTRACE != 0);
        let only = (!sees_all).then(|| rustix::process::geteuid().as_raw());
        Self { are_shown: is_of_our_namespace(&own), only }
    }

    /// The groups of a process; `None` where /proc does not tell, as for a process of another pid namespace.
    pub(crate) fn groups_of(&self, pid: u32) -> Option<Vec<u32>> {
        let status = self.read(pid, "status")?;
        let groups = field(&status, "Groups:")?;
        Some(groups.split_whitespace().filter_map(|group| group.parse().ok()).collect())
    }

    /// Whether it may be told how far a thread of a user has come.
    pub(crate) fn may_look_at(&self, thread: u32, uid: u32) -> bool {
        self.are_shown && thread != 0 && self.only.is_none_or(|only| only == uid)
    }

    /// How far a thread has come that one may look at; `None` where /proc does not tell, as for one that has ended.
    pub(crate) fn progress_of(&self, thread: u32) -> Option<Progress> {
        if let Some(only) = self.only {
            // /proc shows a process that does not let its user look at it as another's.
            let found = std::fs::metadata(format!("/proc/{thread}")).ok()?;
            let group = rustix::process::getegid().as_raw();
            (found.uid() == only && found.gid() == group).then_some(())?;
        }
        let read = |name| read(&thread.to_string(), name);
        let ran = ran(&read("schedstat")?)?;
        Some(Progress { is_runnable: read("wchan")? == "0", ran })
    }

    fn read(&self, pid: u32, name: &str) -> Option<String> {
        self.are_shown.then(|| read(&pid.to_string(), name))?
    }
}

/// For how long a thread has had a core and how often it got one, if the kernel counts that. The number between them is how long it has waited for
/// one, which also changes when it is to wait for another.
fn ran(schedstat: &str) -> Option<[u64; 2]> {
    let numbers: Vec<u64> = schedstat.split_whitespace().map_while(|number| number.parse().ok()).collect();
    let [time, _, times] = numbers[..] else { return None };
    (times != 0).then_some([time, times])
}

/// A file of a process. Names of programs, which some hold, may be anything.
fn read(process: &str, name: &str) -> Option<String> {
    let text = std::fs::read(format!("/proc/{process}/{name}")).ok()?;
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// The capability to see what processes of others wait for; capabilities(7).
const SYS_PTRACE: u32 = 19;

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
        let hidden = Processes { are_shown: false, only: None };
        assert_eq!(hidden.groups_of(std::process::id()), None);
        assert!(!hidden.may_look_at(1, 0));
        let others = Processes { are_shown: true, only: Some(7) };
        assert!(others.may_look_at(1, 7) && !others.may_look_at(1, 8) && !others.may_look_at(0, 7));
    }

    #[test]
    fn to_wait_for_another_core_is_no_progress() {
        assert_eq!(ran("1200 7 3\n"), Some([1200, 3]));
        assert_eq!(ran("1200 7000 3\n"), ran("1200 7 3\n"));
        assert_ne!(ran("1200 7000 4\n"), ran("1200 7 3\n"));
        for nothing in ["0 0 0\n", "", "1 2\n", "x 1 2\n"] {
            assert_eq!(ran(nothing), None, "{nothing}");
        }
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
