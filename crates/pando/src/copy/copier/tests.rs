//! Copies of what no file system holds: sources and targets that are made up.

use std::cell::RefCell;
use std::ops::Range;
use std::path::Path;
use std::rc::Rc;
use std::time::UNIX_EPOCH;

use bytes::Bytes;
use rustix::io::Errno;

use super::*;
use crate::copy::host::HostDirectory;
use crate::copy::tree::Remembered;

const OPTIONS: CopyOptions = CopyOptions {
    recursive: true,
    follow: Which::None,
    modes: false,
    owners: false,
    times: false,
    xattrs: false,
    links: false,
    force: true,
    no_clobber: false,
    verbose: false,
};

/// What was synced and closed, in the order in which it was. It fails if that is so said.
#[derive(Clone, Default)]
struct Synced {
    what: Rc<RefCell<Vec<String>>>,
    fails: bool,
}

impl Synced {
    fn sync(&self, what: &[u8]) -> Result<()> {
        self.what.borrow_mut().push(shown(what).to_string());
        if self.fails { Err(Cause::Host(Errno::IO)) } else { Ok(()) }
    }
}

/// A directory in which are links of all names that it is told; or an empty one, to be filled.
#[derive(Default)]
struct Names {
    names: Vec<Vec<u8>>,
    path: Vec<u8>,
    synced: Synced,
}

fn has(path: &[u8], name: &[u8]) -> bool {
    path.split(|byte| *byte == b'/').any(|part| part == name)
}

/// Below some names other file systems are mounted.
fn system_of(path: &[u8]) -> u64 {
    let mounted: [&[u8]; 2] = [b"mount", b"fuse"];
    u64::MAX - mounted.iter().filter(|name| has(path, name)).count() as u64
}

impl Directory for Names {
    fn metadata(&self, name: &[u8], _: bool) -> Result<Metadata> {
        let file_type = if name == b"." { FileType::Directory } else { FileType::Symlink };
        Ok(Metadata {
            identity: Identity { system: system_of(&self.path), inode: 1 },
            file_type,
            mode: 0o755,
            uid: 0,
            gid: 0,
            links: 1,
            size: 0,
            device: 0,
            accessed: UNIX_EPOCH,
            modified: UNIX_EPOCH,
        })
    }
    fn next_names(&mut self) -> Result<Vec<Vec<u8>>> {
        Ok(std::mem::take(&mut self.names))
    }
    fn open_directory(&self, name: &[u8], _: bool) -> Result<Box<dyn Directory>> {
        let path = if name == b"." { self.path.clone() } else { join(&self.path, name) };
        Ok(Box::new(Names { names: self.names.clone(), path, synced: self.synced.clone() }))
    }
    fn read_link(&self, _: &[u8]) -> Result<Vec<u8>> {
        Ok(b"here".to_vec())
    }
    fn open_file(&self, _: &[u8], _: bool) -> Result<Box<dyn OpenFile>> {
        unreachable!()
    }
    fn overwrite_file(&self, _: &[u8]) -> Result<Box<dyn OpenFile>> {
        unreachable!()
    }
    fn make_file(&self, name: &[u8], _: u32) -> Result<Box<dyn OpenFile>> {
        let (path, synced) = (join(&self.path, name), self.synced.clone());
        Ok(Box::new(Written { path, synced, ..Written::new(FileType::Regular, 100) }))
    }
    fn make_directory(&self, _: &[u8], _: u32) -> Result<()> {
        Ok(())
    }
    fn make_symlink(&self, _: &[u8], _: &[u8]) -> Result<()> {
        unreachable!()
    }
    fn make_special(&self, _: &[u8], _: FileType, _: u32, _: u64) -> Result<()> {
        unreachable!()
    }
    fn remember(&self, _: &[u8]) -> Result<Remembered> {
        unreachable!()
    }
    fn make_link(&self, _: &[u8], _: &Remembered) -> Result<()> {
        unreachable!()
    }
    fn remove(&self, _: &[u8]) -> Result<()> {
        unreachable!()
    }
    fn apply(&self, _: &[u8], _: &Settings) -> Result<()> {
        Ok(())
    }
    fn xattrs(&self, _: &[u8], _: bool) -> Result<Vec<(Vec<u8>, Bytes)>> {
        unreachable!()
    }
    fn change_xattr(&self, _: &[u8], _: &[u8], _: Option<&[u8]>) -> Result<()> {
        unreachable!()
    }
    fn sync(&self) -> Result<()> {
        self.synced.sync(&self.path)
    }
    fn is_synced_whole(&self) -> bool {
        !has(&self.path, b"fuse")
    }
    fn sync_system(&self) -> Result<()> {
        self.synced.sync(&join(b"all of", &self.path))
    }
}

/// A device, or a file, with what was written to it; everything else is what it held before.
struct Written {
    file_type: FileType,
    bytes: RefCell<Vec<u8>>,
    path: Vec<u8>,
    synced: Synced,
}

impl Written {
    fn new(file_type: FileType, length: usize) -> Self {
        let bytes = RefCell::new(vec![7; length]);
        Self { file_type, bytes, path: Vec::new(), synced: Synced::default() }
    }
}

