//! What a volume lives on: a regular file, a block device, memory, or a simulated device that fails on demand.
//!
//! The engine sees only [`Device`]. Everything here moves whole 4 KiB blocks at 4 KiB aligned offsets.

mod allocator;
mod buffer;
mod claim;
mod complaint;
pub mod descriptors;
mod device;
mod discard;
mod file;
mod flushes;
pub mod heap;
mod layer;
pub mod loops;
mod maps;
mod memory;
pub mod nontemporal;
pub mod peer;
mod pool;
pub mod program;
pub mod simulated;
mod transfer;
mod uring;

pub use allocator::{Allocator, KEEPS_NODES};
pub use buffer::Buffer;
pub use claim::Claim;
pub use complaint::{complain, io_text};
pub use device::{BLOCK_SIZE, Device, DeviceError, ReadRequest, WriteRequest};
pub use file::{Access, FileDevice};
pub use layer::Layer;
pub use memory::MemoryDevice;
pub use simulated::SimulatedDevice;
