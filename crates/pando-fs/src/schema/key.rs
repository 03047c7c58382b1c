//! Keys of both indexes.
//!
//! A directory's *path* is `\0c1 .. \0cn`, empty for the root. From it come the keys of everything in it; see the
//! functions. Names hold no NUL, so none of this needs escapes. A key with a component that is no name ([`is_name`]) is
//! damaged, whoever wrote it: nothing that leads out of a directory is handed out as a name in it.

use bytes::Bytes;
use pando_engine::{Bound, KeyRange, Side, Tree};
use pando_format::KEY_LENGTH_MAX;

/// Longest name, in bytes (`NAME_MAX`).
pub const NAME_LENGTH_MAX: usize = 255;

/// Longest metadata key: the longest key of the engine, less what a data key adds to it (NUL, 0xff and a name), and
/// what a snapshot does.
pub const METADATA_KEY_LENGTH_MAX: usize = KEY_LENGTH_MAX - 2 - NAME_LENGTH_MAX - NUMBERED_KEY_LENGTH;

/// Metadata key of the root directory's record.
pub const ROOT: &[u8] = b"";

/// Metadata key of the counter of inode numbers: a little-endian u64 above every number in use.
pub const INODE_COUNTER: &[u8] = b"\x04";

/// First byte of the metadata keys of files with several links.
pub const LINKED_TAG: u8 = 1;

/// First byte of the list of names that redirect to such files; the name's metadata key follows.
pub const LINK_NAME_TAG: u8 = 2;

/// First byte of the metadata keys of orphans.
pub const ORPHAN_TAG: u8 = 3;

/// First byte of everything in a snapshot; its number (be64) follows, then the key that it had.
pub const SNAPSHOT_TAG: u8 = 5;

/// First byte of the table of snapshots; the snapshot's name follows.
pub const SNAPSHOT_NAME_TAG: u8 = 6;

/// First byte of the list of snapshots that are being received, and of frozen copies; the snapshot's number (be64) follows.
pub const RECEIVING_TAG: u8 = 7;

/// What stands between the path of a directory and a name in it.
const CHILD: &[u8] = b"\0\0";

/// Length of the keys that are a tag and a number.
const NUMBERED_KEY_LENGTH: usize = 9;

/// Path of a directory in the directory with the given path.
pub fn child_path(parent_path: &[u8], name: &[u8]) -> Bytes {
    [parent_path, b"\0", name].concat().into()
}

/// Metadata key of a name in the directory with the given path.
pub fn child_key(parent_path: &[u8], name: &[u8]) -> Bytes {
    [parent_path, CHILD, name].concat().into()
}

/// Metadata key of the directory with the given path, of which its own name is so long.
pub fn directory_key(path: &[u8], name_length: usize) -> Bytes {
    let (parent, name) = path.split_at(path.len() - name_length);
    [parent, &CHILD[1..], name].concat().into()
}

/// What the metadata keys of all children of a directory begin with; nothing else begins so.
pub fn children_prefix(path: &[u8]) -> Bytes {
    [path, CHILD].concat().into()
}

/// The name in a metadata key that begins with [`children_prefix`].
pub fn name_of_child<'a>(path: &[u8], key: &'a [u8]) -> &'a [u8] {
    &key[path.len() + CHILD.len()..]
}

/// What all keys below a directory, at any depth and in both indexes, begin with.
pub fn subtree_prefix(path: &[u8]) -> Bytes {
    [path, b"\0"].concat().into()
}

/// Whether this is the metadata key of a file with several links.
pub fn is_linked_key(metadata_key: &[u8]) -> bool {
    metadata_key.len() == NUMBERED_KEY_LENGTH && metadata_key[0] == LINKED_TAG
}

/// Metadata key of an orphan's record.
pub fn orphan_key(number: u64) -> Bytes {
    numbered_key(ORPHAN_TAG, number)
}

/// Metadata key of the record of a file with several links.
pub fn linked_key(number: u64) -> Bytes {
    numbered_key(LINKED_TAG, number)
}

/// What all keys of a snapshot begin with, in both indexes; the key of its root directory's record.
pub fn snapshot_prefix(number: u64) -> Bytes {
    numbered_key(SNAPSHOT_TAG, number)
}

