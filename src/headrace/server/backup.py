"""Copies a stand-alone broker's data folder while it runs, and back: `headrace backup`, `restore`.

Invariants: the source is only read. The parts are copied in the order checkpoint, metadata,
write-ahead log, ledgers. Ledgers exist before metadata names them, recovery takes each to where
checkpoint and log say that it ends, and the copied log ends before the first append to a ledger
that the metadata does not name yet (`backup_log`): so the copy is the state of one moment, for each
worker of its own. A copy counts only once `headrace check` has found no damage in it; files that
changed too fast (a log file was recycled) mean another attempt. Names in a manifest never lead out
of its folder.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.errors import DataCorrupt, RequestInvalid, Retriable
from headrace.inspection.check import check
from headrace.inspection.facts import DecodedMetadata
from headrace.inspection.findings import Severity
from headrace.inspection.folder import folders_of
from headrace.inspection.metadata_copy import MetadataCopy
from headrace.metadata.sqlite_file import METADATA
from headrace.server.backup_log import CHECKPOINT, FORMAT_FILE, LogRecycled, end_for, last_frame

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.inspection.check import Report
    from headrace.inspection.folder import Folder

MANIFEST: Final = "backup.json"
FORMAT: Final = 1
"""Of the manifest. Do not change: stored."""
ATTEMPTS_MAX: Final = 5
PARTIAL: Final = ".partial"
_CHUNK_BYTES: Final = 1 << 20
_LOG, _LEDGERS = "wal", "ledgers"
_STORE_FILES: Final = (FORMAT_FILE, CHECKPOINT)
"""Copied before the log: it goes on where the checkpoint ends."""


class Done(NamedTuple):
    """A copy that was made and checked."""

    folder: Path
    files: int
    size_bytes: int
    logs: int
    records: int


def back_up(source: Path, target: Path, version: str, now_ms: int) -> Done:
    """Copy a data folder to `target`, which must not exist or be empty.

    Raises RequestInvalid, OSError, DataCorrupt if the source is damaged, and Retriable if its log
    is recycled faster than it is copied.
    """
    if not (source / METADATA).exists():
        raise RequestInvalid(
            f"{source} is no data folder of a stand-alone broker: it has no {METADATA}"
        )
    report = None
    for _attempt in range(ATTEMPTS_MAX):
        partial = _fresh(target)
        try:
            files = dict(_copied(source, partial))
        except LogRecycled:
            report = None
            continue
        _make_folders(partial, files)
        report = check(partial)
        if not _damage(report):
            manifest = {"format": FORMAT, "headrace": version, "created_ms": now_ms}
            _write(partial / MANIFEST, json.dumps({**manifest, "files": files}).encode())
            _publish(partial, target)
            return _done(target, files, report)
    shutil.rmtree(_fresh(target))
    effect = f"no backup was made, in {ATTEMPTS_MAX} attempts"
    if report is None:
        raise Retriable(
            f"{source} is written to faster than its log can be copied; {effect}. Back up to a"
            " faster disk, or while less is written"
        )
    raise DataCorrupt(_complaint(source, report, effect))


def restore(source: Path, target: Path) -> Done:
    """Make a data folder of a backup; `target` must not exist or be empty.

    Raises RequestInvalid, OSError, and DataCorrupt if the backup has changed since it was made.
    """
    files = _manifest(source)
    partial = _fresh(target)
    try:
        for name, expected in files.items():
            if _copy(source / name, partial / name) != expected:
                raise DataCorrupt(
                    f"{source / name} has changed since the backup was made; nothing was restored:"
                    " use another backup"
                )
        _make_folders(partial, files)
        report = check(partial)
        if _damage(report):
            raise DataCorrupt(_complaint(source, report, "nothing was restored"))
    except BaseException:
        shutil.rmtree(partial)
        raise
    _publish(partial, target)
    return _done(target, files, report)


# --- copying ---------------------------------------------------------------------------------


def _copied(source: Path, target: Path) -> Iterator[tuple[str, list[Any]]]:
    """Copy a data folder. Yields the name of each file, with its size and SHA-256.

    Raises OSError, LogRecycled.
    """
    stores = folders_of(source)
    for store in stores:
        yield from _copied_files(source, target, [store.full(name) for name in _STORE_FILES])
    written = [last_frame(store.path) for store in stores]
    yield METADATA, _copy_database(source / METADATA, target / METADATA)
    facts = DecodedMetadata(MetadataCopy(target), max(store.number for store in stores) + 1)
    named = {
        (facts.worker_of(chain), link.ledger)
        for chain in facts.chains
        for link in chain.fact.ledgers
    }
    for store, after in zip(stores, written, strict=True):
        files = dict(_copied_log(source, target, store))
        own = {ledger for worker, ledger in named if worker == store.number}
        yield from _ended(target, store, files, after, own).items()
    for store in stores:
        ledgers = sorted(path for path in store.full(_LEDGERS).rglob("*") if path.is_file())
        yield from _copied_files(source, target, ledgers)


def _copied_files(source: Path, target: Path, paths: list[Path]) -> Iterator[tuple[str, list[Any]]]:
    for path in paths:
        name = str(path.relative_to(source))
        try:
            yield name, _copy(path, target / name)
        except FileNotFoundError:
            continue  # removed meanwhile; if it is missed, the check says so


def _copied_log(source: Path, target: Path, store: Folder) -> Iterator[tuple[str, list[Any]]]:
    """Copy a write-ahead log. Raises LogRecycled.

    A log that lacks its last files is no damaged one, so the check would not miss them.
    """
    for path in sorted(store.full(_LOG).glob("*")):
        name = str(path.relative_to(source))
        try:
            with path.open("rb") as held:
                copied = _copy(path, target / name)
                is_same = path.stat().st_ino == os.fstat(held.fileno()).st_ino
        except FileNotFoundError as error:
            raise LogRecycled from error
        if not is_same:
            raise LogRecycled
        yield name, copied


def _ended(
    target: Path, store: Folder, files: dict[str, list[Any]], after: int, named: set[int]
) -> dict[str, list[Any]]:
    """The files of a copied log, ended where its metadata ends."""
    end = end_for(target / store.name("."), after, named)
    if end is None:
        return files
    kept = {}
    for name, copied in files.items():
        path = target / name
        number = int(path.stem, 16)
        if number > end.number:
            path.unlink()
        elif number == end.number:
            data = path.read_bytes()[: end.position]
            path.unlink()
            _write(path, data)
            kept[name] = _digest(data)
        else:
            kept[name] = copied
    return kept


def _copy(source: Path, target: Path) -> list[Any]:
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


def _copy_database(source: Path, target: Path) -> list[Any]:
    """A consistent copy of SQLite's file, whose latest changes may be in its own log."""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reading,
        closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)
        writing.execute("PRAGMA journal_mode = DELETE")
    return _digest(target.read_bytes())


