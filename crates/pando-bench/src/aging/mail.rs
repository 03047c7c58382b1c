//! A mail server (FAST17 7): a file a message, delivered as into a Maildir: written under another name, synced, renamed.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;

use super::grep_cost::age;
use crate::error::{Error, at};
use crate::generate::{Random, fill};
use crate::row::Measurement;
use crate::volume::Volume;

const MAILBOXES: u64 = 16;
/// In each mailbox at the beginning, in the short run and in the full one.
const MESSAGES: [u64; 2] = [200, 500];
const MESSAGE_BYTES_MAX: u64 = 32 << 10;
const DAYS: u64 = 20;
/// Of each day.
const OPERATIONS: [u64; 2] = [500, 2000];

/// The messages of all mailboxes, by number.
struct Server<'a> {
    top: &'a Path,
    random: Random,
    next: u64,
    messages: Vec<(u64, u64)>,
}

impl Server<'_> {
    fn deliver(&mut self, mailbox: u64) -> Result<(), Error> {
        let number = self.next;
        self.next += 1;
        let mut text = vec![0; 1 + self.random.below(MESSAGE_BYTES_MAX) as usize];
        fill(&mut text, number);
        let directory = self.top.join(mailbox.to_string());
        let [unfinished, path] = ["tmp", "cur"].map(|part| directory.join(part).join(number.to_string()));
        let written = File::create(&unfinished).and_then(|mut file| {
            file.write_all(&text)?;
            file.sync_all()
        });
        at("cannot write", &unfinished, written)?;
        at("cannot rename", &unfinished, fs::rename(&unfinished, &path))?;
        self.messages.push((mailbox, number));
        Ok(())
    }

    fn delete(&mut self) -> Result<(), Error> {
        let index = self.random.below(self.messages.len() as u64) as usize;
        let (mailbox, number) = self.messages.swap_remove(index);
        let path = self.top.join(mailbox.to_string()).join("cur").join(number.to_string());
        at("cannot remove", &path, fs::remove_file(&path))
    }
}

/// Ages, and looks at every fifth day.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    let top = volume.root.join("mail");
    let full = usize::from(volume.options.full);
    let mut server = Server { top: &top, random: Random(11), next: 0, messages: Vec::new() };
    age(volume, &top, (DAYS, 5), |day| {
        if day == 0 {
            for mailbox in 0..MAILBOXES {
                for part in ["tmp", "cur"] {
                    let directory = top.join(mailbox.to_string()).join(part);
                    at("cannot create", &directory, fs::create_dir_all(&directory))?;
                }
                (0..MESSAGES[full]).try_for_each(|_| server.deliver(mailbox))?;
            }
            return Ok(());
        }
        for _ in 0..OPERATIONS[full] {
            if server.random.below(2) == 0 && server.messages.len() > 1 {
                server.delete()?;
            } else {
                let mailbox = server.random.below(MAILBOXES);
                server.deliver(mailbox)?;
            }
        }
        Ok(())
    })
}
