//! Clones of the Linux source, and snapshots: that neither side sees what is done to the other, and that no program takes them for one
//! another.

use super::linux;
use super::tool;
use super::volume::Volume;
use super::{Context, Outcome};

/// `sums DIRECTORY` prints a sum of all contents and names. `scribble DIRECTORY SEED` writes at random places of random files, makes and removes
/// some.
const FUNCTIONS: &str = r#"
sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum; find . | LC_ALL=C sort) | sha256sum; }
scribble() {
    find "$1" -type f | LC_ALL=C sort | perl -e '
        srand(shift); my @files = map { chomp; $_ } <STDIN>;
        for (1 .. 400) {
            my $name = $files[rand @files];
            my $kind = int(rand(6));
            if ($kind == 0) { unlink $name; next }
            if ($kind == 1) { rename $name, "$name.renamed"; next }
            if ($kind == 2) { open(my $f, ">", "$name.new") or die; print $f "new $_\n"; next }
            if ($kind == 3) { truncate($name, int(rand(9000))); next }
            open(my $f, "+<", $name) or next;
            seek($f, int(rand((-s $f) + 1)), 0); print $f "scribble $_";
        }' "$2"
}
"#;

/// One clone of the tree, timed; then many changes to either, one after the other.
const APART: &str = r#"
cp -a "$TREE" source
ln source/mm/slab.c source/kernel/slab.c; ln source/mm/slab.c outside.c
setfattr -n user.note -v kept source/mm; setfattr -n user.other -v kept source/mm/slab.c
sync
test ! -e copy
start=$(date +%s%N)
"$PANDO" clone source copy
end=$(date +%s%N)
echo "a clone of $(find source | wc -l) names took $(((end - start) / 1000)) us"
before=$(sums source)
test "$(sums copy)" = "$before"
diff -r --no-dereference source copy
# Extended attributes too, which neither diff nor find sees.
difference=$(rsync -naHX --checksum --delete --itemize-changes source/ copy/)
echo "$difference"; test -z "$difference"
test "$(getfattr --only-values -n user.note copy/mm)" = kept
(cd source; find . -printf '%P %y %m %U %G %s %T@ %l\n' | LC_ALL=C sort) > list
(cd copy; find . -printf '%P %y %m %U %G %s %T@ %l\n' | LC_ALL=C sort) | diff list -

# Hard links are the clone's own.
test copy/mm/slab.c -ef copy/kernel/slab.c
test "$(stat -c %h copy/mm/slab.c source/mm/slab.c outside.c | tr '\n' ' ')" = '2 3 3 '
test "$(find . -samefile copy/mm/slab.c | LC_ALL=C sort | tr '\n' ' ')" = './copy/kernel/slab.c ./copy/mm/slab.c '

# No two files show the same number.
same=$(find source copy ! -type d -links 1 -printf '%i\n' | sort | uniq -d); test -z "$same"
same=$(find source copy -type d -printf '%i\n' | sort | uniq -d); test -z "$same"

for i in 1 2 3; do
    scribble source $i
    test "$(sums copy)" = "$before"
    now=$(sums source); test "$now" != "$before"
    scribble copy 1$i
    test "$(sums source)" = "$now"
    rm -rf source; mv copy source; "$PANDO" clone source copy
    before=$(sums source); test "$(sums copy)" = "$before"
done
"#;

/// Programs that tell files apart by their numbers see clones as what they are: other files.
const PROGRAMS: &str = r#"
rm -rf source copy
cp -a "$TREE/mm" source
ln source/slab.c source/same.c
"$PANDO" clone source copy
mkdir both; mv source copy both/
cp -a both cp
rsync -aH both/ rsync/
mkdir tar; tar -C both -cf - . | tar -C tar -xf -
for it in cp rsync tar; do
    diff -r --no-dereference both $it
    test "$(find $it ! -type d -links 2 | wc -l)" = 4
    test "$(find $it -samefile $it/copy/slab.c | wc -l)" = 2
done
# cp refuses to copy onto the same file, and a clone is none.
cp both/source/slab.c both/copy/slab.c
if cp both/copy/slab.c both/copy/same.c 2> /dev/null; then exit 1; fi
test "$(du -s --apparent-size both | cut -f1)" -ge $(($(du -s --apparent-size both/copy | cut -f1) * 2 - 8))
"#;

