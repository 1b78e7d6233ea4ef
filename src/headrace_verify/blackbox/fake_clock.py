"""A jumping wall clock for processes that run with its environment.

Invariants: the monotonic clock is unaffected, as on a machine whose wall clock is set; nothing else
of a process changes. libfaketime 0.9.10 met neither condition: Python could not sleep, and threads
waiting for the interpreter's lock spun, which kept brokers busy.
"""

from __future__ import annotations

import os
from pathlib import Path

from headrace_verify.native import compile_library, find_compiler

WHY_NO_CLOCK = "no C compiler: the brokers' clocks do not jump"
_SOURCE = Path(__file__).with_name("wall_clock.c")
_OFFSET_BYTES = 8


class FakeClock:
    """A wall clock that jumps."""

    def __init__(self, library: Path, path: Path) -> None:
        self._path = path
        self.environment = {"LD_PRELOAD": str(library), "HEADRACE_WALL_CLOCK": str(path)}
        path.write_bytes(bytes(_OFFSET_BYTES))

    @classmethod
    def find(cls, path: Path) -> FakeClock | None:
        """Create one whose offset is stored in `path`; None without a compiler."""
        path.parent.mkdir(parents=True, exist_ok=True)
        library = path.with_name("wall_clock.so")
        compiler = find_compiler()
        if compiler is None or compile_library(compiler, _SOURCE, library) is not None:
            return None
        return cls(library, path)

    def jump(self, offset_s: float) -> None:
        """Set the offset. Written in place and atomically: processes have mapped the file's
        page."""
        offset_ns = round(offset_s * 1_000_000_000)
        file = os.open(self._path, os.O_WRONLY)
        try:
            os.pwrite(file, offset_ns.to_bytes(_OFFSET_BYTES, "little", signed=True), 0)
        finally:
            os.close(file)
