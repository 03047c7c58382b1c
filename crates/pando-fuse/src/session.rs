//! A mounted file system: from mount to unmount.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Once, Weak};
use std::time::{Duration, Instant};

use pando_device::Claim;
use pando_fs::Operations;

use crate::dispatch::{Dispatcher, Report};
use crate::files_ahead::FilesAhead;
use crate::mount_point::{self, Appearance, MountError, VfsOption};
use crate::mount_table::MountTable;
use crate::negotiate::{Wish, Wishes};
use crate::notifier::Notifier;
use crate::serve::Server;
use crate::transport::ring::{self, WayBack};
use crate::transport::yielding::Yielding;
use crate::transport::{Device, Forgets, Gathered, handshake, receive};

/// Requests that wait for the device at once.
const WAITERS_MAX: usize = 64;

/// How far the kernel reads ahead of a sequential reader, in bytes, where we may say so.
const READ_AHEAD_BYTES: u32 = 2 << 20;

/// For so long an unmount by force may take that goes on behind the end of the connection; less than a second.
const FORCED_UNMOUNT_MAX: Duration = Duration::from_millis(900);

/// How requests come from the kernel.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Transport {
    /// Over io_uring where the kernel offers it, else over /dev/fuse.
    #[default]
    Automatic,
    /// Over io_uring, or not at all.
    Uring,
    /// Over /dev/fuse.
    Device,
}

impl Transport {
    /// Its name among the mount options.
    pub fn name(self) -> &'static str {
        match self {
            Self::Automatic => "auto",
            Self::Uring => "uring",
            Self::Device => "dev",
        }
    }

    /// The one of this name.
    pub fn parse(name: &str) -> Option<Self> {
        [Self::Automatic, Self::Uring, Self::Device].into_iter().find(|transport| transport.name() == name)
    }
}

/// See [`MountOptions::unmounted`].
pub type Unmounted = Arc<dyn Fn() -> bool + Send + Sync>;

/// How a file system is mounted.
pub struct MountOptions {
    /// What /proc/mounts shows as the source: the volume's path.
    pub source: PathBuf,
    /// If the source is a block device that nobody else uses: the claim on it, which the kernel's mount takes over where it can. Then sync(2) reaches
    /// the file system, and `unmounted` is called.
    pub claim: Option<Arc<Claim>>,
    /// What is to be done when the kernel has unmounted a block device: umount(2) ends, and others may claim the device, when this returns. It may wait
    /// for the device. It tells whether nothing will be written to the device any more; if something may be, or if this was not called, as where a
    /// connection breaks or is aborted, the claim is taken back.
    pub unmounted: Option<Unmounted>,
    /// Options that the kernel keeps itself; later ones win.
    pub vfs_options: Vec<VfsOption>,
    /// Options that the kernel gives to SELinux, such as `context=LABEL`. It refuses them where there is none, and fusermount3 always.
    pub contexts: Vec<String>,
    /// Other users than the one who mounts get in.
    pub allow_other: bool,
    /// The kernel checks permission bits. Without it everyone who gets in may do everything.
    pub default_permissions: bool,
    /// The kernel collects small writes in its cache and sends them later.
    pub writeback: bool,
    /// Entries are listed with their attributes where the kernel finds that useful.
    pub readdirplus: bool,
    /// Programs that do not look at the files which they list get attributes of directories alone.
    pub names_alone: bool,
    /// The kernel keeps listings, and directories are opened without asking us where it can do that.
    pub listing_cache: bool,
    /// Threads that serve a core give way to those whom they answer, if requests come over io_uring.
    pub yielding: bool,
    /// The program that is started as the helper which has the kernel read files ahead ([`crate::files_ahead`]); none if that is not to be done.
    pub files_ahead: Option<PathBuf>,
    /// How requests come.
    pub transport: Transport,
    /// Threads that receive requests from /dev/fuse, if they do not come over io_uring; at least 1.
    pub threads: usize,
    /// Told of failures of the file system, one sentence each; called from many threads.
    pub report: Report,
}

impl MountOptions {
    /// The defaults: one receiving thread a core, permission bits checked, and all users let in if root mounts.
    pub fn new(source: PathBuf) -> Self {
        Self {
            source,
            claim: None,
            unmounted: None,
            vfs_options: Vec::new(),
            contexts: Vec::new(),
            allow_other: rustix::process::geteuid().is_root(),
            default_permissions: true,
            writeback: false,
            readdirplus: true,
            names_alone: true,
            listing_cache: true,
            yielding: true,
            files_ahead: None,
            transport: Transport::default(),
            threads: std::thread::available_parallelism().map_or(1, |cores| cores.get()),
            report: Arc::new(|_| ()),
        }
    }
}