/// Where a key of the live tree lies in a snapshot; or where it lies in the live tree, given an empty prefix.
pub fn in_snapshot(snapshot_prefix: &[u8], key: &[u8]) -> Bytes {
    [snapshot_prefix, key].concat().into()
}

/// The prefix of the snapshot that a key lies in, empty for the live tree, and the rest; `None` for a key that belongs to nothing.
pub fn split_snapshot(key: &[u8]) -> Option<(&[u8], &[u8])> {
    if key.first() == Some(&SNAPSHOT_TAG) {
        key.split_at_checked(NUMBERED_KEY_LENGTH)
    } else {
        Some((b"", key))
    }
}

/// Whether a key of a tree has a place in any snapshot. Below a directory that was renamed keys may have become too long.
pub fn fits_snapshot(tree: Tree, key: &[u8]) -> bool {
    key.len()
        <= match tree {
            Tree::Metadata if key.first() == Some(&LINK_NAME_TAG) => METADATA_KEY_LENGTH_MAX + 1,
            Tree::Metadata => METADATA_KEY_LENGTH_MAX,
            Tree::Data => KEY_LENGTH_MAX - NUMBERED_KEY_LENGTH,
        }
}

/// Whether something in a tree may have this data key: a block of a file, or a large extended attribute.
pub fn is_data_key(data_key: &[u8]) -> bool {
    let Some((owner, rest)) = live_owner_length(data_key).map(|length| data_key.split_at(length)) else {
        return false;
    };
    // It begins with the NUL that ends the owner. Files end long before the first byte of a block's number would count.
    let is_block = rest.len() == 9 && rest[1] == 0;
    let is_xattr = rest.get(1) == Some(&0xff) && (3..=2 + NAME_LENGTH_MAX).contains(&rest.len());
    match owner.first() {
        // The root directory.
        None => is_xattr,
        Some(&LINKED_TAG) => is_block || is_xattr,
        Some(_) => (is_block || is_xattr) && split_path_key(owner).is_some(),
    }
}

/// Key of a snapshot's name.
pub fn snapshot_name_key(name: &[u8]) -> Bytes {
    [&[SNAPSHOT_NAME_TAG], name].concat().into()
}

/// Key that says that a snapshot is being received, or is a frozen copy.
pub fn receiving_key(number: u64) -> Bytes {
    numbered_key(RECEIVING_TAG, number)
}

fn numbered_key(tag: u8, number: u64) -> Bytes {
    [&[tag][..], &number.to_be_bytes()].concat().into()
}

/// Key in the list of names that redirect. It keeps the order of the names and what they begin with, so the names
/// below one directory are one range: that of [`subtree_prefix`], given to this function.
pub fn link_name_key(metadata_key: &[u8]) -> Bytes {
    [&[LINK_NAME_TAG], metadata_key].concat().into()
}

/// What the data keys of an inode begin with: its blocks and its large extended attributes.
///
/// For the root directory this is a prefix of everything else too, so it is never used as a range.
pub fn data_prefix(metadata_key: &[u8]) -> Bytes {
    [metadata_key, b"\0"].concat().into()
}

/// Data key of one block of a file.
pub fn block_key(data_prefix: &[u8], block: u64) -> Bytes {
    [data_prefix, &block.to_be_bytes()].concat().into()
}

/// Data keys of the blocks from `first` up to, not including, `end`.
pub fn block_range(data_prefix: &[u8], first: u64, end: u64) -> KeyRange {
    KeyRange::new(Bound::before(block_key(data_prefix, first)), Bound::before(block_key(data_prefix, end)))
}

/// Data keys of the blocks from `first` on.
pub fn blocks_from(data_prefix: &[u8], first: u64) -> KeyRange {
    let end = [data_prefix, b"\xff"].concat();
    KeyRange::new(Bound::before(block_key(data_prefix, first)), Bound::before(end))
}

/// Block number of a data key; `None` if it is no block's.
pub fn block_of(data_prefix: &[u8], data_key: &[u8]) -> Option<u64> {
    let number = data_key.strip_prefix(data_prefix)?;
    Some(u64::from_be_bytes(number.try_into().ok()?))
}