/// What cannot be cloned is refused with a sentence, and leaves nothing.
const REFUSED: &str = r#"
refused() {
    if "$PANDO" clone "$1" "$2" > refusal 2>&1; then echo "cloned $1 to $2"; exit 1; fi
    grep -q "$3" refusal || { cat refusal; exit 1; }
}
mkdir trap
ls trap/inside 2> /dev/null || true
refused trap trap/inside 'into itself'
refused both cp 'exists'
refused missing new 'no such file'
refused both missing/new 'no such file'
refused /etc/passwd new 'different file systems'
refused /etc/passwd /etc/passwd.clone 'no mounted PandoFS'
test ! -e new
# One file, open and written to on both sides.
exec 3>> file; echo one >&3
"$PANDO" clone file file.clone; echo two >&3; echo other >> file.clone
test "$(cat file)" = "$(printf 'one\ntwo')"; test "$(cat file.clone)" = "$(printf 'one\nother')"
# Names that the kernel knows to be absent, and then are there; in a directory of which it knows all names.
ls trap > /dev/null
for i in $(seq 50); do test ! -e trap/$i; "$PANDO" clone file trap/$i; test -s trap/$i; done
test "$(ls trap | wc -l)" = 50; test "$(stat -c %s trap)" = 50
exec 3>&-
rm refusal
"#;

/// Snapshots stay what they are, whatever is done meanwhile.
const SNAPSHOTS: &str = r#"
cp -a "$TREE" source
ln source/mm/slab.c source/kernel/slab.c
setfattr -n user.note -v first source/kernel
sync
first=$(sums source)
start=$(date +%s%N)
"$PANDO" snapshot create "$PWD" first
end=$(date +%s%N)
echo "a snapshot of $(find . | wc -l) names took $(((end - start) / 1000)) us"
scribble source 1; setfattr -n user.note -v second source/kernel
second=$(sums source); test "$second" != "$first"
"$PANDO" snapshot create "$PWD" second
scribble source 2; setfattr -x user.note source/kernel
mv source moved; rm -rf moved/mm
test "$(sums .snapshots/first/source)" = "$first"
test "$(sums .snapshots/second/source)" = "$second"
same=$(find moved .snapshots/*/source ! -type d -links 1 -printf '%i\n' | sort | uniq -d); test -z "$same"
test "$(find .snapshots/first -samefile .snapshots/first/source/mm/slab.c | wc -l)" = 2
mkdir out; cp -a .snapshots/first/source out/copied
"$PANDO" clone .snapshots/first/source out/cloned
test "$(sums out/copied)" = "$first"; test "$(sums out/cloned)" = "$first"
scribble out/cloned 3
test "$(sums .snapshots/first/source)" = "$first"
if touch .snapshots/first/new 2> /dev/null; then exit 1; fi
if rm .snapshots/first/source/mm/slab.c 2> /dev/null; then exit 1; fi
echo "$first" > first.sum; echo "$second" > second.sum
"#;

const SNAPSHOTS_AFTER_REMOUNT: &str = r#"
for it in first second; do
    test "$(getfattr --only-values -n user.note .snapshots/$it/source/kernel)" = $it
done
test "$(sums .snapshots/first/source)" = "$(cat first.sum)"
test "$(sums .snapshots/second/source)" = "$(cat second.sum)"
"$PANDO" snapshot delete "$PWD" first
test ! -e .snapshots/first
test "$(sums .snapshots/second/source)" = "$(cat second.sum)"
test "$("$PANDO" snapshot list "$PWD" | wc -l)" = 1
"$PANDO" snapshot delete "$PWD" second
rm -rf moved out first.sum second.sum
left=$(ls -I lost+found); test -z "$left"
"#;

const AFTER_REMOUNT: &str = r#"
for it in cp rsync tar; do diff -r --no-dereference cp $it; done
diff -r --no-dereference both/source both/copy
test "$(ls trap | wc -l)" = 50
rm -rf both cp rsync tar trap file file.clone list outside.c
left=$(ls -I lost+found); test -z "$left"
"#;

/// Clones a tree, and looks at both as programs do.
pub fn run(context: &Context) -> Outcome {
    let tree = linux::reference(context, if context.full { &[] } else { &["kernel", "mm"] })?;
    let mut volume = Volume::create(context, if context.full { 8 << 30 } else { 2 << 30 }, &[])?;
    let pando = context.programs.join("pando");
    let script =
        |text: &str| format!("TREE='{}'\nPANDO='{}'\n{FUNCTIONS}{text}", tree.display(), pando.display());
    for part in [APART, PROGRAMS, REFUSED] {
        tool::shell_with_pipes(&volume.root, &script(part))?;
    }
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, &script(AFTER_REMOUNT))?;
    tool::shell_with_pipes(&volume.root, &script(SNAPSHOTS))?;
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, &script(SNAPSHOTS_AFTER_REMOUNT))?;
    volume.finish()
}
