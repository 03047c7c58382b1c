//! Making volumes, refusing to, and looking at them as a whole.

use std::fs;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use bytes::Bytes;
use pando_device::{Access, FileDevice};
use pando_engine::{Batch, Compression, Engine, FormatOptions, Options};
use pando_format::log_batch::batch_length;
use pando_format::{
    BatchHeader, IndexPage, Lsn, Operation, Superblock, Tree, encode_batch, encode_record, stored_checksum,
};

use pando_fs::FileSystem;
use pando_fs::schema::key;

use crate::common::{Sandbox, name};

#[test]
fn what_holds_something_is_not_formatted() {
    let sandbox = Sandbox::new();
    sandbox.refused(["format", "v.img"], 1, &["v.img is not there", "--size"]);
    let file = fs::File::create_new(sandbox.path("v.img")).unwrap();
    file.set_len(256 << 20).unwrap();
    file.write_all_at(b"XFSB", 0).unwrap();
    sandbox.refused(["format", "v.img"], 1, &["v.img holds an XFS file system", "--force"]);
    sandbox.ok(["format", "--force", "v.img"]);
    sandbox.refused(["format", "v.img"], 1, &["v.img holds a PandoFS volume"]);
    let mut start = [0; 4];
    fs::File::open(sandbox.path("v.img")).unwrap().read_exact_at(&mut start, 0).unwrap();
    assert_eq!(start, [0; 4], "the old signature is gone");
    fs::write(sandbox.path("letter"), "Dear friend").unwrap();
    sandbox.refused(["format", "letter"], 1, &["letter is not empty"]);
    // The ends of it were overwritten before it turned out to be too small.
    let book = vec![b'x'; 3 << 20];
    fs::write(sandbox.path("book"), &book).unwrap();
    sandbox.refused(["format", "--force", "book"], 1, &["book", "a volume needs at least 16 MiB"]);
    assert!(fs::read(sandbox.path("book")).unwrap() == book);
    sandbox.refused(["format", "--size", "1G", "v.img"], 1, &["there already"]);
    sandbox.refused(["format", "."], 1, &["neither a regular file nor a block device"]);
    sandbox.refused(["format", "--size", "4K", "tiny.img"], 1, &["tiny.img"]);
    assert!(!sandbox.path("tiny.img").exists(), "nothing is left of a failed format");
}

#[test]
fn a_volume_in_use_is_left_alone() {
    let sandbox = Sandbox::with_volume();
    let held = FileDevice::open(sandbox.path("v.img"), Access::Exclusive).unwrap();
    for args in
        [&["format", "--force", "v.img"][..], &["ls", "v.img:/"], &["mkdir", "v.img:/a"], &["dump", "v.img"]]
    {
        sandbox.refused(args, 1, &["v.img is in use"]);
    }
    sandbox.refused(["check", "v.img"], 2, &["v.img is in use"]);
    // What its superblock says can be told, as of a mount in another namespace.
    let info = sandbox.json(["info", "--json", "v.img"]);
    assert!(info["used"].is_null() && info["usage"].is_null() && info["size"] == 256 << 20, "{info}");
    assert!(info["in_use"].as_str().unwrap().contains("v.img is in use"), "{info}");
    let text = sandbox.lines(["info", "v.img"]).join("\n");
    assert!(
        text.contains("State: in use\n") && text.contains("Used: not known, since v.img is in use"),
        "{text}"
    );
    drop(held);
    assert!(sandbox.json(["info", "--json", "v.img"])["in_use"].is_null());
    sandbox.ok(["ls", "v.img:/"]);
}

#[test]
fn readers_share_a_volume() {
    let sandbox = Sandbox::with_volume();
    let _held = FileDevice::open(sandbox.path("v.img"), Access::ReadOnly).unwrap();
    sandbox.ok(["ls", "v.img:/"]);
    sandbox.refused(["mkdir", "v.img:/a"], 1, &["v.img is in use"]);
}

