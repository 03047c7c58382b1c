//! Programs that are run and must end well: commands of file systems, written as text, and those of the loads.

use std::ffi::OsStr;
use std::hash::{DefaultHasher, Hasher};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::error::{Error, at};

/// Runs a command given as text: words between spaces, several commands between `&&`. A word, or a part of it between
/// slashes, that is the name of one of `places` stands for that path. `NAME=PROGRAM` as the first word runs the program
/// under that name.
pub fn run_text(text: &str, places: &[(&str, &Path)]) -> Result<String, Error> {
    let mut output = String::new();
    for command in text.split("&&") {
        output.push_str(&run(&substituted(command, places))?);
    }
    Ok(output)
}

/// Starts a command given as text and does not wait for its end. A signal to the group of this process does not reach it.
pub fn start_text(text: &str, places: &[(&str, &Path)]) -> Result<(), Error> {
    let words = substituted(text, places);
    let mut command = command(&words).ok_or_else(|| Error::Usage("a command has no program".to_owned()))?;
    command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0);
    let started = command.spawn();
    started.map_err(|error| Error::Program(format!("'{text}' cannot be started: {error}"))).map(drop)
}

fn substituted(command: &str, places: &[(&str, &Path)]) -> Vec<String> {
    let meant = |part: &str| match places.iter().find(|(name, _)| *name == part) {
        Some((_, path)) => path.display().to_string(),
        None => part.to_owned(),
    };
    let word = |word: &str| word.split('/').map(meant).collect::<Vec<_>>().join("/");
    command.split_whitespace().map(word).collect()
}

