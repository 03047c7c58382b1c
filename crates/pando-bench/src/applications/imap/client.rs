//! As much of an IMAP client (RFC 3501, RFC 6851) as the load needs.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use crate::error::Error;

/// For an answer of the server, which may wait for the disk.
const PATIENCE: Duration = Duration::from_secs(300);

/// A connection of a user who has logged in.
pub struct Client {
    stream: BufReader<TcpStream>,
    tag: u64,
    /// Messages in the selected folder, as the server last said.
    count: u64,
}

fn broken(error: std::io::Error) -> Error {
    Error::Program(format!("the IMAP server does not answer: {error}"))
}

impl Client {
    /// Connects to a server on this machine.
    pub fn connect(port: u16, password: &str) -> Result<Client, Error> {
        let stream = TcpStream::connect(("127.0.0.1", port)).map_err(broken)?;
        stream.set_read_timeout(Some(PATIENCE)).and_then(|()| stream.set_nodelay(true)).map_err(broken)?;
        let mut client = Client { stream: BufReader::new(stream), tag: 0, count: 0 };
        client.line()?;
        client.command(&format!("LOGIN bench {password}"))?;
        Ok(client)
    }

    /// Goes to a folder; how many messages are in it.
    pub fn select(&mut self, folder: &str) -> Result<u64, Error> {
        self.count = 0;
        self.command(&format!("SELECT {folder}"))?;
        Ok(self.count)
    }

    /// Reads a message.
    pub fn fetch(&mut self, message: u64) -> Result<(), Error> {
        self.command(&format!("FETCH {message} BODY[]"))
    }

    /// Marks a message.
    pub fn mark(&mut self, message: u64) -> Result<(), Error> {
        self.command(&format!("STORE {message} +FLAGS (\\Flagged)"))
    }

    /// Moves a message to another folder.
    pub fn move_to(&mut self, message: u64, folder: &str) -> Result<(), Error> {
        self.command(&format!("MOVE {message} {folder}"))
    }

    /// Deletes a message for good.
    pub fn delete(&mut self, message: u64) -> Result<(), Error> {
        self.command(&format!("STORE {message} +FLAGS.SILENT (\\Deleted)"))?;
        self.command("EXPUNGE")
    }

    /// Ends the connection in order.
    pub fn logout(mut self) -> Result<(), Error> {
        self.command("LOGOUT")
    }

    /// Sends a command and reads until it is answered. That another client has taken the message meanwhile is no error.
    fn command(&mut self, text: &str) -> Result<(), Error> {
        self.tag += 1;
        let tag = format!("a{} ", self.tag);
        self.stream.get_mut().write_all(format!("{tag}{text}\r\n").as_bytes()).map_err(broken)?;
        loop {
            let line = self.line()?;
            if let Some(answer) = line.strip_prefix(&tag) {
                if answer.starts_with("OK") || answer.contains("[EXPUNGEISSUED]") {
                    return Ok(());
                }
                let verb = text.split(' ').next().unwrap_or_default();
                return Err(Error::Wrong(format!("the IMAP server answers {verb} with {answer}")));
            }
            if let Some(count) = existing(&line) {
                self.count = count;
            }
        }
    }

    /// One line, its literals read and left out.
    fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        loop {
            let mut bytes = Vec::new();
            self.stream.read_until(b'\n', &mut bytes).map_err(broken)?;
            if bytes.is_empty() {
                return Err(broken(std::io::ErrorKind::UnexpectedEof.into()));
            }
            let part = String::from_utf8_lossy(&bytes);
            let part = part.trim_end();
            line.push_str(part);
            let Some(length) = literal(part) else { return Ok(line) };
            let skipped = std::io::copy(&mut self.stream.by_ref().take(length), &mut std::io::sink());
            if skipped.map_err(broken)? != length {
                return Err(broken(std::io::ErrorKind::UnexpectedEof.into()));
            }
        }
    }
}

/// The length of the literal that follows a line.
fn literal(line: &str) -> Option<u64> {
    line.strip_suffix('}')?.rsplit_once('{')?.1.parse().ok()
}

/// How many messages a line says that there are.
fn existing(line: &str) -> Option<u64> {
    line.strip_prefix("* ")?.strip_suffix(" EXISTS")?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read() {
        assert_eq!(literal("* 1 FETCH (BODY[] {342}"), Some(342));
        assert_eq!(literal("* 1 FETCH (FLAGS ())"), None);
        assert_eq!(literal("* OK {x}"), None);
        assert_eq!(existing("* 172 EXISTS"), Some(172));
        assert_eq!(existing("* 172 EXPUNGE"), None);
        assert_eq!(existing("* x EXISTS"), None);
    }
}
