//! The process that serves a mounted volume: from opening the volume to its last checkpoint.
//!
//! It ends when the volume is unmounted, by whomever: `pando umount`, umount(8), fusermount3, or itself on SIGTERM,
//! SIGINT or SIGHUP, wherever it is mounted by then. Killed without warning it loses what a crash loses, and the next mount recovers.

mod coarse_clock;
mod control_server;
mod log;
mod snapshot_mounts;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use pando_device::heap::Ahead;
use pando_device::{Access, Claim, DeviceError, FileDevice};
use pando_engine::Options;
use pando_fs::clock::{Clock, SystemClock};
use pando_fs::operations::Statistics;
use pando_fs::{FileSystem, Operations};
use pando_fuse::{MountError, MountOptions, Notifier, Session, Unmounter, VfsOption, mount_point};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::coarse_clock::CoarseClock;
use self::control_server::{ControlServer, Talk};
use self::log::Log;
use self::snapshot_mounts::SnapshotMounts;
use crate::control;
use crate::failure::{Failure, Result, errno_text, io_text, stop_on_panic};
use crate::mount_options::{MountSettings, Technique};
use crate::output::put_name;
use crate::volume::name;
use crate::{memory, mounts, snapshots, usage};

/// Whose cache is smaller wants little memory used more than speed.
const SMALL_CACHE_BYTES: u64 = 1 << 30;

/// Two of these are more than a checkpoint's burst of nodes, and little beside a cache that is not small: an idle mount takes up to that much memory more.
const MEMORY_AHEAD_STEP: usize = 32 << 20;

/// What a background daemon writes on its standard output when the mount is usable.
pub const READY: &[u8] = b"ready\n";

/// What to serve, where.
pub struct Service {
    /// The volume, as an absolute path.
    pub volume: PathBuf,
    /// The directory to mount it on.
    pub mountpoint: PathBuf,
    /// How.
    pub settings: MountSettings,
    /// Detach from the terminal and say [`READY`] on standard output.
    pub background: bool,
}

/// Serves a volume until it is unmounted and closed. In the background, an error before [`READY`] is returned, and
/// later ones are logged too.
pub fn serve(service: Service) -> Result<()> {
    memory::use_huge_pages();
    // Of one in the foreground, whose descriptors are its caller's, the helper that reads files ahead gets none.
    let _ = pando_device::descriptors::keep_from_programs();
    // A process that leads a group already, as under a shell, has nothing to detach from.
    if service.background {
        let _ = rustix::process::setsid();
    }
    pando_device::program::read_whole();
    let _memory = memory_ahead(&service.settings);
    let log = Arc::new(if service.background { Log::background() } else { Log::foreground() });
    let of_panics = log.clone();
    stop_on_panic(move |sentence| of_panics.error(sentence));
    // Before anything is written to the volume.
    mount_point::check(&service.mountpoint).map_err(|error| Failure::new(error.to_string()))?;
    let (fs, claim, file) = open(&service)?;
    if service.background && !is_waited_for() {
        return close(fs)
            .map_err(|error| Failure::new(format!("cannot close {}: {error}", service.volume.display())));
    }
    let (session, answerer, control) = start(&service, &fs, claim, file, &log).inspect_err(|_| {
        // Else the next mount would replay the log. The first error is the one to tell.
        let _ = fs.close();
    })?;

    let served = session.run();
    if let Some(control) = &control {
        control.hide();
    }
    let ended = answerer.mounts.wait_for_end();
    let closed = close(fs);
    for control in control.into_iter().chain(ended) {
        control.finish(closed.clone().map_err(|error| error.to_string()));
    }
    let failures = [
        served.err().map(|error| format!("the connection to the kernel broke: {}", io_text(&error))),
        closed.err().map(|error| format!("cannot close {}: {error}", service.volume.display())),
    ];
    let failures: Vec<String> = failures.into_iter().flatten().collect();
    for failure in failures.iter().filter(|_| service.background) {
        log.error(failure);
    }
    if failures.is_empty() { Ok(()) } else { Err(Failure::new(failures.join("; "))) }
}

