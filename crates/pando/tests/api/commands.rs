//! What each unmounted command does, and what it refuses.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::Command;

use crate::common::{Sandbox, name};

#[test]
fn directories_are_made() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", "-p", "v.img:/a/b/c"]);
    sandbox.ok(["mkdir", "-p", "v.img:/a/b/c"]);
    sandbox.ok(["mkdir", "-m", "1777", "v.img:/tmp"]);
    assert_eq!(sandbox.json(["stat", "--json", "v.img:/tmp"])[0]["mode"], "1777");
    assert_eq!(sandbox.lines(["ls", "v.img:/", "v.img:/a"]), ["/:", "a", "tmp", "", "/a:", "b"]);
    sandbox.refused(["mkdir", "v.img:/a"], 1, &["cannot make directory v.img:/a", "exists"]);
    sandbox.refused(["mkdir", "v.img:/x/y"], 1, &["v.img:/x/y", "no such file or directory"]);
    sandbox.refused(["mkdir", "v.img:/"], 1, &["exists"]);
    // The directory that the link speaks of was made.
    symlink("nowhere", sandbox.path("link")).unwrap();
    sandbox.ok(["cp", "-a", "link", "v.img:/link"]);
    for taken in [&["mkdir", "v.img:/link/"][..], &["mkdir", "-p", "v.img:/link/"], &["mkdir", "v.img:/a//"]]
    {
        sandbox.refused(taken, 1, &["exists"]);
    }
    sandbox.ok(["mkdir", "v.img:/new/"]);
    assert_eq!(sandbox.lines(["ls", "v.img:/"]), ["a", "link", "new", "tmp"]);
}

/// What was done in the first volume was lost when the second could not be opened.
#[test]
fn nothing_is_done_unless_all_volumes_can_be_opened() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", "v.img:/a", "v.img:/b"]);
    let removal = sandbox.run(["rm", "-dv", "v.img:/a", "v.img:/b", "nothing.img:/c"]);
    assert_eq!(removal.status.code(), Some(1));
    assert_eq!(String::from_utf8_lossy(&removal.stdout), "", "nothing was said to have been done");
    sandbox.refused(["rm", "-d", "v.img:/a", "nothing.img:/c"], 1, &["nothing.img", "no such file"]);
    assert_eq!(sandbox.lines(["ls", "v.img:/"]), ["a", "b"]);
}

