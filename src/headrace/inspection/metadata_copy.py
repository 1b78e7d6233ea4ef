"""The metadata of a data folder, read from a copy outside the folder.

Invariants: SQLite opens only the copy, because opening the file itself could create or change files
next to it. If a broker writes meanwhile, the copy is repeated until it is consistent. Every row is
returned, including those that do not match their checksums.
"""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import FormatUnsupported
from headrace.inspection.findings import WHOLE_FOLDER, Finding, damage, unreadable
from headrace.metadata.sqlite_file import METADATA, check_format, row_crc

if TYPE_CHECKING:
    from collections.abc import Iterator

_COPIES_MAX = 20
_JOURNAL: Final = f"{METADATA}-wal"
_STEP = f"restore {METADATA} from a backup"
_ROWS = "SELECT key, value, version, crc, session, sequence, changed_ms FROM facts ORDER BY key"


class MetadataRow(NamedTuple):
    """One metadata key."""

    key: str
    value: bytes | None
    """None: recently deleted."""
    version: int
    session: int | None
    """The session it is bound to; None if it is not ephemeral."""
    sequence: int
    changed_ms: int
    is_intact: bool


class MetadataCopy:
    """The contents of the metadata file, and the problems found in it."""

    def __init__(self, root: Path) -> None:
        self.rows: list[MetadataRow] = []
        self.findings: list[Finding] = []
        self.is_there = (root / METADATA).exists()
        if not self.is_there:
            return
        try:
            (root / METADATA).open("rb").close()
            check_format(root / METADATA)
        except OSError as error:
            step = "let this user read the file, or repair the disk"
            self.findings.append(unreadable("metadata-file", METADATA, str(error), step))
            return
        except FormatUnsupported as error:
            step = "start the version that wrote it"
            self.findings.append(unreadable("metadata-format", METADATA, str(error), step))
            return
        with TemporaryDirectory(prefix="headrace-inspection-") as copy:
            _copy(root, Path(copy))
            self._read(Path(copy) / METADATA)

    def _read(self, path: Path) -> None:
        try:
            database = sqlite3.connect(path, isolation_level=None)
            try:
                for row in _rows(database):
                    self.rows.append(row)
                problem = database.execute("PRAGMA integrity_check(1)").fetchone()[0]
                names = {name for (name,) in database.execute("SELECT name FROM counters")}
            finally:
                database.close()
        except (sqlite3.Error, UnicodeDecodeError) as error:
            self._damaged(f"SQLite cannot read it: {error}")
            return
        if problem != "ok":
            self._damaged(f"SQLite reports damage: {problem}")
        for name in {"sequence", "session"} - names:
            self._damaged(f"its counter {name!r} is missing")
        for row in self.rows:
            if not row.is_intact:
                cause = f"the value of {row.key} does not match its checksum"
                effect = f"{WHOLE_FOLDER}, or the part that depends on that key"
                self.findings.append(damage("metadata-row", METADATA, None, cause, effect, _STEP))

    def _damaged(self, cause: str) -> None:
        self.findings.append(damage("metadata-file", METADATA, None, cause, WHOLE_FOLDER, _STEP))


def _rows(database: sqlite3.Connection) -> Iterator[MetadataRow]:
    for key, value, version, crc, session, sequence, changed_ms in database.execute(_ROWS):
        is_intact = value is None or row_crc(key, value, version) == crc
        yield MetadataRow(key, value, version, session, sequence, changed_ms, is_intact)


def _copy(root: Path, target: Path) -> None:
    for _ in range(_COPIES_MAX):
        before = _state(root)
        for name in (METADATA, _JOURNAL):
            (target / name).unlink(missing_ok=True)
            if (root / name).exists():
                shutil.copyfile(root / name, target / name)
        if _state(root) == before:
            return


def _state(root: Path) -> list[tuple[int, int]]:
    found = []
    for name in (METADATA, _JOURNAL):
        try:
            status = (root / name).stat()
        except FileNotFoundError:
            continue
        found.append((status.st_size, status.st_mtime_ns))
    return found
