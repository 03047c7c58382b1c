//! What a crash costs whoever did not call fsync: about a second of work.

use std::fs;
use std::time::{Duration, Instant};

use super::tool::{self, at};
use super::volume::{Kind, Volume};
use super::{Context, Failure, Outcome};

/// Long enough that most of what is made is older than what may be lost.
const LOAD: Duration = Duration::from_secs(6);
/// Between two files, so that they fill no megabyte, with which the log would go out before its time.
const PAUSE: Duration = Duration::from_millis(5);
/// The second, and what a slow machine with other tests on it takes to write the log.
const LOST_MAX: Duration = Duration::from_secs(3);

/// Files that nobody syncs, and a kill: those that were made before the last seconds are there, and no file without all before it.
pub fn run(context: &Context) -> Outcome {
    if context.kind != Kind::Pando {
        return Err(Failure::Skipped("it is about a daemon".to_owned()));
    }
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    let directory = volume.root.join("made");
    tool::create_directory(&directory)?;
    let begin = Instant::now();
    let mut made = Vec::new();
    while begin.elapsed() < LOAD {
        let number = made.len().to_string();
        let path = directory.join(&number);
        at("cannot write", &path, fs::write(&path, &number))?;
        made.push(Instant::now());
        std::thread::sleep(PAUSE);
    }
    let killed = Instant::now();
    volume.kill()?;
    volume.mount()?;
    let is_there = |number: usize| {
        let number = number.to_string();
        fs::read_to_string(directory.join(&number)).is_ok_and(|text| text == number)
    };
    let there = (0..made.len()).take_while(|&number| is_there(number)).count();
    let names = at("cannot list", &directory, fs::read_dir(&directory))?.count();
    eprintln!("{there} of {} files are there", made.len());
    let kept = made.iter().filter(|&&made| killed - made > LOST_MAX).count();
    if there < kept {
        return Err(Failure::Wrong(format!(
            "{there} files are there, and {kept} had been made more than {LOST_MAX:?} before"
        )));
    }
    // The next may be there without its bytes.
    let expected = there + usize::from(directory.join(there.to_string()).exists());
    if names != expected {
        return Err(Failure::Wrong(format!(
            "{names} names are there, and without one missing only the first {expected} of them"
        )));
    }
    volume.finish()
}
