//! The daemon's end of the control socket; see [`crate::control`] for what is said on it.
//!
//! It holds no strong reference to the file system, so that the volume is free once the daemon has let go of it. Two
//! locks: the turn of those who remount, which a client holds until its connection ends; and inside of it one for the list
//! of those who wait for the end, with nothing locked while it is held.

use std::fs::Permissions;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use pando_device::peer::peer;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::Pid;
use serde_json::{Value, json};

use crate::control::{FromPieces, Pieces, REQUEST_BYTES_MAX, check_directory, lock_directory, socket_in};

/// What is said before an answer is gathered to pieces of so many bytes.
const PIECE_BYTES: usize = 256 << 10;

/// So many threads listen while nobody asks. The one that hears a client serves it: to start a thread, or to wake one, takes as long as
/// most answers.
const LISTENING: usize = 2;

/// How long a listener rests that cannot have another connection, for want of descriptors say.
const REST: Duration = Duration::from_millis(50);

/// What the daemon answers to a request; `None` if there is no such request.
///
/// It is given the request's name and the whole of it, and what belongs to it.
pub type Answer = dyn Fn(&str, &Value, Talk<'_>) -> Option<Result<Value, String>> + Send + Sync;

/// What belongs to a request and its answer.
pub struct Talk<'a> {
    /// The process that asks, unless it is outside our pid namespace.
    pub peer: Option<Pid>,
    /// What follows the request.
    pub input: &'a mut dyn Read,
    /// What comes before the answer.
    pub output: &'a mut dyn Write,
}

/// A listening socket. Dropping it removes the socket's file; connections that are open are still served.
pub struct ControlServer {
    directory: PathBuf,
    path: PathBuf,
    /// The socket's own file, by inode number: another daemon's may be at the path by the time this one ends.
    inode: u64,
    listener: Arc<Listener>,
}

/// What the threads that listen share.
struct Listener {
    socket: UnixListener,
    closed: AtomicBool,
    answer: Arc<Answer>,
    end: Mutex<End>,
    /// Of who remounts this mount: what the kernel refuses and what the daemon refuses change together.
    turn: Mutex<()>,
    /// Threads that listen now.
    listening: AtomicUsize,
}

/// How the daemon ended, and who wants to know.
#[derive(Default)]
struct End {
    outcome: Option<Result<(), String>>,
    waiting: Vec<UnixStream>,
}

impl ControlServer {
    /// Listens for the mount with this device number, `major:minor`, in a directory that is made if need be.
    pub fn start(directory: &Path, device: &str, answer: Arc<Answer>) -> io::Result<Self> {
        // Root's is open to all, the sockets in it are not; others share /tmp.
        let root = rustix::process::geteuid().is_root();
        let made = std::fs::DirBuilder::new()
            .recursive(true)
            .mode(if root { 0o755 } else { 0o700 })
            .create(directory);
        made?;
        check_directory(directory, rustix::process::geteuid().as_raw())?;
        let path = socket_in(directory, device);
        let lock = lock_directory(directory)?;
        // One that is left from a daemon that has ended or is ending: the number is ours now.
        let _ = std::fs::remove_file(&path);
        // The umask is the whole process's, other threads make files by it. Whoever connects before the mode is right is not
        // served ([`serve`]).
        let socket = UnixListener::bind(&path)?;
        std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
        let inode = path.symlink_metadata()?.ino();
        drop(lock);
        let listener = Arc::new(Listener {
            socket,
            closed: AtomicBool::default(),
            answer,
            end: Mutex::default(),
            turn: Mutex::default(),
            listening: AtomicUsize::new(0),
        });
        let server = Self { directory: directory.to_owned(), path, inode, listener: listener.clone() };
        listener.start_thread()?;
        Ok(server)
    }

    /// Takes the socket's name away, if it is still ours. To be done as soon as the volume is unmounted.
    pub fn hide(&self) {
        // Without the lock it stays: the next daemon with this device number removes it.
        if let Ok(_lock) = lock_directory(&self.directory)
            && self.path.symlink_metadata().is_ok_and(|metadata| metadata.ino() == self.inode)
        {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Tells those who wait that the volume has been closed, or why that failed.
    pub fn finish(&self, outcome: Result<(), String>) {
        let waiting = {
            let mut end = self.listener.end.lock().unwrap_or_else(PoisonError::into_inner);
            end.outcome = Some(outcome.clone());
            std::mem::take(&mut end.waiting)
        };
        let line = line(outcome.map(|()| Value::Null));
        for mut stream in waiting {
            // Who has gone needs no answer.
            let _ = stream.write_all(line.as_bytes());
        }
    }
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        self.hide();
        self.listener.closed.store(true, Ordering::Release);
        // Ends the wait of those who listen; nobody finds the socket any more.
        let _ = rustix::net::shutdown(&self.listener.socket, rustix::net::Shutdown::Both);
    }
}

impl Listener {
    fn start_thread(self: &Arc<Self>) -> io::Result<()> {
        let listener = self.clone();
        self.listening.fetch_add(1, Ordering::AcqRel);
        let started =
            std::thread::Builder::new().name("pando-control".into()).spawn(move || listener.listen());
        if started.is_err() {
            self.listening.fetch_sub(1, Ordering::AcqRel);
        }
        started.map(drop)
    }