/// Runs a program with its arguments; what it wrote to standard output.
pub fn run<S: AsRef<OsStr>>(words: &[S]) -> Result<String, Error> {
    let output = output(words, None, &[])?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program in a directory; what it wrote to standard output.
pub fn run_in<S: AsRef<OsStr>>(directory: &Path, words: &[S]) -> Result<String, Error> {
    run_with(directory, &[], words)
}

/// The same with these variables in its environment.
pub fn run_with<S: AsRef<OsStr>>(
    directory: &Path,
    variables: &[(&str, &str)],
    words: &[S],
) -> Result<String, Error> {
    let output = output(words, Some(directory), variables)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs a program in a directory, another one on what it writes, and looks how both ended; what the second wrote.
pub fn run_piped(directory: &Path, first: &[&str], second: &[&str]) -> Result<String, Error> {
    let failed =
        |words: &[&str], error| Error::Program(format!("'{}' cannot be started: {error}", words.join(" ")));
    let start = |words: &[&str], input: Stdio| {
        let mut command =
            command(words).ok_or_else(|| Error::Usage("a command has no program".to_owned()))?;
        command.current_dir(directory).stdin(input).stdout(Stdio::piped()).stderr(Stdio::piped());
        command.spawn().map_err(|error| failed(words, error))
    };
    let mut writer = start(first, Stdio::null())?;
    let pipe = writer.stdout.take().expect("it was asked for");
    // Without a reader the writer ends.
    let reader = start(second, pipe.into()).inspect_err(|_| drop(writer.wait()));
    // The reader says too little to fill a pipe of its own meanwhile.
    let written = writer.wait_with_output().map_err(|error| failed(first, error));
    let read = reader?.wait_with_output().map_err(|error| failed(second, error))?;
    ended(&first.join(" "), written?)?;
    let output = ended(&second.join(" "), read)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The programs that timed loads start, and what makes each end at once.
const STARTED: [&[&str]; 12] = [
    &["sh", "-c", "true"],
    &["cp", "--version"],
    &["rm", "--version"],
    &["tar", "--version"],
    &["find", "--version"],
    &["grep", "--version"],
    &["git", "--version"],
    &["rsync", "--version"],
    &["wc", "--version"],
    &["mount", "--version"],
    &["btrfs", "--version"],
    &["sqlite3", "--version"],
];

/// Has the programs that loads start, with their libraries and the directories they are looked for in, in the kernel's
/// caches. A cold start reads them from the machine's own disk, 10 to 20 ms, which is no file system's under test; and
/// those that are mounted by a program which needs the same libraries would be spared a part of it.
pub fn read_programs() {
    for words in STARTED {
        // One that is not installed is missed by the row that needs it.
        let _ = command(words).map(|mut command| command.output());
    }
}

/// What a program wrote to either output, whatever its end was; empty if it cannot be started.
pub fn all_output(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let Some(output) = command(&words).and_then(|mut command| command.output().ok()) else {
        return String::new();
    };
    let [stdout, stderr] = [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes));
    format!("{stdout}{stderr}")
}

fn output<S: AsRef<OsStr>>(
    words: &[S],
    directory: Option<&Path>,
    variables: &[(&str, &str)],
) -> Result<Output, Error> {
    let text = words.iter().map(|word| word.as_ref().to_string_lossy()).collect::<Vec<_>>().join(" ");
    let mut command = command(words).ok_or_else(|| Error::Usage("a command has no program".to_owned()))?;
    if let Some(directory) = directory {
        command.current_dir(directory);
    }
    let output = command.envs(variables.iter().copied()).output();
    let output = output.map_err(|error| Error::Program(format!("'{text}' cannot be started: {error}")))?;
    ended(&text, output)
}

/// An error unless a program has ended well.
fn ended(text: &str, output: Output) -> Result<Output, Error> {
    if output.status.success() {
        return Ok(output);
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(Error::Program(format!("'{text}': {}: {}", output.status, shortened(said.trim_end()))))
}

/// The first line and the number of the others: a program may have the same to say of every file.
fn shortened(said: &str) -> String {
    match said.lines().count() {
        0..=3 => said.to_owned(),
        lines => format!("{} (and {} more lines)", said.lines().next().unwrap_or_default(), lines - 1),
    }
}

fn command<S: AsRef<OsStr>>(words: &[S]) -> Option<Command> {
    let (first, rest) = words.split_first()?;
    let first = first.as_ref().to_str()?;
    let (name, program) = first.split_once('=').unwrap_or((first, first));
    let mut command = Command::new(beside(program).unwrap_or_else(|| program.into()));
    command.arg0(name).args(rest);
    Some(command)
}

/// Whether a program or example of this name was built together with this one.
pub fn is_built(program: &str) -> bool {
    beside(program).is_some()
}

/// Of this program, and of those of ours that it starts.
pub fn checksum() -> Result<String, Error> {
    let own = std::env::current_exe().map_err(|error| Error::Program(format!("no program: {error}")))?;
    let mut hasher = DefaultHasher::new();
    for path in [Some(own), beside("pando"), beside("floor")].into_iter().flatten() {
        hasher.write(&at("cannot read", &path, std::fs::read(&path))?);
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// The program or example of this name that was built together with this one.
fn beside(program: &str) -> Option<PathBuf> {
    let own = std::env::current_exe().ok()?;
    let place = own.parent().filter(|_| !program.contains('/'))?;
    [place.join(program), place.join("examples").join(program)].into_iter().find(|path| path.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_that_name_a_place_become_its_path() {
        let places: [(&str, &Path); 1] = [("PLACE", Path::new("/some where"))];
        let text = run_text("echo PLACE/x PLACES && echo PLACE", &places);
        assert_eq!(text.unwrap(), "/some where/x PLACES\n/some where\n");
    }

    #[test]
    fn an_error_says_which_command_failed() {
        let error = run_text("sh -c exit&&false", &[]).unwrap_err().to_string();
        assert!(error.starts_with("'false': exit status: 1"), "{error}");
        let error = run_text("/no/such/program", &[]).unwrap_err().to_string();
        assert!(error.contains("cannot be started"), "{error}");
        assert!(run_text("  ", &[]).is_err());
        assert_eq!(
            (shortened("a\nb"), shortened("a\nb\nc\nd")),
            ("a\nb".to_owned(), "a (and 3 more lines)".to_owned())
        );
    }

    #[test]
    fn either_end_of_a_pipe_may_fail() {
        let piped = |first: &str, second: &str| {
            run_piped(Path::new("/"), &["sh", "-c", first], &["sh", "-c", second])
        };
        assert_eq!(piped("echo a; echo a note >&2", "wc -c").unwrap().trim(), "2");
        assert_eq!(run_piped(Path::new("/"), &["pwd"], &["cat"]).unwrap(), "/\n");
        for (first, second) in [("echo a; exit 2", "wc -c"), ("echo a", "wc -c; exit 1")] {
            assert!(
                piped(first, second).unwrap_err().to_string().contains("exit status: "),
                "{first} | {second}"
            );
        }
        for (first, second) in [("/no/such/program", "cat"), ("yes", "/no/such/program")] {
            let error = run_piped(Path::new("/"), &[first], &[second]).unwrap_err().to_string();
            assert!(error.contains("'/no/such/program' cannot be started"), "{error}");
        }
    }

    #[test]
    fn a_program_runs_under_another_name() {
        assert_eq!(run_text("other=sh -c echo", &[]).unwrap(), "\n");
    }
}
