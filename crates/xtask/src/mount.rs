//! The tests on a real mount. Each has its own directory, image and mount point, and runs in mount and process
//! namespaces of its own: when its first process ends, whatever the reason, the kernel kills what it started and drops
//! what it mounted. So a time-out, a panic or ^C leaves nothing behind, also when a daemon hangs.

mod acl;
mod block_device;
mod brim;
mod cache_size;
mod clone;
mod daemon_memory;
mod directory_attributes;
mod exchange;
mod few_descriptors;
mod files_ahead;
mod fio;
mod fsx;
mod full;
mod git;
mod handed_in;
mod install;
mod kill;
mod link_counts;
mod links;
mod linux;
mod listings;
mod loss;
mod mapped;
mod memory;
mod names_again;
mod overlay;
mod pattern;
mod pjdfstest;
mod reflink;
mod rename_tree;
mod runner;
mod send;
mod snapshots;
mod sqlite;
mod tool;
mod volume;
mod witness;
mod yielding;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use volume::Kind;

/// Why a test did not pass.
#[derive(Debug)]
pub enum Failure {
    /// A program ended with an error; the text holds the end of its output.
    Program(String),
    /// A system call of the test itself failed.
    Io(&'static str, PathBuf, std::io::Error),
    /// The file system did something wrong.
    Wrong(String),
    /// Not a failure: the test cannot run here.
    Skipped(String),
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Failure::Program(text) | Failure::Wrong(text) | Failure::Skipped(text) => f.write_str(text),
            Failure::Io(what, path, error) => write!(f, "{what} {}: {error}", path.display()),
        }
    }
}

impl std::error::Error for Failure {}

/// What a test returns.
pub type Outcome = Result<(), Failure>;

/// How a test is to be run.
#[derive(Clone, Debug)]
pub struct Context {
    /// The file system under test.
    pub kind: Kind,
    /// The whole load instead of one that fits into `make test`.
    pub full: bool,
    /// A directory of this test alone, empty at its start, not on the file system under test.
    pub work: PathBuf,
    /// Where the programs under test are: beside this one.
    pub programs: PathBuf,
    /// Test programs that scripts/setup built.
    pub tools: PathBuf,
    /// The root of the workspace.
    pub source: PathBuf,
}

/// What ends a test that hangs, many times what the longest takes: how fast a machine is fails no test.
const LIMIT: Duration = Duration::from_secs(1800);
const LIMIT_FULL: Duration = Duration::from_secs(6 * 3600);

/// One test: its name, what it needs, and what it does.
pub struct Test {
    name: &'static str,
    /// Programs without which it is skipped.
    needs: &'static [&'static str],
    body: fn(&Context) -> Outcome,
}

const fn test(name: &'static str, needs: &'static [&'static str], body: fn(&Context) -> Outcome) -> Test {
    Test { name, needs, body }
}

/// All tests, those that take longest first: so two of them at a time end soonest.
const TESTS: &[Test] = &[
    test("fsx-mmap", &["fsx"], fsx::with_mmap),
    test("fsx", &["fsx"], fsx::without_mmap),
    test("linux-tree", &["tar", "rsync", "diff", "xz"], linux::run),
    test("memory", &[], memory::run),
    test("kill", &[], kill::run),
    test("brim", &[], brim::run),
    test("install", &["make", "bash", "findmnt", "losetup", "unshare", "nsenter", "perl"], install::run),
    test("pjdfstest", &["pjdfstest"], pjdfstest::run),
    test("hard-links", &["bash", "tar", "rsync", "diff", "awk"], links::run),
    test("link-counts", &[], link_counts::run),
    test("mapped", &["bash", "python3"], mapped::run),
    test("directory-attributes", &[], directory_attributes::run),
    test("access-control-lists", &["bash", "setfacl", "getfacl", "tar", "rsync", "diff", "perl"], acl::run),
    test("rename-tree", &["bash", "tar", "diff", "perl", "xz"], rename_tree::run),
    test("exchange", &["bash", "perl", "diff", "sha256sum"], exchange::run),
    test("reflink", &["cp"], reflink::run),
    test("daemon-memory", &[], daemon_memory::run),
    test("cache-size", &[], cache_size::run),
    test("names-again", &[], names_again::run),
    test("overlay", &["perl", "umount"], overlay::run),
    test("whiteouts", &["perl"], overlay::run_whiteouts),
    test("yielding", &[], yielding::run),
    test(
        "clone",
        &["bash", "tar", "rsync", "diff", "awk", "xz", "sha256sum", "perl", "setfattr", "getfattr"],
        clone::run,
    ),
    test("snapshots", &["perl", "tar", "diff", "findmnt", "mountpoint", "fallocate"], snapshots::run),
    test("send", &["bash", "diff", "rsync", "awk", "xz", "tar", "setfattr", "getfattr"], send::run),
    test("block-device", &["losetup", "umount"], block_device::run),
    test("git", &["git", "bash"], git::run),
    test("few-descriptors", &["timeout", "umount"], few_descriptors::run),
    test("loss", &[], loss::run),
    test("sqlite-rollback", &["sqlite3"], sqlite::rollback_journal),
    test("sqlite-wal", &["sqlite3"], sqlite::write_ahead_log),
    test("listings", &["bash"], listings::run),
    test("files-ahead", &["fincore", "umount"], files_ahead::run),
    test("fio-verify", &["fio"], fio::run),
    test("fio-direct", &["fio", "dd", "cmp"], fio::run_direct),
    test("fio-killed", &["fio"], fio::run_killed),
    test("handed-in-durable", &["fio"], handed_in::run_durable),
    test("handed-in-times", &["fio"], handed_in::run_times),
    test("full-small-files", &[], full::small_files),
    test("full-large-file", &[], full::large_file),
    test("full-overwrites", &[], full::overwrites),
    test("full-smallest-small-files", &[], full::small_files_smallest),
    test("full-smallest-large-file", &[], full::large_file_smallest),
    test("full-smallest-overwrites", &[], full::overwrites_smallest),
];

/// `xtask mount`: runs the tests that were named, or all.
pub fn run(arguments: &[String]) -> ExitCode {
    let options = match runner::Options::parse(arguments) {
        Ok(options) => options,
        Err(sentence) => {
            eprintln!("xtask mount: {sentence}");
            return ExitCode::from(2);
        }
    };
    if options.list {
        TESTS.iter().for_each(|test| println!("{}", test.name));
        return ExitCode::SUCCESS;
    }
    runner::run(TESTS, &options)
}

/// `xtask mount-one`: the inside of one test's namespaces.
pub fn run_one(arguments: &[String]) -> ExitCode {
    runner::run_one(TESTS, arguments)
}

/// `xtask mount-witness`: the writer of the kill test.
pub fn run_witness(arguments: &[String]) -> ExitCode {
    match arguments {
        [directory] => witness::write(directory.as_ref()),
        _ => ExitCode::from(2),
    }
}
