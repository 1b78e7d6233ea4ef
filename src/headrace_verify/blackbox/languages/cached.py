"""What is made once and kept in the cache: programs that were built, packages that were installed.

Invariant: what is there is whole; of several processes that need it, one makes it.
"""

from __future__ import annotations

import fcntl
import shutil
from typing import TYPE_CHECKING

from headrace.java.jars import cache_folder

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def made_once(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """A file or folder in the cache; if it is not there, `make(path)` makes it at another path
    first. Raises what `make` raises."""
    root = cache_folder() / kind
    root.mkdir(parents=True, exist_ok=True)
    place = root / name
    with (root / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            partial = place.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            make(partial)
            partial.replace(place)
    return place