/// Mounts what is open, and answers those who ask about it.
fn start(
    service: &Service,
    fs: &Arc<FileSystem>,
    claim: Option<Arc<Claim>>,
    file: Value,
    log: &Arc<Log>,
) -> Result<(Session, Arc<Answerer>, Option<ControlServer>)> {
    let mounts = Arc::new(SnapshotMounts::default());
    // From before there is a mount: one that nobody serves would be left. Should mounting hang, only SIGKILL ends it.
    let signals = signals()?;
    let session = mount(service, fs.clone(), claim, mounts.clone(), log.clone())?;
    let unmounter = session.unmounter();
    let answerer = Arc::new(Answerer {
        volume: service.volume.clone(),
        file,
        fs: Arc::downgrade(fs),
        kernel: session.notifier(),
        live: unmounter.clone(),
        mounts,
        log: log.clone(),
    });
    let control = start_control(&answerer, &session, service.settings.snapshot.as_deref(), &service.settings);
    stop_on_signals(signals, unmounter.clone(), answerer.clone(), log.clone())?;
    if service.background {
        let is_heard = detach(log.clone())
            .map_err(|error| Failure::new(format!("cannot detach from the terminal: {}", io_text(&error))))?;
        if !is_heard {
            // As if told to end; should that fail, there is a mount that nobody waits for, and which can be unmounted.
            let _ = signal_hook::low_level::raise(SIGTERM);
        }
    }
    Ok((session, answerer, control))
}

/// Memory that nobody has to wait for, unless little memory is wanted.
fn memory_ahead(settings: &MountSettings) -> Option<Ahead> {
    let wanted = !has_small_cache(settings) && !settings.without.contains(&Technique::MemoryAhead);
    wanted.then(|| Ahead::start(MEMORY_AHEAD_STEP)).flatten()
}

fn has_small_cache(settings: &MountSettings) -> bool {
    cache_bytes(settings) < SMALL_CACHE_BYTES
}

fn cache_bytes(settings: &MountSettings) -> u64 {
    settings.cache_bytes.unwrap_or_else(memory::default_cache_bytes)
}

/// Opens the volume. If it is on a block device that may be written to, with the claim on that. And tells what it is in.
fn open(service: &Service) -> Result<(Arc<FileSystem>, Option<Arc<Claim>>, Value)> {
    let volume = service.volume.display();
    let settings = &service.settings;
    let read_only = settings.is_read_only();
    let opened = match read_only {
        true => FileDevice::open(&service.volume, Access::ReadOnly),
        // The kernel keeps the claim of a mount whose daemon was killed.
        false => FileDevice::open_claimed(&service.volume, || mounts::take_away_dead(&service.volume)),
    };
    let device = opened.map_err(|error| {
        // Whoever has it is most likely a mount, and its mount point is what the user wants to know.
        let is_in_use = matches!(error, DeviceError::InUse { .. });
        let mut mounted = pando_fuse::mount_table::mounted().unwrap_or_default();
        mounted.retain(|entry| is_in_use && mounts::is_of(entry, &service.volume));
        let of_volume = mounted.iter().find(|entry| entry.source == service.volume);
        match of_volume.or(mounted.first()) {
            Some(entry) if of_volume.is_some() => {
                Failure::new(format!("{volume} is mounted on {} already", name(&entry.mountpoint)))
            }
            Some(entry) => Failure::new(format!(
                "cannot mount {volume}: its snapshot that is mounted on {} keeps it open; unmount that first, and mount it after the volume",
                name(&entry.mountpoint)
            )),
            None => {
                let user = is_in_use.then(|| mounts::user_of(&service.volume, true));
                let why = user.flatten().unwrap_or_else(|| error.to_string());
                Failure::new(format!("cannot mount {volume}: {why}"))
            }
        }
    })?;
    let defaults = Options::default();
    if has_small_cache(settings) {
        // Pages of 2 MiB that are used in part made resident memory a sixth larger. Where it cannot be done, it is so.
        let _ = rustix::thread::disable_transparent_huge_pages(true);
    }
    let options = Options {
        cache_bytes: cache_bytes(settings) as usize,
        read_only,
        discard: settings.discard,
        checkpoint_interval: settings.checkpoint_interval.unwrap_or(defaults.checkpoint_interval),
        log_interval: settings.commit_interval.unwrap_or(defaults.log_interval),
        read_ahead: !settings.without.contains(&Technique::ReadAhead),
        late_binding: !settings.without.contains(&Technique::LateBinding),
        ..defaults
    };
    let claim = device.claim();
    let file = device.metadata().map_or(Value::Null, |metadata| mounts::identity(&metadata));
    let clock: Arc<dyn Clock> =
        if settings.collects_writes() { Arc::new(CoarseClock) } else { Arc::new(SystemClock) };
    let opened = FileSystem::open_with_clock(Arc::new(device), options, clock);
    let fs = opened.map_err(|error| Failure::new(format!("cannot mount {volume}: {error}")))?;
    fs.list_snapshots_directory(settings.show_snapshots);
    Ok((fs, claim, file))
}

