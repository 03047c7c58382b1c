//! SIGKILL of the daemon at random moments under load, with a witness of what was fsynced.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal};

use super::linux;
use super::pattern::Random;
use super::tool::{self, at};
use super::volume::Volume;
use super::witness::{self, State};
use super::{Context, Failure, Outcome};

const ROUNDS: u64 = 12;
const ROUNDS_FULL: u64 = 200;
/// The load runs for a random time up to this before the kill.
const LOAD_MS_MAX: u64 = 3000;
/// Rounds between two runs of `pando check`.
const CHECK_EVERY: u64 = 5;

/// Kills, mounts again, compares; the last state of every earlier round must stay as it was recovered.
pub fn run(context: &Context) -> Outcome {
    let tree = linux::reference(context, &["kernel", "mm"])?;
    // A small cache and frequent checkpoints, so that kills meet every phase of them.
    let mut volume = Volume::create(context, 4 << 30, &["--cache", "128M", "-o", "checkpoint=2"])?;
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_nanos() as u64);
    eprintln!("seed {seed}");
    let mut random = Random::new(seed);
    let mut recovered: Vec<(PathBuf, State)> = Vec::new();
    let rounds = if context.full { ROUNDS_FULL } else { ROUNDS };
    let mut promises = 0;
    for round in 0..rounds {
        let directory = volume.root.join(format!("round.{round}"));
        tool::create_directory(&directory)?;
        let acknowledged = context.work.join(format!("acknowledged.{round}"));
        let mut loads = [
            start_witness(context, &directory, &acknowledged, round)?,
            start_noise(context, &tree, &volume.root, round)?,
        ];
        // Every second kill may come at any time, also while the witness prepares itself; the others, however slow the
        // machine, when there is something to be held to.
        if round % 2 == 1 {
            tool::until("a step is acknowledged", || {
                loads.iter_mut().try_for_each(Load::still_runs)?;
                Ok(last_acknowledged(&acknowledged)?.1.is_some())
            })?;
        }
        // Not a wait for something: the moment of the kill is to be random.
        std::thread::sleep(Duration::from_millis(random.below(LOAD_MS_MAX)));
        // A live file system fails no call of theirs.
        loads.iter_mut().try_for_each(Load::still_runs)?;
        if volume.is_pando() {
            volume.kill()?;
        }
        loads.iter_mut().try_for_each(Load::end)?;
        if !volume.is_pando() {
            volume.umount()?;
        }
        volume.mount()?;
        let (state, step) = verify(&directory, &acknowledged)?;
        promises += u64::from(step.is_some());
        recovered.push((directory, state));
        for path in ["noise", "noise.old"].map(|name| volume.root.join(name)) {
            if path.exists() {
                at("cannot remove", &path, fs::remove_dir_all(&path))?;
            }
        }
        if round % CHECK_EVERY == CHECK_EVERY - 1 {
            volume.umount()?;
            volume.check()?;
            volume.mount()?;
        }
    }
    for (directory, state) in &recovered {
        if read(directory)? != *state {
            return Err(Failure::Wrong(format!(
                "{} has changed since it was recovered",
                directory.display()
            )));
        }
    }
    eprintln!("in {promises} of {rounds} rounds a step had been acknowledged");
    if promises < rounds / 2 {
        return Err(Failure::Wrong(format!("only in {promises} of {rounds} rounds was a step acknowledged")));
    }
    volume.finish()
}

/// A process that must not end before it is ended here.
struct Load {
    name: &'static str,
    child: Child,
    /// What it prints about errors.
    errors: PathBuf,
}

impl Load {
    fn start(name: &'static str, command: &mut Command, errors: PathBuf) -> Result<Load, Failure> {
        let file = at("cannot create", &errors, File::create(&errors))?;
        command.stdin(Stdio::null()).stderr(file).process_group(0);
        let child = command.spawn();
        let child =
            child.map_err(|error| Failure::Program(format!("{command:?} cannot be started: {error}")))?;
        Ok(Load { name, child, errors })
    }

    fn still_runs(&mut self) -> Outcome {
        match at("cannot wait for what prints to", &self.errors, self.child.try_wait())? {
            None => Ok(()),
            Some(status) => Err(self.ended(status)),
        }
    }

    fn ended(&self, status: ExitStatus) -> Failure {
        let text = fs::read_to_string(&self.errors).unwrap_or_else(|error| error.to_string());
        Failure::Wrong(format!("{} ended before the kill: {status}\n{}", self.name, text.trim_end()))
    }

    /// With the daemon gone it ends by itself at its next call, or here.
    fn end(&mut self) -> Outcome {
        // Its group is gone when it has ended.
        let _ = rustix::process::kill_process_group(Pid::from_child(&self.child), Signal::KILL);
        at("cannot wait for what prints to", &self.errors, self.child.wait()).map(drop)
    }
}

fn start_witness(
    context: &Context,
    directory: &Path,
    acknowledged: &Path,
    round: u64,
) -> Result<Load, Failure> {
    let output = at("cannot create", acknowledged, File::create(acknowledged))?;
    let mut command = context.program("xtask");
    command.arg("mount-witness").arg(directory).stdout(output);
    Load::start("the witness", &mut command, context.work.join(format!("witness.{round}")))
}

/// Copies, renames and deletes trees, so that nodes are flushed, split, pruned and evicted meanwhile.
fn start_noise(context: &Context, tree: &Path, root: &Path, round: u64) -> Result<Load, Failure> {
    let script = "while :; do cp -a \"$0\" noise; rm -rf noise.old; mv noise noise.old; done";
    let mut command = Command::new("sh");
    command.arg("-ec").arg(script).arg(tree).current_dir(root).stdout(Stdio::null());
    Load::start("the noise", &mut command, context.work.join(format!("noise.{round}")))
}

fn last_acknowledged(path: &Path) -> Result<(bool, Option<u64>), Failure> {
    Ok(witness::acknowledgement(&at("cannot read", path, fs::read_to_string(path))?))
}

/// The state after a crash, and the last step that had been acknowledged.
fn verify(directory: &Path, acknowledged: &Path) -> Result<(State, Option<u64>), Failure> {
    let (ready, step) = last_acknowledged(acknowledged)?;
    let state = read(directory)?;
    // Killed before the witness had prepared its files: nothing was promised.
    if ready {
        state.verify(step)?;
        eprintln!("step {step:?} acknowledged, the state verified");
    }
    Ok((state, step))
}

/// A kill may come before the directory of its round is durable; then nothing of it is there, and nothing may come back.
fn read(directory: &Path) -> Result<State, Failure> {
    if directory.exists() { State::read(directory) } else { Ok(State::default()) }
}
