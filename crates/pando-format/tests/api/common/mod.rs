//! One sample of each structure, with every field set to something of its own, and the structures in their encoded
//! form. The fixtures are made of these.

use bytes::Bytes;
use pando_format::codec::BLOCK_LENGTH;
use pando_format::*;

pub const VOLUME: VolumeId = *b"\x01\x23\x45\x67\x89\xab\xcd\xef\xfe\xdc\xba\x98\x76\x54\x32\x10";

pub fn block(seed: u8) -> Bytes {
    (0..BLOCK_LENGTH).map(|i| (i as u8).wrapping_mul(7).wrapping_add(seed)).collect::<Vec<u8>>().into()
}

fn msn(lsn: u64, sub: u32) -> Msn {
    Msn { lsn, sub }
}

fn pointer(offset: u64, checksum: u64) -> Pointer {
    Pointer { extent: Extent { device: 0, offset, length: 4096 }, checksum }
}

pub fn superblock() -> Superblock {
    Superblock {
        volume: VOLUME,
        features: Features { compatible: 1 << 40, read_only_compatible: 0, incompatible: 0 },
        label: "grove \u{1f333}".into(),
        capacity: 1 << 30,
        node_bytes: 4 << 20,
        basement_bytes: 128 << 10,
        fanout: 16,
        compression: Compression::Lz4,
        clean: true,
        device: 0,
        device_count: 1,
        log: Region { device: 0, offset: 128 << 10, length: 64 << 20 },
        node_regions: vec![Region { device: 0, offset: 65 << 20, length: 900 << 20 }],
        epoch: 7,
        checkpoint: 42,
        cut: Lsn(1234),
        replay: LogPosition { offset: 8192, sequence: 99, chain: 0x1122_3344_5566_7788 },
        table: TableRoot { levels: 2, page: Some(pointer(66 << 20, 0xaaaa_bbbb)) },
        live: RootPair {
            metadata: Root { node: NodeId(17), height: 2 },
            data: Root { node: NodeId(18), height: 3 },
        },
        snapshots: Some(pointer(67 << 20, 0xcccc)),
        next_node: 500,
        next_generation: 9000,
        ballast: 0,
        created: 1_700_000_000_000_000_001,
        written: 1_700_000_000_000_000_002,
    }
}

pub fn entries(first: u32, count: u32) -> Vec<(Bytes, Bytes)> {
    (first..first + count)
        .map(|i| {
            let value = match i % 4 {
                0 => block(i as u8),
                1 => Bytes::new(),
                2 => Bytes::from(vec![i as u8; 200]),
                _ => Bytes::from(vec![b'v'; 5000]),
            };
            (Bytes::from(format!("\0name{i:05}")), value)
        })
        .collect()
}

pub fn leaf_part(entries: &[(Bytes, Bytes)], compression: Compression) -> EncodedPart {
    let mut writer = LeafPartWriter::new();
    entries.iter().for_each(|(key, value)| writer.push(key, value));
    writer.finish(compression)
}

pub fn buffer_part() -> BufferPart {
    let changes = vec![
        Change::Patch { offset: 4000, bytes: Bytes::from_static(b"patch") },
        Change::Truncate { length: 77 },
        Change::Update {
            fields: vec![
                FieldUpdate::Set { offset: 3, bytes: Bytes::from_static(b"set") },
                FieldUpdate::Max { offset: 8, value: 1 << 50 },
                FieldUpdate::Add { offset: 16, value: u64::MAX },
            ],
        },
    ];
    BufferPart {
        keyed: vec![
            (Bytes::new(), msn(9, 1), Pending::Delete),
            (Bytes::from_static(b"a"), msn(10, 2), Pending::Put(block(3))),
            (Bytes::from_static(b"a\0"), msn(11, 0), Pending::Put(Bytes::from_static(b"small"))),
            (Bytes::from_static(b"b"), msn(12, 7), Pending::Changes(changes)),
        ],
        ranges: vec![
            (KeyRange::new(Bound::before(&b"c"[..]), Bound::after(&b"c\xff"[..])), msn(13, 0)),
            (KeyRange::prefix(&b"d"[..]), msn(14, 1)),
        ],
        gotos: vec![Goto {
            range: KeyRange::prefix(&b"e"[..]),
            msn: msn(15, 0),
            target: NodeId(77),
            height: 1,
            xf: xf(),
        }],
    }
}