fn mount(
    service: &Service,
    fs: Arc<FileSystem>,
    claim: Option<Arc<Claim>>,
    mounts: Arc<SnapshotMounts>,
    log: Arc<Log>,
) -> Result<Session> {
    let settings = &service.settings;
    let volume = fs.clone();
    let (files, source): (Arc<dyn Operations>, _) = match &settings.snapshot {
        Some(name) => {
            let files = snapshot_mounts::open(&fs, name);
            let volume = service.volume.display();
            let files = files.map_err(|why| Failure::new(format!("cannot mount {volume}: {why}")))?;
            (Arc::new(files), snapshots::mount_source(&service.volume, name))
        }
        None => (fs, service.volume.clone()),
    };
    let mut options = mount_options(source, settings, log, settings.snapshot.is_some());
    if settings.snapshot.is_none() {
        options.claim = claim;
        options.unmounted = Some(Arc::new(move || unmounted(&volume, &mounts)));
    }
    Session::mount(files, &service.mountpoint, &options).map_err(|error| Failure::new(error.to_string()))
}

fn mount_options(
    source: PathBuf,
    settings: &MountSettings,
    log: Arc<Log>,
    is_snapshot: bool,
) -> MountOptions {
    let mut options = MountOptions::new(source);
    options.vfs_options = settings.vfs_options.clone();
    options.contexts = settings.contexts.clone();
    if is_snapshot {
        options.vfs_options.extend(VfsOption::parse("ro"));
    }
    options.allow_other = settings.allow_other.unwrap_or(options.allow_other);
    options.default_permissions = settings.default_permissions;
    options.writeback = settings.collects_writes();
    options.readdirplus = !settings.without.contains(&Technique::Readdirplus);
    options.names_alone = !settings.without.contains(&Technique::NamesAlone);
    options.listing_cache = !settings.without.contains(&Technique::ListingCache);
    options.yielding = !settings.without.contains(&Technique::Yielding);
    // This program, also if another was installed in its place meanwhile. Not for a snapshot, whose files tell nobody their places.
    let wanted = !is_snapshot && !settings.without.contains(&Technique::FilesAhead);
    options.files_ahead = wanted.then(|| PathBuf::from("/proc/self/exe"));
    options.transport = settings.transport;
    options.report = Arc::new(move |sentence| log.report(sentence));
    options
}

/// What answers the requests on the control sockets: of the mount of the volume, and of its snapshots.
struct Answerer {
    volume: PathBuf,
    /// What is open, as [`mounts::identity`] tells; something else may come to be at the volume's path.
    file: Value,
    /// No strong reference, so that the volume is free once the daemon has let go of it.
    fs: Weak<FileSystem>,
    /// Of the mount of the volume.
    kernel: Notifier,
    /// The same.
    live: Unmounter,
    mounts: Arc<SnapshotMounts>,
    log: Arc<Log>,
}

/// Without a control socket the mount works as well; commands that need it will say that they cannot reach us.
fn start_control(
    answerer: &Arc<Answerer>,
    session: &Session,
    snapshot: Option<&str>,
    settings: &MountSettings,
) -> Option<ControlServer> {
    let unmounter = session.unmounter();
    let mut info = json!({
        "pid": std::process::id(),
        "version": env!("CARGO_PKG_VERSION"),
        "file": answerer.file,
        "snapshot": snapshot,
        "device": unmounter.device(),
        "read_only": snapshot.is_some() || settings.is_read_only(),
        "writeback": settings.collects_writes(),
        "transport": session.transport().name(),
    });
    if let Some(info) = info.as_object_mut() {
        put_name(info, "volume", answerer.volume.as_os_str().as_bytes());
        put_name(info, "mountpoint", unmounter.mountpoint().as_os_str().as_bytes());
    }
    let log = answerer.log.clone();
    let answerer = answerer.clone();
    let answer =
        move |name: &str, request: &Value, talk: Talk<'_>| answer(&answerer, name, request, &info, talk);
    let directory = control::own_directory();
    match ControlServer::start(&directory, unmounter.device(), Arc::new(answer)) {
        Ok(server) => Some(server),
        Err(error) => {
            log.error(&format!("no control socket in {}: {}", directory.display(), io_text(&error)));
            None
        }
    }
}

