"""Compiles our small C sources at run time, for LD_PRELOAD.

Invariants: knows compilers, not the purpose of a library. Without a compiler, attacks that need one
are skipped and reported.
"""

from __future__ import annotations

import shutil
import subprocess
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

COMPILERS = ("cc", "gcc", "clang")
_TIMEOUT_S = 120


def find_compiler() -> str | None:
    """The path of a C compiler; None if none of COMPILERS is installed."""
    return next((found for name in COMPILERS if (found := shutil.which(name))), None)


def compile_library(compiler: str, source: Path, target: Path, *libraries: str) -> str | None:
    """Compile a source into a shared object; returns None on success, else the error."""
    command = [compiler, "-O1", "-shared", "-fPIC", "-o", str(target), str(source), *libraries]
    try:
        done = subprocess.run(  # noqa: S603 - a compiler that was looked up, on our own source
            command, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr.strip()[-300:] if done.returncode else None
