//! What is copied into a volume comes out as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use pando_device::{Access, FileDevice};
use pando_engine::{Batch, Options, Tree};
use pando_fs::FileSystem;
use pando_fs::schema::key;

use crate::common::{Random, Sandbox, name, seed, snapshot};

/// Names that programs trip over.
const ODD_NAMES: [&[u8]; 9] =
    [b"new\nline", b"\xff\xfe", b"\x01", b" ", b"-rf", b"a:", b"back\\slash", b"*", "ünï".as_bytes()];

/// Sizes around the borders of blocks, of the copier's pieces and of small files.
const SIZES: [usize; 9] = [0, 1, 200, 4095, 4096, 4097, 65_536, 65_537, (1 << 20) + 4097];

fn build_tree(root: &Path, random: &mut Random) {
    fs::create_dir(root).unwrap();
    let mut directories = vec![root.to_owned()];
    for i in 0..12 {
        let above = directories[random.below(directories.len() as u64) as usize].clone();
        let directory = above.join(format!("directory {i}"));
        fs::create_dir(&directory).unwrap();
        directories.push(directory);
    }
    for (i, size) in SIZES.into_iter().cycle().take(40).enumerate() {
        let directory = &directories[random.below(directories.len() as u64) as usize];
        let file = directory.join(format!("file {i}"));
        fs::write(&file, random.bytes(size)).unwrap();
        let mode = [0o644, 0o600, 0o755, 0o4711, 0o444][random.below(5) as usize];
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let modified = UNIX_EPOCH + Duration::new(random.below(4 << 30), random.below(1_000_000_000) as u32);
        fs::File::open(&file).unwrap().set_modified(modified).unwrap();
    }
    for odd in ODD_NAMES {
        fs::write(root.join(name(odd)), odd).unwrap();
    }
    symlink("directory 0", root.join("link")).unwrap();
    symlink("/nowhere/at all", root.join("dangling")).unwrap();
    symlink("x".repeat(3000), root.join("long")).unwrap();
    let sparse = fs::File::create(root.join("sparse")).unwrap();
    sparse.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 33 << 20).unwrap();
    fs::set_permissions(&directories[3], fs::Permissions::from_mode(0o2750)).unwrap();
}

#[test]
fn a_tree_comes_out_as_it_went_in() {
    let sandbox = Sandbox::with_volume();
    build_tree(&sandbox.path("tree"), &mut Random(seed()));
    let before = snapshot(&sandbox.path("tree"));

    sandbox.ok(["cp", "-a", "tree", "v.img:/"]);
    sandbox.check("v.img");
    sandbox.ok(["cp", "-a", "v.img:/tree", "out"]);
    assert_eq!(snapshot(&sandbox.path("out")), before, "out of the volume");

    sandbox.ok(["cp", "-a", "v.img:/tree", "v.img:/inside"]);
    sandbox.ok(["format", "--size", "256M", "-c", "zstd", "w.img"]);
    sandbox.ok(["cp", "-a", "v.img:/inside", "w.img:/tree"]);
    sandbox.check("w.img");
    sandbox.ok(["cp", "-a", "w.img:/tree", "again"]);
    assert_eq!(snapshot(&sandbox.path("again")), before, "through a copy inside and a second volume");

    sandbox.ok(["rm", "-r", "v.img:/tree", "v.img:/inside"]);
    assert_eq!(sandbox.lines(["ls", "-A", "v.img:/"]), [""; 0]);
    sandbox.check("v.img");
}