fn answer(
    answerer: &Arc<Answerer>,
    name: &str,
    request: &Value,
    info: &Value,
    talk: Talk<'_>,
) -> Option<Result<Value, String>> {
    let with_fs =
        |call: &mut dyn FnMut(&Arc<FileSystem>) -> Result<Value, String>| match answerer.fs.upgrade() {
            Some(fs) => call(&fs),
            None => Err("the volume is being closed".to_owned()),
        };
    let done = |result: pando_fs::Result<()>| result.map(|()| Value::Null).map_err(|error| error.to_string());
    match name {
        "snapshot" => {
            Some(with_fs(&mut |fs| snapshots::answer(fs, request, Some(&answerer.kernel), talk.output)))
        }
        "receive" => {
            Some(with_fs(&mut |fs| snapshots::receive(fs, request, Some(&answerer.kernel), talk.input)))
        }
        "mount" => Some(with_fs(&mut |fs| snapshot_mounts::mount(answerer, fs, request, talk.peer))),
        "info" => {
            let mut info = info.clone();
            info["failure"] = answerer.fs.upgrade().and_then(|fs| fs.engine().failure()).into();
            if request["brief"] == true {
                return Some(Ok(info));
            }
            let mountpoints = answerer.mounts.mountpoints();
            let mountpoints = mountpoints.iter().map(|path| path.to_string_lossy());
            info["snapshots"] = mountpoints.collect();
            // What was written to the volume waits there, whichever mount is asked.
            info["volume_device"] = answerer.live.is_mounted().then(|| answerer.live.device()).into();
            Some(Ok(info))
        }
        "stats" => Some(with_fs(&mut |fs| {
            let counters = fs.engine().stats().named().into_iter();
            let mut stats: Value =
                counters.map(|(name, number)| (name.to_owned(), Value::from(number))).collect();
            stats["failure"] = fs.engine().failure().into();
            Ok(stats)
        })),
        "space" => Some(with_fs(&mut |fs| {
            let statistics = fs.statistics().map_err(|error| error.to_string())?;
            let Statistics { capacity, free, available, .. } = statistics;
            Ok(json!({ "capacity": capacity, "free": free, "available": available }))
        })),
        "usage" => {
            let fresh = request["fresh"].as_bool().unwrap_or_default();
            Some(with_fs(&mut |fs| usage::answer(fs, fresh)))
        }
        "sync" => Some(with_fs(&mut |fs| done(fs.sync()))),
        // It refuses them for good.
        "refuse_changes" if info["read_only"] == true => Some(Ok(true.into())),
        "refuse_changes" => {
            Some(with_fs(&mut |fs| match (request["refuse"].as_bool(), fs.engine().failure()) {
                (Some(false), Some(why)) => Err(format!("the volume takes no changes any more: {why}")),
                (Some(refuse), _) => Ok(fs.refuse_changes(refuse).into()),
                (None, _) => Err("the request lacks 'refuse'".to_owned()),
            }))
        }
        // Nothing to write.
        "checkpoint" if info["read_only"] == true => Some(Ok(Value::Null)),
        "checkpoint" => Some(with_fs(&mut |fs| done(fs.engine().checkpoint().map_err(Into::into)))),
        _ => None,
    }
}

/// Those that end the daemon. They wait from now on until somebody receives them.
fn signals() -> Result<Signals> {
    let hang_up = (!is_ignored(SIGHUP)).then_some(SIGHUP);
    Signals::new([SIGTERM, SIGINT].into_iter().chain(hang_up)).map_err(no_signals)
}

fn no_signals(error: std::io::Error) -> Failure {
    Failure::new(format!("cannot receive signals: {}", io_text(&error)))
}

