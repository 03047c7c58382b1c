//! Directories and files in a volume.

use std::ops::Range;
use std::rc::Rc;

use bytes::Bytes;
use pando_fs::operations::{Attributes, FileType, Seek, SetAttributes, SetTime};
use pando_fs::{Error, InodeNumber};

use crate::copy::tree::{Directory, Identity, Metadata, OpenFile, Remembered, Result, Settings};
use crate::failure::Cause;
use crate::files::{Files, Inode, Listing};
use crate::path::{LastLink, find};

/// Systems of [`Identity`] from here on are volumes: no device number of a host reaches them.
const VOLUME_SYSTEMS: u64 = 1 << 63;

/// A directory of a volume.
pub struct InsideDirectory {
    files: Files,
    volume: u64,
    inode: Inode,
    way: Rc<Way>,
    listing: Option<Listing>,
}

/// A file of a volume.
pub struct InsideFile {
    files: Files,
    volume: u64,
    inode: Inode,
}

/// The names that led to a directory, from the one it was opened by upwards. Only following a link needs them.
struct Way {
    above: Option<Rc<Way>>,
    /// A name; the whole path at the top.
    name: Vec<u8>,
}

impl Way {
    fn path_to(&self, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        let mut way = Some(self);
        while let Some(here) = way {
            names.push(&here.name);
            way = here.above.as_deref();
        }
        names.reverse();
        names.join(&b'/')
    }
}

impl InsideDirectory {
    /// The directory with this path in the open volume that is number `volume` of this process.
    pub fn new(files: Files, volume: u64, inode: Inode, path: &[u8]) -> Self {
        Self { files, volume, inode, way: Rc::new(Way { above: None, name: path.to_vec() }), listing: None }
    }

    fn lookup(&self, name: &[u8], follow: bool) -> Result<(Inode, Attributes)> {
        if follow {
            return find(&self.files, &self.way.path_to(name), LastLink::Follow);
        }
        Ok(self.files.lookup(self.inode.number(), name)?)
    }

    /// Does something with the inode behind a name, or with this directory for `.`.
    fn with<T>(
        &self,
        name: &[u8],
        act: impl FnOnce(InodeNumber) -> pando_fs::operations::Result<T>,
    ) -> Result<T> {
        if name == b"." {
            return Ok(act(self.inode.number())?);
        }
        let (inode, _) = self.files.lookup(self.inode.number(), name)?;
        Ok(act(inode.number())?)
    }

    fn open(&self, inode: Inode) -> Box<dyn OpenFile> {
        Box::new(InsideFile { files: self.files.clone(), volume: self.volume, inode })
    }
}

impl Directory for InsideDirectory {
    fn metadata(&self, name: &[u8], follow: bool) -> Result<Metadata> {
        if name == b"." {
            return Ok(metadata(self.volume, &self.files.attributes(self.inode.number())?));
        }
        Ok(metadata(self.volume, &self.lookup(name, follow)?.1))
    }

    fn next_names(&mut self) -> Result<Vec<Vec<u8>>> {
        if self.listing.is_none() {
            self.listing = Some(self.files.list(self.inode.number()));
        }
        let listing = self.listing.as_mut().expect("it was opened above");
        let entries = self.files.next_entries(listing)?;
        Ok(entries.into_iter().map(|entry| entry.name.to_vec()).collect())
    }

    fn open_directory(&self, name: &[u8], follow: bool) -> Result<Box<dyn Directory>> {
        let (inode, attributes) = match name {
            // A second reference, found the way the first was.
            b"." => find(&self.files, &self.way.path_to(b"."), LastLink::Follow)?,
            _ => self.lookup(name, follow)?,
        };
        if attributes.file_type != FileType::Directory {
            return Err(Error::NotADirectory.into());
        }
        let way = Rc::new(Way { above: Some(self.way.clone()), name: name.to_vec() });
        Ok(Box::new(Self { files: self.files.clone(), volume: self.volume, inode, way, listing: None }))
    }

    fn open_file(&self, name: &[u8], follow: bool) -> Result<Box<dyn OpenFile>> {
        Ok(self.open(self.lookup(name, follow)?.0))
    }

    fn overwrite_file(&self, name: &[u8]) -> Result<Box<dyn OpenFile>> {
        let (inode, _) = self.lookup(name, false)?;
        let empty = SetAttributes { size: Some(0), ..SetAttributes::default() };
        self.files.set_attributes(inode.number(), &empty)?;
        Ok(self.open(inode))
    }

    fn make_file(&self, name: &[u8], mode: u32) -> Result<Box<dyn OpenFile>> {
        Ok(self.open(self.files.make_node(self.inode.number(), name, FileType::Regular, mode, 0)?))
    }

    fn make_directory(&self, name: &[u8], mode: u32) -> Result<()> {
        self.files.make_directory(self.inode.number(), name, mode)?;
        Ok(())
    }

