# Snapshots on a mount: roll back under those who use it, writable ones, and snapshots mounted on their own.
# WORK is an empty directory, PANDO the program, MOUNTS a directory for mount points.

IMAGE="$WORK/snapshots.img"
M="$MOUNTS/live" S="$MOUNTS/alone" T="$MOUNTS/second"
mkdir -p "$M" "$S" "$T"
leave() {
    cd /
    exec 3>&- 4>&- 5>&-
    for mount in "$S" "$T" "$M"; do
        while mountpoint -q "$mount"; do "$PANDO" umount --lazy "$mount" || umount -l "$mount"; done
    done
}
trap leave EXIT
trap 'exit 1' TERM INT
# refused PATTERN COMMAND...: it fails, and says why. An unmount that is not refused would wait for mounts that only the end of the test
# takes away; so it gets a limit.
refused() {
    local pattern="$1"; shift
    if "$@" > "$WORK/said" 2>&1; then echo "not refused: $*"; exit 1; fi
    grep -q "$pattern" "$WORK/said" || { echo "$*: "; cat "$WORK/said"; exit 1; }
}
snapshot() { "$PANDO" snapshot "$@"; }

"$PANDO" format --size 256M "$IMAGE"
"$PANDO" mount "$IMAGE" "$M"
cd "$M"

# --- Going back while it is used.
mkdir -p a/b; echo one > a/b/file; echo kept > top; ln top a/top2
for i in $(seq 200); do echo $i > a/f$i; done
ln -s a/b/file link
snapshot create "$M" one
echo two > a/b/file; echo new > new; mkdir -p gone/below
rm top a/top2 link; for name in top a/top2 link; do test ! -e $name; done
ls -R > /dev/null; cat a/b/file a/f* > /dev/null
exec 3< a/b/file 4>> new 5< a/f1
rm a/f1
(
    cd gone/below
    snapshot rollback "$M" one
    refused 'tale file handle' ls .
    refused 'tale file handle' bash -c 'echo x > new'
)
test "$(cat a/b/file)" = one
test "$(cat top)" = kept; test top -ef a/top2; test "$(stat -c %h top)" = 2; test "$(cat link)" = one
test ! -e new; test ! -e gone; test "$(ls a | wc -l)" = 202; test "$(cat a/f1)" = 1
test "$(stat -c %s .)" = 3
refused 'tale file handle' cat <&3
refused 'tale file handle' bash -c 'echo x >&4'
test "$(cat <&5)" = 1
exec 3>&- 4>&- 5>&-
test "$(cat .snapshots/one/a/b/file)" = one
# Again and again, with names that come and go.
for i in $(seq 20); do
    echo $i > a/b/file; echo $i > now$i; rm top; test ! -e top; cat a/b/file > /dev/null
    snapshot rollback "$M" one
    test "$(cat a/b/file)" = one; test "$(cat top)" = kept; test ! -e now$i
done
# While others work in it: none of them may hang, and the tree is what it was.
(
    for i in $(seq 100); do
        { mkdir -p busy/$((i % 7)) && echo $i > busy/$((i % 7))/file && mv busy/$((i % 7)) busy/x$i && ls -l busy; } > /dev/null 2>&1 || true
    done
) &
for i in $(seq 10); do snapshot rollback "$M" one; done
wait $!
snapshot rollback "$M" one
test "$(ls)" = "$(printf 'a\nlink\ntop')"
refused 'no such snapshot' snapshot rollback "$M" two

# --- What cannot be changed.
cd .snapshots/one
perl -MErrno=EROFS -e '
    our ($f, $g);
    my %calls = (
        chmod => sub { chmod 0600, "top" }, utime => sub { utime 1, 1, "top" }, truncate => sub { truncate "top", 1 },
        chown => sub { chown 1, 1, "top" }, unlink => sub { unlink "top" }, rename => sub { rename "top", "x" },
        mkdir => sub { mkdir "x" }, rmdir => sub { rmdir "a/b" }, symlink => sub { symlink "x", "x" },
        link => sub { link "top", "x" },
        trunc => sub { open(my $f, ">", "top") }, create => sub { open(my $f, ">", "x") },
        write => sub { open($f, "+<", "top") and syswrite $f, "x" },
        append => sub { open($g, ">>", "top") and syswrite $g, "x" },
    );
    for (sort keys %calls) {
        $! = 0;
        $calls{$_}->() and die "$_ was done";
        $! == EROFS or die "$_: $!";
    }'
