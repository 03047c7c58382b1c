//! Attributes of a file as `ls -l` and `stat` print them.

use pando_fs::operations::{Attributes, FileType};
use rustix::fs::{major, minor};
use serde_json::{Map, Value, json};

use crate::output::put_name;
use crate::time::DateTime;

/// What a file is, in words.
pub fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "regular file",
        FileType::Directory => "directory",
        FileType::Symlink => "symbolic link",
        FileType::BlockDevice => "block device",
        FileType::CharDevice => "character device",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}

/// Type and permissions as `drwxr-xr-x`.
pub fn mode_string(file_type: FileType, mode: u32) -> String {
    let letter = match file_type {
        FileType::Regular => '-',
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice => 'b',
        FileType::CharDevice => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
    };
    let mut text = String::from(letter);
    for (shift, special, set, unset) in [(6, 0o4000, 's', 'S'), (3, 0o2000, 's', 'S'), (0, 0o1000, 't', 'T')]
    {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => set,
            (true, false) => unset,
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

/// Major and minor number of a device node; `None` for anything else.
pub fn device_numbers(attributes: &Attributes) -> Option<(u32, u32)> {
    let is_device = matches!(attributes.file_type, FileType::BlockDevice | FileType::CharDevice);
    is_device.then(|| (major(attributes.device), minor(attributes.device)))
}

/// A file for programs: times are UTC, the mode is octal.
pub fn to_json(path: &[u8], attributes: &Attributes, link_target: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    put_name(&mut object, "path", path);
    let time = |time| DateTime::from(time).exact();
    let fields = [
        ("type", json!(type_name(attributes.file_type))),
        ("mode", json!(format!("{:04o}", attributes.mode))),
        ("inode", json!(attributes.inode.0)),
        ("links", json!(attributes.links)),
        ("uid", json!(attributes.uid)),
        ("gid", json!(attributes.gid)),
        ("size", json!(attributes.size)),
        ("allocated", json!(attributes.blocks.saturating_mul(512))),
        ("accessed", json!(time(attributes.accessed))),
        ("modified", json!(time(attributes.modified))),
        ("changed", json!(time(attributes.changed))),
        ("born", json!(time(attributes.born))),
    ];
    object.extend(fields.map(|(field, value)| (field.to_owned(), value)));
    if let Some((major, minor)) = device_numbers(attributes) {
        object.insert("device".to_owned(), json!({ "major": major, "minor": minor }));
    }
    if let Some(target) = link_target {
        put_name(&mut object, "target", target);
    }
    object.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_look_as_ls_prints_them() {
        for (mode, text) in [
            (0o755, "-rwxr-xr-x"),
            (0o4755, "-rwsr-xr-x"),
            (0o2644, "-rw-r-Sr--"),
            (0o1777, "-rwxrwxrwt"),
            (0o1776, "-rwxrwxrwT"),
            (0, "----------"),
        ] {
            assert_eq!(mode_string(FileType::Regular, mode), text);
        }
    }
}
