//! Dovecot's IMAP server with clients of our own (EUROSYS22 7.2): half of the operations read a message, the others mark,
//! move or delete one. A message is a file of a Maildir.

mod client;

use std::fs;
use std::io::Write;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::Instant;

use self::client::Client;
use super::server::{self, HOME, Server};
use crate::error::{Error, at};
use crate::generate::Random;
use crate::row::Measurement;
use crate::trace::load_bytes;
use crate::volume::Volume;

const FOLDERS: u64 = 10;
/// Of each folder, in the short run and in the full one.
const MESSAGES: [u64; 2] = [500, 2500];
const MESSAGE_BYTES_MAX: u64 = 32 << 10;
const CLIENTS: u64 = 8;
/// Of each client.
const OPERATIONS: [u64; 2] = [250, 10_000];
/// A port may be taken between being found free and being used.
const PORTS_TRIED: u64 = 3;

/// Whether the server's programs are there, of the versions whose configuration is known here.
pub fn is_installed() -> bool {
    let version = || std::process::Command::new("/usr/sbin/dovecot").arg("--version").output();
    Path::new("/usr/lib/dovecot/imap").is_file()
        && version().is_ok_and(|output| output.stdout.starts_with(b"2.3."))
}

fn home(volume: &Volume) -> PathBuf {
    server::home(volume, "imap")
}

fn folder(number: u64) -> String {
    format!("folder-{number}")
}

fn of_run(volume: &Volume, values: [u64; 2]) -> u64 {
    values[usize::from(volume.options.full)]
}

/// Folders of messages, as a delivery puts them there.
pub fn prepare(volume: &Volume) -> Result<(), Error> {
    let home = home(volume);
    server::renew(&home)?;
    let mail = home.join("mail");
    let mut random = Random(23);
    for number in 0..FOLDERS {
        // Maildir++: folders are directories whose names begin with a dot.
        let place = mail.join(format!(".{}", folder(number)));
        for part in ["cur", "new", "tmp"] {
            let directory = place.join(part);
            at("cannot create", &directory, fs::create_dir_all(&directory))?;
        }
        for message in 0..of_run(volume, MESSAGES) {
            let path = place.join("cur").join(format!("1600000000.M{message}P{number}.bench:2,"));
            at("cannot write", &path, fs::write(&path, text(&mut random, message)))?;
        }
    }
    server::own(&home)?;
    volume.sync()
}

/// A message with a body of letters in lines.
fn text(random: &mut Random, number: u64) -> Vec<u8> {
    let mut text =
        format!("From: bench@localhost\nTo: bench@localhost\nSubject: message {number}\n\n").into_bytes();
    let end = text.len() as u64 + 1 + random.below(MESSAGE_BYTES_MAX);
    while (text.len() as u64) < end {
        text.extend_from_slice(
            format!(
                "{:016x}{:016x}{:016x}{:016x}\n",
                random.next(),
                random.next(),
                random.next(),
                random.next()
            )
            .as_bytes(),
        );
    }
    text
}

/// No line of it may be missing: the defaults need root, or write to places outside of the volume.
fn configuration(port: u16, password: &str) -> String {
    format!(
        "protocols = imap
base_dir = /run/dovecot
state_dir = /run/dovecot
default_internal_user = nobody
default_internal_group = nogroup
default_login_user = nobody
log_path = /dev/stderr
info_log_path = /dev/null
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{HOME}/mail
mail_max_userip_connections = 100
passdb {{
  driver = static
  args = password={password}
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={HOME}
}}
service anvil {{
  chroot =
}}
service imap-login {{
  chroot =
  inet_listener imap {{
    address = 127.0.0.1
    port = {port}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
service stats {{
  chroot =
}}
"
    )
}

/// 128 random bits in letters.
fn password() -> Result<String, Error> {
    let source = Path::new("/proc/sys/kernel/random/uuid");
    Ok(at("cannot read", source, fs::read_to_string(source))?.trim_end().to_owned())
}

/// Starts the server; it, its port and the password.
fn start(volume: &Volume) -> Result<(Server, u16, String), Error> {
    let home = home(volume);
    let password = password()?;
    let mut tries = 0;
    loop {
        tries += 1;
        let any = Path::new("127.0.0.1");
        let port = at(
            "cannot listen at",
            any,
            TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()),
        )?;
        let port = port.port();
        let path = home.join("dovecot.conf");
        let mut file = at("cannot create", &path, fs::File::create(&path))?;
        let private = <fs::Permissions as std::os::unix::fs::PermissionsExt>::from_mode(0o600);
        at("cannot protect", &path, file.set_permissions(private))?;
        at("cannot write", &path, file.write_all(configuration(port, &password).as_bytes()))?;
        server::own(&path)?;
        let words = ["/usr/sbin/dovecot", "-F", "-c", &format!("{HOME}/dovecot.conf")];
        let mut server = Server::start("Dovecot", &home, &words)?;
        match server.wait_for(|| Client::connect(port, &password)) {
            Ok(_) => return Ok((server, port, password)),
            Err(error) if tries == PORTS_TRIED => return Err(error),
            Err(_) => {}
        }
    }
}

/// Operations a second.
pub fn run(volume: &Volume) -> Result<Measurement, Error> {
    // Most of what is written goes through sockets first.
    load_bytes::are(0);
    let (server, port, password) = start(volume)?;
    let operations = of_run(volume, OPERATIONS);
    let begin = Instant::now();
    let ended = super::in_threads(CLIENTS, |number| one_client(port, &password, operations, number));
    let synced = ended.map_err(|error| server.explain(error)).and_then(|()| volume.sync());
    let measurement = Measurement::rate(begin, (CLIENTS * operations) as f64);
    server.stop()?;
    synced.map(|()| measurement)
}

fn one_client(port: u16, password: &str, operations: u64, number: u64) -> Result<(), Error> {
    let mut random = Random(number);
    let mut client = Client::connect(port, password)?;
    for _ in 0..operations {
        // Somebody else may have taken the last message of a folder.
        let mut count = 0;
        while count == 0 {
            count = client.select(&folder(random.below(FOLDERS)))?;
        }
        let message = 1 + random.below(count);
        match random.below(6) {
            0..=2 => client.fetch(message)?,
            3 => client.mark(message)?,
            4 => client.move_to(message, &folder(random.below(FOLDERS)))?,
            _ => client.delete(message)?,
        }
    }
    client.logout()
}
