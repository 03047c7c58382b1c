//! What a device or image holds already, told by the signatures that file systems, partition tables, RAID and
//! encryption leave at known places. `pando format` refuses to overwrite what is found here.
//!
//! Offsets and bytes are those of each format's public description. Several may be there at once (an old file system
//! below a new partition table); all are named.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pando_format::{Structure, superblock_offsets};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

/// Bytes read from each end of the device: every signature below lies within them.
const WINDOW: usize = 1 << 20;

/// Such windows that are looked at for any data.
const DATA_WINDOWS_MAX: usize = 64;

/// A signature with a fixed place: name, byte offset from the start, bytes.
type Signature = (&'static str, usize, &'static [u8]);

const SIGNATURES: &[Signature] = &[
    ("an XFS file system", 0, b"XFSB"),
    ("a Btrfs file system", 0x10040, b"_BHRfS_M"),
    ("an F2FS file system", 1024, b"\x10\x20\xf5\xf2"),
    (
        "a bcachefs file system",
        4096 + 24,
        b"\xc6\x85\x73\xf6\x66\xce\x90\xa9\xd9\x6a\x60\xcf\x80\x3d\xf7\xef",
    ),
    ("a bcache device", 4096 + 24, b"\xc6\x85\x73\xf6\x4e\x1a\x45\xca\x82\x65\xf5\x7f\x48\xba\x6d\x81"),
    ("an exFAT file system", 3, b"EXFAT   "),
    ("an NTFS file system", 3, b"NTFS    "),
    ("a ReFS file system", 3, b"ReFS\0\0\0\0"),
    ("a BitLocker volume", 3, b"-FVE-FS-"),
    ("a FAT file system", 0x36, b"FAT12   "),
    ("a FAT file system", 0x36, b"FAT16   "),
    ("a FAT file system", 0x52, b"FAT32   "),
    ("an ISO 9660 file system", 0x8001, b"CD001"),
    ("a UDF file system", 0x8001, b"BEA01"),
    ("a JFS file system", 0x8000, b"JFS1"),
    ("a ReiserFS file system", 0x10034, b"ReIsEr"),
    ("a NILFS2 file system", 1024 + 6, b"\x34\x34"),
    ("a GFS2 file system", 0x10000, b"\x01\x16\x19\x70"),
    ("an HFS+ file system", 1024, b"H+\0\x04"),
    ("an HFS+ file system", 1024, b"HX\0\x05"),
    ("an APFS container", 32, b"NXSB"),
    ("a SquashFS file system", 0, b"hsqs"),
    ("an EROFS file system", 1024, b"\xe2\xe1\xf5\xe0"),
    ("a LUKS encrypted volume", 0, b"LUKS\xba\xbe"),
    ("a LUKS encrypted volume", 0x4000, b"SKUL\xba\xbe"),
    ("a VDO volume", 0, b"dmvdo001"),
    ("a Ceph BlueStore device", 0, b"bluestore block device"),
    ("an md RAID member", 0, b"\xfc\x4e\x2b\xa9"),
    ("an md RAID member", 4096, b"\xfc\x4e\x2b\xa9"),
    ("swap space", 4096 - 10, b"SWAPSPACE2"),
    ("swap space", 4096 - 10, b"SWAP-SPACE"),
    ("swap space", 16384 - 10, b"SWAPSPACE2"),
    ("swap space", 65536 - 10, b"SWAPSPACE2"),
    ("a GPT partition table", 512, b"EFI PART"),
    ("a GPT partition table", 4096, b"EFI PART"),
    ("a QEMU disk image", 0, b"QFI\xfb"),
    ("a VMware disk image", 0, b"KDMV"),
    ("a VHDX disk image", 0, b"vhdxfile"),
];

/// Both ends of a device, and how long it is.
struct Ends {
    head: Vec<u8>,
    tail: Vec<u8>,
    length: u64,
}

impl Ends {
    fn head_has(&self, offset: usize, bytes: &[u8]) -> bool {
        self.head.get(offset..).is_some_and(|rest| rest.starts_with(bytes))
    }

    /// Bytes at an offset from the start that lies in the tail.
    fn tail_at(&self, offset: u64) -> &[u8] {
        let start = offset.checked_sub(self.length - self.tail.len() as u64);
        start.and_then(|start| self.tail.get(start as usize..)).unwrap_or_default()
    }

    fn head_u32(&self, offset: usize) -> u32 {
        let bytes = self.head.get(offset..offset + 4).and_then(|b| b.try_into().ok());
        bytes.map_or(0, u32::from_le_bytes)
    }
}

