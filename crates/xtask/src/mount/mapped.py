"""Files that stay mapped: changed through their maps, and looked at in a snapshot and in a clone of their directory."""

import mmap
import os
import shlex
import subprocess
import sys

FILES, BYTES, ROUNDS = 64, 1 << 20, 10
pando, root = sys.argv[1:]

# Started before there is a map: a child leaves what it has of those when it executes its program, and that sends what waits.
shell = subprocess.Popen(["sh"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
os.mkdir(f"{root}/tree")
maps = []
for number in range(FILES):
    with open(f"{root}/tree/{number}", "w+b") as file:
        file.truncate(BYTES)
        maps.append(mmap.mmap(file.fileno(), BYTES))


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


for turn in range(ROUNDS):
    expected = bytes([ord("a") + turn]) * BYTES
    for each in maps:
        each[:] = expected
    run(pando, "snapshot", "create", root, f"taken.{turn}")
    look(f"{root}/.snapshots/taken.{turn}/tree", expected)
    expected = expected.upper()
    for each in maps:
        each[:] = expected
    run(pando, "clone", f"{root}/tree", f"{root}/clone.{turn}")
    look(f"{root}/clone.{turn}", expected)