    /// Serves one client after the other, until enough others listen or the server is gone.
    fn listen(self: &Arc<Self>) {
        let another = |listening| (listening < LISTENING).then_some(listening + 1);
        while !self.closed.load(Ordering::Acquire) {
            let Ok((stream, _)) = self.socket.accept() else {
                std::thread::sleep(REST);
                continue;
            };
            if self.listening.fetch_sub(1, Ordering::AcqRel) == 1 {
                // Without another thread the next client waits until this one has been served.
                let _ = self.start_thread();
            }
            serve(stream, self);
            if self.listening.fetch_update(Ordering::AcqRel, Ordering::Acquire, another).is_err() {
                return;
            }
        }
    }
}

/// Serves one client until it hangs up or says something that is no request. Only root and the daemon's own user are clients.
fn serve(stream: UnixStream, listener: &Listener) {
    let Ok(peer) = peer(&stream) else { return };
    if !peer.uid.is_root() && peer.uid != rustix::process::geteuid() {
        return;
    }
    let Ok(mut writer) = stream.try_clone() else { return };
    // Ends with the connection, so also with a client that is killed.
    let mut turn = None;
    let mut reader = BufReader::new(stream);
    loop {
        let mut request = String::new();
        match reader.by_ref().take(REQUEST_BYTES_MAX).read_line(&mut request) {
            Ok(length) if length > 0 => {}
            _ => return,
        }
        if !request.ends_with('\n') {
            let why = format!("a request is a line of at most {REQUEST_BYTES_MAX} bytes");
            // Who does not listen need not know.
            let _ = writer.write_all(line(Err(why)).as_bytes());
            return;
        }
        let request: Option<Value> = serde_json::from_str(&request).ok();
        let name = request.as_ref().and_then(|request| request.get("request")).and_then(Value::as_str);
        let result = match name {
            // The first line says that the second will come, however soon the end is.
            Some("wait") => match until_end(&mut writer, &listener.end) {
                Some(outcome) => outcome.map(|()| Value::Null),
                None => return,
            },
            Some("remount") => {
                turn.get_or_insert_with(|| listener.turn.lock().unwrap_or_else(PoisonError::into_inner));
                Ok(Value::Null)
            }
            Some(name) => {
                let request = request.as_ref().unwrap_or(&Value::Null);
                let mut pieces = BufWriter::with_capacity(PIECE_BYTES, Pieces(&mut writer));
                let mut input = FromPieces::new(&mut reader);
                let talk = Talk { peer: peer.pid, input: &mut input, output: &mut pieces };
                let result = (listener.answer)(name, request, talk);
                let result = result.unwrap_or_else(|| Err(format!("there is no request '{name}'")));
                if pieces.flush().is_err() {
                    return;
                }
                if name == "receive" && result.is_err() {
                    // What is still to come is no request. Nobody may be left to hear why.
                    drop(pieces);
                    let _ = writer.write_all(line(result).as_bytes());
                    return;
                }
                result
            }
            None => Err("a request is a line such as {\"request\":\"info\"}".to_owned()),
        };
        if writer.write_all(line(result).as_bytes()).is_err() {
            return;
        }
    }
}

/// Tells the client that it is heard. Then the outcome if it is known, else the client is kept for
/// [`ControlServer::finish`].
fn until_end(client: &mut UnixStream, end: &Mutex<End>) -> Option<Result<(), String>> {
    let mut end = end.lock().unwrap_or_else(PoisonError::into_inner);
    client.write_all(line(Ok(Value::Null)).as_bytes()).ok()?;
    if end.outcome.is_none() {
        // Whose unmount failed has gone, and may come again and again.
        end.waiting.retain(|waiting| !has_hung_up(waiting));
        end.waiting.extend(client.try_clone());
    }
    end.outcome.clone()
}

fn has_hung_up(client: &UnixStream) -> bool {
    // What is not asked for, the kernel tells all the same: that the other end is closed, and errors.
    let mut ends = [PollFd::new(client, PollFlags::empty())];
    poll(&mut ends, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|told| told > 0)
}

fn line(result: Result<Value, String>) -> String {
    let answer = match result {
        Ok(value) => json!({ "ok": value }),
        Err(sentence) => json!({ "error": sentence }),
    };
    format!("{answer}\n")
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    fn ask(stream: &UnixStream, line: &str) -> Value {
        (&mut &*stream).write_all(line.as_bytes()).unwrap();
        let mut answer = String::new();
        BufReader::new(stream).read_line(&mut answer).unwrap();
        serde_json::from_str(&answer).unwrap()
    }

    fn server(directory: &Path) -> ControlServer {
        let answer = |request: &str, _: &Value, _: Talk<'_>| match request {
            "info" => Some(Ok(json!({ "pid": 7 }))),
            "sync" => Some(Err("the device is gone".to_owned())),
            _ => None,
        };
        ControlServer::start(&directory.join("pando"), "0:52", Arc::new(answer)).unwrap()
    }