#[test]
fn what_is_no_volume_is_named() {
    let sandbox = Sandbox::new();
    fs::write(sandbox.path("junk"), vec![7; 1 << 20]).unwrap();
    fs::write(sandbox.path("empty"), "").unwrap();
    for file in ["junk", "empty"] {
        sandbox.refused(["ls", &format!("{file}:/")], 1, &[file, "no PandoFS volume"]);
        // It was said twice.
        let told = sandbox.run(["ls", &format!("{file}:/")]).stderr;
        let told = String::from_utf8(told).unwrap();
        assert_eq!([told.matches(file).count(), told.matches("no PandoFS volume").count()], [1, 1], "{told}");
        sandbox.refused(["info", file], 1, &[file, "no PandoFS volume"]);
        sandbox.refused(["dump", file], 1, &[file, "no PandoFS volume"]);
        sandbox.refused(["check", file], 2, &[file, "no PandoFS volume"]);
    }
    sandbox.refused(["ls", "nothing:/"], 1, &["nothing", "no such file"]);
    sandbox.refused(["ls", "junk"], 1, &["junk names no place in a volume", "junk:/"]);
    sandbox.refused(["info", "."], 1, &["directory"]);
}

#[test]
fn info_tells_what_format_was_told() {
    let sandbox = Sandbox::new();
    sandbox.ok(["format", "--size", "128M", "-L", "grüße", "-c", "lz4", "v.img"]);
    let info = sandbox.json(["info", "--json", "v.img"]);
    assert_eq!(info["label"], "grüße");
    assert_eq!(info["compression"], "lz4");
    assert_eq!(info["size"], 128 << 20);
    assert_eq!(info["clean"], true);
    assert_eq!(info["mountpoint"], serde_json::Value::Null);
    let id = info["id"].as_str().unwrap().to_owned();
    assert_eq!(id.len(), 36);
    let text = sandbox.lines(["info", "v.img"]).join("\n");
    assert!(text.contains(&id) && text.contains("grüße") && text.contains("128M"), "{text}");
    let too_long = sandbox.run(["format", "--size", "64M", "-L", &"x".repeat(256), "w.img"]);
    assert_eq!(too_long.status.code(), Some(2));
    assert!(!sandbox.path("w.img").exists());
}

#[test]
fn dump_shows_every_structure() {
    let sandbox = Sandbox::with_volume();
    fs::write(sandbox.path("f"), "a line of text").unwrap();
    sandbox.ok(["cp", "f", "v.img:/name-of-the-file"]);
    fs::create_dir(sandbox.path("links")).unwrap();
    fs::hard_link(sandbox.path("f"), sandbox.path("links/g")).unwrap();
    fs::hard_link(sandbox.path("f"), sandbox.path("links/h")).unwrap();
    sandbox.ok(["cp", "-a", "links", "v.img:/"]);
    let items = sandbox.json(["dump", "--json", "--contents", "v.img"]);
    let of = |kind: &str| items.as_array().unwrap().iter().filter(|item| item["structure"] == kind).count();
    assert_eq!(of("superblock"), 2, "{items}");
    assert!(of("table page") > 0 && of("node") > 0 && of("part") > 0, "{items}");
    let text = sandbox.lines(["dump", "--nodes", "--contents", "v.img"]).join("\n");
    assert!(text.contains("name-of-the-file") && text.contains("a line of text"), "{text}");
    assert!(text.contains("1 links, 14 bytes") && text.contains("2 links, 14 bytes"), "{text}");
    assert_eq!(text.matches("a link to inode").count(), 2, "{text}");
}

#[test]
fn damage_is_found_and_shown() {
    let sandbox = Sandbox::with_volume();
    fs::write(sandbox.path("f"), vec![b'x'; 1 << 20]).unwrap();
    sandbox.ok(["cp", "f", "v.img:/f"]);
    let nodes = sandbox.json(["dump", "--nodes", "--json", "v.img"]);
    let file = fs::OpenOptions::new().write(true).open(sandbox.path("v.img")).unwrap();
    for node in nodes.as_array().unwrap() {
        let offset = node["offset"].as_u64().unwrap();
        file.write_all_at(b"rubbish", offset + 100).unwrap();
    }
    let output = sandbox.run(["dump", "--nodes", "v.img"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stdout).contains("cannot be read"));
    let checked = sandbox.run(["check", "v.img"]);
    assert!(matches!(checked.status.code(), Some(1 | 2)), "{checked:?}");
}

