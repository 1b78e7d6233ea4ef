"""Golden sets: one packed folder for each version of Headrace whose data must stay readable.

Invariants: knows archives, not their contents. A set is named after the version that wrote it. Once
that version is released, the set's digest is in `RELEASED`, and the set is never rewritten.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from importlib.metadata import version
from pathlib import Path

from headrace.errors import RequestInvalid

GOLDEN = Path(__file__).with_name("golden")
RELEASED: dict[str, str] = {
    "0.2.0": "08738be66acf0c9018ec96e2cc6b4f5d75bfd560c82c88d695a45f916a54ca0c",
}
"""Version -> SHA-256 of its set. An entry is added with the release, and never changed or
removed."""
_SUFFIX = ".tar.gz"


def current() -> str:
    """The version of this Headrace."""
    return version("headrace")


def path_of(name: str, folder: Path = GOLDEN) -> Path:
    """The path of a version's set."""
    return folder / f"{name}{_SUFFIX}"


def names(folder: Path = GOLDEN) -> list[str]:
    """The versions that have a set."""
    return sorted(path.name.removesuffix(_SUFFIX) for path in folder.glob(f"*{_SUFFIX}"))


def digest(path: Path) -> str:
    """SHA-256, hex."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def changed_or_missing(folder: Path = GOLDEN, released: dict[str, str] | None = None) -> list[str]:
    """Return the problems of released versions' sets, as text."""
    wrong = []
    for name, known in (RELEASED if released is None else released).items():
        path = path_of(name, folder)
        if not path.exists():
            wrong.append(f"the golden set of the released version {name} is missing")
        elif digest(path) != known:
            wrong.append(f"the golden set of the released version {name} was changed")
    return wrong


def pack(
    source: Path, name: str, folder: Path = GOLDEN, released: dict[str, str] | None = None
) -> Path:
    """Pack a folder as the set of a version: same files, same bytes.

    Raises RequestInvalid if that version is released.
    """
    refuse_released(name, released)
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in sorted(source.rglob("*")):
            if path.is_file():
                info = tarfile.TarInfo(path.relative_to(source).as_posix())
                info.size = path.stat().st_size
                with path.open("rb") as file:
                    tar.addfile(info, file)
    target = path_of(name, folder)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(gzip.compress(buffer.getvalue(), 9, mtime=0))
    return target


def refuse_released(name: str, released: dict[str, str] | None = None) -> None:
    """Raises RequestInvalid if that version is released: its set is immutable."""
    if name in (RELEASED if released is None else released):
        raise RequestInvalid(
            f"version {name} is released: its golden set represents data on users' disks, and"
            " is never rewritten; increase the version in pyproject.toml first"
        )


def unpack(path: Path, target: Path) -> None:
    """Unpack a set into an empty folder."""
    extract(path.read_bytes(), target)


def extract(packed: bytes, target: Path) -> None:
    """Unpack plain files from an archive, compressed or not."""
    with tarfile.open(fileobj=io.BytesIO(packed)) as tar:
        for member in tar:
            path = target / member.name
            if member.isfile() and path.resolve().is_relative_to(target.resolve()):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = tar.extractfile(member)
                assert file is not None, "a regular file has content"
                path.write_bytes(file.read())