#[test]
fn files_are_moved() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", "-p", "v.img:/a/b", "v.img:/d"]);
    fs::write(sandbox.path("f"), "text").unwrap();
    sandbox.ok(["cp", "f", "v.img:/f"]);
    // Refused as an illegal seek.
    assert!(Command::new("mkfifo").arg(sandbox.path("pipe")).status().unwrap().success());
    let pipe = sandbox.path("pipe");
    let reader = std::thread::spawn(move || fs::read(pipe).unwrap());
    sandbox.ok(["cp", "v.img:/f", "pipe"]);
    assert_eq!(reader.join().unwrap(), b"text");
    // The link was removed, and a file made in its place: of /dev/stdout, for all who were to write to it.
    symlink("nowhere", sandbox.path("dangling")).unwrap();
    sandbox.refused(["cp", "v.img:/f", "dangling"], 1, &["cannot copy to dangling", "cannot be followed"]);
    sandbox.ok(["cp", "-n", "v.img:/f", "dangling"]);
    assert!(sandbox.path("dangling").is_symlink());
    // Another link takes its place.
    sandbox.ok(["cp", "-a", "dangling", "v.img:/elsewhere"]);
    sandbox.ok(["cp", "-a", "v.img:/elsewhere", "dangling"]);
    sandbox.ok(["rm", "v.img:/elsewhere"]);
    sandbox.ok(["mv", "v.img:/f", "v.img:/a", "v.img:/d"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/d/f"]), b"text");
    assert_eq!(sandbox.lines(["ls", "v.img:/d/a"]), ["b"]);
    sandbox.refused(["mv", "v.img:/d", "v.img:/d/a/b/"], 1, &["into itself"]);
    sandbox.refused(["mv", "v.img:/nothing", "v.img:/x"], 1, &["cannot move v.img:/nothing", "no such file"]);
    sandbox.refused(["mv", "v.img:/", "v.img:/x"], 1, &["cannot be renamed"]);
    sandbox.ok(["format", "--size", "64M", "w.img"]);
    sandbox.refused(["mv", "v.img:/d/f", "w.img:/f"], 1, &["different volumes", "pando cp -a"]);
    sandbox.ok(["mkdir", "v.img:/empty"]);
    sandbox.ok(["mv", "-T", "v.img:/d/a", "v.img:/empty"]);
    assert_eq!(sandbox.lines(["ls", "v.img:/empty"]), ["b"]);
    // A slash behind a name asks for a directory, and follows no link whose name is to change.
    sandbox.refused(["mv", "v.img:/d/f", "v.img:/new/"], 1, &["v.img:/d/f to /new/", "not a directory"]);
    symlink("empty", sandbox.path("link")).unwrap();
    sandbox.ok(["cp", "-a", "link", "v.img:/link"]);
    sandbox.refused(["mv", "v.img:/link/", "v.img:/x"], 1, &["v.img:/link/", "not a directory"]);
    sandbox.refused(["mv", "-T", "v.img:/d", "v.img:/link/"], 1, &["v.img:/d to /link/", "not a directory"]);
    sandbox.ok(["mv", "v.img:/empty", "v.img:/full/"]);
    assert_eq!(sandbox.lines(["ls", "v.img:/"]), ["d", "full", "link"]);
    sandbox.check("v.img");
}

#[test]
fn files_are_removed() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", "-p", "v.img:/a/b", "v.img:/e"]);
    sandbox.refused(["rm", "v.img:/a"], 1, &["it is a directory", "-r"]);
    sandbox.refused(["rm", "-d", "v.img:/a"], 1, &["not empty"]);
    sandbox.refused(["rm", "v.img:/nothing"], 1, &["no such file"]);
    sandbox.refused(["rm", "-r", "v.img:/"], 1, &["cannot be removed"]);
    sandbox.refused(["rm", "-r", "v.img:/a/b/.."], 1, &["cannot be removed"]);
    sandbox.ok(["rm", "-f", "v.img:/nothing", "v.img:/no/thing"]);
    sandbox.ok(["rm", "-d", "v.img:/e"]);
    // A slash behind a link made it lead to what it names, which was removed.
    symlink("a", sandbox.path("link")).unwrap();
    sandbox.ok(["cp", "-a", "link", "v.img:/link"]);
    sandbox.refused(["rm", "-r", "v.img:/link/"], 1, &["cannot remove v.img:/link/", "not a directory"]);
    sandbox.ok(["rm", "-r", "v.img:/link"]);
    assert_eq!(sandbox.lines(["rm", "-rv", "v.img:/a"]), ["removed /a/b", "removed /a"]);
    assert_eq!(sandbox.lines(["ls", "v.img:/"]), [""; 0]);
}

#[test]
fn symbolic_links_are_followed_as_the_kernel_does() {
    let sandbox = Sandbox::with_volume();
    fs::create_dir(sandbox.path("t")).unwrap();
    fs::create_dir(sandbox.path("t/d")).unwrap();
    fs::write(sandbox.path("t/d/f"), "found").unwrap();
    for (target, link) in
        [("d", "rel"), ("/t/d", "abs"), ("../../t/rel/f", "d/up"), ("loop", "loop"), ("gone", "dead")]
    {
        symlink(target, sandbox.path("t").join(link)).unwrap();
    }
    sandbox.ok(["cp", "-a", "t", "v.img:/"]);
    for path in ["/t/rel/f", "/t/abs/f", "/t/d/up", "/t/../../t/d/./f", "//t//d//f", "/t/rel/../d/f"] {
        assert_eq!(sandbox.ok(["cat", &format!("v.img:{path}")]), b"found", "{path}");
    }
    sandbox.refused(["cat", "v.img:/t/loop"], 1, &["too many levels of symbolic links"]);
    sandbox.refused(["cat", "v.img:/t/dead"], 1, &["no such file"]);
    sandbox.refused(["cat", "v.img:/t/d/f/"], 1, &["not a directory"]);
    sandbox.refused(["cat", "v.img:/t/d/f/x"], 1, &["not a directory"]);
    sandbox.refused(["cat", "v.img:/t"], 1, &["directory"]);
    assert_eq!(sandbox.json(["stat", "--json", "v.img:/t/rel"])[0]["target"], "d");
    assert_eq!(sandbox.json(["stat", "-L", "--json", "v.img:/t/rel"])[0]["type"], "directory");
    // A copy with -L has no links but those that lead nowhere, which it names.
    sandbox.ok(["rm", "v.img:/t/loop", "v.img:/t/dead"]);
    sandbox.ok(["cp", "-rL", "v.img:/t", "out"]);
    assert!(sandbox.path("out/rel/f").symlink_metadata().unwrap().is_file());
    assert!(sandbox.path("out/rel").symlink_metadata().unwrap().is_dir());
}

