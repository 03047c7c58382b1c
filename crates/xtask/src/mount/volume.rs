//! A volume under test: an image in the test's directory and the mount of it.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

use super::tool::{self, at};
use super::{Context, Failure};

/// A mount must be usable after this time, recovery included.
const MOUNT_LIMIT: Duration = Duration::from_secs(600);

/// A tmpfs that only one test sees. Mount points are in it because every user may walk there, which is not so in a
/// build directory below a home.
pub const SCRATCH: &str = "/mnt";

/// Mounts the place for mount points; at the start of each test, inside its mount namespace.
///
/// The namespace began with all that was mounted on the machine. A PandoFS among it could not be closed before the test
/// ends, whoever unmounts it outside; so this one lets go of it.
pub fn mount_scratch() -> Result<(), Failure> {
    tool::run(Command::new("umount").args(["-i", "-a", "-l", "-t", "fuse.pando,fuseblk.pando"]))?;
    tool::run(Command::new("mount").args(["-t", "tmpfs", "-o", "mode=755", "scratch", SCRATCH]))
}

/// From this version on volumes on block devices are mounted as such.
const BLOCK_MOUNTS_SINCE: (u32, u32) = (6, 18);

/// Whether the kernel is of that version.
pub fn has_block_mounts() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(['.', '-']).map_while(|number| number.parse().ok());
    (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0)) >= BLOCK_MOUNTS_SINCE
}

/// The file system under test. ext4 is there to see whether a test or PandoFS is wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// PandoFS, its daemon a child of the test.
    Pando,
    /// ext4 on a loop device.
    Ext4,
}

impl Kind {
    /// The file system with this name.
    pub fn parse(name: &str) -> Option<Kind> {
        [Kind::Pando, Kind::Ext4].into_iter().find(|kind| kind.name() == name)
    }

    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Pando => "pando",
            Kind::Ext4 => "ext4",
        }
    }
}

/// A formatted image, mounted or not.
pub struct Volume {
    context: Context,
    image: PathBuf,
    /// Where it is mounted when it is.
    pub root: PathBuf,
    daemon: Option<Child>,
    options: Vec<String>,
    /// Of a volume on a loop device: the device, which goes when nobody has it open any more.
    loop_device: Option<File>,
}

impl Volume {
    /// Formats a new image of this size and mounts it. `options` go to `pando mount`.
    pub fn create(context: &Context, size_bytes: u64, options: &[&str]) -> Result<Volume, Failure> {
        Self::create_named(context, "volume", size_bytes, options)
    }

    /// The same for a second one.
    pub fn create_another(context: &Context, size_bytes: u64, options: &[&str]) -> Result<Volume, Failure> {
        Self::create_named(context, "another", size_bytes, options)
    }

    /// The same for one of any name.
    pub fn create_named(
        context: &Context,
        name: &str,
        size_bytes: u64,
        options: &[&str],
    ) -> Result<Volume, Failure> {
        let mut volume = Volume {
            context: context.clone(),
            image: context.work.join(format!("{name}.img")),
            root: Path::new(SCRATCH).join(name),
            daemon: None,
            options: options.iter().map(|option| option.to_string()).collect(),
            loop_device: None,
        };
        tool::create_directory(&volume.root)?;
        match context.kind {
            Kind::Pando => {
                let size = size_bytes.to_string();
                volume.pando(&["format", "--size", &size])?;
            }
            Kind::Ext4 => {
                let file = at("cannot create", &volume.image, File::create(&volume.image))?;
                at("cannot resize", &volume.image, file.set_len(size_bytes))?;
                context.run(
                    "mkfs.ext4",
                    ["-q".as_ref(), "-F".as_ref(), "-i".as_ref(), "2048".as_ref(), volume.image.as_os_str()],
                )?;
            }
        }
        volume.mount()?;
        Ok(volume)
    }