/// A file system that is mounted and waits for [`Session::run`]. Dropping it unmounts.
pub struct Session {
    /// Goes first: without a device it would not know whether there is something to unmount.
    guard: UnmountGuard,
    server: Server,
    /// One a receiving thread.
    devices: Vec<Arc<Device>>,
    /// If requests come over io_uring.
    rings: Option<Rings>,
    /// If their threads may yield.
    yielding: Option<Yielding>,
    files_ahead: Option<PathBuf>,
    claim: Option<Arc<Claim>>,
    report: Report,
}

/// What it takes for requests to come over io_uring.
struct Rings {
    /// The queues of each core.
    cores: Vec<Vec<u16>>,
    way_back: WayBack,
}

/// Leaves no dead mount behind when a session ends other than by being unmounted.
struct UnmountGuard {
    unmounter: Unmounter,
    armed: bool,
}

impl Drop for UnmountGuard {
    fn drop(&mut self) {
        if self.armed {
            // Nobody is left to be told.
            let _ = self.unmounter.unmount_unserved();
        }
    }
}

/// Unmounts a session, from any thread, wherever it is mounted by then: a directory above it may have been renamed, and it may have been bound
/// to other places.
///
/// What is mounted is known by its device number. The kernel gives that to the next mount as soon as it has let go of the file system, so the
/// connection is asked first whether it has.
#[derive(Debug, Clone)]
pub struct Unmounter {
    mountpoint: PathBuf,
    device: String,
    connection: Weak<Device>,
    table: Arc<MountTable>,
}

impl Session {
    /// Mounts. When this returns, system calls on the mount wait for [`Session::run`].
    pub fn mount(
        fs: Arc<dyn Operations>,
        mountpoint: &Path,
        options: &MountOptions,
    ) -> Result<Self, MountError> {
        let mountpoint = mount_point::resolve(mountpoint)?;
        let look = Appearance {
            source: &options.source,
            claim: options.claim.as_deref(),
            vfs_options: &options.vfs_options,
            contexts: &options.contexts,
            allow_other: options.allow_other,
            default_permissions: options.default_permissions,
        };
        let rings = Rings::new(options.transport)?;
        let refuse = |error: io::Error| mount_point::refuse("mount", &mountpoint, &error);
        let table = MountTable::open().map_err(refuse)?;
        let dispatcher = Dispatcher::new(fs, WAITERS_MAX, options.report.clone()).map_err(refuse)?;
        let device = Arc::new(Device::new(mount_point::mount(&mountpoint, &look)?));
        let ring = match options.transport {
            Transport::Uring => Wish::Needed,
            Transport::Automatic if rings.is_some() => Wish::IfOffered,
            _ => Wish::No,
        };
        let wishes = Wishes {
            writeback: options.writeback,
            readdirplus: options.readdirplus,
            listing_cache: options.listing_cache,
            acls: options.default_permissions,
            ring,
        };
        let agreement = handshake(&device, wishes).map_err(|error| {
            // The first error is the one to tell.
            let _ = mount_point::unmount_by_force(&mountpoint, true);
            MountError::Handshake(error)
        })?;
        let rings = rings.filter(|_| agreement.ring);
        // What does not come over io_uring nobody waits for: one thread is enough. If it turns out that all does, cores without a queue help.
        let threads = if rings.is_none() { options.threads.max(1) } else { 1 };
        let mut devices = vec![device.clone()];
        while devices.len() < threads {
            // Without a queue of its own a thread shares that of the first.
            devices.push(device.clone_connection().map_or_else(|_| device.clone(), Arc::new));
        }
        let interest = options.names_alone.then(Arc::default);
        let connection = Arc::downgrade(&device);
        let durable = mount_point::durable(&options.vfs_options);
        // Without them what is in the way is moved.
        let gathered = rings.as_ref().and_then(|_| Gathered::of(&device).ok());
        if gathered.is_some() {
            dispatcher.fs().forgets_gather();
        }
        let mut server =
            Server::new(dispatcher, agreement, device, interest, durable, options.unmounted.clone());
        server.gathered = gathered;
        let entry = mount_point::just_mounted_at(&table, &mountpoint, &options.source)?;
        mount_point::set_read_ahead(&entry.device, READ_AHEAD_BYTES);
        let unmounter = Unmounter { mountpoint, device: entry.device, connection, table: Arc::new(table) };
        let yields = options.yielding && rings.is_some() && Yielding::is_possible();
        let yielding = yields.then(Yielding::default);
        let (report, files_ahead) = (options.report.clone(), options.files_ahead.clone());
        let guard = UnmountGuard { unmounter, armed: true };
        let claim = options.claim.clone();
        Ok(Self { guard, server, devices, rings, yielding, files_ahead, claim, report })
    }

