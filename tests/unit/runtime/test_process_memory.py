"""The memory that a broker reports is its own."""

from __future__ import annotations

import mmap
import subprocess
import sys

import pytest

from headrace.runtime import process_memory as module
from headrace.runtime.process_memory import process_memory

MIB = 1 << 20
CHILD = "from headrace.runtime.process_memory import *; print(*process_memory())"
PARENT = f"""
import subprocess, sys
large = bytearray(b"x") * {200 * MIB}
print(subprocess.run([sys.executable, "-c", {CHILD!r}], capture_output=True, text=True).stdout)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_the_peak_of_the_process_that_started_this_one_does_not_count() -> None:
    ran = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True)
    now_bytes, peak_bytes = map(int, ran.stdout.split())
    assert MIB < now_bytes <= peak_bytes < 100 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="asks Linux")
def test_a_peak_is_remembered() -> None:
    before = process_memory()
    # Of the kernel, not of the allocator: that one may hand out pages that are resident already.
    with mmap.mmap(-1, 64 * MIB) as large:
        large.write(bytes(64 * MIB))
        held = process_memory()
    assert held.now_bytes > before.now_bytes + 32 * MIB
    assert process_memory().peak_bytes > held.now_bytes - 8 * MIB


def test_without_linux_peak_memory_is_still_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "STATUS", "/no/such/file")
    assert process_memory().peak_bytes > MIB
