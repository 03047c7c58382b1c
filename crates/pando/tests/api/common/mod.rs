//! Runs the command in a directory of its own.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use tempfile::TempDir;

/// A directory with volumes and trees in it, gone with the test.
pub struct Sandbox {
    directory: TempDir,
}

impl Sandbox {
    pub fn new() -> Self {
        Self { directory: tempfile::tempdir().expect("a temporary directory can be made") }
    }

    /// One with a fresh volume `v.img`.
    pub fn with_volume() -> Self {
        let sandbox = Self::new();
        sandbox.ok(["format", "--size", "256M", "v.img"]);
        sandbox
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn command<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_pando"));
        command.args(args).current_dir(self.directory.path()).stdin(Stdio::null());
        command
    }

    pub fn run<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Output {
        self.command(args).output().expect("the command can be started")
    }

    /// Runs what must succeed and say nothing on standard error; gives standard output.
    #[track_caller]
    pub fn ok<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Vec<u8> {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && errors.is_empty(), "{}: {errors}", output.status);
        output.stdout
    }

    /// Runs what must fail with this status and one sentence that holds these words.
    #[track_caller]
    pub fn refused<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>, status: i32, words: &[&str]) {
        let output = self.run(args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{errors}");
        assert_eq!(errors.lines().count(), 1, "one sentence: {errors}");
        assert!(errors.starts_with("pando: ") && !errors.contains("Error"), "{errors}");
        for word in words {
            assert!(errors.contains(word), "{word:?} in {errors:?}");
        }
    }

    /// Lines of standard output.
    #[track_caller]
    pub fn lines<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> Vec<String> {
        String::from_utf8_lossy(&self.ok(args)).lines().map(str::to_owned).collect()
    }

    #[track_caller]
    pub fn json<A: AsRef<OsStr>>(&self, args: impl IntoIterator<Item = A>) -> serde_json::Value {
        serde_json::from_slice(&self.ok(args)).expect("the output is JSON")
    }

    /// The volume is sound.
    #[track_caller]
    pub fn check(&self, volume: &str) {
        let report = self.json(["check", "--json", volume]);
        assert_eq!(report["clean"], true, "{report}");
    }
}

/// A name with any bytes.
pub fn name(bytes: &[u8]) -> &OsStr {
    OsStr::from_bytes(bytes)
}

/// Everything about a tree on the host that a copy must keep, in order of paths.
pub fn snapshot(root: &Path) -> Vec<(PathBuf, String)> {
    let mut entries = Vec::new();
    let mut waiting = vec![PathBuf::new()];
    while let Some(relative) = waiting.pop() {
        let path = root.join(&relative);
        let metadata = path.symlink_metadata().expect("what was listed is there");
        if metadata.is_dir() {
            let names = path.read_dir().expect("a directory can be listed");
            waiting.extend(names.map(|entry| relative.join(entry.expect("it can be listed").file_name())));
        }
        entries.push((relative, description(&path, &metadata)));
    }
    entries.sort();
    entries
}

fn description(path: &Path, metadata: &std::fs::Metadata) -> String {
    use std::os::unix::fs::MetadataExt;
    let contents = if metadata.is_symlink() {
        format!("{:?}", path.read_link().expect("a link can be read"))
    } else if metadata.is_file() {
        let bytes = std::fs::read(path).expect("a file can be read");
        format!("{} bytes, sum {:016x}", bytes.len(), sum(&bytes))
    } else {
        String::new()
    };
    let (mode, mtime, nanoseconds) = (metadata.mode(), metadata.mtime(), metadata.mtime_nsec());
    let (uid, gid, device) = (metadata.uid(), metadata.gid(), metadata.rdev());
    format!("{mode:o} {uid}:{gid} {mtime}.{nanoseconds} device {device} {contents}")
}

/// FNV-1a: enough to see that two files differ.
fn sum(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |sum, &byte| (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3))
}

/// A small generator of numbers (SplitMix64), so that a failure can be repeated by its seed.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    pub fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    pub fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.next() as u8).collect()
    }
}

/// The seed of a test: random, printed, and taken from `PANDO_SEED` to repeat a failure.
pub fn seed() -> u64 {
    let given = std::env::var("PANDO_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| {
        let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
        now.map_or(0, |time| time.as_nanos() as u64)
    });
    println!("PANDO_SEED={seed}");
    seed
}