fn xf() -> Xf {
    Xf {
        strip: 1,
        prepend: Bytes::from_static(b"src"),
        lower: Bound::before(&b"src/"[..]),
        upper: Bound::after(&b"src/"[..]),
    }
}

fn header(node: u64, height: u8, parts: &[EncodedPart], body: NodeBody) -> NodeHeader {
    let mut header = NodeHeader {
        volume: VOLUME,
        tree: Tree::Data,
        node: NodeId(node),
        generation: 5,
        height,
        checkpoint: 41,
        msn_max: msn(1000, 3),
        birth: msn(900, 1),
        range: KeyRange::new(Bound::before(&b"\0home\0"[..]), Bound::after(&b"\0home\0z"[..])),
        parts: parts.iter().map(|part| part.entry(0, msn(990, 0))).collect(),
        body,
    };
    let mut next = header.encoded_length() / BLOCK_LENGTH;
    for (entry, part) in header.parts.iter_mut().zip(parts) {
        *entry = part.entry(next as u32, msn(990 + next as u64, 0));
        next += part.padded_length() / BLOCK_LENGTH;
    }
    header
}

fn image(header: &NodeHeader, parts: &[EncodedPart]) -> Vec<u8> {
    let mut image = header.encode();
    parts.iter().flat_map(|part| &part.pieces).for_each(|piece| image.extend_from_slice(piece));
    image
}

/// A leaf with a part of each compression: header and image.
pub fn leaf_node() -> (NodeHeader, Vec<u8>) {
    let parts: Vec<EncodedPart> =
        (0..3).map(|i| leaf_part(&entries(10 * i, 8), Compression::ALL[i as usize])).collect();
    let first_keys = (0..3).map(|i| entries(10 * i, 1)[0].0.clone()).collect();
    let header = header(33, 0, &parts, NodeBody::Leaf { first_keys });
    let image = image(&header, &parts);
    (header, image)
}

/// An interior node with a full, an empty and a compressed buffer: header and image.
pub fn interior_node() -> (NodeHeader, Vec<u8>) {
    let many = (0..300_u32).map(|i| (Bytes::from(format!("z{i:05}")), msn(i.into(), 0), Pending::Delete));
    let many = BufferPart { keyed: many.collect(), ..BufferPart::default() };
    let parts = [
        buffer_part().encode(Compression::None),
        BufferPart::default().encode(Compression::Lz4),
        many.encode(Compression::Zstd),
    ];
    let pivots = vec![Bound::after(&b"e"[..]), Bound::before(&b"z"[..])];
    let edges = vec![
        Edge::new(NodeId(33), 0),
        Edge::new(NodeId::EMPTY, 1),
        Edge { child: NodeId(34), strip: 1, xf: Some(xf()), bytes: 1 << 40, entries: 12 },
    ];
    let header = header(35, 1, &parts, NodeBody::Interior { pivots, edges });
    let image = image(&header, &parts);
    (header, image)
}

pub fn table_page() -> TablePage {
    let entry = |offset: u64, extents: u64| BlockEntry {
        generation: 5,
        extents: (0..extents)
            .map(|i| Extent { device: 0, offset: offset + i * 65536, length: 8192 })
            .collect(),
        second_copy: Vec::new(),
        length: 8192 * extents as u32,
        header_length: 4096,
        header_checksum: 0x1234_5678_9abc_def0,
        references: 2,
        pending_reclamation: extents == 8,
        height: 1,
        tree: Tree::Metadata,
    };
    let mut page = TablePage { checkpoint: 41, ..TablePage::new(VOLUME, 3) };
    page.entries[0] = Some(entry(1 << 20, 1));
    page.entries[7] = Some(entry(4 << 20, 8));
    page.entries[63] = Some(BlockEntry {
        second_copy: vec![Extent { device: 1, offset: 4096, length: 16384 }],
        ..entry(2 << 20, 2)
    });
    page
}