/// The newest superblock of `v.img`, and where it is.
fn newest_superblock(sandbox: &Sandbox, file: &fs::File) -> (u64, Superblock) {
    let items = sandbox.json(["dump", "--superblocks", "--json", "v.img"]);
    let newest = items.as_array().unwrap().iter().max_by_key(|item| item["checkpoint"].as_u64()).unwrap();
    let offset = newest["offset"].as_u64().unwrap();
    let mut block = vec![0; 4096];
    file.read_exact_at(&mut block, offset).unwrap();
    (offset, Superblock::decode(&Bytes::from(block)).unwrap())
}

fn open_image(sandbox: &Sandbox) -> fs::File {
    fs::OpenOptions::new().read(true).write(true).open(sandbox.path("v.img")).unwrap()
}

/// Of index pages whose places all led to one page below, a dump took 128 times as long for each.
#[test]
fn a_page_of_the_block_table_is_shown_once() {
    let sandbox = Sandbox::with_volume();
    let file = open_image(&sandbox);
    let (offset, mut superblock) = newest_superblock(&sandbox, &file);
    let mut index = IndexPage::new(superblock.volume, 1, 0);
    index.children.fill(superblock.table.page);
    let index = Bytes::from(index.encode());
    let page = superblock.table.page.as_mut().unwrap();
    page.extent.offset = superblock.capacity / 2;
    page.extent.length = 4096;
    page.checksum = stored_checksum(&index);
    file.write_all_at(&index, page.extent.offset).unwrap();
    superblock.table.levels = 1;
    file.write_all_at(&superblock.encode(), offset).unwrap();
    let output = sandbox.run(["dump", "--table", "v.img"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("block table page 0").count(), 1, "{text}");
    assert_eq!(text.matches("not those of its place").count(), 127, "{text}");
}

/// A page or a node that is whole and an older one, or another, was shown as what should be there.
#[test]
fn what_is_whole_and_not_what_was_written_last_is_damage() {
    let sandbox = Sandbox::with_volume();
    let file = open_image(&sandbox);
    let nodes = sandbox.json(["dump", "--nodes", "--json", "v.img"]);
    let place = |i: usize| nodes[i]["offset"].as_u64().unwrap();
    let mut header = vec![0; 4096];
    file.read_exact_at(&mut header, place(0)).unwrap();
    file.write_all_at(&header, place(1)).unwrap();
    let output = sandbox.run(["dump", "--nodes", "v.img"]);
    assert_eq!(output.status.code(), Some(1));
    let text = String::from_utf8_lossy(&output.stdout);
    assert_eq!(text.matches("not the one that the block table names").count(), 1, "{text}");

    let (offset, mut superblock) = newest_superblock(&sandbox, &file);
    superblock.table.page.as_mut().unwrap().checksum ^= 1;
    file.write_all_at(&superblock.encode(), offset).unwrap();
    for what in [&["--table"][..], &["--nodes"], &["--node", "1"], &["--table", "--nodes"]] {
        let output = sandbox.run([&["dump"], what, &["v.img"]].concat());
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout);
        assert_eq!(text.matches("not the page that was written last").count(), 1, "{what:?}: {text}");
        assert!(output.stderr.is_empty(), "{what:?}");
    }
}

