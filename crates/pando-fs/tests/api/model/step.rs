//! Steps of a sequence. Inodes are named by slots, counted modulo the handles there are, so that a sequence stays
//! one whatever is taken out of it.

use pando_device::simulated::Random;
use pando_fs::operations::{AllocateMode, Caller, FileType, ListAttributes, RenameMode, Seek, XattrMode};

/// Which operations a sequence is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mix {
    Everything,
    Names,
    /// Names, most files having several.
    Links,
    /// Names, links and writes, with many clones.
    Clones,
    Data,
    /// Names, links, writes and clones, with many snapshots that go to another volume.
    Snapshots,
    /// Copies at equal offsets among a few files of some MiB, which are snapshots and clones now and then.
    Shares,
}

/// One step.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    Lookup {
        directory: u64,
        name: u64,
    },
    Make {
        directory: u64,
        name: u64,
        file_type: FileType,
        mode: u32,
        uid: u32,
    },
    Temporary {
        directory: u64,
    },
    Link {
        inode: u64,
        directory: u64,
        name: u64,
    },
    Remove {
        directory: u64,
        name: u64,
        is_directory: bool,
    },
    Rename {
        from: u64,
        name: u64,
        to: u64,
        new_name: u64,
        mode: RenameMode,
    },
    Clone {
        source: u64,
        directory: u64,
        name: u64,
        uid: u32,
    },
    TakeSnapshot {
        name: u64,
        writable: bool,
    },
    LookupSnapshot {
        name: u64,
    },
    DeleteSnapshot {
        name: u64,
    },
    /// With what is in use, or as after a crash.
    RollBack {
        name: u64,
        in_use: bool,
    },
    Write {
        file: u64,
        offset: u64,
        length: u64,
        byte: u8,
        /// At the end of the file, whatever the offset says.
        append: bool,
        kill_set_id: bool,
    },
    Read {
        file: u64,
        offset: u64,
        length: u64,
    },
    Resize {
        file: u64,
        size: u64,
    },
    Mode {
        inode: u64,
        mode: u32,
    },
    Owner {
        inode: u64,
        uid: Option<u32>,
        gid: Option<u32>,
    },
    Times {
        inode: u64,
        seconds: i64,
    },
    Allocate {
        file: u64,
        mode: AllocateMode,
        offset: u64,
        length: u64,
    },
    Copy {
        from: u64,
        from_offset: u64,
        to: u64,
        to_offset: u64,
        length: u64,
    },
    /// At the same offset of both files, call by call until all is done.
    CopyInPlace {
        from: u64,
        to: u64,
        offset: u64,
        length: u64,
    },
    /// A snapshot goes to another volume, whole or as changes, under a name that takes the place of what had it there. `cut`
    /// comes first: only so many 1024ths of the stream.
    Send {
        name: u64,
        base: Option<u64>,
        to: u64,
        cut: Option<u64>,
    },
    Seek {
        file: u64,
        offset: u64,
        what: Seek,
    },
    List {
        directory: u64,
        room: u64,
        attributes: ListAttributes,
    },
    SetXattr {
        inode: u64,
        name: u64,
        length: u64,
        mode: XattrMode,
    },
    RemoveXattr {
        inode: u64,
        name: u64,
    },
    SetAcl {
        inode: u64,
        is_default: bool,
        seed: u64,
        kill_set_group_id: bool,
    },
    Forget {
        inode: u64,
    },
    Compare,
    Crash,
}

/// Longest file, so that the model's copies stay cheap.
const SIZE: u64 = 60_000;

/// A seeded sequence.
pub fn sequence(seed: u64, mix: Mix, length: usize) -> Vec<Step> {
    let mut random = Random::new(seed);
    (0..length).map(|_| step(&mut random, mix)).collect()
}

fn one_of<T: Copy>(random: &mut Random, of: &[T]) -> T {
    of[random.below(of.len() as u64) as usize]
}

fn rename_mode(random: &mut Random) -> RenameMode {
    let uid = one_of(random, &[0, 7]);
    let caller = Caller { uid, gid: uid, umask: 0o027 };
    match random.below(6) {
        0..3 => RenameMode::Replace,
        3 => RenameMode::Exchange,
        4 => RenameMode::NoReplace,
        _ => RenameMode::Whiteout { caller, replace: random.chance(2, 3) },
    }
}

fn offset(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => random.below(SIZE / 4096) * 4096,
        1 => random.below(2 * 4096),
        _ => random.below(SIZE),
    }
}

fn length(random: &mut Random) -> u64 {
    match random.below(4) {
        0 => random.below(20),
        1 => 4096,
        2 => random.below(4 * 4096),
        _ => 4096 * random.below(4),
    }
}

