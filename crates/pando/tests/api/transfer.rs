//! What differs between snapshots, and snapshots that go to another volume; on volumes that are not mounted.

use std::fs;
use std::process::Stdio;

use crate::common::Sandbox;

fn lines(output: &[u8]) -> Vec<String> {
    let mut lines: Vec<_> = String::from_utf8_lossy(output).lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

/// A volume with a tree and a snapshot `one` of it, changed since.
fn changed() -> Sandbox {
    let sandbox = Sandbox::with_volume();
    fs::create_dir_all(sandbox.path("tree/sub/deep")).unwrap();
    for name in ["a", "b", "sub/c", "sub/deep/d", "odd\nname"] {
        fs::write(sandbox.path("tree").join(name), name).unwrap();
    }
    fs::hard_link(sandbox.path("tree/a"), sandbox.path("tree/sub/linked")).unwrap();
    sandbox.ok(["cp", "-a", "tree", "v.img:/"]);
    sandbox.ok(["snapshot", "create", "v.img", "one"]);
    sandbox.ok(["mv", "v.img:/tree/sub", "v.img:/moved"]);
    sandbox.ok(["rm", "v.img:/tree/b"]);
    sandbox.ok(["mkdir", "v.img:/new"]);
    sandbox
}

#[test]
fn a_difference_is_printed_line_by_line() {
    let sandbox = changed();
    let expected = ["+ /new", "- /tree/b", "M /", "M /tree", "R /tree/sub -> /moved"];
    assert_eq!(lines(&sandbox.ok(["snapshot", "diff", "v.img", "one"])), expected);
    sandbox.ok(["snapshot", "create", "v.img", "two"]);
    sandbox.ok(["rm", "v.img:/tree/odd\nname"]);
    assert_eq!(lines(&sandbox.ok(["snapshot", "diff", "v.img", "one", "two"])), expected);
    let plain = lines(&sandbox.ok(["snapshot", "diff", "--no-renames", "v.img", "one", "two"]));
    assert!(plain.contains(&"- /tree/sub/deep/d".to_owned()), "{plain:?}");
    assert!(plain.contains(&"+ /moved/deep/d".to_owned()), "{plain:?}");
    let json = sandbox.ok(["snapshot", "diff", "--json", "v.img", "two"]);
    let entries: Vec<serde_json::Value> =
        String::from_utf8(json).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let gone = entries.iter().find(|entry| entry["what"] == "deleted").unwrap();
    assert_eq!((&gone["path"], &gone["type"]), (&"/tree/odd\nname".into(), &"regular file".into()));
    sandbox.refused(["snapshot", "diff", "v.img", "three"], 1, &["three of v.img", "no such snapshot"]);
    sandbox.refused(["snapshot", "diff", "v.img", "one", "three"], 1, &["v.img", "no such snapshot"]);
}

/// Runs a command with these bytes as standard input; gives its status and what it says on standard error.
fn fed(sandbox: &Sandbox, args: &[&str], input: &[u8]) -> (bool, String) {
    fs::write(sandbox.path("input"), input).unwrap();
    let input = fs::File::open(sandbox.path("input")).unwrap();
    let output = sandbox.command(args).stdin(Stdio::from(input)).output().unwrap();
    (output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn snapshots_go_to_another_volume_whole_and_as_changes() {
    let sandbox = changed();
    sandbox.ok(["snapshot", "create", "v.img", "two"]);
    sandbox.ok(["format", "--size", "256M", "w.img"]);
    let whole = sandbox.ok(["send", "v.img", "one"]);
    let changes = sandbox.ok(["send", "-i", "one", "v.img", "two"]);

    let refused = |args: &[&str], input: &[u8], words: &[&str]| {
        let (success, errors) = fed(&sandbox, args, input);
        assert!(!success && errors.lines().count() == 1, "{errors}");
        for word in words {
            assert!(errors.contains(word), "{errors}");
        }
    };
    let receive = ["receive", "w.img"];
    refused(&receive, &changes, &["w.img", "begins from", "without -i"]);
    refused(&receive, &whole[..whole.len() - 1], &["ends too soon", "nothing was received"]);
    refused(&receive, b"", &["ends too soon"]);
    refused(&receive, b"this is something else", &["no stream of 'pando send'"]);
    let mut later = whole.clone();
    later[8] = 9;
    refused(&receive, &later, &["version 9", "use a newer one"]);
    let mut damaged = whole.clone();
    damaged[whole.len() / 2] ^= 4;
    refused(&receive, &damaged, &["damaged", "nothing was received"]);
    assert_eq!(sandbox.ok(["snapshot", "list", "w.img"]), b"");

    assert_eq!(fed(&sandbox, &receive, &whole), (true, String::new()));
    refused(&receive, &whole, &["already"]);
    refused(&["receive", "--name", "a/b", "w.img"], &whole, &["cannot be a snapshot's name"]);
    assert_eq!(fed(&sandbox, &["receive", "--name", "second", "w.img"], &changes), (true, String::new()));
    let difference = lines(&sandbox.ok(["snapshot", "diff", "w.img", "one", "second"]));
    assert_eq!(difference, lines(&sandbox.ok(["snapshot", "diff", "v.img", "one", "two"])));
    sandbox.ok(["snapshot", "rollback", "w.img", "second"]);
    sandbox.ok(["check", "w.img"]);
    sandbox.ok(["cp", "-a", "v.img:/", "from"]);
    sandbox.ok(["cp", "-a", "w.img:/", "to"]);
    let mut diff = std::process::Command::new("diff");
    diff.arg("-r").args([sandbox.path("from"), sandbox.path("to")]);
    assert!(diff.status().unwrap().success());
    // Of a writable one, what it is; changes of it begin from a read-only one of it.
    sandbox.ok(["snapshot", "create", "--writable", "--of", "one", "v.img", "trial"]);
    let trial = sandbox.ok(["send", "-i", "one", "v.img", "trial"]);
    assert_eq!(fed(&sandbox, &receive, &trial), (true, String::new()));
    assert_eq!(lines(&sandbox.ok(["snapshot", "diff", "w.img", "one", "trial"])), [""; 0]);
    sandbox.refused(["send", "-i", "trial", "v.img", "two"], 1, &["is writable", "snapshot create --of"]);
    sandbox.refused(["snapshot", "create", "--of", "none", "v.img", "x"], 1, &["there is no snapshot none"]);
    sandbox.refused(["send", "v.img", "three"], 1, &["three of v.img", "no such snapshot"]);
    sandbox.refused(["send", "-i", "three", "v.img", "two"], 1, &["no such snapshot"]);
}