    /// What unmounts it, also while it runs.
    pub fn unmounter(&self) -> Unmounter {
        self.guard.unmounter.clone()
    }

    /// What tells the kernel what to forget, also while it runs.
    pub fn notifier(&self) -> Notifier {
        Notifier::new(self.devices.first().expect("there is a device for at least one thread"))
    }

    /// How requests come; never [`Transport::Automatic`].
    pub fn transport(&self) -> Transport {
        if self.rings.is_some() { Transport::Uring } else { Transport::Device }
    }

    /// Serves requests until it is unmounted, by whomever. Every request that was read has been answered when it
    /// returns.
    ///
    /// An error means that the connection broke, or was aborted, while it was mounted; it is unmounted then.
    pub fn run(self) -> io::Result<()> {
        let Self { mut server, devices, rings, yielding, files_ahead, claim, report, mut guard } = self;
        if let Some(program) = files_ahead {
            // It only makes things faster.
            let Unmounter { mountpoint, device, .. } = &guard.unmounter;
            server.files_ahead = FilesAhead::start(&program, mountpoint, device).ok();
        }
        let mut served = serve_all(&server, &devices, rings.as_ref(), yielding.as_ref(), &report);
        guard.armed = false;
        // At once, as the kernel's own claim may have gone with its mount.
        let claim = claim.filter(|_| !server.is_over());
        if let Some(claim) = &claim {
            let device = devices[0].clone();
            claim.comes_back(move || device.has_file_system());
        }
        let unmounter = &guard.unmounter;
        if served.is_ok() && !unmounter.is_unmounted_soon() {
            let why = "it was aborted by an unmount that failed, since the mount was in use";
            served = Err(io::Error::new(io::ErrorKind::ConnectionAborted, why));
        }
        // Not behind what is still on the pool: until then others would meet a dead mount.
        if served.is_err()
            && let Err(error) = unmounter.unmount_unserved()
        {
            report(&error.to_string());
        }
        if let Some(Err(errno)) = claim.map(|claim| claim.check()) {
            report(&format!(
                "the device takes no changes any more, since its claim could not be taken back: {errno}"
            ));
        }
        // What is still on the pool is answered first.
        drop(server);
        served
    }
}

impl Rings {
    /// None if they are not wanted or cannot be had.
    fn new(transport: Transport) -> Result<Option<Self>, MountError> {
        if transport == Transport::Device {
            return Ok(None);
        }
        let rings = ring::cores().and_then(|cores| Some(Self { cores, way_back: WayBack::new().ok()? }));
        if rings.is_none() && transport == Transport::Uring {
            return Err(MountError::Handshake(io::Error::other("io_uring is not available here")));
        }
        Ok(rings)
    }
}

/// Ends the watch however the threads it looks after end.
struct WatchEnd<'a>(&'a Yielding);