fn step(random: &mut Random, mix: Mix) -> Step {
    let choice = match mix {
        Mix::Everything => random.below(118),
        Mix::Names => random.below(56),
        // One in four makes a link; writes see to it that there is something to be moved.
        Mix::Links => {
            if random.chance(1, 4) {
                99
            } else {
                random.below(66)
            }
        }
        // One in five is a clone, one in nine a link, one in eighteen something with snapshots.
        Mix::Clones => match random.below(9) {
            0 | 1 => 106,
            2 => 99,
            3 if random.chance(1, 2) => 109 + random.below(7),
            4 if random.chance(1, 4) => 116,
            _ => random.below(66),
        },
        Mix::Snapshots => match random.below(12) {
            0 => 109 + random.below(5),
            1 | 2 => 114,
            3 => 106,
            4 => 99,
            _ => random.below(66),
        },
        Mix::Shares => return share_step(random),
        // Some files first, then what is done to their data.
        Mix::Data => {
            if random.chance(1, 8) {
                5
            } else {
                50 + random.below(42)
            }
        }
    };
    let slot = |random: &mut Random| random.below(64);
    let name = |random: &mut Random| random.below(5);
    let uid = |random: &mut Random| one_of(random, &[0, 0, 0, 7]);
    match choice {
        0..4 => Step::Lookup { directory: slot(random), name: name(random) },
        4..16 => Step::Make {
            directory: slot(random),
            name: name(random),
            file_type: if mix == Mix::Data || (mix == Mix::Links && random.chance(1, 2)) {
                FileType::Regular
            } else {
                one_of(
                    random,
                    &[
                        FileType::Regular,
                        FileType::Regular,
                        FileType::Directory,
                        FileType::Directory,
                        FileType::Directory,
                        FileType::Symlink,
                        FileType::Fifo,
                    ],
                )
            },
            mode: one_of(random, &[0o755, 0o644, 0o1777, 0o2775, 0o6755]),
            uid: uid(random),
        },
        16 => Step::Temporary { directory: slot(random) },
        17..27 => {
            Step::Remove { directory: slot(random), name: name(random), is_directory: random.chance(1, 2) }
        }
        27..40 => Step::Rename {
            from: slot(random),
            name: name(random),
            to: slot(random),
            new_name: name(random),
            mode: rename_mode(random),
        },
        40..44 => {
            use ListAttributes::{OfAll, OfAllButOneFile, OfDirectories, OfNone};
            let (directory, room) = (slot(random), 1 + random.below(4));
            let attributes = [OfNone, OfDirectories, OfAllButOneFile, OfAll][random.below(4) as usize];
            Step::List { directory, room, attributes }
        }
        44..50 => Step::Forget { inode: slot(random) },
        50 => Step::Compare,
        51 => Step::Crash,
        52..66 => Step::Write {
            file: slot(random),
            offset: offset(random),
            length: length(random),
            byte: 1 + random.below(255) as u8,
            append: random.chance(1, 5),
            kill_set_id: random.chance(1, 3),
        },
        66..70 => Step::Read { file: slot(random), offset: offset(random), length: length(random) },
        70..76 => Step::Resize { file: slot(random), size: offset(random) },
        76..82 => Step::Allocate {
            file: slot(random),
            mode: one_of(
                random,
                &[
                    AllocateMode::PunchHole,
                    AllocateMode::PunchHole,
                    AllocateMode::ZeroRange { keep_size: true },
                    AllocateMode::ZeroRange { keep_size: false },
                    AllocateMode::Allocate { keep_size: false },
                    AllocateMode::Allocate { keep_size: true },
                ],
            ),
            offset: offset(random),
            length: 1 + length(random),
        },
        82..86 => Step::Copy {
            from: slot(random),
            from_offset: offset(random),
            to: slot(random),
            to_offset: offset(random),
            length: length(random),
        },
        86..90 => Step::Seek {
            file: slot(random),
            offset: offset(random),
            what: one_of(random, &[Seek::Data, Seek::Hole]),
        },
        90..92 => Step::Mode { inode: slot(random), mode: random.below(0o10000) as u32 },
        92 => Step::Owner {
            inode: slot(random),
            uid: one_of(random, &[None, Some(7)]),
            gid: one_of(random, &[None, Some(8)]),
        },
        93 => Step::Times { inode: slot(random), seconds: random.below(1 << 33) as i64 - (1 << 32) },
        94..98 => Step::SetXattr {
            inode: slot(random),
            name: random.below(4),
            length: one_of(random, &[0, 10, 512, 513, 5000]),
            mode: one_of(random, &[XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace]),
        },
        98 => Step::RemoveXattr { inode: slot(random), name: random.below(6) },
        99 => Step::Link { inode: slot(random), directory: slot(random), name: name(random) },
        109 | 110 => {
            let writable = if mix == Mix::Snapshots { random.chance(1, 5) } else { random.chance(1, 2) };
            Step::TakeSnapshot { name: random.below(3), writable }
        }
        111 => Step::DeleteSnapshot { name: random.below(3) },
        112 => Step::RollBack { name: random.below(3), in_use: random.chance(3, 4) },
        113 => Step::LookupSnapshot { name: random.below(3) },
        114 | 115 => send_step(random),
        // Small files are shared whole.
        116 | 117 => Step::CopyInPlace {
            from: slot(random),
            to: slot(random),
            offset: 0,
            length: 16_384 + offset(random),
        },
        106.. => Step::Clone {
            source: slot(random),
            directory: slot(random),
            name: name(random),
            uid: one_of(random, &[0, 0, 0, 0, 0, 7]),
        },
        _ => Step::SetAcl {
            inode: slot(random),
            is_default: random.chance(1, 2),
            seed: random.bits(),
            kill_set_group_id: random.chance(1, 4),
        },
    }
}

