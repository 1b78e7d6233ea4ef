"""Memory that is used again and again is not asked of the kernel each time."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import pytest

FRAMES, FRAME_BYTES, ROUNDS = 64, 256 << 10, 20
PAGES = FRAMES * FRAME_BYTES // 4096 * ROUNDS
"""Pages that all rounds together write to."""

COUNT = f"""
import resource
from headrace.runtime.free_memory import trim_heap, retain_freed
def write_and_drop():
    frames = [bytearray(b"x" * {FRAME_BYTES}) for _ in range({FRAMES})]
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
assert retain_freed(4 << 20, 64 << 20)
write_and_drop()
before = faults()
for _ in range({ROUNDS}):
    write_and_drop()
kept = faults() - before
trim_heap()
before = faults()
write_and_drop()
print(kept, faults() - before)
"""


@pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "mallopt"), reason="a C library that is not glibc"
)
def test_large_freed_blocks_are_reused_until_the_heap_is_trimmed():
    done = subprocess.run(
        [sys.executable, "-c", COUNT], capture_output=True, text=True, check=True, timeout=60
    )
    kept, behind = map(int, done.stdout.split())
    assert kept < PAGES / 20
    assert behind > PAGES / ROUNDS / 2