impl Drop for WatchEnd<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Receives on every device until it is unmounted, with this thread for the first, and on the queues of every core.
fn serve_all(
    server: &Server,
    devices: &[Arc<Device>],
    rings: Option<&Rings>,
    yielding: Option<&Yielding>,
    report: &Report,
) -> io::Result<()> {
    let cores = rings.map_or(&[][..], |rings| &rings.cores);
    // If a core has no queue, all requests come over /dev/fuse.
    let without_rings = Once::new();
    let do_without = |error: io::Error| {
        without_rings.call_once(|| {
            report(&format!("requests do not come over io_uring: {error}"));
            if let Some(Err(error)) = rings.map(|rings| rings.way_back.take(&devices[0])) {
                report(&format!("requests may never come: {error}"));
            }
        });
    };
    let (first, others) = devices.split_first().expect("there is a device for at least one thread");
    std::thread::scope(|scope| {
        let mut threads = Vec::new();
        for (index, device) in others.iter().enumerate() {
            let name = format!("pando-fuse-{}", index + 1);
            // The threads there are serve all requests, if there are not as many as hoped.
            let thread = std::thread::Builder::new()
                .name(name)
                .spawn_scoped(scope, || receive(device, server, Forgets::AsTheyCome));
            threads.extend(thread);
        }
        // Without a watch none may yield.
        let yielding = yielding.filter(|yielding| {
            let watch = std::thread::Builder::new().name("pando-watch".to_owned());
            watch.spawn_scoped(scope, || yielding.watch(cores.len())).is_ok()
        });
        let _end = yielding.map(WatchEnd);
        for queues in cores {
            let serve = move || {
                let served = ring::serve_core(first, server, yielding, cores.len(), queues);
                let Err(error) = served else { return Ok(()) };
                do_without(error);
                receive(first, server, Forgets::AsTheyCome)
            };
            let name = format!("pando-ring-{}", queues[0]);
            let thread = std::thread::Builder::new().name(name).spawn_scoped(scope, serve);
            match thread {
                Ok(thread) => threads.push(thread),
                Err(error) => do_without(error),
            }
        }
        let forgets = match (rings, &server.gathered) {
            (Some(rings), Some(_)) => Forgets::InLotsUntil(&rings.way_back),
            _ => Forgets::AsTheyCome,
        };
        let mut result = receive(first, server, forgets);
        for thread in threads {
            result = result.and(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
        result
    })
}

impl Unmounter {
    /// The absolute path it was mounted at.
    pub fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// The number of its device, `major:minor`.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// Where it is mounted now, as far as this process sees, in the order of mounting.
    pub fn mountpoints(&self) -> io::Result<Vec<PathBuf>> {
        if !self.is_alive() {
            return Ok(Vec::new());
        }
        let mut mounted = self.table.mounted()?;
        mounted.retain(|entry| entry.device == self.device);
        Ok(mounted.into_iter().map(|entry| entry.mountpoint).collect())
    }

    /// True if it is still mounted somewhere, as far as this process sees, or may be.
    pub fn is_mounted(&self) -> bool {
        self.mountpoints().map_or(true, |mountpoints| !mountpoints.is_empty())
    }

    /// True as long as the kernel has it: it is mounted, in whatever mount namespace, or somebody uses it who did when it was.
    pub fn is_alive(&self) -> bool {
        self.connection.upgrade().is_some_and(|device| device.has_file_system())
    }

    /// Whether it is mounted nowhere, or will be before long. Who unmounts by force has the connection aborted first: it ends before the
    /// kernel has unmounted, or has found the mount in use and leaves it there, dead.
    fn is_unmounted_soon(&self) -> bool {
        let end = Instant::now() + FORCED_UNMOUNT_MAX;
        while self.is_mounted() {
            let Some(rest) = end.checked_duration_since(Instant::now()) else { return false };
            self.table.wait_for_change(rest);
        }
        true
    }

    /// Unmounts it wherever it is mounted; false if it was nowhere. Nothing else is touched. `lazy` lets its users
    /// finish; without it a mount in use is [`MountError::Busy`]. The first error is returned when the other places are done.
    pub fn unmount(&self, lazy: bool) -> Result<bool, MountError> {
        let by_another = self.unmount_with(&|mountpoint| mount_point::unmount_own(mountpoint, lazy));
        match by_another {
            done @ (Ok(_) | Err(MountError::Busy { .. })) => done,
            // Another umount may know fewer options, and who may open no files can start none.
            Err(_) => self.unmount_with(&|mountpoint| mount_point::unmount(mountpoint, lazy)),
        }
    }

    /// The same where nobody serves requests (any more).
    fn unmount_unserved(&self) -> Result<bool, MountError> {
        self.unmount_with(&|mountpoint| mount_point::unmount_by_force(mountpoint, true))
    }

    fn unmount_with(&self, unmount: &dyn Fn(&Path) -> Result<(), MountError>) -> Result<bool, MountError> {
        let mut result = Ok(false);
        let mut failed = Vec::new();
        // One unmount may take others along, where mounts are shared or lie in each other: the list is read again each time, from its end.
        while let Some(mountpoint) = self.mountpoints_but(&failed)?.pop() {
            let unmounted = self.unmount_at(&mountpoint, unmount);
            if unmounted.is_err() {
                failed.push(mountpoint);
            }
            result = result.and(unmounted);
        }
        // Who has unmounted it at the same time is as good.
        if result.is_err() && !self.is_mounted() { Ok(true) } else { result }
    }

    fn mountpoints_but(&self, failed: &[PathBuf]) -> Result<Vec<PathBuf>, MountError> {
        let mut mountpoints =
            self.mountpoints().map_err(|error| mount_point::refuse("unmount", &self.mountpoint, &error))?;
        mountpoints.retain(|mountpoint| !failed.contains(mountpoint));
        Ok(mountpoints)
    }

    /// Unmounts it at one of its places.
    fn unmount_at(
        &self,
        mountpoint: &Path,
        unmount: &dyn Fn(&Path) -> Result<(), MountError>,
    ) -> Result<bool, MountError> {
        match self.table.mounted_at(mountpoint) {
            Ok(Some(entry)) if entry.device == self.device => unmount(mountpoint).map(|()| true),
            Ok(_) => {
                let covered = io::Error::other("something else is mounted over it");
                Err(mount_point::refuse("unmount", mountpoint, &covered))
            }
            Err(error) => Err(mount_point::refuse("unmount", mountpoint, &error)),
        }
    }
}