pub fn index_page() -> IndexPage {
    let mut page = IndexPage { checkpoint: 40, ..IndexPage::new(VOLUME, 2, 5) };
    page.children[0] = Some(pointer(1 << 20, 1));
    page.children[127] = Some(pointer(2 << 20, 2));
    page
}

pub fn operations() -> Vec<Operation> {
    let key = |key: &'static [u8]| Bytes::from_static(key);
    vec![
        Operation::Put { tree: Tree::Metadata, key: key(b"\0\0a"), value: key(b"inode") },
        Operation::Put { tree: Tree::Data, key: key(b"\0\0a\0\xff"), value: block(1) },
        Operation::PutRun {
            tree: Tree::Data,
            prefix: key(b"\0\0a\0"),
            first: 7,
            bytes: [block(1), block(2)].concat().into(),
        },
        Operation::Delete { tree: Tree::Metadata, key: key(b"") },
        Operation::Change { tree: Tree::Metadata, key: key(b"k"), change: Change::Truncate { length: 5 } },
        Operation::DeleteRange { tree: Tree::Data, range: KeyRange::prefix(key(b"\0b\0")) },
        Operation::MoveRange { tree: Tree::Metadata, from: key(b"\0c\0"), to: key(b"\0d\0") },
    ]
}

pub fn binding() -> Binding {
    let piece = |start, length, blocks: u32| BoundPiece {
        start,
        length,
        extent: Extent { device: 0, offset: 12288, length: blocks * 4096 },
        checksum: 0x0123_4567_89ab_cdef,
    };
    Binding { lsn: Lsn(51), operation: 2, pieces: vec![piece(0, 4096, 1), piece(4096, 4097, 2)] }
}

/// What [`batch`] decodes to.
pub fn records() -> Vec<LogRecord> {
    let mut unbound: Vec<_> = operations().into_iter().map(LoggedOperation::Whole).collect();
    unbound[0] =
        LoggedOperation::UnboundPut { tree: Tree::Metadata, key: Bytes::from_static(b"\0\0a"), length: 5 };
    unbound[2] = LoggedOperation::UnboundPutRun {
        tree: Tree::Data,
        prefix: Bytes::from_static(b"\0\0a\0"),
        first: 7,
        length: 8192,
    };
    let whole = operations().into_iter().map(LoggedOperation::Whole).collect();
    vec![
        LogRecord::Operations { lsn: Lsn(50), operations: whole },
        LogRecord::Operations { lsn: Lsn(51), operations: unbound },
        LogRecord::Binding(binding()),
        LogRecord::Operations { lsn: Lsn(52), operations: Vec::new() },
    ]
}

/// A header, its batch, and what the next one names as its predecessor.
pub fn batch() -> (BatchHeader, Vec<u8>, u64) {
    let records = [
        encode_record(&operations()),
        encode_record_unbound(&operations(), |i| i == 0 || i == 2),
        encode_binding(&binding()),
        encode_record(&[]),
    ];
    let header = BatchHeader {
        volume: VOLUME,
        epoch: 7,
        sequence: 99,
        previous: 0xfeed,
        first_lsn: Lsn(50),
        durable_lsn: Lsn(48),
        record_count: 3,
        payload_length: 0,
        payload_checksum: 0,
    };
    let (batch, chain) = batch_of(header.clone(), &records);
    (header, batch, chain)
}

pub fn batch_of(header: BatchHeader, records: &[EncodedRecord]) -> (Vec<u8>, u64) {
    let payload = records.iter().map(EncodedRecord::length).sum();
    let mut out = vec![0xee; log_batch::batch_length(payload) as usize];
    let chain = encode_batch(header, records.iter().flat_map(EncodedRecord::pieces), &mut out);
    (out, chain)
}

pub fn bytes_of(record: &EncodedRecord) -> Vec<u8> {
    record.pieces().collect::<Vec<_>>().concat()
}

pub fn join(pieces: &[Bytes]) -> Vec<u8> {
    pieces.concat()
}
