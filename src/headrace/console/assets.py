"""Reads the console's files once, with their compressed forms and one version for all of them.

Invariants: only files of the package are read, and only those are served: a path from outside is
looked up among them. The version is a hash of all contents, so that a file below it never changes,
and modules can import each other by relative paths.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable

INDEX: Final = "index.html"
VERSION_MARK: Final = b"@VERSION@"
"""Stands for the version in the index, the only file that names it."""
_TYPES: Final = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
}


class Asset(NamedTuple):
    """One file."""

    data: bytes
    compressed: bytes
    """With gzip."""
    media_type: str
    etag: str


class Assets(NamedTuple):
    """All files."""

    version: str
    page: Asset
    by_path: Mapping[str, Asset]


@cache
def load_assets() -> Assets:
    """The files of the package. Takes some 50 ms the first time: call it in a thread."""
    found = dict(sorted(_walk(files(__package__) / "static", "")))
    digest = hashlib.sha256()
    for path, data in found.items():
        digest.update(f"{path} {len(data)} ".encode() + data)
    version = digest.hexdigest()[:16]
    index = found.pop(INDEX).replace(VERSION_MARK, version.encode())
    return Assets(
        version,
        _asset(INDEX, index),
        {path: _asset(path, data) for path, data in found.items()},
    )


def _walk(folder: Traversable, prefix: str) -> Iterator[tuple[str, bytes]]:
    for one in folder.iterdir():
        if one.is_dir():
            yield from _walk(one, f"{prefix}{one.name}/")
        elif f".{one.name.rpartition('.')[2]}" in _TYPES:
            yield f"{prefix}{one.name}", one.read_bytes()


def _asset(path: str, data: bytes) -> Asset:
    kind = _TYPES[f".{path.rpartition('.')[2]}"]
    etag = f'"{hashlib.sha256(data).hexdigest()[:32]}"'
    return Asset(data, gzip.compress(data, 9, mtime=0), kind, etag)
