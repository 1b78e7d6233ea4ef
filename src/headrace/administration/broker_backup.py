"""Copies a stand-alone broker's data folder while it runs, and back: `headrace backup`, `restore`.

Invariants: the source is only read. The parts are copied in the order checkpoint, metadata,
write-ahead log, ledgers. Ledgers exist before metadata names them, recovery takes each to where
checkpoint and log say that it ends, and the copied log ends before the first append to a ledger
that the metadata does not name yet (`backup_log`): so the copy is the state of one moment, for each
worker of its own. A copy counts only once `headrace check` has found no damage in it; files that
changed too fast (a log file was recycled) mean another attempt. A copy for object storage is made
and checked in a local folder first.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.administration.backup_log import (
    CHECKPOINT,
    FORMAT_FILE,
    LogRecycled,
    end_for,
    last_frame,
)
from headrace.administration.backup_place import (
    BROKER,
    FolderPlace,
    ObjectPlace,
    copy_file,
    copy_verified,
    digest_of,
    fresh,
    publish,
    read_manifest,
    write_file,
    write_manifest,
)
from headrace.errors import DataCorrupt, RequestInvalid, Retriable
from headrace.inspection.check import check
from headrace.inspection.facts import DecodedMetadata
from headrace.inspection.findings import Severity
from headrace.inspection.folder import folders_of
from headrace.inspection.metadata_copy import MetadataCopy
from headrace.metadata.sqlite_file import METADATA

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.administration.backup_place import Files, Place
    from headrace.inspection.check import Report
    from headrace.inspection.folder import Folder

ATTEMPTS_MAX: Final = 5
_LOG, _LEDGERS = "wal", "ledgers"
_STORE_FILES: Final = (FORMAT_FILE, CHECKPOINT)
"""Copied before the log: it goes on where the checkpoint ends."""


class Done(NamedTuple):
    """A copy that was made and checked."""

    folder: str
    """Or the URL."""
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
            f"{source} is not a data folder of a stand-alone broker: it has no {METADATA}"
        )
    report = None
    for _attempt in range(ATTEMPTS_MAX):
        partial = fresh(target)
        try:
            files = dict(_copied(source, partial))
        except LogRecycled:
            report = None
            continue
        _make_folders(partial, files)
        report = check(partial)
        if not _damage(report):
            write_manifest(partial, BROKER, version, now_ms, files)
            publish(partial, target)
            return _done(str(target), files, report)
    shutil.rmtree(fresh(target))
    effect = f"no backup was made, in {ATTEMPTS_MAX} attempts"
    if report is None:
        raise Retriable(
            f"{source} is written to faster than its log can be copied; {effect}. Back up to a"
            " faster disk, or while less is written"
        )
    raise DataCorrupt(_complaint(source, report, effect))


def back_up_to_url(source: Path, url: str, staging: Path, version: str, now_ms: int) -> Done:
    """Copy a data folder to a folder below `staging`, and from there to object storage, where
    nothing may be yet.

    Raises as `back_up`, and StorageUnavailable.
    """
    place = ObjectPlace(url)
    place.check_empty()
    with TemporaryDirectory(prefix="headrace-backup-", dir=staging) as name:
        folder = Path(name) / "backup"
        done = back_up(source, folder, version, now_ms)
        place.upload(folder, read_manifest(FolderPlace(folder), BROKER))
    return done._replace(folder=place.shown)


def restore(source: Place, target: Path) -> Done:
    """Make a data folder of a backup; `target` must not exist or be empty.

    Raises RequestInvalid, OSError, StorageUnavailable, and DataCorrupt if the backup has changed
    since it was made.
    """
    files = read_manifest(source, BROKER)
    partial = fresh(target)
    try:
        copy_verified(source, files, partial)
        _make_folders(partial, files)
        report = check(partial)
        if _damage(report):
            raise DataCorrupt(_complaint(source.shown, report, "nothing was restored"))
    except BaseException:
        shutil.rmtree(partial)
        raise
    publish(partial, target)
    return _done(str(target), files, report)


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
            yield name, copy_file(path, target / name)
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
                copied = copy_file(path, target / name)
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
            write_file(path, data)
            kept[name] = digest_of(data)
        else:
            kept[name] = copied
    return kept


def _copy_database(source: Path, target: Path) -> list[Any]:
    """A consistent copy of SQLite's file, whose latest changes may be in its own log."""
    with (
        closing(sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)) as reading,
        closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)
        writing.execute("PRAGMA journal_mode = DELETE")
    return digest_of(target.read_bytes())


def _make_folders(target: Path, files: Iterable[str]) -> None:
    """Make the folders that recovery expects, though they may be empty."""
    for name in files:
        if Path(name).name == "format":
            for folder in (_LOG, _LEDGERS):
                (target / name).with_name(folder).mkdir(exist_ok=True)


# --- verdicts --------------------------------------------------------------------------------


def _damage(report: Report) -> bool:
    return bool(report.of(Severity.DAMAGE) or report.of(Severity.UNREADABLE))


def _complaint(source: object, report: Report | None, effect: str) -> str:
    assert report is not None
    first = next(one for one in report.findings if one.severity is not Severity.NOTE)
    return (
        f"{source} is damaged: {first.file}: {first.cause}; {effect}. See `headrace check {source}`"
    )


def _done(folder: str, files: Files, report: Report) -> Done:
    size = sum(size for size, _digest in files.values())
    records = sum(log.record_count for log in report.logs)
    return Done(folder, len(files), size, len(report.logs), records)
