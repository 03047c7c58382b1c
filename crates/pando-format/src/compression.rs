//! Compression of the parts of nodes.

/// How a part is compressed. Stored with each part, so a volume may mix them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Compression {
    /// As it is.
    #[default]
    None = 0,
    /// LZ4 block format.
    Lz4 = 1,
    /// Zstandard.
    Zstd = 2,
}