    #[test]
    fn requests_are_answered_line_by_line() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        let stream = UnixStream::connect(directory.path().join("pando/0-52.socket")).unwrap();
        assert_eq!(ask(&stream, "{\"request\":\"info\"}\n"), json!({ "ok": { "pid": 7 } }));
        assert_eq!(ask(&stream, "{\"request\":\"sync\"}\n"), json!({ "error": "the device is gone" }));
        assert_eq!(
            ask(&stream, "{\"request\":\"explode\"}\n"),
            json!({ "error": "there is no request 'explode'" })
        );
        assert!(ask(&stream, "rubbish\n").get("error").is_some());
        assert_eq!(
            ask(&stream, "{\"request\":\"receive\"}\n"),
            json!({ "error": "there is no request 'receive'" })
        );
        drop(server);
        assert!(!directory.path().join("pando/0-52.socket").exists());
    }

    /// A daemon that closed its volume took away the socket of the mount that had got its device number meanwhile.
    #[test]
    fn the_socket_of_a_later_mount_with_the_same_number_stays() {
        let directory = tempfile::tempdir().unwrap();
        let earlier = server(directory.path());
        let later = server(directory.path());
        drop(earlier);
        let stream = UnixStream::connect(directory.path().join("pando/0-52.socket")).unwrap();
        assert_eq!(ask(&stream, "{\"request\":\"info\"}\n"), json!({ "ok": { "pid": 7 } }));
        drop(later);
        assert!(!directory.path().join("pando/0-52.socket").exists());
    }

    #[test]
    fn who_waits_hears_of_the_end() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        let path = directory.path().join("pando/0-52.socket");
        let read = |stream: &UnixStream| {
            let mut answer = String::new();
            let mut byte = [0];
            while !answer.ends_with('\n') && (&mut &*stream).read(&mut byte).unwrap() > 0 {
                answer.push(byte[0].into());
            }
            serde_json::from_str::<Value>(&answer).unwrap()
        };
        let early = UnixStream::connect(&path).unwrap();
        (&mut &early).write_all(b"{\"request\":\"wait\"}\n").unwrap();
        assert_eq!(read(&early), json!({ "ok": null }));
        let late = UnixStream::connect(&path).unwrap();
        server.finish(Err("the device is full".to_owned()));
        (&mut &late).write_all(b"{\"request\":\"wait\"}\n").unwrap();
        assert_eq!(read(&late), json!({ "ok": null }));
        for stream in [early, late] {
            assert_eq!(read(&stream), json!({ "error": "the device is full" }));
        }
    }

    /// Those in opposite directions left the kernel read-write and the daemon refusing changes, or the reverse.
    #[test]
    fn who_remounts_waits_for_the_end_of_who_does() {
        let directory = tempfile::tempdir().unwrap();
        let _server = server(directory.path());
        let has_answer = |client: &UnixStream| {
            let mut told = [PollFd::new(client, PollFlags::IN)];
            poll(&mut told, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).unwrap() > 0
        };
        let connect = || UnixStream::connect(directory.path().join("pando/0-52.socket")).unwrap();
        let [first, second, other] = [connect(), connect(), connect()];
        for _again in 0..2 {
            assert_eq!(ask(&first, "{\"request\":\"remount\"}\n"), json!({ "ok": null }));
        }
        (&mut &second).write_all(b"{\"request\":\"remount\"}\n").unwrap();
        assert_eq!(ask(&other, "{\"request\":\"info\"}\n"), json!({ "ok": { "pid": 7 } }));
        assert!(!has_answer(&second), "it is another one's turn");
        drop(first);
        let mut answer = String::new();
        BufReader::new(&second).read_line(&mut answer).unwrap();
        assert_eq!(answer, "{\"ok\":null}\n");
    }

    /// Each try to unmount a mount in use left a descriptor open, until there were none for other clients.
    #[test]
    fn who_waits_no_longer_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        for _ in 0..100 {
            let stream = UnixStream::connect(directory.path().join("pando/0-52.socket")).unwrap();
            assert_eq!(ask(&stream, "{\"request\":\"wait\"}\n"), json!({ "ok": null }));
        }
        assert_eq!(server.listener.end.lock().unwrap().waiting.len(), 1, "only the last one is remembered");
    }

    /// Does something as a user who owns nothing, if this process may become one.
    fn as_nobody(call: impl FnOnce() + Send) {
        // A thread's user is its own, as far as the system calls are made without the C library.
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let nobody = rustix::fs::Uid::from_raw(65_534);
                if rustix::thread::set_thread_res_uid(nobody, nobody, nobody).is_ok() {
                    call();
                }
            });
            thread.join().unwrap()
        });
    }

    #[test]
    fn only_its_user_is_served() {
        let directory = tempfile::tempdir().unwrap();
        let server = server(directory.path());
        let path = directory.path().join("pando/0-52.socket");
        let mode = |path: &Path| path.symlink_metadata().unwrap().mode() & 0o777;
        assert_eq!(mode(&path), 0o600, "others may not connect");
        let parent = path.parent().unwrap();
        assert_eq!(mode(parent) & 0o022, 0, "others may not put a socket there");
        assert_eq!(mode(&parent.join("lock")), 0o600, "others may not hold the lock");
        // As if somebody had connected before the mode was right.
        for open in [directory.path(), parent, &path] {
            std::fs::set_permissions(open, Permissions::from_mode(0o777)).unwrap();
        }
        let is_reached = AtomicBool::new(false);
        as_nobody(|| {
            // What lies above may be closed to others.
            let Ok(mut stream) = UnixStream::connect(&path) else { return };
            is_reached.store(true, Ordering::Relaxed);
            let mut answer = String::new();
            // It may be closed before the request is written.
            let _ = stream.write_all(b"{\"request\":\"info\"}\n");
            let _ = stream.shutdown(std::net::Shutdown::Write);
            let _ = stream.read_to_string(&mut answer);
            assert_eq!(answer, "", "a stranger was answered");
        });
        if !is_reached.into_inner() {
            println!("SKIPPED only_its_user_is_served: another user who gets to the socket needs root");
        }
        let stream = UnixStream::connect(&path).unwrap();
        assert_eq!(ask(&stream, "{\"request\":\"info\"}\n"), json!({ "ok": { "pid": 7 } }));
        drop(server);
    }

    /// Each mount of a snapshot has a socket of its own, and the daemon outlives it.
    #[test]
    fn a_server_that_is_gone_leaves_no_thread_and_no_descriptor() {
        let directory = tempfile::tempdir().unwrap();
        let answer: Arc<Answer> = Arc::new(|_: &str, _: &Value, _: Talk<'_>| None);
        let is_let_go = Arc::downgrade(&answer);
        let server = ControlServer::start(directory.path(), "0:53", answer).unwrap();
        // One that waits keeps nobody from being heard.
        let clients: Vec<_> =
            (0..4).map(|_| UnixStream::connect(directory.path().join("0-53.socket")).unwrap()).collect();
        for client in clients.iter().rev() {
            assert!(ask(client, "{\"request\":\"info\"}\n").get("error").is_some());
        }
        drop(clients);
        drop(server);
        // What its threads hold goes when they end.
        while is_let_go.strong_count() > 0 {
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_directory_that_others_can_change_is_not_used() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pando");
        let start = || ControlServer::start(&path, "0:52", Arc::new(|_: &str, _: &Value, _: Talk<'_>| None));
        let refused = |words: &str| match start() {
            Ok(_) => panic!("a socket was made"),
            Err(error) => assert!(error.to_string().contains(words), "{error}"),
        };
        std::fs::create_dir(&path).unwrap();
        for mode in [0o720, 0o702] {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            refused("can be changed by other users");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o755)).unwrap();
        drop(start().unwrap());
        // Not where that is up to others, or a name space knows one user only.
        if std::os::unix::fs::chown(&path, Some(65_534), None).is_ok() {
            refused("belongs to another user");
        }
        std::fs::remove_dir_all(&path).unwrap();
        std::os::unix::fs::symlink(directory.path(), &path).unwrap();
        refused("is none");
    }
}
