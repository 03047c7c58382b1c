//! Access control lists beside those of another file system: the same calls, made in a tmpfs and on the mount, must be
//! allowed to the same users and leave the same lists and modes.

use super::tool;
use super::volume::Volume;
use super::{Context, Outcome};

/// `try USER COMMAND...` says whether the user, whose further groups are $OTHERS, may; `picture DIRECTORY` prints modes,
/// owners and lists.
const FUNCTIONS: &str = r#"
export LC_ALL=C
try() {
    user=$1; shift
    if setpriv --reuid "$user" --regid "$user" $OTHERS "$@" > /dev/null 2>&1
    then echo "$user may: $*"; else echo "$user may not: $*"; fi
}
picture() (
    cd "$1"
    find . | sort | xargs stat -c '%n %A %u %g'
    find . ! -type l | sort | xargs getfacl -n -p -s
)
OTHERS=--clear-groups
umask 022
"#;

/// Prints what must be the same everywhere.
const CALLS: &str = r#"
echo secret > f; chmod 600 f
try 1 cat f
setfacl -m u:1:r f; picture .
try 1 cat f; try 2 cat f
chmod g-r f; picture .; try 1 cat f
chmod g=rw f; try 1 cat f; try 1 sh -c 'echo x >> f'
setfacl -m u:1:rw f; try 1 sh -c 'echo x >> f'
setfacl -m m::r f; picture .; try 1 sh -c 'echo x >> f'; try 1 cat f
setfacl -x u:1 -m g:60:r,m::r f; try 1 cat f
OTHERS='--groups 60'; try 1 cat f; OTHERS=--clear-groups
try 2 setfacl -m u:2:rw f
chown 2 f; try 2 setfacl -m u:3:rw f; picture .; try 3 sh -c 'echo x >> f'; try 2 chmod 400 f; try 3 cat f
echo public > denied; setfacl -m u:1:- denied; try 1 cat denied; try 2 cat denied
setfacl -m m::rwx denied; setfacl -b f; picture .
setfacl --set u::rw,g::r,o::- denied; picture .

# The set-group-ID bit stays for root and for members of the group, and goes for an owner who is not in it.
touch kept lost member; chown 2:60 kept lost member; chmod 2755 kept lost member
setfacl -m u:1:r kept; try 2 setfacl -m u:1:r lost
OTHERS='--groups 60'; try 2 setfacl -m u:1:r member; OTHERS=--clear-groups; picture .

mkdir shared; setfacl -m u:1:rwx,d:u:1:rwx,d:g::rx,d:o::- shared
umask 077
touch shared/file plain; mkdir plain.d; mkdir -p shared/a/b; mkfifo shared/fifo; mknod shared/null c 1 3; ln -s f shared/link
cp denied shared/copied; mkdir -m 705 shared/mode; install -m 711 plain shared/installed
sh -c 'echo x > shared/a/b/c'; bash -c 'umask 0; echo x > shared/open' || true
picture .
try 1 touch shared/a/mine; try 2 touch shared/a/theirs; try 1 cat shared/a/b/c; try 2 cat shared/a/b/c; try 1 rm shared/open
setfacl -k shared; touch shared/after; mkdir shared/after.d
setfacl -d --set u::rwx,g::x,o::r shared; touch shared/like.a.mode; mkdir shared/like.a.mode.d
chgrp 60 shared; chmod 2770 shared; mkdir shared/group; touch shared/group/f; setfacl -m u:2:x shared
umask 022; touch plain2; mkdir plain2.d
picture .
mv shared/a moved; ln shared/file linked; setfacl -m u:5:rwx linked; picture .

cp -a moved copy; cp -a shared copy.shared
mkdir tar; tar --acls -C shared -cf - . | tar --acls -C tar -xpf -
rsync -aA shared/ rsync/
# A mode that changes by another way than chmod, of what has just lost one of several names.
lose() { ln "$1" second; rm second; }
touch given taken; chmod 600 given; chmod 664 taken; lose given; lose taken
setfacl -m u:1:r given; try 1 cat given; setfacl -m o::- taken; try 2 cat taken; lose taken; try 2 cat taken
cp "$(command -v id)" id; chmod 4777 id; lose id; setpriv --reuid 1 ./id -u
setpriv --reuid 1 $OTHERS sh -c 'echo >> id'; setpriv --reuid 1 ./id -u

