//! What the kernel believes of the links of files that lose names: of messages that move among mailboxes by link and unlink while others
//! list them, and of one file whose attributes others ask for; and what it believes of a mode that is asked for meanwhile.

use std::fs::{self, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags, XattrFlags};

use super::pattern::Random;
use super::tool::at;
use super::volume::Volume;
use super::{Context, Failure, Outcome};

const MAILBOXES: u64 = 4;
const MESSAGES: u64 = 60;
const CLIENTS: u64 = 8;

/// Attributes that a listing brings while a name is being unlinked make a count wrong in every second run of this time.
const TIME: Duration = Duration::from_secs(12);

/// Attributes that are asked for meanwhile made a count wrong in some of a hundred rounds, where the kernel kept them.
const ASKING_TIME: Duration = Duration::from_secs(4);

/// Threads that ask for the attributes of one file.
const ASKERS: usize = 3;

/// An access control list: the owner and the group may read and write, others nothing. Version, then tag, permissions and id of each entry.
const NOT_OTHERS: [u8; 28] = [
    2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 4, 0, 6, 0, 255, 255, 255, 255, 32, 0, 0, 0, 255, 255, 255,
    255,
];

/// Eight clients that each list a mailbox, and link, unlink, rename, look at or append to one of its messages.
pub fn run(context: &Context) -> Outcome {
    let volume = Volume::create(context, 1 << 30, &[])?;
    for mailbox in 0..MAILBOXES {
        let path = volume.root.join(mailbox.to_string());
        at("mkdir", &path, fs::create_dir(&path))?;
        for message in 0..MESSAGES {
            let path = path.join(format!("{message}.{mailbox}"));
            at("write", &path, fs::write(&path, [b'm'; 100]))?;
        }
    }
    let linked = std::thread::scope(|scope| {
        let root = &volume.root;
        let clients: Vec<_> = (0..CLIENTS).map(|number| scope.spawn(move || client(root, number))).collect();
        let ended = clients.into_iter().map(|client| client.join().expect("a client does not panic"));
        ended.sum::<Result<u64, Failure>>()
    })?;
    eprintln!("{linked} messages moved");
    if linked == 0 {
        return Err(Failure::Wrong("no message was moved".to_owned()));
    }
    while_asked(&volume.root)?;
    mode_while_asked(&volume.root)?;
    volume.finish()
}

/// A file that gets a second name and loses it, by unlink and by a rename of another file, while two threads ask for its attributes.
fn while_asked(root: &Path) -> Outcome {
    let [file, second, other] = ["file", "second", "other"].map(|name| root.join(name));
    at("write", &file, fs::write(&file, b"contents"))?;
    let end = Instant::now() + ASKING_TIME;
    let ask = |pause: Duration| {
        while Instant::now() < end {
            at("stat", &file, statx(&file, AtFlags::STATX_FORCE_SYNC).map_err(Into::into))?;
            std::thread::sleep(pause);
        }
        Ok(())
    };
    let lose = || {
        for round in 0.. {
            if Instant::now() > end {
                eprintln!("{round} names lost");
                break;
            }
            at("link", &file, fs::hard_link(&file, &second))?;
            if round % 2 == 1 {
                at("write", &other, fs::write(&other, b"other"))?;
                at("rename", &other, fs::rename(&other, &second))?;
            }
            at("unlink", &second, fs::remove_file(&second))?;
            let links = at("stat", &file, statx(&file, AtFlags::STATX_DONT_SYNC).map_err(Into::into))?;
            if links != 1 {
                return Err(Failure::Wrong(format!(
                    "one name is left, and the kernel says {links} in round {round}"
                )));
            }
        }
        Ok(())
    };
    std::thread::scope(|scope| {
        let (often, seldom) =
            (scope.spawn(|| ask(Duration::ZERO)), scope.spawn(|| ask(Duration::from_micros(100))));
        let lost = lose();
        let asked = [often, seldom].map(|asking| asking.join().expect("it does not panic"));
        asked.into_iter().collect::<Outcome>().and(lost)
    })
}