    fn make_symlink(&self, name: &[u8], target: &[u8]) -> Result<()> {
        self.files.make_symlink(self.inode.number(), name, target)?;
        Ok(())
    }

    fn make_special(&self, name: &[u8], file_type: FileType, mode: u32, device: u64) -> Result<()> {
        self.files.make_node(self.inode.number(), name, file_type, mode, device)?;
        Ok(())
    }

    fn remember(&self, name: &[u8]) -> Result<Remembered> {
        Ok(Remembered::Inside(self.lookup(name, false)?.0))
    }

    fn make_link(&self, name: &[u8], to: &Remembered) -> Result<()> {
        match to {
            Remembered::Inside(inode) => Ok(self.files.link(inode.number(), self.inode.number(), name)?),
            Remembered::Host(_) => Err(Cause::Refused("a link cannot lead out of the volume")),
        }
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        self.with(name, |inode| Ok(self.files.read_link(inode)?.to_vec()))
    }

    fn remove(&self, name: &[u8]) -> Result<()> {
        Ok(self.files.unlink(self.inode.number(), name)?)
    }

    fn apply(&self, name: &[u8], settings: &Settings) -> Result<()> {
        self.with(name, |inode| apply(&self.files, inode, settings))
    }

    fn xattrs(&self, name: &[u8], follow: bool) -> Result<Vec<(Vec<u8>, Bytes)>> {
        let (inode, _) = self.lookup(name, follow || name == b".")?;
        let inode = inode.number();
        let names = self.files.xattr_names(inode)?;
        let with_value = |name: Vec<u8>| self.files.xattr(inode, &name).map(|value| (name, value));
        Ok(names.into_iter().map(with_value).collect::<Result<_, pando_fs::Error>>()?)
    }

    fn change_xattr(&self, name: &[u8], attribute: &[u8], value: Option<&[u8]>) -> Result<()> {
        self.with(name, |inode| self.files.change_xattr(inode, attribute, value))
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn is_synced_whole(&self) -> bool {
        true
    }

    fn sync_system(&self) -> Result<()> {
        Ok(())
    }
}

impl OpenFile for InsideFile {
    fn metadata(&self) -> Result<Metadata> {
        Ok(metadata(self.volume, &self.files.attributes(self.inode.number())?))
    }

    fn next_data(&self, offset: u64, size: u64) -> Result<Option<Range<u64>>> {
        let inode = self.inode.number();
        if offset >= size {
            return Ok(None);
        }
        let start = match self.files.seek(inode, offset, Seek::Data) {
            Ok(start) => start,
            Err(Error::NoData) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let end = self.files.seek(inode, start, Seek::Hole)?;
        Ok((start < size && start < end).then(|| start..end.min(size)))
    }

    fn read(&self, offset: u64, length: usize) -> Result<Vec<Bytes>> {
        Ok(self.files.read(self.inode.number(), offset, length)?)
    }

    fn write(&self, offset: u64, bytes: &Bytes) -> Result<()> {
        Ok(self.files.write(self.inode.number(), offset, bytes)?)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let set = SetAttributes { size: Some(size), ..SetAttributes::default() };
        self.files.set_attributes(self.inode.number(), &set)?;
        Ok(())
    }

    fn apply(&self, settings: &Settings) -> Result<bool> {
        apply(&self.files, self.inode.number(), settings)?;
        Ok(true)
    }

    fn change_xattr(&self, attribute: &[u8], value: Option<&[u8]>) -> Result<()> {
        Ok(self.files.change_xattr(self.inode.number(), attribute, value)?)
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn close(self: Box<Self>) -> Result<()> {
        Ok(())
    }
}

fn apply(files: &Files, inode: InodeNumber, settings: &Settings) -> pando_fs::operations::Result<()> {
    // A new owner takes the set-id bits off, so the mode comes in a second call.
    if let Some((uid, gid)) = settings.owner {
        files.set_attributes(
            inode,
            &SetAttributes { uid: Some(uid), gid: Some(gid), ..SetAttributes::default() },
        )?;
    }
    let set = SetAttributes {
        mode: settings.mode,
        accessed: settings.times.map(|(accessed, _)| SetTime::To(accessed)),
        modified: settings.times.map(|(_, modified)| SetTime::To(modified)),
        ..SetAttributes::default()
    };
    if set != SetAttributes::default() {
        files.set_attributes(inode, &set)?;
    }
    Ok(())
}

fn metadata(volume: u64, attributes: &Attributes) -> Metadata {
    Metadata {
        identity: Identity { system: VOLUME_SYSTEMS + volume, inode: attributes.inode.0 },
        file_type: attributes.file_type,
        mode: attributes.mode,
        uid: attributes.uid,
        gid: attributes.gid,
        links: attributes.links.into(),
        size: attributes.size,
        device: attributes.device,
        accessed: attributes.accessed,
        modified: attributes.modified,
    }
}
