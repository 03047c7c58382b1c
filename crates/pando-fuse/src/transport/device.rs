//! Requests over /dev/fuse: read one, serve it, answer it with a write.

use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pando_fs::operations::ROOT;
use parking_lot::Mutex;
use rustix::io::Errno;

use super::ring::WayBack;
use super::{Reply, clone};
use crate::negotiate::{Agreement, Wishes, negotiate};
use crate::protocol::{
    Answer, Header, InitReply, InitRequest, Malformed, Operation, REQUEST_BYTES_MAX, answer_header,
    fixed_bytes, invalidate_attributes, opcode,
};
use crate::serve::Server;

/// Room for the largest request: a write with its headers, or an extended attribute with its name.
const BUFFER_BYTES: usize = REQUEST_BYTES_MAX as usize + 4096;

/// Pieces of an answer that are written as they are; IOV_MAX is 1024.
const PIECES_MAX: usize = 1000;

/// For how long forgets gather in the kernel.
const FORGETS_GATHER: Duration = Duration::from_millis(1);

/// How FORGETs are taken, which are sent one for each file that was deleted.
#[derive(Clone, Copy)]
pub(crate) enum Forgets<'a> {
    AsTheyCome,
    /// Those of [`FORGETS_GATHER`] with one read. Whoever deletes files would wake the thread that waits in its read for each of them. Only
    /// where nobody waits for what else it receives, thus not once the way back is taken. Whoever needs one sooner takes them ([`Gathered`]).
    InLotsUntil(&'a WayBack),
}

/// The forgets that gather in the kernel, for a thread that serves something else and cannot go on without them.
pub(crate) struct Gathered {
    /// Does not wait in its reads.
    device: Arc<Device>,
    buffer: Mutex<Vec<u8>>,
}

impl Gathered {
    pub(crate) fn of(device: &Device) -> io::Result<Self> {
        let device = device.clone_connection()?;
        rustix::io::ioctl_fionbio(&device.fd, true)?;
        Ok(Self { device: Arc::new(device), buffer: Mutex::new(vec![0; BUFFER_BYTES]) })
    }

    /// Serves what one read gives: all that have come, or as many as fit; or the request that came before them, where such come this way. Nothing
    /// if another thread is at it, or this one, in a call further up.
    pub(crate) fn take(&self, server: &Server) {
        if let Some(mut buffer) = self.buffer.try_lock()
            && let Ok(length) = rustix::io::read(&self.device.fd, &mut buffer[..])
        {
            // The thread that waits for requests meets the same nonsense.
            let _ = serve(&self.device, server, &buffer[..length]);
        }
    }
}