/// A file from which an access control list takes a right away, round after round, while other threads ask for its attributes; they wait when the
/// kernel's word is taken.
fn mode_while_asked(root: &Path) -> Outcome {
    let file = root.join("listed");
    at("write", &file, fs::write(&file, b"contents"))?;
    let end = Instant::now() + ASKING_TIME;
    let (turns, has_ended) = (Barrier::new(1 + ASKERS), AtomicBool::new(false));
    let change = || {
        at("chmod", &file, fs::set_permissions(&file, Permissions::from_mode(0o664)))?;
        turns.wait();
        let set = rustix::fs::setxattr(&file, "system.posix_acl_access", &NOT_OTHERS, XattrFlags::empty());
        turns.wait();
        at("setxattr", &file, set.map_err(Into::into))?;
        let mode = at("stat", &file, fs::metadata(&file))?.mode() & 0o7777;
        match mode {
            0o660 => Ok(()),
            _ => Err(Failure::Wrong(format!("the list says 660, and the kernel {mode:o}"))),
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..ASKERS {
            scope.spawn(|| {
                loop {
                    turns.wait();
                    if has_ended.load(Ordering::Relaxed) {
                        break;
                    }
                    // What the kernel makes of the answers is seen to above.
                    (0..3).for_each(|_| _ = statx(&file, AtFlags::STATX_FORCE_SYNC));
                    turns.wait();
                }
            });
        }
        let mut changed = Ok(());
        let mut rounds = 0;
        while changed.is_ok() && Instant::now() < end {
            changed = change();
            rounds += 1;
        }
        eprintln!("{rounds} rights taken away");
        has_ended.store(true, Ordering::Relaxed);
        turns.wait();
        changed
    })
}

/// How many links the kernel says that a file has.
fn statx(path: &Path, flags: AtFlags) -> rustix::io::Result<u32> {
    rustix::fs::statx(CWD, path, flags, StatxFlags::NLINK).map(|known| known.stx_nlink)
}

/// Returns how many messages it moved.
fn client(root: &Path, number: u64) -> Result<u64, Failure> {
    let mut random = Random::new(number);
    let end = Instant::now() + TIME;
    let mut moved = 0;
    for step in 0.. {
        if Instant::now() > end {
            break;
        }
        let mailbox = root.join(random.below(MAILBOXES).to_string());
        let names = names(&mailbox)?;
        if names.is_empty() {
            continue;
        }
        let name = &names[random.below(names.len() as u64) as usize];
        let message = mailbox.join(name);
        let to = root.join(random.below(MAILBOXES).to_string()).join(format!("{step}.by.{number}"));
        // Another client may be quicker at any of these.
        match random.below(6) {
            0 | 1 => match fs::hard_link(&message, &to) {
                Ok(()) => {
                    moved += 1;
                    unless_gone("unlink", &message, fs::remove_file(&message))?;
                }
                Err(error) if error.kind() == ErrorKind::NotFound => has_links(&message)?,
                Err(error) => at("link", &message, Err(error))?,
            },
            2 => {
                let renamed = name.strip_suffix('s').map_or_else(|| format!("{name}s"), str::to_owned);
                unless_gone("rename", &message, fs::rename(&message, mailbox.join(renamed)))?;
            }
            3 => unless_gone("stat", &message, fs::metadata(&message).map(drop))?,
            4 => unless_gone("read", &message, fs::read(&message).map(drop))?,
            _ => {
                let appended = fs::OpenOptions::new().append(true).open(&message);
                let appended = appended.and_then(|mut file| std::io::Write::write_all(&mut file, b"x"));
                unless_gone("append", &message, appended)?;
            }
        }
    }
    Ok(moved)
}

fn names(mailbox: &Path) -> Result<Vec<String>, Failure> {
    let entries = at("list", mailbox, fs::read_dir(mailbox))?;
    entries
        .map(|entry| Ok(at("list", mailbox, entry)?.file_name().into_string().expect("names are ASCII")))
        .collect()
}

fn unless_gone(what: &'static str, path: &Path, result: std::io::Result<()>) -> Result<(), Failure> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => at(what, path, result),
    }
}

/// Fails if the file is there, and the kernel believes that it has no name.
fn has_links(path: &Path) -> Result<(), Failure> {
    let known = statx(path, AtFlags::STATX_DONT_SYNC);
    let asked = fs::metadata(path).map(|found| found.nlink());
    match (known, asked) {
        (Ok(0), Ok(links @ 1..)) => {
            Err(Failure::Wrong(format!("{} has {links} links, and the kernel says 0", path.display())))
        }
        _ => Ok(()),
    }
}
