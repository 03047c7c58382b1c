//! Snapshots sent from one mounted volume to another, whole and as changes, and compared as programs see them.

use super::linux;
use super::tool;
use super::volume::Volume;
use super::{Context, Failure, Outcome};

/// `listing DIRECTORY` prints all that stat tells of what is in it but inode numbers.
const FUNCTIONS: &str = r#"
attribute() { getfattr --only-values --absolute-names -n "$1" "$2"; }
listing() { (cd "$1" && find . -printf '%P %y %#m %U %G %s %b %T@ %C@ %n %l\n' | LC_ALL=C sort); }
same() {
    # It takes no two device nodes or fifos for the same; rsync compares them.
    diff -r --no-dereference -x fifo -x node "$1" "$2"
    listing "$1" > "$WORK"/one.list; listing "$2" | diff "$WORK"/one.list -
    difference=$(rsync -naHAX --checksum --delete --itemize-changes "$1/" "$2/")
    echo "$difference"; test -z "$difference"
}
"#;

const SEND: &str = r#"
cp -a "$TREE" tree
ln tree/mm/slab.c tree/kernel/slab.c
setfattr -n user.note -v kept tree/mm
setfattr -n user.large -v "$(head -c 3000 /dev/zero | tr '\0' x)" tree/mm/slab.c
dd if=/dev/urandom of=sparse bs=4k count=3 seek=100000 status=none
dd if=/dev/urandom of=sparse bs=4k count=3 seek=10 conv=notrunc status=none
mknod node c 1 3; mkfifo fifo; chmod 4711 tree/mm/slab.c; chown 12:34 tree/kernel
touch -d '2001-02-03 04:05:06.789' tree/mm
"$PANDO" snapshot create "$PWD" one
"$PANDO" send "$PWD" one | "$PANDO" receive "$OTHER"
same .snapshots/one "$OTHER/.snapshots/one"
test "$(stat -c %W .snapshots/one/tree/mm/slab.c)" = "$(stat -c %W "$OTHER/.snapshots/one/tree/mm/slab.c")"
test "$(attribute user.note "$OTHER/.snapshots/one/tree/mm")" = kept
test "$(attribute user.large "$OTHER/.snapshots/one/tree/mm/slab.c" | wc -c)" = 3000
test "$OTHER/.snapshots/one/tree/mm/slab.c" -ef "$OTHER/.snapshots/one/tree/kernel/slab.c"

# Changes, while both volumes are written to.
rm -r tree/kernel/time; mv tree/mm tree/memory; echo new > tree/new; ln tree/new tree/memory/linked
setfattr -n user.note -v changed tree/memory; setfattr -x user.large tree/memory/slab.c
dd if=/dev/urandom of=sparse bs=4k count=1 seek=11 conv=notrunc status=none
(for i in $(seq 300); do echo $i > busy.$i; done) &
(cd "$OTHER" && for i in $(seq 300); do echo $i > busy.$i; done) &
"$PANDO" snapshot create "$PWD" two
"$PANDO" snapshot diff "$PWD" one two > difference
grep -qx 'R /tree/mm -> /tree/memory' difference
grep -qx -- '- /tree/kernel/time' difference
grep -qx '+ /tree/new' difference
if grep -q '/tree/kernel/sched' difference; then cat difference; exit 1; fi
"$PANDO" send -i one "$PWD" two > "$WORK"/changes
wait
# What is cut off or damaged leaves nothing.
head -c $(($(stat -c %s "$WORK"/changes) / 2)) "$WORK"/changes > "$WORK"/half
if "$PANDO" receive "$OTHER" < "$WORK"/half 2> "$WORK"/refusal; then exit 1; fi
grep -q 'ends too soon' "$WORK"/refusal
if "$PANDO" receive "$PWD" --name again < "$WORK"/one.list 2> "$WORK"/refusal; then exit 1; fi
grep -q "no stream" "$WORK"/refusal
test ! -e "$OTHER/.snapshots/two"
"$PANDO" receive "$OTHER" < "$WORK"/changes
same .snapshots/two "$OTHER/.snapshots/two"
same .snapshots/one "$OTHER/.snapshots/one"
if "$PANDO" receive "$OTHER" < "$WORK"/changes 2> "$WORK"/refusal; then exit 1; fi
grep -q 'already' "$WORK"/refusal
# Who stops listening ends it.
"$PANDO" send "$PWD" two | head -c 100000 > /dev/null || true
# And back again, whole.
"$PANDO" send "$OTHER" two | "$PANDO" receive --name back "$PWD"
same .snapshots/two .snapshots/back
test "$(attribute user.note .snapshots/back/tree/memory)" = changed
listing .snapshots/two > "$WORK"/two.list
"#;

const AFTER_REMOUNT: &str = r#"
listing .snapshots/two | diff "$WORK"/two.list -
same .snapshots/two .snapshots/back
test "$(attribute user.note .snapshots/back/tree/memory)" = changed
"#;

/// Sends and receives between two volumes.
pub fn run(context: &Context) -> Outcome {
    if context.kind != super::volume::Kind::Pando {
        return Err(Failure::Skipped("only PandoFS sends its snapshots".to_owned()));
    }
    let tree = linux::reference(context, if context.full { &[] } else { &["kernel", "mm"] })?;
    let size = if context.full { 8 << 30 } else { 1 << 30 };
    let mut volume = Volume::create(context, size, &[])?;
    let other = Volume::create_another(context, size, &[])?;
    let pando = context.programs.join("pando");
    let script = |text: &str| {
        let (tree, pando, other) = (tree.display(), pando.display(), other.root.display());
        let work = context.work.display();
        format!("TREE='{tree}'\nPANDO='{pando}'\nOTHER='{other}'\nWORK='{work}'\n{FUNCTIONS}{text}")
    };
    tool::shell_with_pipes(&volume.root, &script(SEND))?;
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, &script(AFTER_REMOUNT))?;
    volume.finish()?;
    other.finish()
}
