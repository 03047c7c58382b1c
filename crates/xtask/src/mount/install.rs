//! `make install` and what comes of it: the manual pages, `mount -t fuse.pando`, and lines of /etc/fstab, as an
//! administrator and an ordinary user use them.
//!
//! The test has its own /sbin and /etc/fstab, since mount(8) looks for helpers and lines nowhere else: an overlay and a
//! file that are mounted over those of the machine, inside the mount namespace that ends with the test.

use std::path::Path;

use super::{Context, Failure, Outcome};
use super::{tool, volume};

/// What the scripts share: sh -e does not mind a failure behind `!`, so what must be refused has a function of its own.
const FUNCTIONS: &str = r#"
is() { findmnt -n -t fuse.pando -o SOURCE,OPTIONS "$1" | grep -q "$2"; }
refused() { if "$@"; then echo "went through: $*"; exit 1; fi; }
"#;

/// The machine's directories as this test sees them; $PANDO is the command as it was installed.
const PREPARE: &str = r#"
sbin=$(realpath /sbin)
mkdir upper work a b volumes prefix
# Those who are not root must get to the images.
chmod 755 .
mount -t overlay -o "lowerdir=$sbin,upperdir=$PWD/upper,workdir=$PWD/work" overlay "$sbin" || exit 77
# It is built already, and this is no place to build.
make -s -C "$SOURCE" install CARGO=true BUILT="$BUILT" PREFIX="$PWD/prefix" SBINDIR="$sbin"
"#;

/// The pages are found, the completions are complete, and `uninstall` leaves nothing.
const INSTALLED: &str = r#"
if command -v man > /dev/null; then
    for page in pando pando-mount pando-umount pando-check; do man -M prefix/share/man -w $page; done
fi
bash -c 'source prefix/share/bash-completion/completions/pando; complete -p pando'
grep -q 'compdef.*pando' prefix/share/zsh/site-functions/_pando
grep -q 'complete -c pando' prefix/share/fish/vendor_completions.d/pando.fish
make -s -C "$SOURCE" install uninstall CARGO=true BUILT="$BUILT" DESTDIR="$PWD/staged"
test -z "$(find staged ! -type d)"
"#;

const FSTAB: &str = r#"
$PANDO format --size 256M volumes/a.img
$PANDO format --size 256M volumes/b.img
cat > fstab <<END
$PWD/volumes/a.img $PWD/a fuse.pando noauto,user,exec,noatime,cache=64M,nofail,x-systemd.automount 0 0
$PWD/volumes/b.img $PWD/b fuse.pando ro,cache=64M 0 2
END
mount --bind fstab /etc/fstab
mount "$PWD/a"
is a 'volumes/a.img .*rw,nosuid,nodev,noatime,'
echo kept > a/file
umount "$PWD/a"
$PANDO check volumes/a.img
mount -o ro a
is a ro,
test kept = "$(cat a/file)"
umount a

# What says noauto is left out.
mount -a -t fuse.pando
refused is a .
is b ro,
umount b
mount -t fuse.pando volumes/b.img b
echo other > b/file
$PANDO snapshot create b taken
umount b
$PANDO check volumes/b.img

# However often it runs, one mount of each, though a snapshot has another source than its line.
mkdir shown
cp fstab lines
echo "$PWD/volumes/b.img $PWD/shown fuse.pando snapshot=taken 0 0" >> fstab
mount -a -t fuse.pando
mount -a -t fuse.pando
test "$(findmnt -n -t fuse.pando "$PWD/shown" | wc -l)" = 1
test "$(findmnt -n -t fuse.pando "$PWD/b" | wc -l)" = 1
test other = "$(cat shown/file)"
umount shown
umount b
$PANDO snapshot delete volumes/b.img taken
cat lines > fstab
rmdir shown
rm lines
"#;

const REMOUNT: &str = r#"
mount -t fuse.pando volumes/b.img b
echo before > b/file
exec 3>> b/file
refused mount -o remount,ro b
exec 3>&-
mount -o remount,ro,noatime b
is b ro,noatime
refused touch b/new
refused $PANDO clone b/file b/copy
refused $PANDO snapshot create b taken
# Everything is in a checkpoint.
$PANDO stats --json b | grep -q '"dirty_bytes": *0\b'
# A word that is no option is not passed over.
refused mount -o remount,nosiud b
mount -o remount,rw b
is b rw,noatime
echo after > b/new
$PANDO clone b/file b/copy
$PANDO snapshot create b taken
umount b
# What the daemon has opened for reading only stays so.
mount -t fuse.pando -o ro volumes/b.img b
refused mount -o remount,rw b
refused touch b/new
umount b
$PANDO check volumes/b.img
"#;