/// The first block that can lie behind a bound; `None` if that is not among the blocks.
pub fn block_behind(data_prefix: &[u8], bound: &Bound) -> Option<u64> {
    let is_after = bound.side == Side::After;
    let mut number = [if is_after { 0xff } else { 0 }; 8];
    let bytes = bound.bytes.strip_prefix(data_prefix)?;
    // It may be cut short, where that is enough to tell two keys apart.
    for (to, from) in number.iter_mut().zip(bytes) {
        *to = *from;
    }
    u64::from_be_bytes(number).checked_add(u64::from(is_after || bytes.len() > number.len()))
}

/// Data key of a large extended attribute.
pub fn xattr_key(data_prefix: &[u8], name: &[u8]) -> Bytes {
    [data_prefix, b"\xff", name].concat().into()
}

/// Whether this can be a name in a directory.
pub fn is_name(name: &[u8]) -> bool {
    name.len() <= NAME_LENGTH_MAX
        && !matches!(name, b"" | b"." | b"..")
        && !name.iter().any(|byte| matches!(byte, 0 | b'/'))
}

/// Whether this can be the path of a directory, whatever its length as a whole.
pub fn is_path(path: &[u8]) -> bool {
    let is_below = |names: &[u8]| names.split(|byte| *byte == 0).all(is_name);
    path.is_empty() || path.strip_prefix(b"\0").is_some_and(is_below)
}

/// Path of the parent directory and the name, of a metadata key that is a path key and not the root's.
pub fn split_path_key(metadata_key: &[u8]) -> Option<(&[u8], &[u8])> {
    let separator = metadata_key.windows(2).position(|pair| pair == CHILD)?;
    let (path, name) = (&metadata_key[..separator], &metadata_key[separator + 2..]);
    (is_path(path) && is_name(name)).then_some((path, name))
}

/// Length of the metadata key in front of a data key; `None` for a key that belongs to nothing.
pub fn owner_length(data_key: &[u8]) -> Option<usize> {
    let (snapshot, data_key) = split_snapshot(data_key)?;
    Some(snapshot.len() + live_owner_length(data_key)?)
}

