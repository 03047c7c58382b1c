//! What an argument names: a path on the host, or `VOLUME:/path` inside a volume.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::failure::{Failure, Result};
use crate::output::shown;

/// An absolute path in a volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VolumePath {
    /// The image file or block device.
    pub volume: PathBuf,
    /// The path inside, from its `/` on.
    pub path: Vec<u8>,
}

/// Where an argument of `pando cp` points.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// A path of the host.
    Host(PathBuf),
    /// A path in a volume.
    Volume(VolumePath),
}

impl VolumePath {
    /// Reads an argument that must be `VOLUME:/path`.
    pub fn parse(argument: &OsStr) -> Result<Self> {
        split(argument, is_volume).ok_or_else(|| {
            let text = shown(argument.as_bytes());
            let advice =
                if Path::new(argument).exists() { format!("{text}:/") } else { "VOLUME:/path".to_owned() };
            Failure::new(format!("{text} names no place in a volume; write {advice}"))
        })
    }
}

impl Location {
    /// Reads an argument that may be either.
    pub fn parse(argument: &OsStr) -> Self {
        match split(argument, is_volume) {
            // `a:/b` where there is no `a` but a directory `a:`.
            Some(place) if !place.volume.exists() && Path::new(argument).symlink_metadata().is_ok() => {
                Self::Host(argument.into())
            }
            Some(place) => Self::Volume(place),
            None => Self::Host(argument.into()),
        }
    }
}

impl std::fmt::Display for VolumePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&shown(&[self.volume.as_os_str().as_bytes(), b":", &self.path].concat()))
    }
}

impl std::fmt::Display for Location {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Host(path) => f.write_str(&shown(path.as_os_str().as_bytes())),
            Self::Volume(place) => place.fmt(f),
        }
    }
}

fn is_volume(path: &Path) -> bool {
    path.metadata().is_ok_and(|metadata| !metadata.is_dir())
}

/// Splits at a colon with a slash behind it: the last one with a volume before it, else the last. Both the volume's
/// path and names inside it may hold colons.
fn split(argument: &OsStr, is_volume: impl Fn(&Path) -> bool) -> Option<VolumePath> {
    let bytes = argument.as_bytes();
    let colons: Vec<usize> = (1..bytes.len()).rev().filter(|&i| bytes[i..].starts_with(b":/")).collect();
    let volume = |colon: usize| Path::new(OsStr::from_bytes(&bytes[..colon]));
    let colon = *colons.iter().find(|&&colon| is_volume(volume(colon))).or(colons.first())?;
    if volume(colon).is_dir() {
        return None;
    }
    Some(VolumePath { volume: volume(colon).to_owned(), path: bytes[colon + 1..].to_vec() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split_with(argument: &[u8], volumes: &[&str]) -> Option<(String, Vec<u8>)> {
        split(OsStr::from_bytes(argument), |path| volumes.iter().any(|v| Path::new(v) == path))
            .map(|place| (place.volume.to_string_lossy().into_owned(), place.path))
    }

    #[test]
    fn the_last_colon_before_a_slash_splits() {
        assert_eq!(split_with(b"v.img:/a/b", &[]), Some(("v.img".into(), b"/a/b".to_vec())));
        assert_eq!(split_with(b"odd:name:/x", &[]), Some(("odd:name".into(), b"/x".to_vec())));
        assert_eq!(split_with(b"v:/\xff\n", &[]), Some(("v".into(), b"/\xff\n".to_vec())));
        assert_eq!(split_with(b"/etc/passwd", &[]), None);
        assert_eq!(split_with(b":/x", &[]), None);
        assert_eq!(split_with(b"v:x", &[]), None);
        assert_eq!(split_with(b"", &[]), None);
    }

    #[test]
    fn a_name_inside_may_end_in_a_colon_where_the_volume_exists() {
        assert_eq!(split_with(b"v.img:/a:/b", &["v.img"]), Some(("v.img".into(), b"/a:/b".to_vec())));
        assert_eq!(split_with(b"v.img:/a:/b", &["v.img:/a"]), Some(("v.img:/a".into(), b"/b".to_vec())));
    }
}
