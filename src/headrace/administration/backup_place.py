"""Where backups are kept: a folder, or a URL of object storage.

Invariants: knows files by name, size and SHA-256, not what they hold. Only the manifest makes files
a backup, and it is written last: what an interrupted upload leaves is not a backup. Names in a
manifest never lead out of its folder. An upload is read back completely before it counts. It
claims its prefix by an object that only one can create, and writes and deletes nothing without.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Protocol

from headrace.errors import DataCorrupt, HeadraceError, RequestInvalid, StorageUnavailable
from headrace.runtime.disk import SystemDisk
from headrace.runtime.randomness import SystemRandomness

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

MANIFEST: Final = "backup.json"
MANIFEST_BYTES_MAX: Final = 256 << 20
"""A data folder has about 150 bytes in it for each of its files."""
CLAIM: Final = "backup.claim"
"""The object that claims a prefix for the backup that is being written there."""
FORMAT: Final = 1
"""Of the manifest. Do not change: stored."""
BROKER, CLUSTER = "broker", "cluster"
"""What a backup is of. Do not change: stored; without one, it is of a broker."""
PARTIAL: Final = ".partial"
_CHUNK_BYTES: Final = 8 << 20

Files = dict[str, list[Any]]
"""[size in bytes, SHA-256] of each file."""


class Place(Protocol):
    """A place that a backup can be read from."""

    shown: str
    """For messages; contains no secrets."""

    def read(self, name: str, size_max: int) -> bytes:
        """A whole file. Raises FileNotFoundError, HeadraceError, OSError."""

    def copy(self, name: str, target: Path) -> list[Any]:
        """[size, SHA-256] of what was copied to `target` and synced. Raises HeadraceError,
        OSError."""


class FolderPlace:
    """A backup in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.shown = str(folder)

    def read(self, name: str, size_max: int) -> bytes:
        """See Place."""
        with (self._folder / name).open("rb") as reading:
            data = reading.read(size_max + 1)
        return _bounded(data, size_max, f"{self.shown}/{name}")

    def copy(self, name: str, target: Path) -> list[Any]:
        """See Place."""
        return copy_file(self._folder / name, target)


class ObjectPlace:
    """A backup in object storage, under a URL. Its calls block."""

    def __init__(self, url: str) -> None:
        """Sends no request. Raises RequestInvalid."""
        try:
            from headrace.storage.tiering.blob_store import BlobStore
        except ImportError as error:
            raise RequestInvalid(
                "object storage needs a package that is not installed: pip install"
                " 'headrace[objects]'"
            ) from error
        self._blobs = BlobStore.open(url).blocking()
        self.shown = self._blobs.shown

    def read(self, name: str, size_max: int) -> bytes:
        """See Place."""
        try:
            size = self._blobs.size(name)
        except StorageUnavailable as error:
            if error.fields.get("is_missing"):
                raise FileNotFoundError(f"{self.shown}/{name}") from error
            raise
        if size > size_max:
            raise _too_large(f"{self.shown}/{name}", size_max)
        return self._blobs.get(name, 0, size)

    def copy(self, name: str, target: Path) -> list[Any]:
        """See Place."""
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as writing:
            copied = self._digest(name, writing.write)
            writing.flush()
            os.fsync(writing.fileno())
        return copied

    def check_empty(self, besides: str = "") -> None:
        """Raises RequestInvalid if anything is there, StorageUnavailable."""
        found = self._blobs.first(besides)
        if found is not None:
            raise RequestInvalid(
                f"{self.shown} is not empty ({found[:100]}): choose another prefix, or delete what"
                " an interrupted backup has left"
            )

    def upload(self, folder: Path, files: Mapping[str, list[Any]]) -> None:
        """Write these files and then the manifest, and read all back.

        After a failure, what was written is deleted where possible. Raises RequestInvalid if
        anything is there, or another backup is being written; StorageUnavailable, DataCorrupt,
        OSError.
        """
        self._claim()
        begun = [CLAIM]
        try:
            self.check_empty(besides=CLAIM)
            for name in [*files, MANIFEST]:
                begun.append(name)
                self._blobs.put(name, _parts(folder / name))
                expected = files.get(name) or digest_of((folder / name).read_bytes())
                if self._digest(name, len) != expected:
                    raise DataCorrupt(
                        f"{self.shown}/{name} reads back differently from what was written; no"
                        " backup was made: try again, and check the storage if this continues"
                    )
        except BaseException:
            for name in reversed(begun):
                with suppress(HeadraceError):
                    self._blobs.delete(name)
            raise
        with suppress(HeadraceError):  # the backup is complete, and has no use for it
            self._blobs.delete(CLAIM)

    def _claim(self) -> None:
        """Raises RequestInvalid, StorageUnavailable."""
        own = SystemRandomness().uuid().bytes
        if self._blobs.create(CLAIM, own):
            return
        if self._blobs.get(CLAIM, 0, len(own)) != own:  # not by an attempt without an answer
            raise RequestInvalid(
                f"another backup is being written to {self.shown}, or was interrupted there; no"
                f" backup was made: choose another prefix, or delete all of this one ({CLAIM})"
            )

    def _digest(self, name: str, take: Callable[[bytes], object]) -> list[Any]:
        digest, size = hashlib.sha256(), self._blobs.size(name)
        for at in range(0, size, _CHUNK_BYTES):
            data = self._blobs.get(name, at, min(_CHUNK_BYTES, size - at))
            digest.update(data)
            take(data)
        return [size, digest.hexdigest()]


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as reading:
        while data := reading.read(_CHUNK_BYTES):
            yield data