def _digest(data: bytes) -> list[Any]:
    return [len(data), hashlib.sha256(data).hexdigest()]


def _make_folders(target: Path, files: Iterable[str]) -> None:
    """Make the folders that recovery expects, though they may be empty."""
    for name in files:
        if Path(name).name == "format":
            for folder in (_LOG, _LEDGERS):
                (target / name).with_name(folder).mkdir(exist_ok=True)


# --- folders ---------------------------------------------------------------------------------


def _fresh(target: Path) -> Path:
    """An empty folder beside the target. Raises RequestInvalid."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise RequestInvalid(f"{target} exists and is not empty: choose another folder")
    partial = target.with_name(target.name + PARTIAL)
    if partial.exists():
        shutil.rmtree(partial)  # of an attempt that was interrupted
    partial.mkdir(parents=True)
    return partial


def _publish(partial: Path, target: Path) -> None:
    """Give the complete copy its name, durably."""
    if target.exists():
        target.rmdir()
    partial.rename(target)
    for folder in (target, target.absolute().parent):
        number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(number)
        finally:
            os.close(number)


def _write(path: Path, data: bytes) -> None:
    with path.open("xb") as writing:
        writing.write(data)
        writing.flush()
        os.fsync(writing.fileno())


def _manifest(source: Path) -> dict[str, list[Any]]:
    """The files of a backup. Raises RequestInvalid, DataCorrupt."""
    try:
        found = json.loads((source / MANIFEST).read_bytes())
        is_known = found["format"] == FORMAT
        files = dict(found["files"])
    except FileNotFoundError:
        raise RequestInvalid(f"{source} is no backup: it has no {MANIFEST}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise DataCorrupt(f"{source / MANIFEST} cannot be read: use another backup") from error
    if not is_known:
        raise RequestInvalid(f"{source} was made by a later version: restore it with that one")
    for name in files:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts:
            raise DataCorrupt(f"{source / MANIFEST} names the file {name[:100]!r}")
    return files


# --- verdicts --------------------------------------------------------------------------------


def _damage(report: Report) -> bool:
    return bool(report.of(Severity.DAMAGE) or report.of(Severity.UNREADABLE))


def _complaint(source: Path, report: Report | None, effect: str) -> str:
    assert report is not None
    first = next(one for one in report.findings if one.severity is not Severity.NOTE)
    return (
        f"{source} is damaged: {first.file}: {first.cause}; {effect}. See `headrace check {source}`"
    )


def _done(folder: Path, files: dict[str, list[Any]], report: Report) -> Done:
    size = sum(size for size, _digest in files.values())
    records = sum(log.record_count for log in report.logs)
    return Done(folder, len(files), size, len(report.logs), records)
