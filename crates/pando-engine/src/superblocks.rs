//! The two superblocks of a volume: which one it is opened by, and what is wrong with the other (FMT-13).

use bytes::Bytes;
use pando_device::{Buffer, Device, ReadRequest, complain};
use pando_format::Superblock;
use pando_format::superblock::{SUPERBLOCK_LENGTH, Slot, read_slots};

use crate::{Engine, Error, Result};

/// The newest superblock of a device, or why there is none.
pub fn read_superblock(device: &dyn Device) -> Result<Superblock> {
    let [(_, first), (_, second)] = Slots::read(device).slots;
    checked(device, Superblock::newest([first?, second?]))
}

/// What the slots of a device hold.
pub(crate) struct Slots {
    slots: [(u64, Slot<Error>); 2],
    /// Their bytes, by offset.
    blocks: Vec<(u64, Bytes)>,
}

impl Slots {
    pub fn read(device: &dyn Device) -> Self {
        let mut blocks = Vec::new();
        let slots = read_slots(device.capacity(), |offset| -> Result<Bytes> {
            let mut request = [ReadRequest { offset, buffer: Buffer::zeroed(SUPERBLOCK_LENGTH) }];
            device.read(&mut request)?;
            let [request] = request;
            let block = request.buffer.freeze();
            blocks.push((offset, block.clone()));
            Ok(block)
        });
        Self { slots, blocks }
    }

    /// The superblock that the volume is opened by. If the device cannot read one of them, it is the other one for whoever will not write. What that
    /// leads to may have been written over since; then it does not open, or is damaged: nothing is read unverified.
    pub fn newest(self, device: &dyn Device, read_only: bool) -> Result<Superblock> {
        let lost = self.lost();
        let name = device.name();
        let newest = match self.slots {
            [(_, Err(error)), (_, Ok(Ok(other)))] | [(_, Ok(Ok(other))), (_, Err(error))] => {
                if !read_only {
                    complain(format_args!(
                        "{name}: one of two superblocks cannot be read, so it opens read-only alone"
                    ));
                    return Err(error);
                }
                Ok(other)
            }
            [(_, first), (_, second)] => Superblock::newest([first?, second?]),
        };
        if let Some(what) = lost {
            complain(format_args!("{name}: {what}; the other one, used now, may be of an older state"));
        }
        checked(device, newest)
    }

    /// What is wrong with the superblock beside the one that is in use, if no crash has left it like this.
    fn lost(&self) -> Option<String> {
        let [(first_at, first), (second_at, second)] = &self.slots;
        let (used, offset, other) = match (first, second) {
            (Ok(Ok(used)), other @ (Err(_) | Ok(Err(_)))) => (used, *second_at, other),
            (other @ (Err(_) | Ok(Err(_))), Ok(Ok(used))) => (used, *first_at, other),
            _ => return None,
        };
        let block = self.blocks.iter().rfind(|(at, _)| *at == offset).map(|(_, block)| block);
        match other {
            Ok(Ok(_)) => None,
            Ok(Err(_)) if block.is_some_and(|block| used.may_be_torn_beside(block)) => None,
            Ok(Err(error)) => Some(format!("one of two superblocks, at byte {offset}, is lost: {error}")),
            Err(error) => Some(format!("one of two superblocks cannot be read: {error}")),
        }
    }
}

/// What a device says of itself is no volume, or of more bytes than there are.
fn checked(
    device: &dyn Device,
    newest: std::result::Result<Superblock, pando_format::FormatError>,
) -> Result<Superblock> {
    let superblock =
        newest.map_err(|error| Error::NotAVolume { what: format!("it holds no PandoFS volume: {error}") })?;
    if superblock.capacity > device.capacity() {
        return Err(Error::NotAVolume {
            what: format!(
                "it was formatted with {} bytes, but has only {}",
                superblock.capacity,
                device.capacity()
            ),
        });
    }
    Ok(superblock)
}

impl Engine {
    /// What is wrong with what leads to the nodes: one sentence each. Of pages of the block table that cannot be read, whoever opens for reading
    /// does without; and of the superblock beside the one that is in use. Nothing is wrong with that one if the volume was not closed: a
    /// crash cuts writes off.
    ///
    /// The answer is of the device, so it is for volumes that are open for reading.
    pub fn check_roots(&self) -> Vec<String> {
        let was_closed = self.superblock().clean;
        let superblock = Slots::read(&*self.volume().device).lost().filter(|_| was_closed);
        let superblock = superblock.map(|what| format!("FMT-13: {what}"));
        superblock.into_iter().chain(self.volume().table.lost().iter().cloned()).collect()
    }
}
