"""Holes of a file that another process changes through a map: what had been written before a look is no hole in it."""

import errno
import mmap
import os
import random
import struct
import sys
import threading
import time

BLOCK, BLOCKS, LOOKERS, SECONDS = 4096, 4096, 4, 5
path = sys.argv[1]
order = list(range(0, BLOCKS, 2))
random.Random(7).shuffle(order)
# How many blocks have been changed, in that order; the other process tells.
changed = mmap.mmap(-1, mmap.PAGESIZE)
count = lambda: struct.unpack_from("q", changed)[0]
with open(path, "wb") as file:
    file.truncate(BLOCKS * BLOCK)

changer = os.fork()
if changer == 0:
    with open(path, "r+b") as file:
        contents = mmap.mmap(file.fileno(), BLOCKS * BLOCK)
        begin = time.monotonic()
        for number, block in enumerate(order):
            contents[block * BLOCK] = 1 + number % 255
            struct.pack_into("q", changed, 0, number + 1)
            # Some of it is there at once, the rest comes while others look.
            if number >= 100:
                time.sleep(max(0, begin + SECONDS * number / len(order) - time.monotonic()))
    os._exit(0)


def seek(file, block, whence):
    """The block where the next data or hole begins, BLOCKS if there is none."""
    try:
        return os.lseek(file, block * BLOCK, whence) // BLOCK
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return BLOCKS


def look(file):
    """Goes through the file once. What it says is a hole had not been changed before."""
    places = {block: number for number, block in enumerate(order)}
    at, holes = 0, 0
    while at < BLOCKS:
        before = count()
        data = seek(file, at, os.SEEK_DATA)
        missed = [block for block in range(at, data) if places.get(block, BLOCKS) < before]
        if missed:
            return f"blocks {missed[:8]} were changed before {before} had been, and are a hole"
        holes += data > at
        at = seek(file, data, os.SEEK_HOLE) if data < BLOCKS else BLOCKS
    return holes


def keep_looking(results, number):
    with open(path, "rb", buffering=0) as file:
        random_reads = random.Random(number)
        looks, holes = 0, 0
        while count() < len(order):
            found = look(file.fileno())
            if isinstance(found, str):
                results[number] = found
                return
            looks, holes = looks + 1, max(holes, found)
            # Pages that are read now are locked meanwhile.
            os.pread(file.fileno(), 16 * BLOCK, random_reads.randrange(BLOCKS) * BLOCK)
        results[number] = (looks, holes)


results = [None] * LOOKERS
threads = [threading.Thread(target=keep_looking, args=(results, number)) for number in range(LOOKERS)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
if os.waitpid(changer, 0)[1] != 0:
    sys.exit("the changing process failed")
print(results)
for result in results:
    if not isinstance(result, tuple):
        sys.exit(result or "a looking thread failed")
if sum(looks for looks, _ in results) == 0 or max(holes for _, holes in results) == 0:
    sys.exit(f"nobody saw a hole: {results}")
with open(path, "rb") as file:
    last = look(file.fileno())
    # A daemon that has to wait for long may call a hole data.
    if not isinstance(last, int) or not 0 < last <= len(order):
        sys.exit(f"at the end: {last}, in place of {len(order)} holes")
