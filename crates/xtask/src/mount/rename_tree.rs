//! Directories of thousands of files that move as a whole: where they go, what is open in them, and what is written after.

use super::linux;
use super::tool;
use super::volume::Volume;
use super::{Context, Outcome};

/// What is in the file that was mapped.
const MAPPED: &str = r#"
mapped() { seq 5000 | perl -0pe 'substr($_, 0, 4) = "fore"; substr($_, 8192, 4) = "then"; substr($_, 12288, 4) = "last"'; }
"#;

/// Renames while a shell works in the tree and holds a file of it open, then changes both sides of where it was.
const MOVES: &str = r#"
mkdir -p a/b/c other
cp -a "$TREE" a/b/tree
sync
(cd a/b/tree/mm; exec 3< slab.c 4>> appended
    mv ../../../../a/b ../../../../other/moved
    cmp /dev/fd/3 "$TREE/mm/slab.c"
    echo one >&4
    test "$(pwd -P)" = "$(cd ../../../../other/moved/tree/mm && pwd -P)"
    echo two > here)
left=$(ls a); test -z "$left"
test "$(cat other/moved/tree/mm/appended other/moved/tree/mm/here)" = 'one
two'
rm other/moved/tree/mm/appended other/moved/tree/mm/here
diff -r --no-dereference "$TREE" other/moved/tree

# What is written through a shared map comes to where its file is by now: pages dirty before the move, and after it.
mkdir -p mapped/below; seq 5000 > mapped/below/file; sync
perl -e '
    open(my $file, "+<", "mapped/below/file") or die "open: $!";
    my ($PROT_READ_WRITE, $MAP_SHARED, $MS_SYNC) = (3, 1, 4);
    my $at = syscall(9, 0, 16384, $PROT_READ_WRITE, $MAP_SHARED, fileno($file), 0);
    $at != -1 or die "mmap: $!";
    pipe(my $read, my $write) or die;
    my $put = sub {
        my ($offset, $bytes) = @_;
        syswrite($write, $bytes) == 4 or die; syscall(0, fileno($read), $at + $offset, 4) == 4 or die "read: $!";
    };
    $put->(0, "fore");
    rename("mapped", "other/mapped") or die "rename: $!";
    $put->(8192, "then");
    mkdir("mapped") && mkdir("mapped/below") or die "mkdir: $!";
    open(my $new, ">", "mapped/below/file") or die "open: $!"; syswrite($new, "new") == 3 or die; close($new);
    syscall(26, $at, 16384, $MS_SYNC) == 0 or die "msync: $!";
    rename("other/mapped/below/file", "other/mapped/file") or die "rename: $!";
    $put->(12288, "last");
    syscall(11, $at, 16384) == 0 or die "munmap: $!";'
test "$(cat mapped/below/file)" = new
mapped | cmp - other/mapped/file

# A new tree in the old place is not the one that left it.
mkdir -p a/b/tree/mm; echo new > a/b/tree/mm/slab.c
diff -r --no-dereference "$TREE" other/moved/tree
test "$(find a | wc -l)" = 5

# Back and forth, with changes in between, onto an empty directory as well.
for i in $(seq 20); do
    mkdir target
    mv -T other/moved/tree target
    echo $i > target/mm/change.$i
    mv -T target other/moved/tree
    rm other/moved/tree/mm/change.$i
done
diff -r --no-dereference "$TREE" other/moved/tree

# Two trees change places in one call: renameat2 with RENAME_EXCHANGE.
cp -a "$TREE/mm" small
perl -e 'my ($a, $b) = ("small", "other/moved/tree"); exit(syscall(316, -100, $a, -100, $b, 2) == 0 ? 0 : 1)'
diff -r --no-dereference "$TREE" small
diff -r --no-dereference "$TREE/mm" other/moved/tree

# Each directory of a tree moves on its own.
mkdir spread
for d in small/*/; do mv "$d" spread/; done
rm -rf other/moved/tree/
for d in spread/*/; do mv "$d" small/; done
diff -r --no-dereference "$TREE" small
"#;

const AFTER_REMOUNT: &str = r#"
test "$(cat mapped/below/file)" = new
mapped | cmp - other/mapped/file
diff -r --no-dereference "$TREE" small
mv small/mm small/kernel/mm
rm -rf small/kernel
(cd "$TREE"; find . -path ./mm -prune -o -path ./kernel -prune -o -print) | sort > names
(cd small; find .) | sort | diff names -
rm -rf a mapped other small spread names
left=$(ls -I lost+found); test -z "$left"
"#;

/// Moves directories of the Linux source about.
pub fn run(context: &Context) -> Outcome {
    let tree = linux::reference(context, &["kernel", "mm"])?;
    let mut volume = Volume::create(context, 2 << 30, &[])?;
    let script = |text: &str| format!("TREE='{}'\n{MAPPED}{text}", tree.display());
    tool::shell_with_pipes(&volume.root, &script(MOVES))?;
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, &script(AFTER_REMOUNT))?;
    volume.finish()
}