/// What the first bytes of a device or file, and its last, say that it holds: "an XFS file system", ... Empty if
/// nothing is recognised. `length` is the device's size in bytes.
pub fn contents(file: &File, length: u64) -> io::Result<Vec<&'static str>> {
    let window = length.min(WINDOW as u64) as usize;
    let mut ends = Ends { head: vec![0; window], tail: vec![0; window], length };
    file.read_exact_at(&mut ends.head, 0)?;
    file.read_exact_at(&mut ends.tail, length - window as u64)?;
    let mut found: Vec<&'static str> = pando_volume(&ends)
        .into_iter()
        .chain(ext(&ends))
        .chain(SIGNATURES.iter().filter(|s| ends.head_has(s.1, s.2)).map(|s| s.0))
        .chain(lvm(&ends))
        .chain(zfs(&ends))
        .chain(md_at_end(&ends))
        .collect();
    // FAT and the protective entry of a GPT end in the same two bytes as an MBR: they are named already.
    if found.is_empty() {
        found.extend(mbr(&ends));
    }
    found.dedup();
    Ok(found)
}

/// True if any byte of a file is not zero, as far as the first 64 MiB tell that are not holes: more would take long where all is zero.
pub fn holds_data(file: &File) -> io::Result<bool> {
    let mut buffer = vec![0; WINDOW];
    let mut offset = 0;
    for _ in 0..DATA_WINDOWS_MAX {
        offset = match rustix::fs::seek(file, SeekFrom::Data(offset)) {
            Ok(data) => data,
            // Nothing but holes from here on.
            Err(Errno::NXIO) => return Ok(false),
            // Where nobody knows of holes, all is data.
            Err(_) => offset,
        };
        match file.read_at(&mut buffer, offset)? {
            0 => return Ok(false),
            count if buffer[..count].iter().any(|&byte| byte != 0) => return Ok(true),
            count => offset += count as u64,
        }
    }
    Ok(false)
}

fn pando_volume(ends: &Ends) -> Option<&'static str> {
    let magic = Structure::Superblock.magic().expect("a superblock has a magic number");
    let [first, last] = superblock_offsets(ends.length);
    let found = ends.head_has(first as usize, &magic) || ends.tail_at(last).starts_with(&magic);
    found.then_some("a PandoFS volume")
}

/// ext2, ext3 and ext4 share a magic number; the features tell them apart.
fn ext(ends: &Ends) -> Option<&'static str> {
    const SUPERBLOCK: usize = 1024;
    const JOURNAL: u32 = 0x4;
    /// Extents, 64 bit, multiple mount protection, flexible block groups.
    const EXT4_ONLY: u32 = 0x40 | 0x80 | 0x100 | 0x200;
    if !ends.head_has(SUPERBLOCK + 56, b"\x53\xef") {
        return None;
    }
    let compatible = ends.head_u32(SUPERBLOCK + 92);
    let incompatible = ends.head_u32(SUPERBLOCK + 96);
    Some(if incompatible & EXT4_ONLY != 0 {
        "an ext4 file system"
    } else if compatible & JOURNAL != 0 {
        "an ext3 file system"
    } else {
        "an ext2 file system"
    })
}

/// The label of a physical volume is in one of the first four sectors.
fn lvm(ends: &Ends) -> Option<&'static str> {
    let label = |sector: &usize| {
        ends.head_has(sector * 512, b"LABELONE") && ends.head_has(sector * 512 + 24, b"LVM2 001")
    };
    (0..4).any(|sector| label(&sector)).then_some("an LVM physical volume")
}

/// Four labels of 256 KiB, two at each end; the second half of each is an array of uberblocks, each with its magic
/// number in the byte order of the machine that wrote it.
fn zfs(ends: &Ends) -> Option<&'static str> {
    const LABEL: usize = 256 << 10;
    const MAGIC: u64 = 0x00ba_b10c;
    let is_uberblock =
        |bytes: &[u8]| bytes.starts_with(&MAGIC.to_le_bytes()) || bytes.starts_with(&MAGIC.to_be_bytes());
    let in_label =
        |label: &[u8]| label.get(LABEL / 2..LABEL).is_some_and(|ring| ring.chunks(1024).any(is_uberblock));
    let end = (ends.length / LABEL as u64) * LABEL as u64;
    let labels_at_end = [1, 2].map(|n| ends.tail_at(end.saturating_sub(n * LABEL as u64)));
    let labels_at_start = [0, LABEL].map(|at| ends.head.get(at..).unwrap_or_default());
    labels_at_start.into_iter().chain(labels_at_end).any(in_label).then_some("a ZFS pool member")
}