/// SIGTERM, SIGINT and SIGHUP, which the end of a terminal sends, unmount, wherever it is mounted by then. If the mount is in use it leaves
/// the tree at once and lives on for its users; a second signal makes everything durable and ends the process under them. A SIGHUP counts as neither, since it comes
/// along with a SIGTERM where a login session ends (systemd's `SendSIGHUP=`), or twice with its terminal.
fn stop_on_signals(
    mut signals: Signals,
    unmounter: Unmounter,
    answerer: Arc<Answerer>,
    log: Arc<Log>,
) -> Result<()> {
    let receive = move || {
        let (mut asked, mut told) = (false, false);
        loop {
            // Those that have come together are one.
            let received: Vec<_> = signals.wait().collect();
            let hangs_up = received.iter().all(|signal| *signal == SIGHUP);
            if received.is_empty() || asked && hangs_up {
                continue;
            }
            if told {
                let left = answerer.fs.upgrade().filter(|fs| !fs.engine().is_closed());
                if let Some(Err(error)) = left.map(|fs| fs.sync()) {
                    log.error(&format!("cannot make the last changes durable: {error}"));
                }
                std::process::exit(1);
            }
            // After a SIGHUP alone it is tried again, and what came of it is said.
            told = !hangs_up;
            asked = true;
            answerer.mounts.unmount(&log);
            let result = match unmounter.unmount(false) {
                Err(MountError::Busy { path }) => {
                    log.error(&format!("{} is in use; it is unmounted for everyone else", path.display()));
                    unmounter.unmount(true)
                }
                result => result,
            };
            if !matches!(result, Ok(true)) {
                answerer.mounts.stay();
            }
            match result {
                Ok(true) => {}
                Ok(false) => log.error(&format!(
                    "told to end, but {} is mounted nowhere in this mount namespace; it is closed when nobody uses it any more",
                    answerer.volume.display()
                )),
                Err(error) => log.error(&error.to_string()),
            }
        }
    };
    std::thread::Builder::new().name("pando-signals".into()).spawn(receive).map_err(no_signals)?;
    Ok(())
}

/// Whether who started this process has it ignore a signal, as nohup(1) does.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let ignored = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or_default();
    ignored & 1 << (signal - 1) != 0
}

/// Whether the one who started this daemon still waits for its word. Interrupted while a log is replayed, he wants no mount.
fn is_waited_for() -> bool {
    let stdout = std::io::stdout();
    // That nobody is left to read is told whatever is asked for.
    let mut told = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    !poll(&mut told, Some(&now)).is_ok_and(|_| told[0].revents().contains(PollFlags::ERR))
}

/// Tells the parent that the mount is usable, and lets go of its terminal and its directory; false if nobody is left to hear it. What the engine says on
/// standard error from now on goes to the log.
fn detach(log: Arc<Log>) -> std::io::Result<bool> {
    std::env::set_current_dir("/")?;
    let nowhere = std::fs::File::options().read(true).write(true).open("/dev/null")?;
    let (said, stderr) = std::io::pipe()?;
    std::thread::Builder::new().name("pando-stderr".into()).spawn(move || {
        for line in BufReader::new(said).split(b'\n').map_while(std::io::Result::ok) {
            let line = String::from_utf8_lossy(&line);
            log.report(line.strip_prefix("pando: ").unwrap_or(&line));
        }
    })?;
    let mut stdout = std::io::stdout();
    let is_heard = stdout.write_all(READY).and_then(|()| stdout.flush()).is_ok();
    for result in [
        rustix::stdio::dup2_stdin(&nowhere),
        rustix::stdio::dup2_stdout(&nowhere),
        rustix::stdio::dup2_stderr(&stderr),
    ] {
        result.map_err(|errno| std::io::Error::other(errno_text(errno)))?;
    }
    Ok(is_heard)
}

/// The kernel has unmounted the volume, and umount(2) waits for this to return. Tells whether the volume is closed. What fails comes up again when it is
/// to be closed once more.
fn unmounted(fs: &FileSystem, mounts: &SnapshotMounts) -> bool {
    // With a snapshot of it mounted the volume goes on.
    let _ = match mounts.close_if_none() {
        true => fs.close(),
        false => fs.engine().checkpoint().map_err(Into::into),
    };
    fs.engine().is_closed()
}

/// Closes the volume; when it returns, nobody holds it any more.
fn close(fs: Arc<FileSystem>) -> pando_fs::Result<()> {
    let result = fs.close();
    drop(fs);
    result
}
