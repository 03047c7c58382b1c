//! `docs/on-disk-format.md` is true: its tables have no gaps, and each field is where it says, in encoded samples.

use pando_format::*;

use crate::common as sample;

const DOCUMENT: &str = include_str!("../../../../docs/on-disk-format.md");

/// A table of the document with the columns offset, length, field.
struct Table {
    heading: &'static str,
    rows: Vec<(usize, usize, &'static str)>,
}

/// The table below a heading. Its rows must follow each other without gaps.
fn table(heading: &'static str) -> Table {
    let mut lines = DOCUMENT.lines().skip_while(|line| line.trim_start_matches('#').trim() != heading);
    assert!(lines.next().is_some(), "no heading {heading}");
    let rows = lines.skip_while(|line| *line != "| offset | length | field |").skip(2);
    let rows = rows.map_while(|line| {
        let mut cells = line.strip_prefix("| ")?.strip_suffix(" |")?.split(" | ");
        Some((cells.next()?.parse().ok()?, cells.next()?.parse().ok()?, cells.next()?))
    });
    let rows: Vec<(usize, usize, &str)> = rows.collect();
    assert!(!rows.is_empty(), "no table below {heading}");
    let end = rows.iter().fold(0, |end, (offset, length, field)| {
        assert_eq!(*offset, end, "{heading}: {field}");
        end + length
    });
    assert!(end > 0);
    Table { heading, rows }
}

impl Table {
    fn length(&self) -> usize {
        self.rows.iter().map(|(_, length, _)| length).sum()
    }

    fn bytes<'a>(&self, bytes: &'a [u8], field: &str) -> &'a [u8] {
        let row = self.rows.iter().find(|row| row.2 == field);
        let (offset, length, _) = row.unwrap_or_else(|| panic!("{} has no {field}", self.heading));
        &bytes[*offset..offset + length]
    }

    /// Compares fields, all little-endian numbers, and sees to it that no field but those named is left out.
    fn check(&self, bytes: &[u8], numbers: &[(&str, u64)], others: &[&str]) {
        for (offset, _, field) in &self.rows {
            match numbers.iter().find(|(name, _)| name == field) {
                Some((_, expected)) => {
                    let mut number = [0; 8];
                    let found = self.bytes(bytes, field);
                    number[..found.len()].copy_from_slice(found);
                    assert_eq!(u64::from_le_bytes(number), *expected, "{}: {field}", self.heading);
                }
                None if *field == "reserved" => {
                    let length = self.rows.iter().find(|row| row.0 == *offset).expect("it is a row").1;
                    assert!(
                        bytes[*offset..offset + length].iter().all(|byte| *byte == 0),
                        "{}",
                        self.heading
                    );
                }
                None => assert!(others.contains(field), "{}: {field} is not compared", self.heading),
            }
        }
        assert!(numbers.iter().all(|(name, _)| self.rows.iter().any(|row| row.2 == *name)));
    }
}

fn number(magic: &[u8]) -> u64 {
    let mut bytes = [0; 8];
    bytes[..magic.len()].copy_from_slice(magic);
    u64::from_le_bytes(bytes)
}

fn check_extent(bytes: &[u8], extent: Extent) {
    let numbers =
        [("device", extent.device.into()), ("bytes", extent.length.into()), ("offset", extent.offset)];
    table("Extent").check(bytes, &numbers, &[]);
}

fn check_pointer(bytes: &[u8], pointer: Pointer) {
    let table = table("Pointer");
    table.check(bytes, &[("checksum", pointer.checksum)], &["extent"]);
    check_extent(table.bytes(bytes, "extent"), pointer.extent);
}

fn check_region(bytes: &[u8], region: Region) {
    let numbers = [("device", region.device.into()), ("bytes", region.length), ("offset", region.offset)];
    table("Region").check(bytes, &numbers, &[]);
}