#[test]
fn holes_stay_holes() {
    let sandbox = Sandbox::with_volume();
    let sparse = fs::File::create(sandbox.path("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"far behind", 1 << 39).unwrap();
    sandbox.ok(["cp", "sparse", "v.img:/"]);
    let stat = &sandbox.json(["stat", "--json", "v.img:/sparse"])[0];
    assert_eq!(stat["size"], 1_u64 << 40);
    assert!(stat["allocated"].as_u64().unwrap() < 1 << 20, "{stat}");
    sandbox.ok(["cp", "v.img:/sparse", "out"]);
    let out = fs::File::open(sandbox.path("out")).unwrap();
    assert_eq!(out.metadata().unwrap().len(), 1 << 40);
    let mut bytes = [0; 10];
    std::os::unix::fs::FileExt::read_exact_at(&out, &mut bytes, 1 << 39).unwrap();
    assert_eq!(&bytes, b"far behind");
}

#[test]
fn a_second_copy_overwrites_in_place() {
    let sandbox = Sandbox::with_volume();
    fs::write(sandbox.path("f"), "a long first version").unwrap();
    sandbox.ok(["cp", "f", "v.img:/f"]);
    let first = sandbox.json(["stat", "--json", "v.img:/f"])[0]["inode"].clone();
    fs::write(sandbox.path("f"), "short").unwrap();
    sandbox.ok(["cp", "-n", "f", "v.img:/f"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/f"]), b"a long first version");
    sandbox.ok(["cp", "f", "v.img:/f"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/f"]), b"short");
    assert_eq!(sandbox.json(["stat", "--json", "v.img:/f"])[0]["inode"], first);
}

#[test]
fn a_copy_that_cannot_read_one_file_copies_the_rest() {
    let sandbox = Sandbox::with_volume();
    fs::create_dir(sandbox.path("tree")).unwrap();
    for file in ["a", "b", "c"] {
        fs::write(sandbox.path("tree").join(file), file).unwrap();
    }
    sandbox.ok(["mkdir", "-p", "v.img:/tree/b"]);
    sandbox.refused(["cp", "-r", "tree", "v.img:/"], 1, &["tree/b", "directory"]);
    assert_eq!(sandbox.lines(["ls", "v.img:/tree"]), ["a", "b", "c"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/tree/c"]), b"c");
}

#[test]
fn a_tree_deeper_than_any_path_may_be() {
    let sandbox = Sandbox::with_volume();
    let component = "d".repeat(200);
    let path = format!("v.img:/{}", vec![component.as_str(); 100].join("/"));
    sandbox.ok(["mkdir", "-p", &path]);
    fs::write(sandbox.path("f"), "at the bottom").unwrap();
    sandbox.ok(["cp", "f", &format!("{path}/f")]);
    sandbox.ok(["cp", "-a", &format!("v.img:/{component}"), "v.img:/copy"]);
    let bottom = format!("v.img:/copy/{}/f", vec![component.as_str(); 99].join("/"));
    assert_eq!(sandbox.ok(["cat", &bottom]), b"at the bottom");
    sandbox.ok(["cp", "-a", "v.img:/copy", "out"]);
    sandbox.ok(["rm", "-r", &format!("v.img:/{component}"), "v.img:/copy"]);
    sandbox.ok(["cp", "-a", "out", "v.img:/back"]);
    assert_eq!(sandbox.ok(["cat", &bottom.replace("/copy/", "/back/")]), b"at the bottom");
    sandbox.check("v.img");
}

#[test]
fn extended_attributes_go_along() {
    let sandbox = Sandbox::with_volume();
    fs::write(sandbox.path("f"), "x").unwrap();
    let large = vec![7; 3000];
    for (attribute, value) in [("user.small", &b"v"[..]), ("user.large", &large)] {
        let set = rustix::fs::setxattr(sandbox.path("f"), attribute, value, rustix::fs::XattrFlags::empty());
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            println!(
                "SKIPPED extended_attributes_go_along: the temporary directory keeps no extended attributes"
            );
            return;
        }
        set.unwrap();
    }
    sandbox.ok(["cp", "-a", "f", "v.img:/f"]);
    sandbox.ok(["cp", "-a", "v.img:/f", "out"]);
    let mut value = vec![0; 5000];
    let length = rustix::fs::getxattr(sandbox.path("out"), "user.large", &mut value[..]).unwrap();
    assert_eq!(value[..length], large);
}

#[test]
fn access_control_lists_go_with_the_mode() {
    let sandbox = Sandbox::with_volume();
    // Owner 6, user 7 4, group 0, mask 4, others 0.
    let mut list = vec![2, 0, 0, 0];
    for (tag, permissions, id) in [(1, 6, -1), (2, 4, 7), (4, 0, -1), (16, 4, -1), (32, 0, -1_i32)] {
        list.extend([tag, 0, permissions, 0]);
        list.extend(id.to_le_bytes());
    }
    fs::create_dir(sandbox.path("d")).unwrap();
    for file in ["f", "plain"] {
        fs::write(sandbox.path(file), "x").unwrap();
        fs::set_permissions(sandbox.path(file), fs::Permissions::from_mode(0o640)).unwrap();
    }
    for (file, attribute) in [("f", "system.posix_acl_access"), ("d", "system.posix_acl_default")] {
        let set = rustix::fs::setxattr(sandbox.path(file), attribute, &list, rustix::fs::XattrFlags::empty());
        if set == Err(rustix::io::Errno::OPNOTSUPP) {
            println!("SKIPPED access_control_lists_go_with_the_mode: the temporary directory keeps none");
            return;
        }
        set.unwrap();
    }
    let access = |file: &str| {
        let mut value = [0; 100];
        let found = rustix::fs::getxattr(sandbox.path(file), "system.posix_acl_access", &mut value[..]);
        (found.map(|length| value[..length].to_vec()), mode(&sandbox.path(file)))
    };
    let (with, without) = ((Ok(list.clone()), 0o640), (Err(rustix::io::Errno::NODATA), 0o640));
    sandbox.ok(["cp", "-a", "d", "f", "v.img:/"]);
    sandbox.ok(["cp", "-p", "f", "plain", "v.img:/d"]);
    sandbox.ok(["cp", "-p", "v.img:/d/f", "v.img:/d/plain", "v.img:/"]);
    sandbox.ok(["cp", "v.img:/f", "v.img:/d/inherits"]);
    sandbox.check("v.img");
    sandbox.ok(["cp", "-a", "v.img:/", "out"]);
    for (file, expected) in [("f", &with), ("d/f", &with), ("plain", &without), ("d/plain", &without)] {
        assert_eq!(access(&format!("out/{file}")), *expected, "{file}");
    }
    assert_eq!(access("out/d/inherits"), with);
    sandbox.ok(["cp", "v.img:/f", "out/f2"]);
    assert_eq!(access("out/f2"), without);
    sandbox.ok(["cp", "-a", "v.img:/plain", "v.img:/f", "out/d/"]);
    assert_eq!((access("out/d/plain"), access("out/d/f")), (without, with));
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().mode() & 0o7777
}

/// The files below a directory, each with all its names; there are no other names.
fn names_by_inode(root: &Path) -> BTreeSet<Vec<PathBuf>> {
    let mut by_inode = BTreeMap::<u64, (u64, Vec<PathBuf>)>::new();
    for (path, _) in snapshot(root) {
        let metadata = fs::symlink_metadata(root.join(&path)).unwrap();
        if !metadata.is_dir() {
            by_inode.entry(metadata.ino()).or_insert((metadata.nlink(), Vec::new())).1.push(path);
        }
    }
    let names = |(links, names): (u64, Vec<PathBuf>)| {
        assert_eq!(links, names.len() as u64, "{names:?}");
        names
    };
    by_inode.into_values().map(names).collect()
}

#[test]
fn hard_links_stay_hard_links() {
    let sandbox = Sandbox::with_volume();
    let tree = sandbox.path("tree");
    fs::create_dir_all(tree.join("d/deeper")).unwrap();
    fs::write(tree.join("f"), vec![1; 100_000]).unwrap();
    fs::write(tree.join("single"), "alone").unwrap();
    fs::hard_link(tree.join("f"), tree.join("d/g")).unwrap();
    fs::hard_link(tree.join("f"), tree.join("d/deeper/h")).unwrap();
    symlink("f", tree.join("s")).unwrap();
    fs::hard_link(tree.join("s"), tree.join("d/s")).unwrap();
    let (before, names) = (snapshot(&tree), names_by_inode(&tree));
    assert_eq!(names.len(), 3);

    sandbox.ok(["cp", "-a", "tree", "v.img:/"]);
    sandbox.check("v.img");
    assert_eq!(sandbox.json(["check", "--json", "v.img"])["links"], 5);
    let stat = sandbox.json(["stat", "--json", "v.img:/tree/f", "v.img:/tree/d/deeper/h"]);
    assert_eq!((&stat[0]["links"], &stat[0]["inode"]), (&stat[1]["links"], &stat[1]["inode"]));
    assert_eq!(stat[0]["links"], 3);
    sandbox.ok(["cp", "-a", "v.img:/tree", "v.img:/inside"]);
    sandbox.ok(["rm", "v.img:/tree/f"]);
    sandbox.ok(["mv", "v.img:/tree/d", "v.img:/moved"]);
    sandbox.check("v.img");
    sandbox.ok(["cp", "-a", "v.img:/inside", "out"]);
    assert_eq!((snapshot(&sandbox.path("out")), names_by_inode(&sandbox.path("out"))), (before, names));
    sandbox.ok(["cp", "-a", "v.img:/moved", "moved"]);
    assert_eq!(names_by_inode(&sandbox.path("moved")).len(), 2);

    // Once more over the copy: the names are there already, and stay links.
    sandbox.ok(["cp", "-aT", "tree", "v.img:/inside"]);
    sandbox.ok(["cp", "-r", "tree", "v.img:/separate"]);
    let links = |path: &str| sandbox.json(["stat", "--json", path])[0]["links"].clone();
    assert_eq!((links("v.img:/inside/f"), links("v.img:/separate/f")), (3.into(), 1.into()));
    sandbox.check("v.img");
}

#[test]
fn a_copy_that_another_file_overwrites_gets_no_links() {
    let sandbox = Sandbox::with_volume();
    for (tree, file) in [("base", "f"), ("over", "f")] {
        fs::create_dir(sandbox.path(tree)).unwrap();
        fs::write(sandbox.path(tree).join(file), tree).unwrap();
    }
    fs::hard_link(sandbox.path("base/f"), sandbox.path("z")).unwrap();
    sandbox.ok(["cp", "-a", "base/.", "over/.", "z", "v.img:/"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/f"]), b"over");
    assert_eq!(sandbox.ok(["cat", "v.img:/z"]), b"base");
    sandbox.check("v.img");
}

/// An image made for it had a copy write beside its target.
#[test]
fn a_volume_with_names_that_lead_out_of_it_writes_nowhere_else() {
    let sandbox = Sandbox::with_volume();
    sandbox.ok(["mkdir", "v.img:/d"]);
    fs::write(sandbox.path("f"), "evil").unwrap();
    sandbox.ok(["cp", "f", "v.img:/d/f"]);
    {
        let device = FileDevice::open(sandbox.path("v.img"), Access::Exclusive).unwrap();
        let fs = FileSystem::open(Arc::new(device), Options::default()).unwrap();
        let named = |name| key::child_key(&key::child_path(b"", b"d"), name);
        let value = fs.engine().waiting(|| fs.engine().get(Tree::Metadata, &named(b"f")));
        let mut batch = Batch::new();
        batch.put(Tree::Metadata, named(b"../../evil"), value.unwrap().unwrap());
        fs.engine().apply(batch).unwrap();
        fs.close().unwrap();
    }
    fs::create_dir_all(sandbox.path("host/target")).unwrap();
    sandbox.refused(
        ["cp", "-r", "v.img:/d", "host/target"],
        1,
        &["cannot read directory", "ends in what is no name"],
    );
    assert!(!sandbox.path("host/evil").exists() && !sandbox.path("evil").exists());
    assert_eq!(sandbox.run(["check", "v.img"]).status.code(), Some(1));
}

/// Whoever copied a program of root out of a volume had made one that ran as himself for all others.
#[test]
fn set_id_bits_are_left_out_where_the_owner_cannot_be_given() {
    const TEST: &str = "set_id_bits_are_left_out_where_the_owner_cannot_be_given";
    const NOBODY: u32 = 65_534;
    if !rustix::process::geteuid().is_root() {
        println!("SKIPPED {TEST}: needs root");
        return;
    }
    let sandbox = Sandbox::with_volume();
    fs::create_dir(sandbox.path("tree")).unwrap();
    fs::write(sandbox.path("tree/of root"), "x").unwrap();
    fs::write(sandbox.path("tree/own"), "x").unwrap();
    std::os::unix::fs::chown(sandbox.path("tree/own"), Some(NOBODY), Some(NOBODY)).unwrap();
    let set_mode =
        |path: &str, mode| fs::set_permissions(sandbox.path(path), fs::Permissions::from_mode(mode));
    for (path, mode) in [("tree", 0o2755), ("tree/of root", 0o6755), ("tree/own", 0o4711)] {
        set_mode(path, mode).unwrap();
    }
    sandbox.ok(["cp", "-a", "tree", "v.img:/"]);
    std::os::unix::fs::chown(sandbox.path("v.img"), Some(NOBODY), Some(NOBODY)).unwrap();
    set_mode(".", 0o777).unwrap();
    for (options, out) in [("-a", "out"), ("-rp", "again")] {
        let mut copying = sandbox.command(["cp", options, "v.img:/tree", out]);
        let Ok(copied) = copying.uid(NOBODY).gid(NOBODY).output() else {
            println!("SKIPPED {TEST}: another user cannot run the command");
            return;
        };
        assert!(copied.status.success(), "{}", String::from_utf8_lossy(&copied.stderr));
        let modes = ["", "of root", "own"].map(|name| mode(&sandbox.path(out).join(name)));
        assert_eq!(modes, [0o755, 0o755, 0o4711], "{options}");
    }
}

/// The image was emptied under the copy that read it.
#[test]
fn a_volume_is_not_copied_over_itself_or_into_itself() {
    let sandbox = Sandbox::with_volume();
    fs::write(sandbox.path("f"), "text").unwrap();
    sandbox.ok(["cp", "f", "v.img:/f"]);
    sandbox.refused(["cp", "v.img:/f", "v.img"], 1, &["overwrite", "volume that this copy reads"]);
    sandbox.refused(["cp", "v.img", "v.img:/v"], 1, &["copy", "volume that this copy reads"]);
    std::os::unix::fs::symlink("f", sandbox.path("l")).unwrap();
    sandbox.ok(["cp", "-a", "l", "v.img:/v.img"]);
    sandbox.refused(["cp", "-a", "v.img:/v.img", "."], 1, &["overwrite", "volume that this copy reads"]);
    assert_eq!(sandbox.ok(["cat", "v.img:/f"]), b"text");
    sandbox.check("v.img");
}
