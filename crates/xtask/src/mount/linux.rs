//! The Linux source: unpacked with tar, copied with rsync, compared with diff, deleted.

use std::fs;
use std::path::{Path, PathBuf};

use super::tool::{self, at};
use super::volume::Volume;
use super::{Context, Failure, Outcome};

/// What `make test` takes; `make test-full` takes all.
const SHORT: &[&str] = &["fs", "kernel", "mm", "include", "net"];

/// A tree outside the volume with the directories of these names in the Linux source, wherever they lie in it, or all of
/// it if none are named. It is unpacked once and kept beside the build.
pub fn reference(context: &Context, parts: &[&str]) -> Result<PathBuf, Failure> {
    let name = if parts.is_empty() { "all".to_owned() } else { parts.join("-") };
    let place = context.tools.join("linux-source").join(&name);
    if place.is_dir() {
        return Ok(place);
    }
    // Reading the archive takes far longer than copying a part of what came out of it.
    let whole = (parts != SHORT && parts.iter().all(|part| SHORT.contains(part)) && !parts.is_empty())
        .then(|| reference(context, SHORT))
        .transpose()?;
    let archive = archive()?;
    let folder = context.tools.join("linux-source");
    tool::create_directory(&folder)?;
    // Two tests that want the same parts take turns; the lock ends with the file.
    let path = place.with_extension("lock");
    let lock = at("cannot create", &path, fs::File::create(&path))?;
    at("cannot lock", &path, lock.lock())?;
    if place.is_dir() {
        return Ok(place);
    }
    let unfinished = place.with_extension("unfinished");
    if unfinished.exists() {
        at("cannot remove", &unfinished, fs::remove_dir_all(&unfinished))?;
    }
    tool::create_directory(&unfinished)?;
    match whole {
        Some(whole) => copy(&whole, &unfinished, parts)?,
        None => {
            let mut command = context.program("tar");
            command.arg("-xf").arg(&archive).arg("-C").arg(&unfinished);
            command.args(["--strip-components=1", "--wildcards", "--no-same-owner"]);
            tool::run(command.args(parts.iter().map(|part| format!("linux-*/{part}/*"))))?;
        }
    }
    at("cannot rename", &unfinished, fs::rename(&unfinished, &place))?;
    Ok(place)
}

/// The same parts of a tree that has more.
fn copy(whole: &Path, to: &Path, parts: &[&str]) -> Outcome {
    let patterns: String = parts.iter().map(|part| format!(" '*/{part}/*'")).collect();
    let to = to.display();
    let script = format!("tar -cf - . | tar -xf - -C '{to}' --no-same-owner --wildcards{patterns}");
    tool::shell_with_pipes(whole, &script)
}

/// The newest archive of Debian's or Ubuntu's package.
fn archive() -> Result<PathBuf, Failure> {
    let folder = Path::new("/usr/src");
    let entries = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_archive = |path: &PathBuf| {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        name.starts_with("linux-source-") && name.contains(".tar.")
    };
    let skipped =
        || Failure::Skipped("needs the package linux-source, which scripts/setup installs".to_owned());
    entries.filter(is_archive).max().ok_or_else(skipped)
}

/// tar, rsync, diff -r and rm, before and after a remount.
pub fn run(context: &Context) -> Outcome {
    let tree = reference(context, if context.full { &[] } else { SHORT })?;
    let mut volume = Volume::create(context, 8 << 30, &[])?;
    let directory = volume.root.join("linux");
    tool::create_directory(&directory)?;
    let script = |text: &str| format!("TREE='{}'\n{text}", tree.display());
    tool::shell(
        &directory,
        &script(
            "mkdir tar rsync\n\
             time -p tar -C \"$TREE\" -cf \"$TREE.tar\" .\n\
             time -p tar -C tar -xf \"$TREE.tar\"\n\
             time -p rsync -a tar/ rsync/\n\
             time -p diff -r --no-dereference \"$TREE\" tar",
        ),
    )?;
    volume.remount()?;
    // rsync compares what diff does not: modes, owners, times; it prints what differs.
    tool::shell(
        &directory,
        &script(
            "time -p diff -r --no-dereference tar rsync\n\
             time -p tar -C rsync -df \"$TREE.tar\"\n\
             difference=$(rsync -an --checksum --delete --itemize-changes \"$TREE/\" rsync/)\n\
             echo \"$difference\"; test -z \"$difference\"\n\
             time -p rm -rf tar\n\
             test \"$(ls)\" = rsync",
        ),
    )?;
    volume.remount()?;
    tool::shell(
        &directory,
        &script(
            "test \"$(ls)\" = rsync\ntime -p diff -r --no-dereference \"$TREE\" rsync\nrm -rf rsync\nleft=$(ls); test -z \"$left\"",
        ),
    )?;
    volume.finish()
}
