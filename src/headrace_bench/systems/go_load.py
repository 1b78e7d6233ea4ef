"""Load programs in Go with a system's own client: built once into the cache.

Invariants: a program is identified by its sources, so one built from others counts as missing. Each
prints one JSON object per line; `rate_of` parses those with a rate.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

from headrace_bench import parts


class GoLoad:
    """The program whose sources are in the folder `name` beside this module."""

    def __init__(self, name: str) -> None:
        self._source = Path(__file__).parent / name
        digest = hashlib.sha256()
        for path in sorted(self._source.iterdir()):
            digest.update(path.read_bytes())
        self.name = f"{name}-{digest.hexdigest()[:12]}"
        self._folder = parts.peers_folder() / "go-loads"

    @property
    def is_built(self) -> bool:
        """Whether it can be run."""
        return (self._folder / self.name).exists()

    def build(self) -> None:
        """Build it with the installed Go compiler, unless it exists. Raises PartMissing."""
        if self.is_built:
            return
        source = self._folder / "source" / self.name
        shutil.copytree(self._source, source, dirs_exist_ok=True)
        parts.build_go(source, self._folder / self.name)

    def command(self, *words: str) -> list[str]:
        """Its command line; it must have been built."""
        return [str(self._folder / self.name), *words]


def rate_of(line: str) -> float | None:
    """Messages per second since the previous line; None for other lines."""
    try:
        output = json.loads(line)
        return float(output["messages"] / output["seconds"])
    except (ValueError, KeyError, TypeError, ZeroDivisionError):
        return None
