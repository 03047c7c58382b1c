//! `pando format`: makes a volume.
//!
//! What is there already is looked for first ([`probe`]), under the device's lock. The old signatures are then wiped
//! at both ends, so that no tool takes the volume for what it was.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::{Args, ValueEnum};
use pando_device::Access;
use pando_device::{BLOCK_SIZE, Buffer, Device, FileDevice, WriteRequest};
use pando_engine::{Compression, FormatOptions, Options};
use pando_fs::FileSystem;
use pando_fs::operations::{Operations, ROOT, SetAttributes};

use crate::failure::{Failure, Result, Status, io_text};
use crate::volume::{device_failure, name, open_device};
use crate::{probe, size};

/// Bytes wiped at either end: all places where `probe` looks.
const WIPED_BYTES: u64 = 1 << 20;

/// The longest label, in bytes.
const LABEL_BYTES_MAX: usize = 255;

const ABOUT: &str = "\
Makes an empty PandoFS volume in an image file or on a block device. \
What a device or file holds already is recognised (file systems, partition tables, encryption, RAID, swap), named, and \
not overwritten without --force. Nor is a file with any data in it, as far as the first 64 MiB tell that are not holes; \
a device is looked at for what is recognised alone. Even with --force, what is seen to be in use is refused: what another \
pando has open, what is mounted or swap space, a disk that the kernel has claimed for one of its partitions, an array or \
a volume group, a file with a loop device over it, and a loop device over a mounted volume. That any other program, such \
as a virtual machine, has a file open is not seen. The root directory belongs to the user who formats.";

const EXAMPLES: &str = "\
Examples:
  pando format --size 4G disk.img      make a sparse image file of 4 GiB
  pando format -L backup /dev/sdb1     format a partition
  pando format -c zstd --force old.img overwrite what is there";

/// Arguments of `pando format`.
#[derive(Debug, Args)]
#[command(long_about = ABOUT, after_long_help = EXAMPLES)]
pub struct FormatArgs {
    /// An image file or a block device.
    path: PathBuf,
    /// Size of the image file to make, such as 512M, 4G or 1.5T (binary units). Only for a file that is not there yet;
    /// it is sparse, and takes room as the volume fills.
    #[arg(short, long, value_parser = size::parse)]
    size: Option<u64>,
    /// A name for people, at most 255 bytes.
    #[arg(short = 'L', long, default_value = "", value_parser = parse_label)]
    label: String,
    /// Compression of what is stored. Data that does not shrink is stored as it is.
    #[arg(short, long, value_enum, default_value_t = CompressionName::None)]
    compression: CompressionName,
    /// Overwrite whatever is there.
    #[arg(short, long)]
    force: bool,
}

/// Names of compressions on the command line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum CompressionName {
    /// As it is.
    None,
    /// Fast.
    Lz4,
    /// Smaller.
    Zstd,
}

impl From<CompressionName> for Compression {
    fn from(name: CompressionName) -> Self {
        match name {
            CompressionName::None => Self::None,
            CompressionName::Lz4 => Self::Lz4,
            CompressionName::Zstd => Self::Zstd,
        }
    }
}

/// Runs `pando format`.
pub fn run(args: &FormatArgs) -> Result<Status> {
    let exists = args.path.symlink_metadata().is_ok();
    let device = if exists { take(args)? } else { create(args)? };
    let capacity = device.capacity();
    let made = make(args, Arc::new(device));
    if made.is_err() && !exists {
        // Nobody asked for a file that is no volume. If it cannot be removed, the failure names it anyway.
        let _ = std::fs::remove_file(&args.path);
    }
    let volume_id = made?;
    let label = if args.label.is_empty() { String::new() } else { format!(", label {:?}", args.label) };
    let id = uuid(&volume_id);
    let mut output = crate::output::Output::new();
    output.line(format!(
        "{}: a PandoFS volume of {}{label}, id {id}",
        name(&args.path),
        size::human(capacity)
    ))?;
    output.finish()?;
    Ok(Status::Success)
}

fn create(args: &FormatArgs) -> Result<FileDevice> {
    let path = name(&args.path);
    let Some(bytes) = args.size else {
        return Err(Failure::new(format!(
            "{path} is not there; give --size to make an image file of that size"
        )));
    };
    let bytes = bytes - bytes % BLOCK_SIZE as u64;
    FileDevice::create(&args.path, bytes).map_err(|error| match error {
        pando_device::DeviceError::Io { code, .. } => {
            let cause = io_text(&std::io::Error::from_raw_os_error(code));
            Failure::new(format!("cannot make the image file {path}: {cause}"))
        }
        error => Failure::new(format!("cannot make the image file {path}: {error}")),
    })
}