/// Versions 0.90 and 1.0 of the RAID superblock are near the end of the device.
fn md_at_end(ends: &Ends) -> Option<&'static str> {
    const MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();
    const RESERVED: u64 = 64 << 10;
    let version_0 = (ends.length / RESERVED * RESERVED).checked_sub(RESERVED);
    let version_1 = (ends.length / 512).checked_sub(16).map(|sector| (sector & !7) * 512);
    let there = |at: Option<u64>| at.is_some_and(|at| ends.tail_at(at).starts_with(&MAGIC));
    (there(version_0) || there(version_1)).then_some("an md RAID member")
}

/// A boot sector's signature says little alone; with sound partition entries it is a table.
fn mbr(ends: &Ends) -> Option<&'static str> {
    const ENTRIES: usize = 446;
    let entries = ends.head.get(ENTRIES..ENTRIES + 64)?;
    let sound = entries.chunks(16).all(|entry| matches!(entry[0], 0 | 0x80));
    let used = entries.chunks(16).any(|entry| entry[4] != 0);
    (ends.head_has(510, b"\x55\xaa") && sound && used).then_some("an MBR partition table")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 4 << 20;

    fn contents_of(image: &[u8]) -> Vec<&'static str> {
        let file = tempfile::tempfile().unwrap();
        file.write_all_at(image, 0).unwrap();
        contents(&file, image.len() as u64).unwrap()
    }

    fn with(places: &[(usize, &[u8])]) -> Vec<u8> {
        let mut image = vec![0; LENGTH];
        for (offset, bytes) in places {
            image[*offset..offset + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    #[test]
    fn every_signature_of_the_table_is_found_at_its_place() {
        for (name, offset, bytes) in SIGNATURES {
            assert_eq!(contents_of(&with(&[(*offset, bytes)])), [*name]);
            assert_eq!(contents_of(&with(&[(*offset + 1, bytes)])), [""; 0], "{name} moved by a byte");
        }
    }

    #[test]
    fn data_are_found_behind_holes_and_zeros() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(1 << 30).unwrap();
        assert!(!holds_data(&file).unwrap());
        file.write_all_at(&[0; 8192], 2 << 20).unwrap();
        assert!(!holds_data(&file).unwrap(), "zeros are nobody's data");
        file.write_all_at(b"x", 900 << 20).unwrap();
        assert!(holds_data(&file).unwrap());
        let full = tempfile::tempfile().unwrap();
        full.write_all_at(&with(&[(LENGTH - 1, b"x")]), 0).unwrap();
        assert!(holds_data(&full).unwrap());
    }

    #[test]
    fn the_ext_family_is_told_apart_by_features() {
        let magic: (usize, &[u8]) = (1080, b"\x53\xef");
        assert_eq!(contents_of(&with(&[magic])), ["an ext2 file system"]);
        assert_eq!(contents_of(&with(&[magic, (1116, &[4])])), ["an ext3 file system"]);
        assert_eq!(contents_of(&with(&[magic, (1116, &[4]), (1120, &[0x40])])), ["an ext4 file system"]);
    }

    #[test]
    fn signatures_at_the_end_are_found_too() {
        let md = b"\xfc\x4e\x2b\xa9";
        assert_eq!(contents_of(&with(&[(LENGTH - (64 << 10), md)])), ["an md RAID member"]);
        assert_eq!(contents_of(&with(&[(LENGTH - 8192, md)])), ["an md RAID member"]);
        let zfs = b"\x0c\xb1\xba\0\0\0\0\0";
        assert_eq!(contents_of(&with(&[(LENGTH - (128 << 10), zfs)])), ["a ZFS pool member"]);
        assert_eq!(contents_of(&with(&[(129 << 10, zfs)])), ["a ZFS pool member"]);
    }

    #[test]
    fn a_boot_sector_without_partitions_is_no_table() {
        assert_eq!(contents_of(&with(&[(510, b"\x55\xaa")])), [""; 0]);
        assert_eq!(contents_of(&with(&[(510, b"\x55\xaa"), (450, b"\x83")])), ["an MBR partition table"]);
    }

    #[test]
    fn short_and_empty_devices_hold_nothing() {
        for length in [0, 1, 511, 1080, 4096, 70_000] {
            assert_eq!(contents_of(&vec![0; length]), [""; 0], "{length} bytes");
        }
    }
}