refused 'ead-only file system' cp --reflink=auto "$M/a/f2" top
refused 'ead-only file system' fallocate -l 10 top
refused 'read-only' "$PANDO" clone "$M/a" "$M/.snapshots/one/clone"
# A shared map that may be written to, which the kernel grants without asking: what is put there comes to nothing.
perl -e '
    open(my $file, "+<", "top") or die "open: $!";
    my ($PROT_READ_WRITE, $MAP_SHARED, $MS_SYNC) = (3, 1, 4);
    my $at = syscall(9, 0, 4096, $PROT_READ_WRITE, $MAP_SHARED, fileno($file), 0);
    $at != -1 or die "mmap: $!";
    pipe(my $read, my $write) or die; syswrite($write, "LOST") == 4 or die;
    syscall(0, fileno($read), $at, 4) == 4 or die "read: $!";
    syscall(26, $at, 4096, $MS_SYNC); syscall(11, $at, 4096) == 0 or die "munmap: $!";'
# The kernel is told to forget it by another thread.
for try in $(seq 1200); do if test "$(cat top)" = kept; then break; fi; sleep 0.1; done
test "$(cat top)" = kept; test "$(cat ../../top)" = kept
cd "$M"
refused 'ead-only file system' mkdir .snapshots/new
refused 'ead-only file system' rmdir .snapshots/one

# --- Writable ones.
snapshot create --writable "$M" trial
snapshot list "$M" | grep -q 'rw .*trial'
echo in > .snapshots/trial/a/new; test ! -e a/new
perl -MErrno=EXDEV -e '
    rename(".snapshots/trial/top", "x") and die; $! == EXDEV or die $!;
    link(".snapshots/trial/top", "x") and die; $! == EXDEV or die $!;
    rename("top", ".snapshots/trial/x") and die; $! == EXDEV or die $!;'
mv .snapshots/trial/a/new moved
test "$(cat moved)" = in; test ! -e .snapshots/trial/a/new
rm -r .snapshots/trial/a/b; ln .snapshots/trial/top .snapshots/trial/top3
test "$(stat -c %h .snapshots/trial/top .snapshots/one/top top | tr '\n' ' ')" = '3 2 2 '
test -e a/b/file; test -e .snapshots/one/a/b/file
find . .snapshots/one .snapshots/trial ! -type d -links 1 -printf '%i\n' > "$WORK/numbers"
same=$(sort "$WORK/numbers" | uniq -d); test -z "$same"
test "$(find . .snapshots/one .snapshots/trial -samefile .snapshots/trial/top | wc -l)" = 3
mkdir copies; cp -a .snapshots/trial copies/cp; mkdir copies/tar; tar -C .snapshots/trial -cf - . | tar -C copies/tar -xf -
for it in cp tar; do
    diff -r --no-dereference .snapshots/trial copies/$it
    test "$(find copies/$it -samefile copies/$it/top | wc -l)" = 3
done
"$PANDO" clone a .snapshots/trial/clone; diff -r a .snapshots/trial/clone
"$PANDO" clone .snapshots/trial/clone clone; diff -r a clone
cp --reflink=auto a/f2 .snapshots/trial/f2; cmp a/f2 .snapshots/trial/f2
exec 3< .snapshots/trial/a/f3 4< .snapshots/trial/a/f4; rm .snapshots/trial/top .snapshots/trial/a/f3
snapshot rollback "$M" trial
test "$(ls)" = "$(printf 'a\nclone\nf2\nlink\ntop3')"
test ! -e a/b; test "$(stat -c %h top3)" = 2
snapshot delete "$M" trial
test "$(cat <&3)" = 3
refused 'tale file handle' cat <&4
exec 3>&- 4>&-
test ! -e .snapshots/trial

