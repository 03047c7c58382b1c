//! Who asks for huge pages, and for memory before it is needed: the daemon, which keeps nodes in memory, and no command that only
//! talks to it.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

use super::pattern;
use super::tool::{self, at};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

const TRANSPARENT: &str = "/sys/kernel/mm/transparent_hugepage";
/// More than a pipe holds: whoever has taken some of it runs.
const PIPE_BYTES_MAX: usize = 4 << 20;

/// Looks at a daemon, and at a command that waits for the rest of its input.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("no other file system has a daemon".to_owned()));
    }
    if !Path::new(TRANSPARENT).exists() || huge_pages_of("self")?.is_none() {
        return Err(Failure::Skipped(
            "the kernel has no huge pages, or does not tell who gets them".to_owned(),
        ));
    }
    let can_populate = can_populate()?;
    let mut volume = Volume::create(context, 1 << 30, &["--cache", "1G"])?;
    let daemon = volume.daemon_id().expect("it is mounted");
    is(true, &daemon.to_string(), "the daemon")?;
    has_memory_ahead(can_populate, &volume, "the daemon")?;
    command(context, &volume)?;
    volume.umount()?;
    volume.set_options(&["--cache", "1G", "-o", "without=memory_ahead"]);
    volume.mount()?;
    has_memory_ahead(false, &volume, "a daemon that is to do without")?;
    // One with a small cache wants little memory used.
    volume.umount()?;
    volume.set_options(&["--cache", "64M"]);
    volume.mount()?;
    let daemon = volume.daemon_id().expect("it is mounted");
    is(false, &daemon.to_string(), "the daemon with a small cache")?;
    has_memory_ahead(false, &volume, "the daemon with a small cache")?;
    volume.finish()
}

/// `pando receive` has taken the beginning of a stream, and waits for more.
fn command(context: &Context, volume: &Volume) -> Outcome {
    let path = volume.root.join("file");
    let mut contents = vec![0; PIPE_BYTES_MAX * 2];
    pattern::fill(&mut contents, 1);
    at("cannot write", &path, fs::write(&path, &contents))?;
    let pando = || context.program("pando");
    tool::run(pando().args(["snapshot", "create"]).arg(&volume.root).arg("one"))?;
    let sent = pando().arg("send").arg(&volume.root).arg("one").output();
    let stream = at("cannot send from", &volume.root, sent)?.stdout;
    let half = stream.get(..stream.len() * 3 / 4).filter(|half| half.len() > PIPE_BYTES_MAX);
    let half = half.ok_or_else(|| Failure::Wrong("the stream is too short".to_owned()))?;

    let mut receive: Command = pando();
    receive.args(["receive", "--name", "two"]).arg(&volume.root);
    receive.stdin(Stdio::piped()).stderr(Stdio::piped());
    let mut child = at("cannot start a command on", &volume.root, receive.spawn())?;
    let mut input = child.stdin.take().expect("it was asked for");
    let written = input.write_all(half);
    let found = is(false, &child.id().to_string(), "a command");
    drop(input);
    let said = at("cannot wait for a command on", &volume.root, child.wait_with_output())?;
    at("cannot write to a command on", &volume.root, written)?;
    found?;
    let said = String::from_utf8_lossy(&said.stderr).into_owned();
    if said.contains("ends too soon") { Ok(()) } else { Err(Failure::Wrong(format!("it said: {said}"))) }
}

/// Whether a process gets huge pages; `None` where the kernel does not say.
fn huge_pages_of(process: &str) -> Result<Option<bool>, Failure> {
    let path = format!("/proc/{process}/status");
    let status = at("cannot read", path.as_ref(), fs::read_to_string(&path))?;
    let line = status.lines().find_map(|line| line.strip_prefix("THP_enabled:"));
    Ok(line.map(|value| value.trim() == "1"))
}

/// Whether the kernel gives memory before it is needed: since 5.14.
fn can_populate() -> Result<bool, Failure> {
    let path = Path::new("/proc/sys/kernel/osrelease");
    let release = at("cannot read", path, fs::read_to_string(path))?;
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().unwrap_or(0));
    let version: (u32, u32) = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    Ok(version >= (5, 14))
}

fn is(wanted: bool, process: &str, what: &str) -> Outcome {
    let found = huge_pages_of(process)?;
    eprintln!("{what} has huge pages: {found:?}");
    if found == Some(wanted) {
        return Ok(());
    }
    Err(Failure::Wrong(format!("{what} {} huge pages", if wanted { "does without" } else { "asks for" })))
}

/// By its thread for it (docs/internals/memory.md).
fn has_memory_ahead(wanted: bool, volume: &Volume, what: &str) -> Outcome {
    if volume.threads("pando-memory")?.is_empty() != wanted {
        return Ok(());
    }
    Err(Failure::Wrong(format!("{what} {} memory ahead", if wanted { "has no" } else { "has" })))
}