fn send_step(random: &mut Random) -> Step {
    Step::Send {
        name: random.below(3),
        base: random.chance(1, 2).then(|| random.below(3)),
        to: random.below(4),
        cut: random.chance(1, 4).then(|| random.below(1024)),
    }
}

/// What can be shared of a file whose end is not copied.
const UNIT: u64 = 1 << 20;

/// Longest of the files that are shared.
const SHARED_SIZE: u64 = 3 * UNIT + UNIT / 2;

/// At a border of units, near one, or anywhere.
fn shared_offset(random: &mut Random) -> u64 {
    let border = random.below(4) * UNIT;
    match random.below(8) {
        0..4 => border,
        4 => border + random.below(3 * 4096),
        5 => border.saturating_sub(random.below(3 * 4096)),
        _ => random.below(SHARED_SIZE / 4096) * 4096 + random.below(2) * random.below(4096),
    }
}

fn share_step(random: &mut Random) -> Step {
    let slot = |random: &mut Random| random.below(64);
    match random.below(100) {
        // Few files, so that copies come to the same ones.
        0..8 => Step::Make {
            directory: 0,
            name: random.below(5),
            file_type: FileType::Regular,
            mode: 0o644,
            uid: 0,
        },
        8..34 => Step::Write {
            file: slot(random),
            offset: shared_offset(random),
            length: one_of(random, &[1, 4096, 5000, 20_000, 100_000]),
            byte: 1 + random.below(255) as u8,
            append: false,
            kill_set_id: false,
        },
        34..64 => Step::CopyInPlace {
            from: slot(random),
            to: slot(random),
            offset: shared_offset(random),
            length: match random.below(4) {
                0 => SHARED_SIZE,
                1 => (1 + random.below(3)) * UNIT,
                2 => random.below(SHARED_SIZE),
                _ => 16_384 + random.below(4096),
            },
        },
        64..70 => Step::Resize { file: slot(random), size: shared_offset(random) },
        70..76 => Step::Allocate {
            file: slot(random),
            mode: one_of(random, &[AllocateMode::PunchHole, AllocateMode::ZeroRange { keep_size: false }]),
            offset: shared_offset(random),
            length: one_of(random, &[1, 4096, 30_000, UNIT]),
        },
        76..82 => Step::Read { file: slot(random), offset: shared_offset(random), length: 50_000 },
        82..86 => Step::Seek {
            file: slot(random),
            offset: shared_offset(random),
            what: one_of(random, &[Seek::Data, Seek::Hole]),
        },
        86 => Step::Remove { directory: 0, name: random.below(5), is_directory: false },
        87 => Step::Rename {
            from: 0,
            name: random.below(5),
            to: 0,
            new_name: random.below(5),
            mode: one_of(random, &[RenameMode::Replace, RenameMode::Exchange]),
        },
        88 => Step::Clone { source: slot(random), directory: 0, name: random.below(5), uid: 0 },
        89..93 => Step::Lookup { directory: 0, name: random.below(5) },
        93 => Step::TakeSnapshot { name: random.below(3), writable: random.chance(1, 2) },
        94 => Step::DeleteSnapshot { name: random.below(3) },
        95 => Step::RollBack { name: random.below(3), in_use: true },
        96 => send_step(random),
        97 => Step::Compare,
        98 if random.chance(1, 4) => Step::Crash,
        _ => Step::Link { inode: slot(random), directory: 0, name: random.below(5) },
    }
}