/// Locks what is there, and makes sure that nobody misses it.
fn take(args: &FormatArgs) -> Result<FileDevice> {
    let path = name(&args.path);
    let metadata = args
        .path
        .metadata()
        .map_err(|error| Failure::new(format!("cannot open {path}: {}", io_text(&error))))?;
    let is_block_device = metadata.file_type().is_block_device();
    if !is_block_device && !metadata.is_file() {
        return Err(Failure::new(format!("{path} is neither a regular file nor a block device")));
    }
    if let Some(bytes) = args.size.filter(|&bytes| is_block_device || bytes != metadata.len()) {
        return Err(Failure::new(format!(
            "{path} is there already, and its size is not changed to {}; leave --size out, or remove it first",
            size::human(bytes)
        )));
    }
    let device = open_device(&args.path, Access::Exclusive)?;
    // Somebody may have it mounted who can write to it and does not own it, and by a program that locks nothing.
    if let Some(user) = crate::mounts::user_of(&args.path, !args.force) {
        return Err(Failure::new(format!("{path} is in use: {user}; free it first")));
    }
    if !args.force {
        // A device's capacity is in whole blocks, and a file may be shorter than one.
        let length = if is_block_device { device.capacity() } else { metadata.len() };
        refuse_contents(&args.path, length, is_block_device)?;
    }
    Ok(device)
}

fn refuse_contents(path: &Path, length: u64, is_block_device: bool) -> Result<()> {
    let shown = name(path);
    let unreadable =
        |error: std::io::Error| Failure::new(format!("cannot read {shown}: {}", io_text(&error)));
    let file = File::open(path).map_err(unreadable)?;
    let contents = probe::contents(&file, length).map_err(unreadable)?;
    if !contents.is_empty() {
        let contents = contents.join(" and ");
        return Err(Failure::new(format!("{shown} holds {contents}; give --force to overwrite it")));
    }
    // On a device, left-overs of something unknown are common; in a file they are somebody's data.
    if !is_block_device && probe::holds_data(&file).map_err(unreadable)? {
        return Err(Failure::new(format!("{shown} is not empty; give --force to overwrite it")));
    }
    Ok(())
}

fn make(args: &FormatArgs, device: Arc<FileDevice>) -> Result<[u8; 16]> {
    let path = name(&args.path);
    let failed = |why: String| Failure::new(format!("cannot format {path}: {why}"));
    let mut volume_id = [0; 16];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut volume_id))
        .map_err(|error| failed(format!("no random numbers: {}", io_text(&error))))?;
    let options = FormatOptions {
        label: args.label.clone(),
        volume_id,
        compression: args.compression.into(),
        ..FormatOptions::default()
    };
    // Before anything is lost.
    options.check(device.capacity()).map_err(|error| failed(error.to_string()))?;
    wipe(&*device).map_err(|error| device_failure(&args.path, &error))?;
    FileSystem::format(device.clone(), &options).map_err(|error| failed(error.to_string()))?;
    give_root_directory(device).map_err(|error| failed(error.to_string()))?;
    Ok(volume_id)
}

/// Zeros over both ends.
fn wipe(device: &dyn Device) -> Result<(), pando_device::DeviceError> {
    let length = device.capacity().min(WIPED_BYTES);
    if length == 0 {
        return Ok(());
    }
    let zeros = Buffer::zeroed(length as usize).freeze();
    let write = |offset| WriteRequest { offset, pieces: vec![zeros.clone()] };
    device.write(&[write(0)])?;
    device.write(&[write(device.capacity() - length)])?;
    device.flush()
}

/// The root directory belongs to the user who formats: others could make nothing in a volume of their own.
fn give_root_directory(device: Arc<FileDevice>) -> pando_fs::operations::Result<()> {
    let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
    if uid.is_root() {
        return Ok(());
    }
    let fs = FileSystem::open(device, Options { cache_bytes: 64 << 20, ..Options::default() })?;
    let owner =
        SetAttributes { uid: Some(uid.as_raw()), gid: Some(gid.as_raw()), ..SetAttributes::default() };
    pando_fs::operations::waiting(&*fs, |fs| fs.set_attributes(ROOT, &owner))?;
    fs.close()
}

fn parse_label(text: &str) -> Result<String, crate::failure::Cause> {
    if text.len() > LABEL_BYTES_MAX {
        return Err(crate::failure::Cause::Refused("a label is at most 255 bytes long"));
    }
    Ok(text.to_owned())
}

/// Sixteen bytes as people know them: 8-4-4-4-12 digits.
pub fn uuid(bytes: &[u8; 16]) -> String {
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..])
}