#[test]
fn what_is_copied_into_itself_is_refused() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", "-p", "v.img:/a/b"]);
    fs::write(sandbox.path("f"), "x").unwrap();
    sandbox.ok(["cp", "f", "v.img:/a/f"]);
    sandbox.refused(["cp", "-r", "v.img:/a", "v.img:/a/b"], 1, &["into itself"]);
    sandbox.refused(["cp", "-rT", "v.img:/a", "v.img:/a"], 1, &["same directory"]);
    sandbox.refused(["cp", "v.img:/a/f", "v.img:/a/f"], 1, &["same file"]);
    sandbox.refused(["cp", "v.img:/a", "v.img:/c"], 1, &["directory", "-r"]);
    sandbox.refused(["cp", "f", "g"], 1, &["VOLUME:/path"]);
    sandbox.refused(["cp", "f", "v.img:/no/where"], 1, &["v.img:/no/where", "no such file"]);
    sandbox.refused(["cp", "f", "f", "v.img:/new"], 1, &["v.img:/new", "no directory"]);
    sandbox.refused(["cp", "f", "v.img:/new/"], 1, &["cannot make file /new/", "not a directory"]);
    sandbox.refused(["cp", "v.img:/a/f", "new/"], 1, &["cannot make file new/", "not a directory"]);
    sandbox.ok(["cp", "-r", "v.img:/a", "v.img:/new/"]);
    sandbox.check("v.img");
}

#[test]
fn odd_names_are_printed_safely_and_exactly() {
    let sandbox = Sandbox::with_volume();
    let odd = [&b"v.img:/\x1b[2J\n\xff"[..], b"v.img:/plain"];
    sandbox.ok([&b"mkdir"[..], odd[0], odd[1]].map(name));
    assert_eq!(sandbox.ok(["ls", "--zero", "v.img:/"]), b"\x1b[2J\n\xff\0plain\0");
    let list = sandbox.json(["ls", "--json", "v.img:/"]);
    assert_eq!(list[0]["path_hex"], "2f1b5b324a0aff");
    assert_eq!(list[1].get("path_hex"), None);
    let output = sandbox.run([&b"mkdir"[..], odd[0]].map(name));
    assert_eq!(output.status.code(), Some(1));
    assert!(!output.stderr.contains(&0x1b), "{:?}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn a_name_of_256_bytes_is_refused() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", &format!("v.img:/{}", "n".repeat(255))]);
    sandbox.refused(["mkdir", &format!("v.img:/{}", "n".repeat(256))], 1, &["name is too long"]);
}

#[test]
fn a_closed_pipe_ends_the_output_in_silence() {
    let sandbox = Sandbox::with_volume();
    fs::write(sandbox.path("f"), vec![b'x'; 4 << 20]).unwrap();
    sandbox.ok(["cp", "f", "v.img:/f"]);
    sandbox.ok(["snapshot", "create", "v.img", "one"]);
    for command in [&["cat", "v.img:/f"][..], &["send", "v.img", "one"], &["stat", "v.img:/f"]] {
        let (reader, writer) = std::io::pipe().unwrap();
        drop(reader);
        let output = sandbox.command(command).stdout(writer).output().unwrap();
        assert_eq!(output.status.code(), Some(141), "{command:?}");
        assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{command:?}");
    }
}

#[test]
fn a_clone_is_made_inside_a_volume_and_nowhere_else() {
    let sandbox = Sandbox::with_volume();
    fs::create_dir(sandbox.path("tree")).unwrap();
    fs::write(sandbox.path("tree/f"), "some text").unwrap();
    fs::hard_link(sandbox.path("tree/f"), sandbox.path("tree/g")).unwrap();
    sandbox.ok(["cp", "-a", "tree", "v.img:/"]);
    sandbox.ok(["clone", "v.img:/tree", "v.img:/copy"]);
    sandbox.ok(["rm", "-r", "v.img:/tree"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/copy/f", "v.img:/copy/g"]), b"some textsome text");
    sandbox.refused(
        ["clone", "v.img:/copy", "v.img:/copy/inside"],
        1,
        &["v.img:/copy/inside", "into itself"],
    );
    sandbox.refused(["clone", "v.img:/copy/f", "v.img:/copy/g"], 1, &["exists"]);
    sandbox.refused(["clone", "v.img:/none", "v.img:/other"], 1, &["no such file"]);
    sandbox.refused(["clone", "v.img:/copy", "elsewhere"], 1, &["not mounted", "cp -a"]);
    sandbox.refused(["clone", "tree", "elsewhere"], 1, &["no mounted PandoFS volume"]);
    sandbox.ok(["format", "--size", "64M", "w.img"]);
    sandbox.refused(["clone", "v.img:/copy", "w.img:/copy"], 1, &["different volumes"]);
    sandbox.check("v.img");
}
