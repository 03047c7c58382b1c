//! Bytes on the device and what they mean: encode and decode, checksums, versions. No I/O and no locks.
//!
//! `docs/on-disk-format.md` is the reference for the layouts; FMT-n are its invariants.
#![forbid(unsafe_code)]

pub mod block_table;
pub mod buffer_part;
pub mod checksum;
pub mod codec;
mod compression;
pub mod edge;
mod error;
mod extent;
pub mod head;
mod ids;
pub mod key;
mod key_codec;
pub mod leaf_part;
pub mod log_batch;
pub mod log_record;
mod message;
mod node;
pub mod operation;
pub mod part;
pub mod send_stream;
pub mod superblock;
pub mod version;

pub use block_table::{BlockEntry, IMAGE_LENGTH_MAX, IndexPage, TablePage};
pub use buffer_part::{BufferPart, BufferPartWriter};
pub use compression::Compression;
pub use edge::{Edge, Goto, Xf};
pub use error::{FormatError, Structure};
pub use extent::{Extent, Pointer, Region};
pub use head::{VolumeId, stored_checksum};
pub use ids::{HEIGHT_MAX, Lsn, Msn, NodeId, Tree};
pub use key::{Bound, KEY_LENGTH_MAX, KeyRange, Side};
pub use key_codec::VALUE_LENGTH_MAX;
pub use leaf_part::{LeafPartWriter, decode_leaf_part};
pub use log_batch::{BatchHeader, decode_batch, encode_batch};
pub use log_record::{
    Binding, BoundPiece, EncodedRecord, LogRecord, LoggedOperation, encode_binding, encode_record,
    encode_record_unbound,
};
pub use message::{Change, FieldUpdate, Pending};
pub use node::{NodeBody, NodeHeader};
pub use operation::Operation;
pub use part::{EncodedPart, PartEntry, open_part, verify_part};
pub use superblock::{LogPosition, Root, RootPair, Superblock, TableRoot, superblock_offsets};
pub use version::{Access, Features};
