//! SIGKILL of the daemon at random moments under load, with a witness of what was fsynced.

use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal};

use super::linux;
use super::pattern::Random;
use super::tool::{self, at};
use super::volume::Volume;
use super::witness::State;
use super::{Context, Failure, Outcome};

const ROUNDS: u64 = 20;
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
    for round in 0..if context.full { ROUNDS_FULL } else { ROUNDS } {
        let directory = volume.root.join(format!("round.{round}"));
        tool::create_directory(&directory)?;
        let acknowledged = context.work.join(format!("acknowledged.{round}"));
        let mut witness = start_witness(context, &directory, &acknowledged)?;
        let mut noise = start_noise(&tree, &volume.root)?;
        // Not a wait for something: the moment of the kill is to be random.
        std::thread::sleep(Duration::from_millis(random.below(LOAD_MS_MAX)));
        if volume.is_pando() {
            volume.kill()?;
        }
        for child in [&mut witness, &mut noise] {
            // With the daemon gone they end by themselves at their next call.
            let group = Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, Signal::KILL);
            at("cannot wait for the load on", &directory, child.wait())?;
        }
        if !volume.is_pando() {
            volume.umount()?;
        }
        volume.mount()?;
        let state = verify(&directory, &acknowledged)?;
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
    volume.finish()
}

fn start_witness(context: &Context, directory: &Path, acknowledged: &Path) -> Result<Child, Failure> {
    let output = at("cannot create", acknowledged, File::create(acknowledged))?;
    let mut command = context.program("xtask");
    command.arg("mount-witness").arg(directory).stdin(Stdio::null()).stdout(output).process_group(0);
    at("cannot start the witness in", directory, command.spawn())
}

/// Copies, renames and deletes trees, so that nodes are flushed, split, pruned and evicted meanwhile.
fn start_noise(tree: &Path, root: &Path) -> Result<Child, Failure> {
    let script = "while :; do cp -a \"$0\" noise; rm -rf noise.old; mv noise noise.old; done";
    let mut command = Command::new("sh");
    command
        .arg("-ec")
        .arg(script)
        .arg(tree)
        .current_dir(root)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .process_group(0);
    at("cannot start the load on", root, command.spawn())
}

fn verify(directory: &Path, acknowledged: &Path) -> Result<State, Failure> {
    let text = at("cannot read", acknowledged, fs::read_to_string(acknowledged))?;
    let state = read(directory)?;
    // Killed before the witness had prepared its files: nothing was promised.
    if text.starts_with("ready\n") {
        let step = text.lines().filter_map(|line| line.parse().ok()).next_back();
        state.verify(step)?;
        eprintln!("step {step:?} acknowledged, the state verified");
    }
    Ok(state)
}

/// A kill may come before the directory of its round is durable; then nothing of it is there, and nothing may come back.
fn read(directory: &Path) -> Result<State, Failure> {
    if directory.exists() { State::read(directory) } else { Ok(State::default()) }
}