# --- the manifest --------------------------------------------------------------------------------


def write_manifest(folder: Path, kind: str, version: str, created_ms: int, files: Files) -> None:
    """Make the files of a folder a backup. Raises OSError."""
    head = {"format": FORMAT, "kind": kind, "headrace": version, "created_ms": created_ms}
    write_file(folder / MANIFEST, json.dumps({**head, "files": files}).encode())


def read_manifest(place: Place, kind: str) -> Files:
    """The files of a backup. Raises RequestInvalid, DataCorrupt, StorageUnavailable, OSError."""
    try:
        found = json.loads(place.read(MANIFEST, MANIFEST_BYTES_MAX))
        is_known = found["format"] == FORMAT
        stored_kind = found.get("kind", BROKER)
        files = dict(found["files"])
    except FileNotFoundError:
        raise RequestInvalid(f"{place.shown} is not a backup: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataCorrupt(f"{place.shown}/{MANIFEST} cannot be read: use another backup") from error
    if not is_known:
        raise RequestInvalid(f"{place.shown} was made by a later version: restore it with that one")
    if stored_kind != kind:
        command = "headrace cluster restore" if stored_kind == CLUSTER else "headrace restore"
        raise RequestInvalid(f"{place.shown} is the backup of a {stored_kind}: use `{command}`")
    for name in files:
        if name.startswith("/") or ".." in name.split("/"):
            raise DataCorrupt(f"{place.shown}/{MANIFEST} names the file {name[:100]!r}")
    return files


def copy_verified(place: Place, files: Files, target: Path) -> None:
    """Copy all files of a backup. Raises DataCorrupt if one has changed since, HeadraceError,
    OSError."""
    for name, expected in files.items():
        try:
            is_same = place.copy(name, target / name) == expected
        except FileNotFoundError:
            is_same = False
        if not is_same:
            raise DataCorrupt(
                f"{place.shown}/{name} has changed since the backup was made; nothing was restored:"
                " use another backup"
            )


# --- files and folders ---------------------------------------------------------------------------


def fresh(target: Path) -> Path:
    """An empty folder beside the target. Raises RequestInvalid."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RequestInvalid(f"{target} exists and is not empty: choose another folder")
    partial = target.with_name(target.name + PARTIAL)
    if partial.exists():
        shutil.rmtree(partial)  # of an attempt that was interrupted
    partial.mkdir(parents=True)
    return partial


def publish(partial: Path, target: Path) -> None:
    """Give the complete copy its name, durably."""
    if target.exists():
        target.rmdir()
    partial.rename(target)
    for folder in (target, target.absolute().parent):
        SystemDisk().sync_folder(str(folder))


def copy_file(source: Path, target: Path) -> list[Any]:
    """[size, SHA-256] of what was copied and synced."""
    target.parent.mkdir(parents=True, exist_ok=True)
    digest, size = hashlib.sha256(), 0
    with source.open("rb") as reading, target.open("xb") as writing:
        while data := reading.read(_CHUNK_BYTES):
            digest.update(data)
            size += len(data)
            writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())
    return [size, digest.hexdigest()]


def write_file(path: Path, data: bytes) -> None:
    """Write a new file and sync it."""
    with path.open("xb") as writing:
        writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())


def digest_of(data: bytes) -> list[Any]:
    """[size, SHA-256]."""
    return [len(data), hashlib.sha256(data).hexdigest()]


def _bounded(data: bytes, size_max: int, shown: str) -> bytes:
    if len(data) > size_max:
        raise _too_large(shown, size_max)
    return data


def _too_large(shown: str, size_max: int) -> DataCorrupt:
    return DataCorrupt(f"{shown} has more than {size_max} bytes: use another backup")