/// A descriptor of a connection. Answers must go out through the one that brought the request.
pub(crate) struct Device {
    fd: OwnedFd,
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self { fd }
    }

    /// Another descriptor of the same connection.
    pub(crate) fn clone_connection(&self) -> io::Result<Self> {
        clone::clone(&self.fd).map(Self::new)
    }

    /// Answers a request.
    pub(super) fn answer(&self, unique: u64, answer: &Answer) {
        let sent = match answer {
            Answer::Done => self.answer_with(unique, &[]),
            Answer::Record(record) => self.answer_with(unique, record.as_bytes()),
            Answer::Buffer(bytes) => self.answer_with(unique, bytes),
            Answer::Pieces(pieces) => self.answer_with_pieces(unique, pieces),
            Answer::Refused(errno) => self.refuse(unique, *errno),
            Answer::Later(..) => unreachable!("what comes later comes once"),
        };
        match sent {
            // The request is gone, with its connection or, when it was aborted, alone.
            Ok(()) | Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED | Errno::NOTCONN) => {}
            Err(errno) => {
                debug_assert!(errno != Errno::INVAL, "the kernel does not understand an answer");
                // Somebody waits for it.
                let _ = self.refuse(unique, Errno::IO);
            }
        }
    }

    fn answer_with(&self, unique: u64, body: &[u8]) -> Result<(), Errno> {
        let header = answer_header(unique, None, body.len());
        self.write(&[IoSlice::new(&header), IoSlice::new(body)])
    }

    fn answer_with_pieces(&self, unique: u64, pieces: &[Bytes]) -> Result<(), Errno> {
        if pieces.len() > PIECES_MAX {
            return self.answer_with(unique, &pando_fs::join(pieces));
        }
        let header = answer_header(unique, None, pieces.iter().map(Bytes::len).sum());
        let pieces = pieces.iter().map(|piece| IoSlice::new(piece));
        let slices: Vec<_> = std::iter::once(IoSlice::new(&header)).chain(pieces).collect();
        self.write(&slices)
    }

    fn refuse(&self, unique: u64, errno: Errno) -> Result<(), Errno> {
        self.write(&[IoSlice::new(&answer_header(unique, Some(errno), 0))])
    }

    /// Tells the kernel something of our own. It fails only where the kernel does not know the inode, or is gone.
    pub(crate) fn notify(&self, message: &[u8]) {
        let _ = self.write(&[IoSlice::new(message)]);
    }

    /// Whether the kernel still has the file system: it finds the root of it, whose attributes it asks for anew next time. It does so also
    /// when the connection was aborted, and nobody is waited for.
    pub(crate) fn has_file_system(&self) -> bool {
        self.write(&[IoSlice::new(&invalidate_attributes(ROOT.0))]) != Err(Errno::NOENT)
    }

    /// A message goes out whole or not at all.
    fn write(&self, slices: &[IoSlice<'_>]) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::io::writev(&self.fd, slices)).map(drop)
    }

    /// The next request into the buffer; `None` once it is unmounted, or was aborted by who tried that by force.
    fn read<'a>(&self, buffer: &'a mut [u8]) -> io::Result<Option<&'a [u8]>> {
        loop {
            match rustix::io::read(&self.fd, &mut *buffer) {
                Ok(length) => return Ok(Some(&buffer[..length])),
                // A request was aborted while it was handed over, or a signal came.
                Err(Errno::NOENT | Errno::INTR | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(None),
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

impl AsRawFd for Device {
    fn as_raw_fd(&self) -> RawFd {
        self.fd.as_raw_fd()
    }
}

/// Serves requests on this thread until the file system is unmounted, or somebody tries that by force. An error means that the connection
/// broke or was aborted otherwise.
pub(crate) fn receive(device: &Arc<Device>, server: &Server, forgets: Forgets<'_>) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER_BYTES];
    while let Some(bytes) = device.read(&mut buffer)? {
        let served = serve(device, server, bytes)?;
        let is_forget = matches!(served, opcode::FORGET | opcode::BATCH_FORGET);
        if is_forget && matches!(forgets, Forgets::InLotsUntil(way_back) if !way_back.is_taken()) {
            std::thread::sleep(FORGETS_GATHER);
        }
    }
    Ok(())
}

/// Serves one request, and tells which it was.
fn serve(device: &Arc<Device>, server: &Server, bytes: &[u8]) -> io::Result<u32> {
    let Ok((header, body)) = Header::decode(bytes) else { return Err(nonsense()) };
    let reply = Reply::through(device.clone(), header.unique);
    match decode(&header, body, server) {
        Ok(operation) => server.serve(&header, operation, reply),
        Err(_) => reply.send(Answer::Refused(Errno::INVAL)),
    }
    Ok(header.opcode)
}

fn decode(header: &Header, body: &[u8], server: &Server) -> Result<Operation, Malformed> {
    let layout = server.layout();
    let (fixed, rest) =
        body.split_at_checked(fixed_bytes(header.opcode, layout)).ok_or(Malformed::TooShort)?;
    Operation::decode(header, layout, fixed, rest)
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the kernel sends what is no request")
}

/// Agrees with the kernel on how to talk: the first request of a connection.
pub(crate) fn handshake(device: &Device, wishes: Wishes) -> io::Result<Agreement> {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let ended = || io::Error::new(io::ErrorKind::ConnectionAborted, "it was unmounted at once");
        let bytes = device.read(&mut buffer)?.ok_or_else(ended)?;
        let (header, body) = Header::decode(bytes).map_err(|_| nonsense())?;
        let refuse = |why: &str| {
            device.answer(header.unique, &Answer::Refused(Errno::PROTO));
            io::Error::new(io::ErrorKind::Unsupported, why.to_owned())
        };
        if header.opcode != opcode::INIT {
            return Err(refuse("it begins without a greeting"));
        }
        let offered = InitRequest::decode(body).map_err(|_| refuse("its greeting is too short"))?;
        if offered.is_newer() {
            device.answer(header.unique, &Answer::Record(InitReply::our_version()));
            continue;
        }
        if offered.is_too_old() {
            return Err(refuse("it is older than that of Linux 5.4"));
        }
        let (agreement, reply) = negotiate(&offered, wishes).map_err(refuse)?;
        device.answer(header.unique, &Answer::Record(reply.encode()));
        return Ok(agreement);
    }
}