    /// The same on a loop device over the image, which is what [`Volume::image`] gives then.
    pub fn create_on_loop_device(
        context: &Context,
        size_bytes: u64,
        options: &[&str],
    ) -> Result<Volume, Failure> {
        let mut volume = Self::create_named(context, "on-a-device", size_bytes, options)?;
        volume.umount()?;
        let mut attach = Command::new("losetup");
        let device = tool::output(attach.args(["--find", "--show"]).arg(&volume.image), "")?;
        volume.image = device.trim_end().into();
        volume.loop_device = Some(at("cannot open", &volume.image, File::open(&volume.image))?);
        tool::run(Command::new("losetup").arg("--detach").arg(&volume.image))?;
        volume.mount()?;
        Ok(volume)
    }

    fn pando(&self, arguments: &[&str]) -> Result<(), Failure> {
        tool::run(self.context.program("pando").args(arguments).arg(&self.image))
    }

    /// Mounts it; returns when it is usable.
    pub fn mount(&mut self) -> Result<(), Failure> {
        if self.context.kind == Kind::Ext4 {
            return tool::run(Command::new("mount").args(["-o", "loop"]).arg(&self.image).arg(&self.root));
        }
        let above = self.device()?;
        let mut command = self.context.program("pando");
        command.arg("mount").arg("--foreground").args(&self.options).arg(&self.image).arg(&self.root);
        eprintln!("+ {command:?}");
        let begin = Instant::now();
        let daemon = self.daemon.insert(at("cannot start the daemon of", &self.image, command.spawn())?);
        loop {
            if let Some(status) = at("cannot wait for the daemon of", &self.image, daemon.try_wait())? {
                return Err(Failure::Wrong(format!(
                    "pando mount ended before the mount was usable: {status}"
                )));
            }
            if fs::metadata(&self.root).is_ok_and(|root| root.dev() != above) {
                eprintln!("mounted after {:.3} s", begin.elapsed().as_secs_f64());
                return Ok(());
            }
            if begin.elapsed() > MOUNT_LIMIT {
                return Err(Failure::Wrong(format!("not mounted after {} s", MOUNT_LIMIT.as_secs())));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn device(&self) -> Result<u64, Failure> {
        Ok(at("cannot stat", &self.root, fs::metadata(&self.root))?.dev())
    }

    /// Unmounts it, as a user does; the daemon must end by itself and well.
    pub fn umount(&mut self) -> Result<(), Failure> {
        let Some(mut daemon) = self.daemon.take() else {
            // Processes that were killed a moment ago may still hold files.
            let script = "for attempt in $(seq 50); do umount \"$0\" && exit 0; sleep 0.1; done; exit 1";
            return tool::run(Command::new("sh").args(["-c", script]).arg(&self.root));
        };
        tool::run(self.context.program("pando").arg("umount").arg(&self.root))?;
        self.await_end(&mut daemon)
    }

    /// The same with umount(8) alone, which waits for the daemon of a block device only.
    pub fn umount_by_system(&mut self) -> Result<(), Failure> {
        tool::run(Command::new("umount").arg("-i").arg(&self.root))?;
        self.await_daemon(true)
    }

    /// Waits for the end of the daemon of what was unmounted, be it a good one or not.
    pub fn await_daemon(&mut self, must_be_good: bool) -> Result<(), Failure> {
        let Some(mut daemon) = self.daemon.take() else { return Ok(()) };
        let end = self.await_end(&mut daemon);
        if must_be_good { end } else { Ok(()) }
    }

    fn await_end(&self, daemon: &mut Child) -> Result<(), Failure> {
        let status = at("cannot wait for the daemon of", &self.image, daemon.wait())?;
        if status.success() { Ok(()) } else { Err(Failure::Wrong(format!("the daemon ended with {status}"))) }
    }

    /// Unmounts and mounts again, so that nothing is answered from memory.
    pub fn remount(&mut self) -> Result<(), Failure> {
        self.umount()?;
        self.mount()
    }

    /// Kills the daemon with SIGKILL and takes the dead mount away. ext4 has no daemon and is only unmounted.
    pub fn kill(&mut self) -> Result<(), Failure> {
        if self.daemon.is_none() {
            return self.umount();
        }
        self.kill_alone()?;
        tool::run(Command::new("umount").arg("-l").arg(&self.root))
    }

    /// Kills the daemon with SIGKILL and leaves the dead mount.
    pub fn kill_alone(&mut self) -> Result<(), Failure> {
        let mut daemon = self.daemon.take().expect("it is mounted");
        if let Some(status) = at("cannot wait for the daemon of", &self.image, daemon.try_wait())? {
            return Err(Failure::Wrong(format!("the daemon ended by itself before it was killed: {status}")));
        }
        at("cannot kill the daemon of", &self.image, daemon.kill())?;
        tool::until("the killed daemon has ended", || {
            Ok(at("cannot wait for the daemon of", &self.image, daemon.try_wait())?.is_some())
        })
    }

    /// Sends a signal to the daemon, and if that stops it, waits until it has.
    pub fn signal(&self, signal: Signal) -> Result<(), Failure> {
        let pid = Pid::from_child(self.daemon.as_ref().expect("it is mounted"));
        let sent = rustix::process::kill_process(pid, signal);
        at("cannot send a signal to the daemon of", &self.image, sent.map_err(Into::into))?;
        if signal != Signal::STOP {
            return Ok(());
        }
        // One of its threads takes the signal and stops the others, which serve meanwhile.
        tool::until("the daemon stands still", || {
            for task in self.threads("")? {
                let stat = fs::read_to_string(task.join("stat")).unwrap_or_default();
                if stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('T')) {
                    return Ok(false);
                }
            }
            Ok(true)
        })
    }

    /// Verifies every reachable byte of the unmounted volume.
    pub fn check(&self) -> Result<(), Failure> {
        match self.context.kind {
            Kind::Pando => self.pando(&["check"]),
            Kind::Ext4 => self.context.run("e2fsck", ["-f".as_ref(), "-n".as_ref(), self.image.as_os_str()]),
        }
    }

    /// Unmounts and verifies: how every test ends.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.umount()?;
        self.check()
    }

    /// Whether PandoFS is under test.
    pub fn is_pando(&self) -> bool {
        self.context.kind == Kind::Pando
    }

    /// A counter of `pando stats`, or of the space that it tells of.
    pub fn counter(&self, name: &str) -> Result<u64, Failure> {
        let mut command = self.context.program("pando");
        let text = tool::output(command.args(["stats", "--json"]).arg(&self.root), "")?;
        let field = format!("\"{name}\":");
        let value = text.lines().find_map(|line| line.trim().strip_prefix(&field));
        let number = value.and_then(|value| value.trim().trim_end_matches(',').parse().ok());
        number.ok_or_else(|| Failure::Wrong(format!("pando stats tells no number of {name}:\n{text}")))
    }

    /// Options for the mounts that follow.
    pub fn set_options(&mut self, options: &[&str]) {
        self.options = options.iter().map(|option| option.to_string()).collect();
    }

    /// What it is in.
    pub fn image(&self) -> &Path {
        &self.image
    }

    /// The process that serves the mount, if there is one.
    pub fn daemon_id(&self) -> Option<u32> {
        self.daemon.as_ref().map(Child::id)
    }

    /// The daemon's threads whose names begin with this, as directories in /proc.
    pub fn threads(&self, name: &str) -> Result<Vec<PathBuf>, Failure> {
        let tasks = PathBuf::from(format!("/proc/{}/task", self.daemon_id().expect("it is mounted")));
        let mut found = Vec::new();
        for task in at("cannot list", &tasks, fs::read_dir(&tasks))? {
            let task = at("cannot list", &tasks, task)?.path();
            // Threads come and go.
            let its_name = fs::read_to_string(task.join("comm")).unwrap_or_default();
            if its_name.starts_with(name) {
                found.push(task);
            }
        }
        Ok(found)
    }
}