/// A batch whose header alone had come to the device when the machine went down was told of as damage; a recovery takes it for the end of
/// the log. One of an older epoch was shown as a part of it.
#[test]
fn the_log_ends_where_a_recovery_says_so() {
    let sandbox = Sandbox::with_volume();
    let file = open_image(&sandbox);
    let (_, superblock) = newest_superblock(&sandbox, &file);
    let put = Operation::Put { tree: Tree::Metadata, key: "key".into(), value: vec![7; 8000].into() };
    let payload = encode_record(&[put]).pieces().collect::<Vec<_>>().concat();
    let header = BatchHeader {
        volume: superblock.volume,
        epoch: superblock.epoch,
        sequence: superblock.replay.sequence,
        previous: superblock.replay.chain,
        first_lsn: Lsn(superblock.cut.0 + 1),
        record_count: 1,
        ..BatchHeader::default()
    };
    // How many batches there are in the log, if the device holds so much of one of this epoch.
    let write = |header: BatchHeader, bytes: usize| {
        let mut batch = vec![0; batch_length(payload.len()) as usize];
        encode_batch(header, [&payload[..]], &mut batch);
        batch[bytes..].fill(0);
        file.write_all_at(&batch, superblock.log.offset + superblock.replay.offset).unwrap();
    };
    let batches = |epoch: u64, bytes: usize| {
        write(BatchHeader { epoch, ..header.clone() }, bytes);
        sandbox.json(["dump", "--log", "--json", "v.img"]).as_array().unwrap().len()
    };
    let epoch = superblock.epoch;
    let whole = batch_length(payload.len()) as usize;
    assert_eq!([batches(epoch, whole), batches(epoch, 4096), batches(epoch - 1, whole)], [1, 0, 0]);
    // What a mount takes for damage.
    for (header, why) in [
        (BatchHeader { epoch: epoch + 1, ..header.clone() }, "later epoch"),
        (BatchHeader { first_lsn: Lsn(superblock.cut.0 + 2), ..header.clone() }, "do not go on"),
    ] {
        write(header, whole);
        let output = sandbox.run(["dump", "--log", "v.img"]);
        assert_eq!(output.status.code(), Some(1));
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(text.contains(why), "{text}");
    }
}

#[test]
fn manual_pages_and_completions_are_there_for_every_command() {
    let sandbox = Sandbox::new();
    sandbox.ok(["man", "pages"]);
    let help = String::from_utf8(sandbox.ok(["--help"])).unwrap();
    let commands =
        help.lines().skip_while(|line| *line != "Commands:").skip(1).take_while(|line| !line.is_empty());
    let commands: Vec<&str> = commands.filter_map(|line| line.split_whitespace().next()).collect();
    assert!(commands.contains(&"format") && commands.contains(&"cp"), "{commands:?}");
    let scripts: Vec<String> = ["bash", "zsh", "fish"]
        .iter()
        .map(|shell| String::from_utf8(sandbox.ok(["completions", shell])).unwrap())
        .collect();
    for command in commands.into_iter().filter(|command| *command != "help") {
        let page = fs::read_to_string(sandbox.path(format!("pages/pando-{command}.8"))).unwrap();
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "EXAMPLES", "\"EXIT STATUS\""] {
            assert!(page.contains(&format!(".SH {section}")), "{section} in the page of {command}");
        }
        assert!(scripts.iter().all(|script| script.contains(command)), "{command}");
    }
    let page = fs::read_to_string(sandbox.path("pages/pando-snapshot-create.8")).unwrap();
    assert!(page.contains("writable"), "{page}");
    // The helpers have exit statuses of their own.
    for (command, words) in
        [("mount", "32 if the mount"), ("umount", "umount.fuse.pando: 0"), ("ls", "141 if")]
    {
        let page = fs::read_to_string(sandbox.path(format!("pages/pando-{command}.8"))).unwrap();
        assert!(page.contains(words), "{page}");
    }
}

/// Whoever has a part of a volume was told to make one in its place.
#[test]
fn what_is_left_of_a_volume_is_not_to_be_formatted() {
    let sandbox = Sandbox::with_volume();
    let file = open_image(&sandbox);
    let told = || {
        let output = sandbox.run(["ls", "v.img:/"]);
        assert_eq!(output.status.code(), Some(1));
        String::from_utf8(output.stderr).unwrap()
    };
    file.set_len(200 << 20).unwrap();
    let text = told();
    assert!(text.contains("formatted with") && !text.contains("pando format"), "{text}");
    file.write_all_at(&[0; 4096], 64 << 10).unwrap();
    let text = told();
    assert!(text.contains("make one with 'pando format'"), "{text}");
}

#[test]
fn a_node_that_is_not_there_is_not_shown() {
    let sandbox = Sandbox::with_volume();
    sandbox.refused(["dump", "--node", "99999", "v.img"], 1, &["no node 99999"]);
}

