//! Whiteouts, which `RENAME_WHITEOUT` leaves at the old name, and an overlay that lives by them: overlayfs takes no file system that asks a
//! daemon for its upper layer unless it makes them.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use rustix::fs::{CWD, RenameFlags};
use rustix::io::Errno;

use super::tool::{self, at};
use super::volume::{SCRATCH, Volume};
use super::{Context, Failure, Outcome};

const USER: u32 = 1000;
const GROUP: u32 = 77;

/// A rename by somebody whom mknod(2) makes no devices.
const HIDE: &str = r#"syscall(316, -100, $ARGV[0], -100, $ARGV[1], 4) == 0 or die "renameat2: $!""#;

/// Renames that leave whiteouts, looked at through the caches of the kernel.
pub fn run_whiteouts(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    let directory = volume.root.join("directory");
    let [f, g, sub, moved] = ["f", "g", "sub", "moved"].map(|name| directory.join(name));
    tool::create_directory(&sub)?;
    at("cannot write", &f, fs::write(&f, "contents"))?;
    at("cannot write", &sub.join("x"), fs::write(sub.join("x"), "below"))?;
    is_listed(&directory, &["f", "sub"])?;
    is_absent(&g)?;
    for (from, to) in [(&f, &g), (&sub, &moved)] {
        at("cannot hide", from, hide(from, to, RenameFlags::empty()))?;
        is_whiteout(from, 0, 0)?;
        is_absent(&from.join("x"))?;
    }
    is_listed(&directory, &["f", "g", "moved", "sub"])?;
    // The kernel remembers that there is none, and then that there is one.
    at("cannot remove", &f, fs::remove_file(&f))?;
    is_absent(&f)?;
    at("cannot rename", &g, fs::rename(&g, &f))?;
    is_listed(&directory, &["f", "moved", "sub"])?;
    at("cannot hide", &f, hide(&f, &sub, RenameFlags::empty()))?;
    is_whiteout(&f, 0, 0)?;
    is_listed(&directory, &["f", "moved", "sub"])?;
    for (flags, expected) in [(RenameFlags::NOREPLACE, Errno::EXIST), (RenameFlags::EXCHANGE, Errno::INVAL)] {
        let error = hide(&sub, &f, flags).err().and_then(|error| Errno::from_io_error(&error));
        if error != Some(expected) {
            return Err(Failure::Wrong(format!(
                "{flags:?} with a whiteout gave {error:?}, not {expected:?}"
            )));
        }
    }

    let theirs = volume.root.join("theirs");
    tool::create_directory(&theirs)?;
    at("cannot chown", &theirs, chown(&theirs, Some(USER), Some(GROUP)))?;
    at("cannot chmod", &theirs, fs::set_permissions(&theirs, fs::Permissions::from_mode(0o2755)))?;
    let [from, to] = ["from", "to"].map(|name| theirs.join(name));
    at("cannot write", &from, fs::write(&from, ""))?;
    let mut perl = context.program("perl");
    tool::run(perl.args(["-e", HIDE]).args([&from, &to]).uid(USER).gid(USER))?;
    volume.remount()?;
    is_whiteout(&from, USER, GROUP)?;
    is_whiteout(&f, 0, 0)?;
    is_listed(&theirs, &["from", "to"])?;
    is_listed(&directory, &["f", "moved", "sub"])?;
    for (path, expected) in [(&sub, "contents"), (&moved.join("x"), "below")] {
        if at("cannot read", path, fs::read(path))? != expected.as_bytes() {
            return Err(Failure::Wrong(format!("{} is not as it was written", path.display())));
        }
    }
    volume.finish()
}

fn hide(from: &Path, to: &Path, flags: RenameFlags) -> std::io::Result<()> {
    Ok(rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::WHITEOUT | flags)?)
}

fn is_absent(path: &Path) -> Outcome {
    match fs::symlink_metadata(path) {
        Err(_) => Ok(()),
        Ok(found) => Err(Failure::Wrong(format!("{} is there: {found:?}", path.display()))),
    }
}

