//! RENAME_EXCHANGE of two directories that are too large to be moved by copy, under those who work in them.

use super::tool;
use super::volume::Volume;
use super::{Context, Failure, Outcome};

/// `sums DIRECTORY` prints a sum of all contents and names.
const FUNCTIONS: &str = r#"
sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum; find . | LC_ALL=C sort) | sha256sum; }
same() { diff -r --no-dereference "$WORK/one" "$1"; test "$(sums "$WORK/one")" = "$(sums "$1")"
    diff -r --no-dereference "$WORK/two" "$2"; test "$(sums "$WORK/two")" = "$(sums "$2")"; }
"#;

/// Two trees of 3000 files and one of 48 MiB, first outside of the volume, so that there is something to compare with.
const MAKE: &str = r#"
for name in one two; do
    perl -e '
        my ($top, $length) = ($ARGV[0], length($ARGV[0]));
        mkdir($top) or die "mkdir: $!";
        for my $d (1 .. 30) {
            mkdir("$top/d$d") or die "mkdir: $!";
            for my $f (1 .. 100) {
                open(my $file, ">", "$top/d$d/f$f") or die "open: $!";
                print $file "$top $d $f\n" x (($d * 37 + $f * 11) % 200);
                close($file) or die "close: $!";
            }
        }' "$WORK/$name"
    head -c 50331648 /dev/urandom > "$WORK/$name/large"
done
mkdir -p here there/deep
cp -a "$WORK/one" here/one; cp -a "$WORK/two" there/deep/two
"#;

/// Three exchanges, by a process that works in one directory, maps a file of it, and has files of both open.
const EXCHANGE: &str = r#"
perl -e '
    my ($root, $work) = @ARGV;
    my ($here, $there) = ("$root/here/one", "$root/there/deep/two");
    my $exchange = sub { my ($a, $b) = ($here, $there); syscall(316, -100, $a, -100, $b, 2) == 0 or die "renameat2: $!" };
    my $number = sub { (stat($_[0]))[1] };
    my $is_here = sub {
        my ($place, $other) = @_;
        $number->(".") == $number->("$place/d5") or die "the working directory is not in $place";
        readlink("/proc/self/cwd") eq "$place/d5" or die "the kernel says: " . readlink("/proc/self/cwd");
        $number->(".") != $number->("$other/d5") or die "the working directory is in $other, too";
    };

    open(my $large, "+<", "$here/large") or die "open: $!";
    open(my $log, ">>", "$there/d3/f7") or die "open: $!";
    open(my $gone, "<", "$here/d9/f1") or die "open: $!";
    chdir("$here/d5") or die "chdir: $!";
    my ($PROT_READ_WRITE, $MAP_SHARED, $MS_SYNC) = (3, 1, 4);
    my $at = syscall(9, 0, 16384, $PROT_READ_WRITE, $MAP_SHARED, fileno($large), 0);
    $at != -1 or die "mmap: $!";
    pipe(my $read, my $write) or die;
    my $put = sub {
        my ($offset, $bytes) = @_;
        syswrite($write, $bytes) == 4 or die; syscall(0, fileno($read), $at + $offset, 4) == 4 or die "read: $!";
    };
    my ($own, $appended) = ($number->("$here/large"), $number->("$there/d3/f7"));
    $is_here->($here, $there);

    $put->(0, "fore");
    $exchange->();
    $is_here->($there, $here);
    $number->("$there/large") == $own && $number->($large) == $own or die "the open file is not where it should be";
    $number->("$here/d3/f7") == $appended && $number->($log) == $appended or die "nor is the other";
    $put->(4096, "then");
    open(my $made, ">", "made") or die "open: $!"; print $made "made\n"; close($made) or die "close: $!";
    -e "$there/d5/made" && ! -e "$here/d5/made" or die "what was made in the working directory is elsewhere";
    syswrite($log, "appended\n") == 9 or die "write: $!";
    syscall(26, $at, 16384, $MS_SYNC) == 0 or die "msync: $!";
    # All of the file, from where it is now.
    open(my $mirror, "<", "$work/one/large") or die "open: $!";
    for (my $place = 16384; $place < 50331648; ) {
        sysseek($large, $place, 0) && sysseek($mirror, $place, 0) or die "seek: $!";
        my ($some, $same);
        my $length = sysread($large, $some, 1048576) or die "read: $!";
        sysread($mirror, $same, $length) == $length or die "read: $!";
        $some eq $same or die "the open file differs behind byte $place";
        $place += $length;
    }
    unlink("$there/d9/f1") or die "unlink: $!";

    $exchange->();
    $is_here->($here, $there);
    $put->(8192, "back");
    syswrite($log, "again\n") == 6 or die "write: $!";
    $exchange->();
    $is_here->($there, $here);
    $put->(12288, "last");
    <$gone> =~ m{/one 9 1\n} or die "a file that is open and has no name any more has lost its bytes";
    unlink("f2") or die "unlink: $!";
    syscall(11, $at, 16384) == 0 or die "munmap: $!";
' "$PWD" "$WORK"
(cd "$WORK/one"
    for part in 0:fore 1:then 2:back 3:last; do
        printf ${part#*:} | dd of=large bs=4096 seek=${part%:*} conv=notrunc status=none
    done
    echo made > d5/made; rm d9/f1 d5/f2)
(cd "$WORK/two"; printf 'appended\nagain\n' >> d3/f7)
same there/deep/two here/one
"#;

/// A directory and a file, and two files, change places as well.
const AFTER_REMOUNT: &str = r#"
same there/deep/two here/one
exchange() { perl -e 'exit(syscall(316, -100, $ARGV[0], -100, $ARGV[1], 2) == 0 ? 0 : 1)' "$1" "$2"; }
mv here/one/large large
exchange large there/deep/two
cmp there/deep/two "$WORK/two/large"
exchange large/large there/deep/two
cmp there/deep/two "$WORK/one/large"; cmp large/large "$WORK/two/large"
exchange large/large there/deep/two
exchange there/deep/two large
mv large here/one/large
same there/deep/two here/one
rm -rf here
(cd there/deep && mv two one && sums one) > sums; sums "$WORK/one" | cmp - sums
rm -rf there sums
left=$(ls -I lost+found); test -z "$left"
"#;

/// Two more, of which the ranges that moved are counted.
const COUNTED: &str = r#"
for time in 1 2; do
    perl -e 'my ($a, $b) = ("here/one", "there/deep/two"); exit(syscall(316, -100, $a, -100, $b, 2) == 0 ? 0 : 1)'
done
"#;

/// Each exchange moves two directories, and what is below each is a range in either tree.
const RANGES: u64 = 2 * 4;

/// Exchanges large directories.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    let script = |text: &str| format!("WORK='{}'\n{FUNCTIONS}{text}", context.work.display());
    tool::shell_with_pipes(&volume.root, &script(MAKE))?;
    // What is still to be written into the tree could be less than what is copied.
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, COUNTED)?;
    if volume.is_pando() {
        let (cloned, copied) = (volume.counter("ranges_cloned")?, volume.counter("ranges_copied")?);
        eprintln!("{cloned} ranges were moved by goto, {copied} by copy");
        if cloned < RANGES {
            let what = format!("{cloned} ranges were moved by goto, not {RANGES}: all else was copied");
            return Err(Failure::Wrong(what));
        }
    }
    tool::shell_with_pipes(&volume.root, &script(EXCHANGE))?;
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, &script(AFTER_REMOUNT))?;
    volume.finish()
}