# chown(2) that names neither owner takes set-id bits off for the owner. Elsewhere others are refused; over FUSE they hear of no error, and nothing is done.
touch own.chown their.chown; chown 1:1 own.chown their.chown; chmod 6775 own.chown their.chown
try 1 perl -e 'chown(-1, -1, "own.chown") == 1 or exit 1'
setpriv --reuid 2 --clear-groups perl -e 'chown(-1, -1, "their.chown")'; picture .

# What has a list of its own keeps no other, wherever it comes to lie.
mkdir heir; setfacl -d -m u:9:rwx heir; cp -a plain plain2.d moved heir; cp plain heir/new
picture .
"#;

/// In front of everything: neither the tmpfs nor the picture is blind.
const SEEN: &str = r#"
grep -qx '1 may: cat f' expected; grep -qx '2 may not: cat f' expected
grep -qx 'user:1:rwx' expected; grep -qx 'default:user:1:rwx' expected; grep -qx 'mask::r--' expected
grep -qx './kept -rwxr-sr-x 2 60' expected; grep -qx './member -rwxr-sr-x 2 60' expected
grep -qx './lost -rwxr-xr-x 2 60' expected
grep -qx '1 may: cat given' expected; test "$(grep -cx '2 may not: cat taken' expected)" = 2
test "$(grep -xE '[01]' expected | tr '\n' ' ')" = '0 1 '
grep -qx './shared/a/b/c -rw-rw---- 0 0' expected
"#;

/// The lists go out of the volume and come in again without a mount; what a directory hands down does not stay on what
/// is kept as it was, and does on what is not.
const UNMOUNTED: &str = r#"
$PANDO cp -a "$IMAGE:/all" out
picture out | diff picture -
$PANDO cp -a out "$IMAGE:/in"
$PANDO cp -a "$IMAGE:/in" "$IMAGE:/copy"
$PANDO cp -a "$IMAGE:/copy" again
picture again | diff picture -

picture all/shared > shared
$PANDO cp -a out/shared "$IMAGE:/all/heir/shared"
mkdir heir; setfacl -d -m u:9:rwx heir
$PANDO cp -a "$IMAGE:/all/heir/shared" heir/shared
picture heir/shared | diff shared -

umask 027
chmod 666 all/copy/b/c out/copy/b/c
mkdir all/heir/made; cp all/copy/b/c all/heir/made
$PANDO mkdir "$IMAGE:/all/heir/made"; $PANDO cp out/copy/b/c "$IMAGE:/all/heir/made"
$PANDO cp -a "$IMAGE:/all/heir/made" inside
mkdir heir/made; $PANDO cp "$IMAGE:/all/heir/made/c" heir/made
picture all/heir/made > made
picture inside | diff made -
picture heir/made | diff made -
"#;

/// Everything above.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 256 << 20, &[])?;
    // The tmpfs around the mount point.
    let directory = volume.root.parent().expect("a mount point has a directory above it").to_owned();
    let variables = format!(
        "PANDO='{}' IMAGE='{}'\n",
        context.programs.join("pando").display(),
        context.work.join("volume.img").display()
    );
    let run = |script: &str| tool::shell_with_pipes(&directory, &format!("{variables}{FUNCTIONS}{script}"));
    run("mkdir all volume/all")?;
    run(&format!("cd all; exec > ../expected\n{CALLS}"))?;
    run(SEEN)?;
    run(&format!("cd volume/all; exec > ../../found\n{CALLS}"))?;
    run("diff expected found; picture all > picture")?;
    volume.remount()?;
    run("picture volume/all | diff picture -")?;
    if !volume.is_pando() {
        return volume.finish();
    }
    volume.umount()?;
    run(UNMOUNTED)?;
    volume.check()
}
