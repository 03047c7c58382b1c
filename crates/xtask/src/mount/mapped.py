"""Files that stay mapped: changed through their maps, and looked at in a snapshot and in a clone of their directory; and those of a writable
snapshot, looked at where it was sent to, in a mount of it, and after going back to it."""

import mmap
import os
import shlex
import subprocess
import sys

FILES, BYTES = 64, 1 << 20
pando, image, root, other, rounds = sys.argv[1:]
ROUNDS = int(rounds)

# Started before there is a map: a child leaves what it has of those when it executes its program, and that sends what waits.
shell = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
os.mkdir(f"{root}/tree")
os.mkdir(other)


def map_files(where):
    maps = []
    for number in range(FILES):
        with open(f"{where}/{number}", "a+b") as file:
            file.truncate(BYTES)
            maps.append(mmap.mmap(file.fileno(), BYTES))
    return maps


def change(maps, expected):
    for each in maps:
        each[:] = expected
    return expected


def run(*words):
    shell.stdin.write(f"{shlex.join(words)} >&2; echo $?\n")
    shell.stdin.flush()
    if shell.stdout.readline() != "0\n":
        sys.exit(f"{words} failed")


def look(where, expected):
    for number in range(FILES):
        with open(f"{where}/{number}", "rb") as file:
            if file.read() != expected:
                sys.exit(f"{where}/{number} is not what was written before it was made")


maps = map_files(f"{root}/tree")
for turn in range(ROUNDS):
    expected = change(maps, bytes([ord("a") + turn]) * BYTES)
    run(pando, "snapshot", "create", root, f"taken.{turn}")
    look(f"{root}/.snapshots/taken.{turn}/tree", expected)
    expected = change(maps, expected.upper())
    run(pando, "clone", f"{root}/tree", f"{root}/clone.{turn}")
    look(f"{root}/clone.{turn}", expected)

run(pando, "snapshot", "create", "--writable", root, "trial")
maps = map_files(f"{root}/.snapshots/trial/tree")
for turn in range((ROUNDS + 1) // 3):
    expected = change(maps, bytes([ord("a") + turn]) * BYTES)
    run("bash", "-o", "pipefail", "-c", '"$0" send "$1" trial | "$0" receive --name "$2" "$1"', pando, root, f"sent.{turn}")
    look(f"{root}/.snapshots/sent.{turn}/tree", expected)
    expected = change(maps, expected.upper())
    run(pando, "mount", "-o", "snapshot=trial", image, other)
    look(f"{other}/tree", expected)
    expected = change(maps, bytes([ord("k") + turn]) * BYTES)
    run("bash", "-o", "pipefail", "-c", '"$0" send "$1" trial | "$0" receive --name "$2" "$3"', pando, other, f"other.{turn}", root)
    look(f"{root}/.snapshots/other.{turn}/tree", expected)
    run(pando, "umount", other)
    expected = change(maps, expected.lower())
    run(pando, "snapshot", "rollback", root, "trial")
    look(f"{root}/tree", expected)
