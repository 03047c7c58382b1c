//! Directories of thousands of files that move as a whole: where they go, what is open in them, and what is written after.

use super::linux;
use super::tool;
use super::volume::Volume;
use super::{Context, Outcome};

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
test "$(ls a)" = ''
test "$(cat other/moved/tree/mm/appended other/moved/tree/mm/here)" = 'one
two'
rm other/moved/tree/mm/appended other/moved/tree/mm/here
diff -r --no-dereference "$TREE" other/moved/tree

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
diff -r --no-dereference "$TREE" small
mv small/mm small/kernel/mm
rm -rf small/kernel
(cd "$TREE"; find . -path ./mm -prune -o -path ./kernel -prune -o -print) | sort > names
(cd small; find .) | sort | diff names -
rm -rf a other small spread names
test -z "$(ls | grep -vx lost+found)"
"#;

/// Moves directories of the Linux source about.
pub fn run(context: &Context) -> Outcome {
    let tree = linux::reference(context, &["kernel", "mm"])?;
    let mut volume = Volume::create(context, 2 << 30, &[])?;
    let script = |text: &str| format!("TREE='{}'\n{text}", tree.display());
    tool::shell(&volume.root, &script(MOVES))?;
    volume.remount()?;
    tool::shell(&volume.root, &script(AFTER_REMOUNT))?;
    volume.finish()
}