fn live_owner_length(data_key: &[u8]) -> Option<usize> {
    if matches!(data_key.first(), Some(&(ORPHAN_TAG | LINKED_TAG))) {
        return (data_key.get(NUMBERED_KEY_LENGTH) == Some(&0)).then_some(NUMBERED_KEY_LENGTH);
    }
    match data_key.windows(2).position(|pair| pair == CHILD) {
        Some(separator) => {
            let name = &data_key[separator + 2..];
            Some(separator + 2 + name.iter().position(|byte| *byte == 0)?)
        }
        None => data_key.starts_with(b"\0\xff").then_some(0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn children_lie_side_by_side_before_anything_deeper() {
        let path = child_path(&child_path(b"", b"a"), b"b");
        assert_eq!(directory_key(&path, 1), child_key(&child_path(b"", b"a"), b"b"));
        let mut keys = [
            child_key(b"", b"a"),
            child_key(&child_path(b"", b"a"), b"b"),
            child_key(&child_path(b"", b"a"), b"\xff\xff"),
            child_key(&path, b"c"),
        ];
        let sorted = keys.clone();
        keys.sort();
        assert_eq!(keys, sorted);
        assert!(keys[3].starts_with(&subtree_prefix(&path)));
        assert!(!KeyRange::prefix(children_prefix(&child_path(b"", b"a"))).contains(&keys[3]));
    }

    #[test]
    fn the_owner_of_a_data_key_is_found_from_the_front() {
        let path_keys = [child_key(b"\0a", b"f"), child_key(b"\0\xffa\0b", b"\xff")];
        let numbered = [orphan_key(0), orphan_key(257), linked_key(0), linked_key(257)];
        let live: Vec<Bytes> = path_keys.into_iter().chain(numbered).collect();
        let in_snapshots = live.clone().into_iter().map(|key| in_snapshot(&snapshot_prefix(0), &key));
        for key in live.iter().cloned().chain(in_snapshots) {
            let prefix = data_prefix(&key);
            assert_eq!(owner_length(&block_key(&prefix, 0)), Some(key.len()));
            let may_be = !matches!(key[0], ORPHAN_TAG | SNAPSHOT_TAG);
            let last = block_key(&prefix, (1 << 51) - 1);
            for data_key in [block_key(&prefix, 0), last, xattr_key(&prefix, b"u")] {
                assert_eq!(is_data_key(&data_key), may_be, "{}", data_key.escape_ascii());
            }
            assert_eq!(owner_length(&xattr_key(&prefix, b"user.x")), Some(key.len()));
        }
        assert_eq!(owner_length(&xattr_key(&data_prefix(ROOT), b"user.x")), Some(0));
        assert!(is_data_key(&xattr_key(&data_prefix(ROOT), b"user.x")));
        assert!(!is_data_key(&xattr_key(&data_prefix(ROOT), b"")));
        assert_eq!(owner_length(b"\x01"), None);
    }

    #[test]
    fn path_keys_split_into_parent_and_name() {
        assert_eq!(split_path_key(&child_key(b"\0a\0b", b"c")), Some((&b"\0a\0b"[..], &b"c"[..])));
        assert_eq!(split_path_key(&child_key(b"", b"c")), Some((&b""[..], &b"c"[..])));
        assert_eq!(split_path_key(ROOT), None);
        assert_eq!(split_path_key(&orphan_key(0)), None);
    }

    /// Such keys, in an image made for it, let a copy out of the volume write anywhere on the host.
    #[test]
    fn keys_with_components_that_are_no_names_are_no_path_keys() {
        let too_long = [b'x'; NAME_LENGTH_MAX + 1];
        for bad in [&b""[..], b".", b"..", b"a/b", b"/", b"../../etc", &too_long] {
            assert_eq!(split_path_key(&child_key(b"\0a", bad)), None, "{bad:?}");
            assert_eq!(split_path_key(&child_key(&child_path(b"\0a", bad), b"c")), None, "{bad:?}");
            assert_eq!(split_path_key(&child_key(&[&child_path(b"", bad)[..], b"\0a"].concat(), b"c")), None);
        }
        for good in [&b"..."[..], b".a", b"..a", b"\xff", &too_long[1..]] {
            assert!(split_path_key(&child_key(&child_path(b"", good), good)).is_some(), "{good:?}");
        }
    }

    #[test]
    fn the_names_below_a_directory_are_one_range_of_the_list() {
        let range = KeyRange::prefix(link_name_key(&subtree_prefix(b"\0a")));
        assert!(range.contains(&link_name_key(&child_key(b"\0a", b"\xff"))));
        assert!(range.contains(&link_name_key(&child_key(b"\0a\0b", b"c"))));
        assert!(!range.contains(&link_name_key(&child_key(b"\0ab", b"c"))));
        assert!(!range.contains(&link_name_key(&child_key(b"", b"a"))));
    }

    #[test]
    fn a_block_range_leaves_out_large_extended_attributes() {
        let prefix = data_prefix(&child_key(b"", b"f"));
        assert!(!blocks_from(&prefix, 0).contains(&xattr_key(&prefix, b"user.x")));
        assert!(blocks_from(&prefix, 0).contains(&block_key(&prefix, (1 << 51) - 1)));
        assert!(!block_range(&prefix, 3, 5).contains(&block_key(&prefix, 5)));
        assert_eq!(block_of(&prefix, &block_key(&prefix, 77)), Some(77));
    }

    #[test]
    fn a_bound_says_which_block_comes_first_behind_it() {
        let prefix = data_prefix(&child_key(b"", b"f"));
        let cut = |length: usize| block_key(&prefix, 0x0102).slice(..prefix.len() + length);
        for (bound, block) in [
            (Bound::before(block_key(&prefix, 77)), Some(77)),
            (Bound::after(block_key(&prefix, 77)), Some(78)),
            (Bound::before([&block_key(&prefix, 77)[..], b"\0"].concat()), Some(78)),
            (Bound::before(cut(7)), Some(0x0100)),
            (Bound::after(cut(7)), Some(0x0200)),
            (Bound::before(cut(0)), Some(0)),
            (Bound::after(block_key(&prefix, u64::MAX)), None),
            (Bound::before(b"\0e".as_slice()), None),
        ] {
            assert_eq!(block_behind(&prefix, &bound), block, "{bound:?}");
        }
    }
}