/// Whoever looked for what is wrong with a volume was told of one superblock, and shown none.
#[test]
fn superblocks_are_shown_though_none_is_whole() {
    let sandbox = Sandbox::with_volume();
    let file = open_image(&sandbox);
    let items = sandbox.json(["dump", "--superblocks", "--json", "v.img"]);
    for item in items.as_array().unwrap() {
        file.write_all_at(b"rubbish", item["offset"].as_u64().unwrap() + 100).unwrap();
    }
    for what in [&["dump"][..], &["dump", "--superblocks"], &["dump", "--node", "1"]] {
        let arguments = [what, &["v.img"]].concat();
        sandbox.refused(&arguments, 1, &["v.img holds no PandoFS volume"]);
        let shown = String::from_utf8(sandbox.run(&arguments).stdout).unwrap();
        assert_eq!(shown.matches("superblock cannot be read: ").count(), 2, "{shown}");
        let output = sandbox.run([what, &["--json", "v.img"]].concat());
        let items: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(items[0]["error"].is_string() && items[1]["error"].is_string(), "{items}");
        assert_eq!(items.as_array().unwrap().len(), 2);
    }
}

#[test]
fn what_a_dump_would_leave_out_is_not_asked_for() {
    let sandbox = Sandbox::with_volume();
    let refused = |arguments: &[&str], words: &str| {
        let output = sandbox.run([&["dump"], arguments, &["v.img"]].concat());
        let errors = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.code() == Some(2) && errors.contains(words), "{errors}");
        assert!(output.stdout.is_empty());
    };
    refused(&["--nodes", "--node", "1"], "cannot be used with");
    refused(&["--superblocks", "--contents"], "give --nodes or --node");
    for arguments in [&["--contents"][..], &["--table", "--nodes", "--contents"]] {
        sandbox.ok([&["dump"], arguments, &["v.img"]].concat());
    }
}

/// One bit of the basement node that holds the counter of inode numbers, which whoever only reads has no use for, and nothing could be read any more, nor checked.
#[test]
fn a_volume_whose_counter_is_damaged_is_read_and_checked() {
    // Before and behind the first number that is given out.
    const COUNTERS: [[u8; 8]; 2] = [0x1122_3344_5566_u64.to_le_bytes(), 0x1122_3345_5566_u64.to_le_bytes()];
    const CONTENTS: &[u8] = b"contents of the file that is damaged";
    let sandbox = Sandbox::new();
    let image = sandbox.path("v.img");
    fs::File::create_new(&image).unwrap().set_len(16 << 20).unwrap();
    let device = || Arc::new(FileDevice::open(&image, Access::Exclusive).unwrap());
    let format = FormatOptions {
        node_bytes: Some(16 << 10),
        basement_bytes: Some(2 << 10),
        compression: Compression::None,
        ..FormatOptions::default()
    };
    FileSystem::format(device(), &format).unwrap();
    let engine = Engine::open(device(), Options::default()).unwrap();
    let mut batch = Batch::new();
    batch.put(Tree::Metadata, key::INODE_COUNTER, COUNTERS[0].to_vec());
    engine.apply(batch).unwrap();
    engine.close().unwrap();
    drop(engine);
    // So many that they and their records are not in the roots, of which no part can be done without.
    fs::create_dir(sandbox.path("d")).unwrap();
    (0..300).for_each(|number| fs::write(sandbox.path(format!("d/{number}")), [b'w'; 4096]).unwrap());
    fs::write(sandbox.path("d/damaged"), CONTENTS.repeat(100)).unwrap();
    sandbox.ok(["cp", "-r", "d", "v.img:/"]);
    sandbox.check("v.img");

    // Wherever they lie, also where nothing leads any more.
    let mut bytes = fs::read(&image).unwrap();
    for wanted in [&COUNTERS[1][..], CONTENTS] {
        let places: Vec<_> =
            bytes.windows(wanted.len()).enumerate().filter(|(_, at)| *at == wanted).map(|(i, _)| i).collect();
        assert!(!places.is_empty());
        places.into_iter().for_each(|place| bytes[place] ^= 1);
    }
    fs::write(&image, bytes).unwrap();
    assert_eq!(sandbox.ok(["cat", "v.img:/d/0"]), [b'w'; 4096]);
    assert_eq!(sandbox.lines(["ls", "v.img:/"]), ["d"]);
    sandbox.ok(["info", "v.img"]);
    let checked = sandbox.run(["check", "v.img"]);
    let problems = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{problems}");
    assert_eq!(problems.matches("checksum").count(), 3, "{problems}");
    assert_eq!(problems.matches("FS-4").count(), 1, "{problems}");
    sandbox.refused(["mkdir", "v.img:/e"], 1, &["cannot open the volume v.img"]);
}