#[test]
fn heads() {
    let head = table("Head");
    assert_eq!(head.length(), head::HEAD_LENGTH);
    for (bytes, magic) in [
        (sample::superblock().encode(), b"PandoFS\0"),
        (sample::leaf_node().0.encode(), b"PandoNod"),
        (sample::table_page().encode(), b"PandoTab"),
        (sample::index_page().encode(), b"PandoIdx"),
        (sample::batch().0.encode(), b"PandoLog"),
    ] {
        let length = bytes.len() as u64;
        let checksum = stored_checksum(&bytes);
        let numbers = [("magic", number(magic)), ("version", 1), ("length", length), ("checksum", checksum)];
        head.check(&bytes, &numbers, &["volume id"]);
        assert_eq!(head.bytes(&bytes, "volume id"), sample::VOLUME);
        let name = String::from_utf8_lossy(magic).replace('\0', "\\0");
        assert!(DOCUMENT.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn superblock() {
    let table = table("Superblock");
    let superblock = Superblock { ballast: 77 << 20, ..sample::superblock() };
    let bytes = superblock.encode();
    assert_eq!(table.length(), bytes.len());
    let numbers = [
        ("compatible features", superblock.features.compatible),
        ("read-only compatible features", 0),
        ("incompatible features", 0),
        ("label length", superblock.label.len() as u64),
        ("capacity", superblock.capacity),
        ("node bytes", superblock.node_bytes.into()),
        ("basement bytes", superblock.basement_bytes.into()),
        ("fan-out", superblock.fanout.into()),
        ("compression", 1),
        ("clean", 1),
        ("device", 0),
        ("device count", 1),
        ("epoch", superblock.epoch),
        ("checkpoint", superblock.checkpoint),
        ("cut", superblock.cut.0),
        ("replay offset", superblock.replay.offset),
        ("replay sequence", superblock.replay.sequence),
        ("replay chain", superblock.replay.chain),
        ("index levels", superblock.table.levels.into()),
        ("metadata root", superblock.live.metadata.node.0),
        ("metadata height", superblock.live.metadata.height.into()),
        ("data root", superblock.live.data.node.0),
        ("data height", superblock.live.data.height.into()),
        ("next node id", superblock.next_node),
        ("next generation", superblock.next_generation),
        ("created", superblock.created),
        ("written", superblock.written),
        ("node region count", 1),
        ("ballast", superblock.ballast),
    ];
    table.check(
        &bytes,
        &numbers,
        &["head", "label", "log region", "block table", "snapshots", "node regions"],
    );
    assert!(table.bytes(&bytes, "label").starts_with(superblock.label.as_bytes()));
    check_region(table.bytes(&bytes, "log region"), superblock.log);
    check_region(&table.bytes(&bytes, "node regions")[..24], superblock.node_regions[0]);
    check_pointer(table.bytes(&bytes, "block table"), superblock.table.page.unwrap());
    check_pointer(table.bytes(&bytes, "snapshots"), superblock.snapshots.unwrap());
    assert_eq!(superblock_offsets(1 << 30), [65_536, (1 << 30) - 65_536]);
    assert!(DOCUMENT.contains("at byte 65 536, the volume id at byte 65 560 and the label"));
    assert!(DOCUMENT.contains("length byte and UTF-8, at byte 65 600"));
}

#[test]
fn node_headers() {
    let table = table("Node header");
    let (header, bytes) = (sample::interior_node().0, sample::interior_node().0.encode());
    let numbers = [
        ("node id", header.node.0),
        ("generation", header.generation),
        ("tree", 1),
        ("height", 1),
        ("kind", 2),
        ("checkpoint", header.checkpoint),
    ];
    table.check(&bytes, &numbers, &["head", "newest MSN", "birth MSN"]);
    check_msn(table.bytes(&bytes, "newest MSN"), header.msn_max);
    check_msn(table.bytes(&bytes, "birth MSN"), header.birth);

    let lengths = [header.range.lower.bytes.len(), header.range.upper.bytes.len()];
    let parts = table.length() + 5 + lengths[0] + 5 + lengths[1] + 4;
    assert_eq!(bytes[parts - 4..parts], 3_u32.to_le_bytes());
    let entry = self::table("Part entry");
    assert_eq!(entry.length(), PartEntry::ENCODED_LENGTH);
    for (i, part) in header.parts.iter().enumerate() {
        let bytes = &bytes[parts + i * entry.length()..];
        let numbers = [
            ("offset", part.offset.into()),
            ("stored length", part.stored_length.into()),
            ("raw length", part.raw_length.into()),
            ("compression", part.compression as u64),
            ("checksum", part.checksum),
            ("entry count", part.entry_count.into()),
            ("live bytes", part.live_bytes.into()),
        ];
        entry.check(bytes, &numbers, &["newest MSN", "authentication tag", "nonce"]);
        check_msn(entry.bytes(bytes, "newest MSN"), part.msn);
    }

    let NodeBody::Interior { pivots, edges } = &header.body else { panic!("the sample is an interior node") };
    let pivots: usize = pivots.iter().map(|pivot| 5 + pivot.bytes.len()).sum();
    let mut at = parts + 3 * entry.length() + pivots;
    let table = self::table("Edge");
    for edge in edges {
        let numbers = [
            ("child", edge.child.0),
            ("strip", edge.strip.into()),
            ("has xf", edge.xf.is_some().into()),
            ("bytes", edge.bytes),
            ("entries", edge.entries),
        ];
        table.check(&bytes[at..], &numbers, &[]);
        at += table.length();
    }
    assert_eq!(bytes[at..at + 4], 1_u32.to_le_bytes(), "the xf of the last edge strips one byte");
}

fn check_msn(bytes: &[u8], msn: Msn) {
    assert_eq!(bytes[..8], msn.lsn.to_le_bytes());
    assert_eq!(bytes[8..], msn.sub.to_le_bytes());
}

#[test]
fn parts() {
    let part = sample::leaf_part(&sample::entries(0, 8), Compression::None);
    let table = self::table("Leaf part");
    assert_eq!(table.length(), leaf_part::HEAD_LENGTH);
    let bytes = sample::join(&part.pieces);
    // Eight entries: two blocks, two empty values, two of 200 bytes, two of 5000; keys of ten bytes.
    let front = 16 + 8 * (8 + 10) + 2 * 200 + 2 * 5000;
    let numbers =
        [("magic", number(b"PLf1")), ("entry count", 8), ("front length", front), ("block count", 2)];
    table.check(&bytes, &numbers, &[]);
    assert_eq!(bytes[3 * 4096..4 * 4096], sample::block(0)[..]);
    assert_eq!(part.raw_length as usize, 5 * 4096);

    let part = sample::buffer_part().encode(Compression::None);
    let table = self::table("Buffer part");
    assert_eq!(table.length(), buffer_part::HEAD_LENGTH);
    let bytes = sample::join(&part.pieces);
    let numbers = [
        ("magic", number(b"PBf1")),
        ("keyed count", 4),
        ("range delete count", 2),
        ("goto count", 1),
        ("block count", 1),
    ];
    table.check(&bytes, &numbers, &["front length"]);
    assert_eq!(bytes[4096..8192], sample::block(3)[..]);
}

#[test]
fn block_table() {
    let (page, bytes) = (sample::table_page(), sample::table_page().encode());
    let present = 1 | 1 << 7 | 1 << 63;
    let table = self::table("Table page");
    let numbers =
        [("level", 0), ("number", page.number), ("checkpoint", page.checkpoint), ("present", present)];
    table.check(&bytes, &numbers, &["head"]);
    let mut at = table.length();
    let table = self::table("Block entry");
    for entry in page.entries.iter().flatten() {
        let numbers = [
            ("generation", entry.generation),
            ("header checksum", entry.header_checksum),
            ("image length", entry.length.into()),
            ("header length", entry.header_length.into()),
            ("references", entry.references.into()),
            ("flags", entry.pending_reclamation.into()),
            ("height", entry.height.into()),
            ("tree", 0),
            ("extent count", entry.extents.len() as u64),
            ("second copy count", entry.second_copy.len() as u64),
        ];
        table.check(&bytes[at..], &numbers, &[]);
        at += table.length();
        for extent in entry.extents.iter().chain(&entry.second_copy) {
            check_extent(&bytes[at..], *extent);
            at += 16;
        }
    }

    let (page, bytes) = (sample::index_page(), sample::index_page().encode());
    let table = self::table("Index page");
    assert_eq!(table.length(), bytes.len());
    let numbers = [("level", page.level.into()), ("number", page.number), ("checkpoint", page.checkpoint)];
    table.check(&bytes, &numbers, &["head", "pointers"]);
    for (i, child) in page.children.iter().enumerate() {
        check_pointer(&table.bytes(&bytes, "pointers")[24 * i..], child.unwrap_or_default());
    }
}

#[test]
fn log() {
    let (header, bytes, _) = sample::batch();
    let table = self::table("Batch header");
    assert_eq!(table.length(), log_batch::BATCH_HEADER_LENGTH);
    let payload = BatchHeader::decode(&bytes.clone().into()).unwrap();
    let numbers = [
        ("epoch", header.epoch),
        ("sequence", header.sequence),
        ("previous", header.previous),
        ("first LSN", header.first_lsn.0),
        ("durable LSN", header.durable_lsn.0),
        ("record count", 3),
        ("payload length", payload.payload_length.into()),
        ("payload checksum", payload.payload_checksum),
    ];
    table.check(&bytes, &numbers, &["head"]);

    let record = self::table("Record");
    assert_eq!(record.length(), log_record::RECORD_HEAD_LENGTH);
    let operations = encode_record(&sample::operations());
    let numbers = [("bytes", operations.length() as u64), ("kind", 1), ("count", 7)];
    record.check(&bytes[table.length()..], &numbers, &[]);
    assert_eq!(bytes[table.length() + record.length()], 1, "the first operation is a put");

    let binding = sample::binding();
    let bytes = sample::bytes_of(&encode_binding(&binding));
    record.check(&bytes, &[("bytes", bytes.len() as u64), ("kind", 2), ("count", 2)], &[]);
    assert_eq!(bytes[12..20], binding.lsn.0.to_le_bytes());
    assert_eq!(bytes[20..24], binding.operation.to_le_bytes());
    let table = self::table("Bound piece");
    for (i, piece) in binding.pieces.iter().enumerate() {
        let bytes = &bytes[24 + i * table.length()..];
        let numbers = [
            ("start", piece.start.into()),
            ("bytes", piece.length.into()),
            ("stored length", piece.length.into()),
            ("compression", 0),
            ("checksum", piece.checksum),
            ("raw length", piece.length.into()),
            ("raw start", 0),
        ];
        table.check(bytes, &numbers, &["extent"]);
        check_extent(table.bytes(bytes, "extent"), piece.extent);
    }
}
