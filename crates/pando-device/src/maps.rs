//! What is mapped in a process, as the kernel tells it (proc_pid_maps(5)).

use std::ops::Range;

/// A line of /proc/PID/maps.
pub(crate) struct Mapping<'a> {
    pub range: Range<usize>,
    /// Four letters, as `rw-p`.
    pub permissions: &'a str,
    /// Zero for memory of no file.
    pub inode: u64,
    /// Empty, a file's path, or what the memory is in brackets.
    pub path: &'a str,
}

impl<'a> Mapping<'a> {
    /// `None` for what is no such line, as those between them in smaps.
    pub fn parse(line: &'a str) -> Option<Self> {
        // start-end permissions offset device inode path, which may have blanks in it.
        let mut fields = line.splitn(6, ' ');
        let (start, end) = fields.next()?.split_once('-')?;
        let address = |text| usize::from_str_radix(text, 16).ok();
        let (range, permissions) = (address(start)?..address(end)?, fields.next()?);
        let inode = fields.nth(2)?.parse().ok()?;
        Some(Self { range, permissions, inode, path: fields.next().unwrap_or_default().trim_start() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_maps_are_understood() {
        let parsed = |line| {
            let Mapping { range, permissions, inode, path } = Mapping::parse(line)?;
            Some((range, permissions, inode, path))
        };
        assert_eq!(
            parsed("55d0a000-55d0b000 r-xp 00001000 08:01 77                     /usr/bin/a b"),
            Some((0x55d0_a000..0x55d0_b000, "r-xp", 77, "/usr/bin/a b"))
        );
        let anonymous = Some((0x7ffd_0000..0x7ffd_1000, "rw-p", 0, ""));
        assert_eq!(parsed("7ffd0000-7ffd1000 rw-p 00000000 00:00 0"), anonymous);
        assert_eq!(parsed("7ffd0000-7ffd1000 rw-p 00000000 00:00 0 "), anonymous);
        assert_eq!(parsed("Rss:                  12 kB"), None);
        assert_eq!(parsed("7ffd0000-7ffd1000 rw-p"), None);
        assert_eq!(parsed(""), None);
    }
}
