//! What `pando snapshot list` says where the space that snapshots use cannot be counted.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use pando_device::{Access, FileDevice};
use pando_engine::FormatOptions;
use pando_fs::FileSystem;
use serde_json::Value;

use crate::common::Sandbox;

/// A volume with small nodes, so that little data makes a tree of three levels, and two snapshots.
fn with_deep_tree() -> Sandbox {
    let sandbox = Sandbox::new();
    let image = sandbox.path("v.img");
    File::create(&image).unwrap().set_len(64 << 20).unwrap();
    let device = Arc::new(FileDevice::open(&image, Access::Exclusive).unwrap());
    let options = FormatOptions {
        node_bytes: Some(8 << 10),
        basement_bytes: Some(2 << 10),
        fanout: Some(4),
        ..FormatOptions::default()
    };
    FileSystem::format(device, &options).unwrap();
    fs::write(sandbox.path("file"), vec![7; 400_000]).unwrap();
    sandbox.ok(["cp", "file", "v.img:/"]);
    sandbox.ok(["snapshot", "create", "v.img", "one"]);
    sandbox.ok(["snapshot", "create", "--writable", "v.img", "two"]);
    sandbox
}

#[test]
fn snapshots_are_listed_where_their_space_cannot_be_counted() {
    let sandbox = with_deep_tree();
    let text = || String::from_utf8(sandbox.ok(["snapshot", "list", "v.img"])).unwrap();
    let before = text();
    // As other times are given: to the nanosecond, in UTC.
    let exact = sandbox.json(["snapshot", "list", "--json", "v.img"])[0]["taken"].clone();
    let in_info = sandbox.json(["info", "--json", "v.img"])["usage"]["snapshots"][0]["taken"].clone();
    assert_eq!(exact, in_info);
    let exact = exact.as_str().unwrap();
    assert!(exact.len() == "2026-11-21T21:30:05.000000001Z".len() && exact.ends_with('Z'), "{exact}");
    assert!(before.starts_with(&exact[..16].replace('T', " ")), "{before}");
    assert!(before.lines().all(|line| line.contains('K')), "{before}");
    let nodes = sandbox.json(["dump", "--nodes", "--json", "v.img"]);
    let is_data = |node: &&Value| node["text"][0].as_str().is_some_and(|text| text.contains("Data tree"));
    let data: Vec<_> = nodes.as_array().unwrap().iter().filter(is_data).collect();
    let top = data.iter().filter_map(|node| node["height"].as_u64()).max().unwrap();
    assert!(top >= 2, "the tree has {} levels", top + 1);
    // Below the root, without which the volume could not be opened; no leaf, which is only counted.
    let middle = data.iter().filter(|node| node["height"].as_u64().is_some_and(|h| h > 0 && h < top));
    let image = File::options().write(true).open(sandbox.path("v.img")).unwrap();
    for node in middle {
        image.write_all_at(&[0xa5; 512], node["offset"].as_u64().unwrap()).unwrap();
    }
    let after = text();
    let lines: Vec<Vec<&str>> = after.lines().map(|line| line.split_whitespace().collect()).collect();
    let ends: Vec<_> = lines.iter().map(|line| line[line.len() - 4..].to_vec()).collect();
    assert_eq!(ends, [["ro", "-", "-", "one"], ["rw", "-", "-", "two"]]);
    let listed = sandbox.json(["snapshot", "list", "--json", "v.img"]);
    let names: Vec<_> = listed.as_array().unwrap().iter().map(|one| &one["name"]).collect();
    assert_eq!(names, ["one", "two"]);
    let unknown = ["exclusive", "referenced"].map(|field| listed[0].get(field));
    assert_eq!(unknown, [Some(&serde_json::Value::Null); 2]);
    assert_eq!(listed[0]["taken"], exact);
    // What does not count them does not miss it.
    assert_eq!(sandbox.ok(["snapshot", "list", "--names", "v.img"]), b"one\ntwo\n");
}