/// A check called a volume clean whose second superblock was gone, and nothing else said a word.
#[test]
fn a_superblock_that_is_lost_is_a_problem() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", "v.img:/d"]);
    sandbox.check("v.img");
    let file = open_image(&sandbox);
    let items = sandbox.json(["dump", "--superblocks", "--json", "v.img"]);
    let older = items.as_array().unwrap().iter().min_by_key(|item| item["checkpoint"].as_u64()).unwrap();
    file.write_all_at(&[b'x'; 4096], older["offset"].as_u64().unwrap()).unwrap();
    let checked = sandbox.run(["check", "v.img"]);
    let problems = String::from_utf8_lossy(&checked.stdout);
    assert_eq!(checked.status.code(), Some(1), "{problems}");
    assert!(
        problems.contains("1 problem") && problems.contains("FMT-13: one of two superblocks"),
        "{problems}"
    );
    // Told of once, and healed.
    let changed = sandbox.run(["mkdir", "v.img:/e"]);
    let told = String::from_utf8_lossy(&changed.stderr);
    assert!(changed.status.success() && told.lines().count() == 1 && told.contains("is lost"), "{told}");
    sandbox.check("v.img");
}

/// A volume without a root directory could not be opened, and so nothing was said of the rest of it.
#[test]
fn a_volume_without_a_root_directory_is_checked() {
    let sandbox = Sandbox::with_volume();
    let device = FileDevice::open(sandbox.path("v.img"), Access::Exclusive).unwrap();
    let engine = Engine::open(Arc::new(device), Options::default()).unwrap();
    let mut batch = Batch::new();
    batch.delete(Tree::Metadata, key::ROOT);
    engine.apply(batch).unwrap();
    engine.close().unwrap();
    drop(engine);
    let checked = sandbox.run(["check", "v.img"]);
    let problems = String::from_utf8_lossy(&checked.stdout);
    assert!(
        checked.status.code() == Some(1) && problems.contains("the root directory is missing"),
        "{checked:?}"
    );
}

/// A check that could not run printed nothing for programs, one that was cut short looked like a whole one, and an odd path was escaped.
#[test]
fn a_check_says_in_json_whether_it_is_complete() {
    let sandbox = Sandbox::with_volume();
    let checked = |path: &[u8]| {
        let output = sandbox.run([name(b"check"), name(b"--json"), name(path)]);
        (output.status.code(), serde_json::from_slice::<serde_json::Value>(&output.stdout).unwrap())
    };
    let odd = b"v\n\xff";
    fs::rename(sandbox.path("v.img"), sandbox.path(name(odd))).unwrap();
    let (status, report) = checked(odd);
    assert_eq!((status, &report["complete"], &report["clean"]), (Some(0), &true.into(), &true.into()));
    assert_eq!((&report["path_hex"], &report["path"]), (&"760aff".into(), &"v\n\u{fffd}".into()));
    assert!(report["error"].is_null() && report["nodes"].is_u64(), "{report}");
    let held = FileDevice::open(sandbox.path(name(odd)), Access::Exclusive).unwrap();
    let (status, report) = checked(odd);
    assert_eq!((status, &report["complete"], report["clean"].is_null()), (Some(2), &false.into(), true));
    assert!(report["error"].as_str().unwrap().contains("in use"), "{report}");
    assert!(report["nodes"].is_null(), "{report}");
    drop(held);
}
