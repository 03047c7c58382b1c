//! What a mount does on request of a program, beside system calls: ioctl on an open file. `docs/ioctl.md` describes it for
//! programs of others.
//!
//! A clone needs two files, and an ioctl has one. So the daemon first gives who holds the source open a ticket, a proof
//! that it was let open it, and the request for the clone shows it. Tickets are made of a secret of the mount: there is nothing to
//! remember, and nothing to expire but the mount.

use std::hash::{BuildHasher, RandomState};
use std::os::fd::BorrowedFd;

use pando_fs::InodeNumber;
use rustix::io::Errno;
use rustix::ioctl::{Opcode, opcode};

use crate::transport::{REQUEST_TYPE, fuse_request};

const TICKET_BYTES: usize = 16;
const NAME_BYTES_MAX: usize = 255;
const CLONE_BYTES: usize = TICKET_BYTES + 1 + NAME_BYTES_MAX;

/// Gives a ticket for the file it is made on.
pub(crate) const IDENTIFY: Opcode = opcode::read::<[u8; TICKET_BYTES]>(REQUEST_TYPE, 1);
/// Clones what a ticket is for into the directory it is made on.
pub(crate) const CLONE: Opcode = opcode::write::<[u8; CLONE_BYTES]>(REQUEST_TYPE, 2);

/// Clones `source`, an open file or directory of a mount, to a new name in an open directory of the same mount; see
/// [`pando_fs::Operations::clone_tree`]. ENOTTY if it is no mount of PandoFS, EXDEV if it is another one.
pub fn clone_tree(source: BorrowedFd<'_>, directory: BorrowedFd<'_>, name: &[u8]) -> Result<(), Errno> {
    if rustix::fs::fstat(source)?.st_dev != rustix::fs::fstat(directory)?.st_dev {
        return Err(Errno::XDEV);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(Errno::NAMETOOLONG);
    }
    let mut ticket = [0; TICKET_BYTES];
    fuse_request::<IDENTIFY, TICKET_BYTES>(source, &mut ticket)?;
    let mut request = [0; CLONE_BYTES];
    request[..TICKET_BYTES].copy_from_slice(&ticket);
    request[TICKET_BYTES] = name.len() as u8;
    request[TICKET_BYTES + 1..][..name.len()].copy_from_slice(name);
    fuse_request::<CLONE, CLONE_BYTES>(directory, &mut request)
}

/// The daemon's side: gives tickets, and knows its own again.
#[derive(Default)]
pub(crate) struct Tickets {
    secret: RandomState,
}

impl Tickets {
    fn proof(&self, uid: u32, inode: InodeNumber) -> u64 {
        self.secret.hash_one((uid, inode))
    }

    /// A ticket for a user who holds an inode open.
    pub(crate) fn issue(&self, uid: u32, inode: InodeNumber) -> [u8; TICKET_BYTES] {
        let mut ticket = [0; TICKET_BYTES];
        ticket[..8].copy_from_slice(&inode.0.to_le_bytes());
        ticket[8..].copy_from_slice(&self.proof(uid, inode).to_le_bytes());
        ticket
    }

    /// What a request for a clone names: the source, and the name. EINVAL where it makes no sense, EACCES if the ticket is not
    /// this user's.
    pub(crate) fn clone_request<'a>(
        &self,
        uid: u32,
        request: &'a [u8],
    ) -> Result<(InodeNumber, &'a [u8]), Errno> {
        let (ticket, name) = request.split_at_checked(TICKET_BYTES).ok_or(Errno::INVAL)?;
        let (length, name) = name.split_first().ok_or(Errno::INVAL)?;
        let name = name.get(..usize::from(*length)).ok_or(Errno::INVAL)?;
        let number = u64::from_le_bytes(ticket[..8].try_into().expect("half a ticket has 8 bytes"));
        let inode = InodeNumber(number);
        if ticket == self.issue(uid, inode) { Ok((inode, name)) } else { Err(Errno::ACCESS) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(ticket: &[u8], name: &[u8]) -> Vec<u8> {
        [ticket, &[name.len() as u8], name, &vec![0; NAME_BYTES_MAX - name.len()]].concat()
    }

    #[test]
    fn a_ticket_is_good_for_its_user_its_inode_and_its_mount_only() {
        let tickets = Tickets::default();
        let ticket = tickets.issue(7, InodeNumber(5));
        assert_eq!(tickets.clone_request(7, &request(&ticket, b"n")), Ok((InodeNumber(5), &b"n"[..])));
        assert_eq!(tickets.clone_request(8, &request(&ticket, b"n")), Err(Errno::ACCESS));
        assert_eq!(Tickets::default().clone_request(7, &request(&ticket, b"n")), Err(Errno::ACCESS));
        let mut other = ticket;
        other[0] = 6;
        assert_eq!(tickets.clone_request(7, &request(&other, b"n")), Err(Errno::ACCESS));
    }

    #[test]
    fn requests_that_are_too_short_are_refused() {
        let tickets = Tickets::default();
        let whole = request(&tickets.issue(7, InodeNumber(5)), &[b'n'; NAME_BYTES_MAX]);
        assert!(tickets.clone_request(7, &whole).is_ok());
        for length in 0..whole.len() {
            assert_eq!(tickets.clone_request(7, &whole[..length]), Err(Errno::INVAL));
        }
    }
}