impl OpenFile for Written {
    fn metadata(&self) -> Result<Metadata> {
        let names = Names { path: self.path.clone(), ..Names::default() };
        Ok(Metadata { file_type: self.file_type, ..names.metadata(b".", false)? })
    }
    fn write(&self, offset: u64, bytes: &Bytes) -> Result<()> {
        self.bytes.borrow_mut()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
    fn set_size(&self, size: u64) -> Result<()> {
        assert_eq!(self.file_type, FileType::Regular, "only a file has a size of its own");
        assert_eq!(size, self.bytes.borrow().len() as u64);
        Ok(())
    }
    fn next_data(&self, _: u64, _: u64) -> Result<Option<Range<u64>>> {
        unreachable!()
    }
    fn read(&self, _: u64, _: usize) -> Result<Vec<Bytes>> {
        unreachable!()
    }
    fn apply(&self, _: &Settings) -> Result<bool> {
        unreachable!()
    }
    fn change_xattr(&self, _: &[u8], _: Option<&[u8]>) -> Result<()> {
        unreachable!()
    }
    fn sync(&self) -> Result<()> {
        self.synced.sync(&self.path)
    }
    fn close(self: Box<Self>) -> Result<()> {
        self.synced.sync(&join(b"closed", &self.path))
    }
}

/// Where the source had holes a block device kept what it held.
#[test]
fn holes_are_left_out_of_files_alone() {
    let directory = tempfile::tempdir().unwrap();
    let sparse = std::fs::File::create(directory.path().join("sparse")).unwrap();
    sparse.set_len(4 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&sparse, &[1; 4096], 1 << 20).unwrap();
    let from = HostDirectory::open(directory.path()).unwrap().open_file(b"sparse", false).unwrap();
    for (file_type, old) in [(FileType::Regular, 7), (FileType::BlockDevice, 0)] {
        let target = Written::new(file_type, 4 << 20);
        assert!(copy_contents(&*from, &target).is_ok());
        let bytes = target.bytes.into_inner();
        assert_eq!((bytes[0], bytes[1 << 20], bytes[3 << 20]), (old, 1, old), "{file_type:?}");
    }
}

fn names_in(path: &Path) -> Vec<std::ffi::OsString> {
    let mut names: Vec<_> = path.read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    names
}

/// The names in an image led a copy anywhere on the host.
#[test]
fn names_that_lead_out_of_the_target_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    std::fs::create_dir(&target).unwrap();
    let absolute = directory.path().join("absolute").into_os_string().into_encoded_bytes();
    let bad = [b"../beside".to_vec(), absolute, b"..".to_vec(), b".".to_vec(), b"a/b".to_vec(), Vec::new()];
    let names = [&bad[..], &[b"good".to_vec()]].concat();
    let mut output = Output::new();
    let mut copier = Copier::new(OPTIONS, Vec::new(), &mut output);
    let place = |directory, path: &[u8]| Target {
        directory,
        name: b".".to_vec(),
        path: path.to_vec(),
        is_lost_link: false,
    };
    let from = place(Box::new(Names { names, ..Names::default() }), b"source");
    let to = place(Box::new(HostDirectory::open(&target).unwrap()), b"target");
    copier.copy(&from, &to).unwrap();
    assert_eq!(copier.problems(), bad.len() as u64);
    assert_eq!(names_in(directory.path()), ["target"]);
    assert_eq!(names_in(&target), ["good"]);
}

/// The command said that all was done while files and names were in the memory of the host alone, and an error that came of them later was
/// nobody's.
#[test]
fn what_was_copied_is_synced() {
    let directory = tempfile::tempdir().unwrap();
    for tree in ["tree/sub/mount/sub", "other/mount/fuse/sub"] {
        std::fs::create_dir_all(directory.path().join(tree)).unwrap();
        std::fs::write(directory.path().join(tree).join("file"), "bytes").unwrap();
    }
    let copied = |name: &str, fails| {
        let synced = Synced { fails, ..Synced::default() };
        let mut output = Output::new();
        let mut copier = Copier::new(OPTIONS, Vec::new(), &mut output);
        let place = |directory, name: &[u8]| Target {
            directory,
            name: name.to_vec(),
            path: name.to_vec(),
            is_lost_link: false,
        };
        let from = place(Box::new(HostDirectory::open(directory.path()).unwrap()), name.as_bytes());
        let target = Names { path: b"top".to_vec(), synced: synced.clone(), ..Names::default() };
        copier.copy(&from, &place(Box::new(target), b"copy")).unwrap();
        (synced.what.take(), copier.problems())
    };
    let in_order = |what: &[&str]| what.iter().map(|what| what.to_string()).collect::<Vec<_>>();
    // A file system once, and another one that is mounted in it.
    let of_tree =
        ["closed/top/copy/sub/mount/sub/file", "all of/top/copy/sub/mount", "all of/top/copy", "top"];
    let of_other = [
        "top/copy/mount/fuse/sub/file",
        "closed/top/copy/mount/fuse/sub/file",
        "top/copy/mount/fuse/sub",
        "top/copy/mount/fuse",
        "all of/top/copy/mount",
        "all of/top/copy",
        "top",
    ];
    let of_file = ["top/copy", "closed/top/copy", "top"];
    assert_eq!(copied("tree", false), (in_order(&of_tree), 0));
    assert_eq!(copied("other", false), (in_order(&of_other), 0));
    assert_eq!(copied("tree/sub/mount/sub/file", false), (in_order(&of_file), 0));
    // Each failure is told, and the copy goes on.
    assert_eq!(copied("tree", true), (in_order(&of_tree), 4));
}
