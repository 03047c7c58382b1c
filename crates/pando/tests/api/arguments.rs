//! Whatever is on the command line, the command ends with one of its own exit statuses and never panics.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;

use crate::common::{Random, Sandbox, seed};

const COMMANDS: [&str; 14] = [
    "format",
    "check",
    "info",
    "dump",
    "ls",
    "cat",
    "cp",
    "mkdir",
    "mv",
    "rm",
    "stat",
    "completions",
    "man",
    "nonsense",
];

const OPTIONS: [&str; 30] = [
    "-a",
    "-r",
    "-R",
    "-f",
    "-p",
    "-n",
    "-T",
    "-t",
    "-v",
    "-l",
    "-L",
    "-P",
    "-H",
    "-d",
    "-h",
    "-i",
    "-A",
    "-m",
    "755",
    "--json",
    "--force",
    "--size",
    "64M",
    "99E",
    "--label",
    "-c",
    "lz4",
    "--node",
    "--contents",
    "--",
];

const PLACES: [&str; 22] = [
    "v.img:/",
    "v.img:/a",
    "v.img:/a/..",
    "v.img:/a/f",
    "v.img:/link",
    "v.img:/loop",
    "v.img:/new",
    "v.img:/a/new/",
    "v.img:/.",
    "v.img://a//",
    "w.img:/",
    "v.img",
    "w.img",
    "junk:/",
    "junk",
    "missing:/x",
    ":/",
    ":",
    "",
    ".",
    "tree",
    "out",
];

fn argument(random: &mut Random) -> OsString {
    match random.below(10) {
        0..3 => OPTIONS[random.below(OPTIONS.len() as u64) as usize].into(),
        3..9 => PLACES[random.below(PLACES.len() as u64) as usize].into(),
        _ => {
            let length = random.below(12) as usize;
            // No NUL, which no argument can hold.
            let mut bytes: Vec<u8> = random.bytes(length).into_iter().map(|byte| byte.max(1)).collect();
            if random.below(2) == 0 {
                bytes.splice(0..0, *b"v.img:/");
            }
            OsString::from_vec(bytes)
        }
    }
}

#[test]
fn random_command_lines_never_panic() {
    const ROUNDS: u64 = 250;
    let mut random = Random(seed());
    let sandbox = Sandbox::new();
    sandbox.ok(["format", "--size", "64M", "v.img"]);
    fs::write(sandbox.path("junk"), vec![7; 1 << 20]).unwrap();
    fs::create_dir_all(sandbox.path("tree/a")).unwrap();
    fs::write(sandbox.path("tree/a/f"), "contents").unwrap();
    std::os::unix::fs::symlink("a", sandbox.path("tree/link")).unwrap();
    std::os::unix::fs::symlink("loop", sandbox.path("tree/loop")).unwrap();
    sandbox.ok(["cp", "-aT", "tree", "v.img:/"]);
    for _ in 0..ROUNDS {
        let command = COMMANDS[random.below(COMMANDS.len() as u64) as usize];
        let mut args = vec![OsString::from(command)];
        args.extend((0..random.below(5)).map(|_| argument(&mut random)));
        let output = sandbox.run(&args);
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(matches!(output.status.code(), Some(0..=2)), "{args:?}: {} {errors}", output.status);
        assert!(!errors.contains("panicked"), "{args:?}: {errors}");
    }
    if sandbox.path("v.img").exists() {
        sandbox.check("v.img");
    }
}