/// What is unmounted is what another process has mounted there, not this one. Nothing of another namespace is run: to mount there is refused.
const NAMESPACE: &str = r#"
unshare --mount --propagation private sleep 120 &
other=$!
trap 'kill $other' EXIT
until test "$(readlink /proc/$other/ns/mnt)" != "$(readlink /proc/self/ns/mnt)"; do :; done
mount -t fuse.pando volumes/b.img b
$PANDO format --size 64M volumes/c.img
refused mount -N $other -t fuse.pando "$PWD/volumes/c.img" "$PWD/b"
nsenter --target $other --mount mount -t fuse.pando "$PWD/volumes/c.img" "$PWD/b"
is b 'volumes/b.img '
nsenter --target $other --mount findmnt -n -t fuse.pando -o SOURCE "$PWD/b" | grep -q volumes/c.img
umount -N $other "$PWD/b"
is b 'volumes/b.img '
refused nsenter --target $other --mount findmnt -n -t fuse.pando "$PWD/b"
kill $other
trap - EXIT
# In another root directory a path is another place than for the daemon.
$PANDO snapshot create b of-root
mkdir root shown
mount --rbind / root
mount --make-rprivate root
refused chroot root "$PANDO" mount -o snapshot=of-root "$PWD/volumes/b.img" "$PWD/shown" 2> refusal
grep -q 'another root directory' refusal
refused findmnt "$PWD/shown"
umount -l root
$PANDO mount -o snapshot=of-root volumes/b.img shown
umount shown
$PANDO snapshot delete b of-root
rmdir root shown
umount b
$PANDO check volumes/c.img
rm volumes/c.img refusal
"#;

/// The kernel lists a volume on a block device with another type than its line has; the helpers of that name do the same.
const BLOCK_DEVICE: &str = r#"
device=$(losetup --find --show volumes/b.img)
# It goes when nobody has it open any more.
exec 3< "$device"
losetup --detach "$device"
cp fstab lines
echo "$device $PWD/b fuse.pando user 0 0" > fstab
mount -a -t fuse.pando
mount -a -t fuse.pando
test "$(findmnt -n -o FSTYPE b)" = fuseblk.pando
touch b/block
mount -o remount,ro b
refused touch b/new
mount -o remount,rw b
exec 4< b/block
# Where it cannot be unmounted, the helper makes it read-only.
umount -r b
exec 4<&-
findmnt -n -o OPTIONS b | grep -q '^ro,'
umount b
refused findmnt b
$PANDO check "$device"
exec 3<&-
cat lines > fstab
"#;

/// A user mounts and unmounts what a line with `user` allows; what is in it belongs to whom it belongs.
const AS_A_USER: &str = r#"
# Nor where the session of whoever runs this has its sockets.
unset XDG_RUNTIME_DIR
as_user() { setpriv --reuid "$NOBODY" --regid "$NOBODY" --clear-groups "$@"; }
# The device as udev makes it, whatever this machine's is.
mknod -m 666 fuse c 10 229
mount --bind fuse /dev/fuse
chown -R "$NOBODY" a volumes
rm volumes/a.img
as_user $PANDO format --size 256M volumes/a.img
as_user mount "$PWD/a"
as_user sh -c 'echo mine > a/file'
test "$NOBODY" = "$(as_user stat -c %u a/file)"
# Root is another user.
refused cat a/file
# It gets to the daemon all the same, and is told nothing that is not so.
$PANDO info --json a | grep -q '"available": [1-9]'
$PANDO stats a > /dev/null
mount -o remount,ro a
refused as_user touch a/new
mount -o remount,rw a
as_user touch a/new
as_user umount "$PWD/a"
test ! -e a/file
$PANDO check volumes/a.img
# Whoever unmounts waits until it is closed, though a daemon of root's that was killed has left a socket of that name.
as_user mount "$PWD/a"
as_user touch a/newer
mkdir -p -m 755 /run/pando
mount -t tmpfs -o mode=755 own /run/pando
stale=/run/pando/$(findmnt -n -o MAJ:MIN a | tr -d ' ' | tr : -).socket
perl -MSocket -e 'socket(S, PF_UNIX, SOCK_STREAM, 0); bind(S, sockaddr_un(shift)) or die' "$stale"
$PANDO umount a 2> said
test ! -s said
rm said
umount /run/pando
$PANDO info --json volumes/a.img | grep -q '"clean": true'
$PANDO check volumes/a.img
"#;

/// Everything above, one after the other.
pub fn run(context: &Context) -> Outcome {
    let directory = Path::new("/mnt/install");
    tool::create_directory(directory)?;
    let environment = format!(
        "{FUNCTIONS}SOURCE='{}' BUILT='{}' PANDO='{}/prefix/bin/pando' NOBODY=65534\n",
        context.source.display(),
        context.programs.display(),
        directory.display()
    );
    let run = |script: &str| tool::shell(directory, &format!("{environment}{script}"));
    if let Err(failure) = run(PREPARE) {
        return match failure.to_string().contains("status: 77") {
            true => Err(Failure::Skipped("needs an overlay over /sbin".to_owned())),
            false => Err(failure),
        };
    }
    run(INSTALLED)?;
    run(FSTAB)?;
    run(REMOUNT)?;
    run(NAMESPACE)?;
    if volume::has_block_mounts() {
        run(BLOCK_DEVICE)?;
    }
    match context.find("fusermount3") {
        Some(_) => run(AS_A_USER),
        None => Err(Failure::Skipped("the part as an ordinary user needs fusermount3".to_owned())),
    }
}