# --- Alone, while the volume is mounted.
cd /
snapshot rollback "$M" one
"$PANDO" mount -o snapshot=one "$IMAGE" "$S"
diff -r --no-dereference "$M/.snapshots/one" "$S"
test "$(stat -c %d "$S")" != "$(stat -c %d "$M")"
findmnt -n -o SOURCE "$S" | grep -qx "$IMAGE@one"
findmnt -n -o OPTIONS "$S" | grep -q '^ro,'
refused 'ead-only file system' touch "$S/new"
test "$(find "$S" -samefile "$S/top" | wc -l)" = 2
echo changed > "$M/a/b/file"; test "$(cat "$S/a/b/file")" = one
refused 'it is mounted; unmount it first' snapshot delete "$M" one
refused "mounted on $S" timeout 600 "$PANDO" umount "$M"
mountpoint -q "$M"
"$PANDO" info "$S" | grep -q "$IMAGE"
"$PANDO" stats "$S" > /dev/null
df "$S" > /dev/null
refused 'no snapshot' "$PANDO" mount -o snapshot=none "$IMAGE" "$T"
snapshot create --writable "$M" trial
echo trial > "$M/.snapshots/trial/a/b/file"; ls -R "$M/.snapshots/trial" > /dev/null
# A writable one stays in its mount what it was when it was mounted.
"$PANDO" mount -o snapshot=trial "$IMAGE" "$T"
diff -r --no-dereference "$M/.snapshots/trial" "$T"
refused 'ead-only file system' touch "$T/new"
rm "$M/.snapshots/trial/a/f2"; echo later > "$M/.snapshots/trial/a/b/file"; mkdir "$M/.snapshots/trial/more"
test "$(cat "$T/a/b/file")" = trial; test "$(cat "$T/a/f2")" = 2; test ! -e "$T/more"
refused 'it is mounted' snapshot delete "$M" trial
snapshot create --of trial "$M" kept
refused 'there is no snapshot none' snapshot create --of none "$M" other
rm -r "$M/.snapshots/trial/more"; echo changed > "$M/.snapshots/trial/a/b/file"; echo 2 > "$M/.snapshots/trial/a/f2"
test -d "$M/.snapshots/kept/more"; test "$(cat "$M/.snapshots/kept/a/b/file")" = later
"$PANDO" umount "$T"
"$PANDO" mount -o snapshot=trial "$IMAGE" "$T"; test "$(cat "$T/a/b/file")" = changed; "$PANDO" umount "$T"
snapshot delete "$M" kept
snapshot rollback "$M" one
test "$(cat "$S/a/b/file")" = one; test "$(cat "$M/a/b/file")" = one
# The end of one mount is not that of another.
"$PANDO" mount -o snapshot=one "$IMAGE" "$T"; "$PANDO" umount "$T"
refused "mounted on $S" timeout 600 "$PANDO" umount "$M"
refused 'it is mounted' snapshot delete "$M" one
"$PANDO" umount "$S"
# Mounts that follow each other at once, under the same device number.
for i in $(seq 20); do
    "$PANDO" mount -o snapshot=one "$IMAGE" "$S"; umount -i "$S"
    "$PANDO" mount -o snapshot=one "$IMAGE" "$T"
    refused 'is mounted on' timeout 600 "$PANDO" umount "$M"
    umount -i "$T"
done
snapshot create "$M" two
# The mount of the volume goes first: the snapshot stays, and the volume is closed when it goes.
"$PANDO" mount -o snapshot=two "$IMAGE" "$S"
umount -i "$M"
test "$(cat "$S/a/b/file")" = one
refused "snapshot that is mounted on $S keeps it open" "$PANDO" mount "$IMAGE" "$M"
"$PANDO" umount "$S"
"$PANDO" check "$IMAGE" > /dev/null
# Who waits for that is told for what.
"$PANDO" mount "$IMAGE" "$M"; "$PANDO" mount -o snapshot=two "$IMAGE" "$S"
"$PANDO" umount --lazy "$M" 2> "$WORK/said" &
for try in $(seq 6000); do if grep -q "waiting for the end of $IMAGE@two on $S" "$WORK/said"; then break; fi; sleep 0.1; done
grep -q "waiting for the end of $IMAGE@two on $S" "$WORK/said"; test "$(cat "$S/a/b/file")" = one
"$PANDO" umount "$S"
wait $!
"$PANDO" check "$IMAGE" > /dev/null
# Alone, with nothing else.
"$PANDO" mount -o snapshot=trial "$IMAGE" "$S"
test "$(cat "$S/a/b/file")" = changed; refused 'ead-only file system' touch "$S/new"
test ! -e "$S/.snapshots"
"$PANDO" umount "$S"
refused 'no snapshot' "$PANDO" mount -o snapshot=none "$IMAGE" "$S"

# --- In listings, if asked for.
"$PANDO" mount -o show_snapshots "$IMAGE" "$M"
ls -A "$M" | grep -qx .snapshots
test "$(ls "$M/.snapshots")" = "$(printf 'one\ntrial\ntwo')"
"$PANDO" umount "$M"
"$PANDO" mount "$IMAGE" "$M"
left=$(ls -A "$M"); test "$left" = "${left#*.snapshots}"
for name in one two trial; do snapshot delete "$M" $name; done
left=$(snapshot list "$M"); test -z "$left"
"$PANDO" umount "$M"
"$PANDO" check "$IMAGE" > /dev/null
