"""A wall clock that jumps, for the processes that get its environment: libfaketime.

Rules of the room: the monotonic clock stays as it is, as on a machine whose wall clock is set. What
a process could do without the library it can do with it: that is tried before a run relies on it.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from headrace.verify.native import compile_library, find_compiler

FAKETIME_PLACES = ("/usr/lib", "/usr/local/lib", "/lib")
_SLEEPER = Path(__file__).with_name("plain_sleep.c")
_TIMEOUT_S = 120


def find_faketime() -> str | None:
    """The library that libfaketime preloads: HEADRACE_FAKETIME's, or the installed one, or None."""
    named = os.environ.get("HEADRACE_FAKETIME")
    if named:
        return named
    for place in FAKETIME_PLACES:
        for path in sorted(Path(place).glob("**/faketime/libfaketimeMT.so.1")):
            return str(path)
    return None


def why_no_clock() -> str:
    """Why the clock does not jump here, where `FakeClock.find` has found none."""
    if find_faketime() is None:
        return "libfaketime is not installed: the broker's clock does not jump"
    return "under this libfaketime Python cannot sleep, and there is no compiler to mend it"


class FakeClock:
    """A wall clock that jumps."""

    def __init__(self, libraries: str, path: Path) -> None:
        self._path = path
        self.environment = _environment(libraries, path)
        self.jump(0.0)

    @classmethod
    def find(cls, path: Path) -> FakeClock | None:
        """One whose offset is kept in `path`; None where libfaketime cannot be had."""
        library = find_faketime()
        if library is None:
            return None
        path.parent.mkdir(parents=True, exist_ok=True)
        if not _can_sleep(library):
            sleeper = _build_sleeper(path.with_name("plain_sleep.so"))
            if sleeper is None:
                return None
            library = f"{sleeper}:{library}"
        return cls(library, path)

    def jump(self, offset_s: float) -> None:
        """Be so far off from now on. Replaced at once: libfaketime reads it at any moment."""
        fresh = self._path.with_suffix(".new")
        fresh.write_text(f"{offset_s:+.3f}\n")
        fresh.replace(self._path)


def _environment(libraries: str, path: Path) -> dict[str, str]:
    return {
        "LD_PRELOAD": libraries,
        "FAKETIME_TIMESTAMP_FILE": str(path),
        "FAKETIME_CACHE_DURATION": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }


@cache
def _can_sleep(library: str) -> bool:
    """Whether Python's sleep works under the library."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "clock"
        path.write_text("+0.000\n")
        command = [sys.executable, "-I", "-c", "import time; time.sleep(0.001)"]
        try:
            done = subprocess.run(  # noqa: S603 - our own command
                command,
                env=os.environ | _environment(library, path),
                capture_output=True,
                timeout=_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return False
        return done.returncode == 0


def _build_sleeper(target: Path) -> Path | None:
    compiler = find_compiler()
    if compiler is None or compile_library(compiler, _SLEEPER, target) is not None:
        return None
    return target
