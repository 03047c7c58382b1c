//! A repository with thousands of files: committed, cloned, checked, packed, on the volume itself.

use super::linux;
use super::tool;
use super::volume::Volume;
use super::{Context, Outcome};

const SCRIPT: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 HOME="$PWD" GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@t GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@t
clean() { changes=$(git -C "$1" status --porcelain --ignored); test -z "$changes"; }
git init -q --initial-branch=main origin
cp -a "$TREE/." origin/
git -C origin add -A -f
git -C origin commit -q -m first
clean origin
git clone -q --no-local origin clone
git -C clone fsck --full --strict
clean clone
# Of objects on the same file system git makes hard links.
git clone -q --bare --local origin linked
objects=$(find linked/objects -type f); test -n "$objects"
alone=$(find linked/objects -type f -links 1); test -z "$alone"
git -C linked fsck --full --strict
git -C clone checkout -q -b other
git -C clone ls-files > files
head -n 500 files | while read -r file; do echo more >> "clone/$file"; done
git -C clone commit -q -a -m second
git -C clone checkout -q main
git -C clone gc -q --prune=now
git -C clone fsck --full --strict
git -C clone push -q origin other
git -C origin fsck --full --strict
clean clone
"#;

const AFTER_REMOUNT: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 HOME="$PWD"
git -C clone fsck --full --strict
changes=$(git -C clone status --porcelain --ignored); test -z "$changes"
diff -r --no-dereference --exclude=.git "$TREE" clone
"#;

/// Clones, changes, packs and checks a repository, before and after a remount.
pub fn run(context: &Context) -> Outcome {
    let tree = linux::reference(context, &["kernel", "mm"])?;
    let mut volume = Volume::create(context, 4 << 30, &[])?;
    let script = |text: &str| format!("TREE='{}'\n{text}", tree.display());
    tool::shell_with_pipes(&volume.root, &script(SCRIPT))?;
    volume.remount()?;
    tool::shell_with_pipes(&volume.root, &script(AFTER_REMOUNT))?;
    volume.finish()
}