fn is_whiteout(path: &Path, uid: u32, gid: u32) -> Outcome {
    let found = at("cannot stat", path, fs::symlink_metadata(path))?;
    let has = (found.rdev(), found.mode() & 0o7777, found.uid(), found.gid(), found.nlink());
    if !found.file_type().is_char_device() || has != (0, 0, uid, gid, 1) {
        return Err(Failure::Wrong(format!("{} is no whiteout: {found:?}", path.display())));
    }
    Ok(())
}

fn is_listed(directory: &Path, expected: &[&str]) -> Outcome {
    let mut names = Vec::new();
    for entry in at("cannot list", directory, fs::read_dir(directory))? {
        names.push(at("cannot list", directory, entry)?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    if names == expected {
        return Ok(());
    }
    Err(Failure::Wrong(format!("{} has the names {names:?}, not {expected:?}", directory.display())))
}

/// The directories of an overlay, and what lies in its lower layer.
const MAKE: &str = r#"
mkdir lower upper work merged
cd lower
mkdir -p moved/deep gone emptied kept
for number in $(seq 50); do
    for directory in moved/deep gone emptied kept; do echo "$directory $number" > $directory/f$number; done
done
for name in changed removed renamed over replaced; do echo $name > $name; done
"#;

/// Changes in the overlay, each of them with a whiteout in the upper layer. A lower directory is renamed as it is.
const CHANGE: &str = r#"
cd merged
echo more >> changed
rm removed
mv renamed new
mv -f over replaced
perl -e 'rename("moved", "there") or die "rename: $!"'
rm -r gone
rm -r emptied; mkdir emptied; echo made > emptied/made
rm kept/f7; mv kept/f8 kept/f9
"#;

const LOOK: &str = r#"
cd merged
test "$(echo *)" = 'changed emptied kept new replaced there'
for name in removed renamed over moved gone kept/f7 kept/f8 emptied/f1; do test ! -e $name; done
test "$(echo $(cat changed new replaced))" = 'changed more renamed over'
test "$(echo $(ls emptied) $(cat emptied/*))" = 'made made'
test "$(ls there/deep | wc -l) $(cat there/deep/f50)" = '50 moved/deep 50'
test "$(ls kept | wc -l) $(cat kept/f9)" = '48 kept 8'
cd ../upper
for name in removed renamed over moved gone kept/f7 kept/f8; do
    test "$(stat -c '%F %t %T %a' $name)" = 'character special file 0 0 0'
done
"#;

/// Names that were hidden are used again, and all is deleted.
const DELETE: &str = r#"
cd merged
echo again > removed
mv there moved
test "$(cat removed moved/deep/f1)" = "$(printf 'again\nmoved/deep 1')"
rm -r *
test -z "$(ls -A)"
"#;

/// An overlay with both layers on the volume.
pub fn run(context: &Context) -> Outcome {
    let probe = Path::new(SCRATCH).join("probe");
    tool::create_directory(&probe)?;
    tool::shell(&probe, "mkdir lower upper work merged")?;
    if let Err(failure) = mount(&probe) {
        return Err(Failure::Skipped(format!("needs overlayfs: {failure}")));
    }
    umount(&probe)?;
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    tool::shell(&volume.root, MAKE)?;
    mount(&volume.root)?;
    for script in [CHANGE, LOOK] {
        tool::shell(&volume.root, script)?;
    }
    umount(&volume.root)?;
    volume.remount()?;
    mount(&volume.root)?;
    for script in [LOOK, DELETE] {
        tool::shell(&volume.root, script)?;
    }
    umount(&volume.root)?;
    is_listed(&volume.root.join("lower"), &LOWER)?;
    volume.finish()
}

/// No change of the overlay comes to its lower layer.
const LOWER: [&str; 9] =
    ["changed", "emptied", "gone", "kept", "moved", "over", "removed", "renamed", "replaced"];

fn mount(directory: &Path) -> Outcome {
    let layer = |name: &str| directory.join(name).display().to_string();
    let [lower, upper, work] = ["lower", "upper", "work"].map(layer);
    let options = format!("lowerdir={lower},upperdir={upper},workdir={work},redirect_dir=on");
    let mut command = Command::new("mount");
    tool::run(command.args(["-t", "overlay", "-o", &options, "overlay"]).arg(directory.join("merged")))
}

fn umount(directory: &Path) -> Outcome {
    tool::run(Command::new("umount").arg(directory.join("merged")))
}
