//! Hard links, as the programs that care for them make and find them: cp, rsync, tar, find and ln.

use super::tool;
use super::volume::Volume;
use super::{Context, Outcome};

/// `links DIRECTORY` prints each name with its link count and the number of its file, files counted in the order of their
/// names; two trees with the same links print the same. `sound` compares link counts with the names there are.
const FUNCTIONS: &str = r#"
links() {
    (cd "$1" && find . ! -type d -printf '%P %n %i\n') | sort |
        awk '{ if (!($3 in file)) file[$3] = ++files; print $1, $2, file[$3] }'
}
sound() {
    find "$1" ! -type d -printf '%i %n %P\n' | sort |
        awk '{ names[$1]++; links[$1] = $2 }
            END { for (i in names) if (names[i] != links[i]) { print i, names[i], links[i]; bad = 1 } exit bad }'
}
"#;

/// Files with one to four names each, in the same and in other directories. No fifos: rsync makes
/// single ones of them.
const TREE: &str = r#"
mkdir "$TREE"; cd "$TREE"
for d in a b b/c 'b/c/d'; do mkdir "$d"; done
for i in $(seq 150); do
    head -c $((i * i * 7 % 60000)) /dev/zero | tr '\0' "\\$((i % 8))" > a/file.$i
    if [ $((i % 2)) = 0 ]; then ln a/file.$i a/same.$i; fi
    if [ $((i % 3)) = 0 ]; then ln a/file.$i b/c/d/deep.$i; fi
    if [ $((i % 5)) = 0 ]; then ln a/file.$i b/other.$i; fi
done
ln -s file.1 a/symlink; ln -P a/symlink b/symlink
"#;

const COPIES: &str = r#"
cp -a "$TREE" cp
rsync -aH "$TREE/" rsync
mkdir tar; tar -C "$TREE" -cf - . | tar -C tar -xf -
links "$TREE" > "$TREE.links"
for copy in cp rsync tar; do
    links $copy | diff "$TREE.links" -
    difference=$(rsync -aHn --checksum --delete --itemize-changes "$TREE/" $copy/)
    echo "$difference"; test -z "$difference"
done
test "$(find cp -samefile cp/a/file.30 | sort | tr '\n' ' ')" = 'cp/a/file.30 cp/a/same.30 cp/b/c/d/deep.30 cp/b/other.30 '

# A second tree of links only, and one of which rsync makes links where nothing has changed.
cp -al cp linked
test "$(stat -c %h cp/a/file.30)" = 8
echo more >> linked/a/file.1
cmp linked/a/file.1 cp/a/file.1
rsync -aH --link-dest="$PWD/tar" "$TREE/" incremental/
test incremental/a/file.2 -ef tar/a/file.2
du -s --apparent-size cp linked > du
rm -rf cp
links linked | cut -d' ' -f1,2 > counts; cut -d' ' -f1,2 "$TREE.links" | diff - counts
mv linked cp; mv rsync/b rsync/moved
chmod 600 rsync/a/file.30; test "$(stat -c %a rsync/moved/c/d/deep.30)" = 600
sound .

# A file outlives all of its names while it is open.
echo kept > open; ln open open2; exec 3< open; rm open open2
test "$(stat -L -c %h /dev/fd/3)" = 0; test "$(cat <&3)" = kept; exec 3<&-
"#;

/// Several processes make, rename and remove names of few files; none may be lost or counted twice.
const RACES: &str = r#"
mkdir race race/x race/y; echo 0 > race/x/1; ln race/x/1 race/y/1
for process in 1 2 3 4; do
    (for i in $(seq 300); do
        one=$(((i * process) % 4)) other=$(((i + process) % 4))
        ln race/x/$one race/y/$other 2> /dev/null || true
        mv -f race/y/$other race/x/$one 2> /dev/null || true
        echo $process.$i >> race/x/$other
        [ $((i % 3)) != 0 ] || rm -f race/x/$one
        ln -f race/x/$other race/y/$one 2> /dev/null || true
    done) &
done
wait
sound race
"#;

const AFTER_REMOUNT: &str = r#"
sound .
rm -rf incremental
links tar | diff "$TREE.links" -
links cp | cut -d' ' -f1,2 | diff counts -
test rsync/a/file.30 -ef rsync/moved/c/d/deep.30
rm -rf cp rsync tar race counts du
left=$(ls -I lost+found); test -z "$left"
"#;

/// Copies trees with hard links in every way, and keeps their names and counts right.
pub fn run(context: &Context) -> Outcome {
    let mut volume = Volume::create(context, 1 << 30, &[])?;
    let tree = context.work.join("tree");
    let script = |text: &str| format!("TREE='{}'\n{FUNCTIONS}{text}", tree.display());
    tool::shell_with_pipes(&context.work, &script(TREE))?;
    tool::shell_with_pipes(&volume.root, &script(COPIES))?;
    tool::shell_with_pipes(&volume.root, &script(RACES))?;
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, &script(AFTER_REMOUNT))?;
    volume.finish()
}
