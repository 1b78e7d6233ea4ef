"""The SQLite file of the metadata store: its schema, reads and writes.

Invariants: everything here blocks, and a SqliteFile is used by one thread only. Journal in WAL
mode, synchronous=FULL: an acknowledged write is on disk. The file must not be on a network file
system (WAL mode does not work there).

`facts` holds each key with the sequence number of its last change; a deleted key remains for a day
as a tombstone (value NULL). "Changes since" is therefore one index scan that misses nothing.
Changes by other processes are detected with `PRAGMA data_version`.

An ephemeral key names its session, and a session is a locked file beside the database. The kernel
releases the lock when the process ends for any reason: no heartbeats, no clocks, no timeout. A
process that finds a key of a dead session deletes all keys of that session. (A lock is inherited
by fork: start workers with `exec`.)
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeAlias

from crc32c import crc32c

from headrace.errors import (
    DataCorrupt,
    FormatUnsupported,
    MetadataUnavailable,
    RequestInvalid,
    VersionConflict,
)
from headrace.metadata.store import ABSENT, ANY, MetadataEntry, MultiOperation
from headrace.metadata.watches import next_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from headrace.runtime.clock import Clock

Outcome: TypeAlias = "Sequence[int] | VersionConflict"
"""The result of a change: the new versions, or the reason why none of it was applied."""

METADATA = "metadata.sqlite"
"""The name of the file in a data directory."""
FORMAT = 1
TOMBSTONE_MS = 86_400_000
"""How long a process may be suspended and still detect every deletion."""

_USER_VERSION_AT = 60  # in the header of SQLite's file format
_WAL_RETRY_MS = 5
_POLLS_PER_SESSION_CHECK = 4
_KEY_AFTER_ALL = "\U0010ffff"  # sorts after every key with the same prefix

# Do not change: stored. `value` NULL: a tombstone; `session` NULL: a persistent key.
_SCHEMA = (
    """CREATE TABLE facts (
        key TEXT PRIMARY KEY, value BLOB, version INTEGER NOT NULL, crc INTEGER NOT NULL,
        session INTEGER, sequence INTEGER NOT NULL, changed_ms INTEGER NOT NULL
    ) WITHOUT ROWID""",
    "CREATE UNIQUE INDEX facts_by_sequence ON facts (sequence)",
    "CREATE INDEX facts_by_session ON facts (session) WHERE session IS NOT NULL",
    "CREATE TABLE counters (name TEXT PRIMARY KEY, value INTEGER NOT NULL) WITHOUT ROWID",
    "INSERT INTO counters VALUES ('sequence', 0), ('session', 0)",
    f"PRAGMA user_version = {FORMAT}",
)
_SELECT = "SELECT key, value, version, crc, session FROM facts WHERE value IS NOT NULL AND "


def row_crc(key: str, value: bytes, version: int) -> int:
    """The checksum of a row; SQLite itself has none."""
    return int(crc32c(value, crc32c(f"{version} {key}".encode())))


def check_format(path: Path) -> None:
    """Check the file's format before anything is opened or created. Raises FormatUnsupported.

    Unreadable files and files that are not databases are left to SqliteFile.
    """
    try:
        with path.open("rb") as stream:
            header = stream.read(_USER_VERSION_AT + 4)
    except OSError:
        return
    version = int.from_bytes(header[_USER_VERSION_AT:], "big")
    if header.startswith(b"SQLite format 3\x00") and version > FORMAT:
        raise _unsupported(path, version)


def _unsupported(path: Path, version: int) -> FormatUnsupported:
    return FormatUnsupported(
        f"{path} has metadata format {version}, this version of Headrace supports {FORMAT}:"
        " start the version that wrote it",
        path=str(path),
    )


class SqliteFile:
    """An open metadata file and, after its first ephemeral key, a session."""

    def __init__(self, path: Path, clock: Clock, busy_timeout_ms: int) -> None:
        self._path = path
        self._clock = clock
        self._busy_timeout_ms = busy_timeout_ms
        self._session: int | None = None
        self._session_lock = -1
        self._polls = 0
        self.has_journal = True
        """Whether `empty_journal` has work to do; a crash may have left a journal."""
        self.changed: list[str] = []
        """Changed keys that were not reported to watches yet."""
        path.parent.mkdir(parents=True, exist_ok=True)
        self._refuse_links()
        self._db = sqlite3.connect(path, timeout=busy_timeout_ms / 1000, isolation_level=None)
        try:
            self._open()
        except BaseException:
            self._db.close()
            raise

    def _refuse_links(self) -> None:
        """Raises RequestInvalid: SQLite would follow a symbolic link and write to its target."""
        for name in (self._path.name, f"{self._path.name}-wal", f"{self._path.name}-shm"):
            if self._path.with_name(name).is_symlink():
                raise RequestInvalid(
                    f"{self._path.with_name(name)} is a symbolic link, and is not followed: nothing"
                    " was opened; put the file itself there, or point --data-dir at its folder"
                )

    def _open(self) -> None:
        self._use_wal()
        self._db.execute("PRAGMA synchronous = FULL")
        if self._one("PRAGMA user_version") != FORMAT:
            self._create()
        self._check()
        self._data_version = self._one("PRAGMA data_version")
        self._seen = self._one("SELECT value FROM counters WHERE name = 'sequence'")
        old = "value IS NULL AND changed_ms < ?"
        horizon_ms = self._clock.now_ms() - TOMBSTONE_MS
        if self._one(f"SELECT count(*) FROM facts WHERE {old}", horizon_ms):  # noqa: S608 -- a constant
            with self._transaction():
                self._db.execute(f"DELETE FROM facts WHERE {old}", (horizon_ms,))  # noqa: S608 -- a constant

    def _check(self) -> None:
        """Raises DataCorrupt unless every row agrees with the indexes: a checksum detects a
        changed row, not one that lookups no longer find."""
        problem = self._one("PRAGMA integrity_check(1)")
        if problem != "ok":
            raise DataCorrupt(
                f"the metadata in {self._path} is corrupt ({problem}): the broker cannot read its"
                f" topics; restore {self._path.name} from a backup",
                path=str(self._path),
            )

    def _use_wal(self) -> None:
        """Switch a new file to WAL mode; SQLite's busy timeout does not cover this."""
        attempts_left = self._busy_timeout_ms // _WAL_RETRY_MS
        mode = None
        while mode is None:
            try:
                mode = self._one("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or attempts_left <= 0:
                    raise
                attempts_left -= 1
                time.sleep(_WAL_RETRY_MS / 1000)
        if mode != "wal":
            raise MetadataUnavailable(f"{self._path} supports only journal mode {mode}: move it")

    def _create(self) -> None:
        with self._transaction():
            version = self._one("PRAGMA user_version")
            if version == FORMAT:
                return  # another process was faster
            if version != 0 or self._one("SELECT count(*) FROM sqlite_master"):
                raise _unsupported(self._path, version)
            for statement in _SCHEMA:
                self._db.execute(statement)

    def _one(self, query: str, *values: object) -> Any:
        row = self._db.execute(query, values).fetchone()
        if row is None:  # from `counters`, whose rows always exist
            raise DataCorrupt(
                f"the metadata in {self._path} is corrupt: a row is missing ({query}); restore"
                f" {self._path.name} from a backup",
                path=str(self._path),
            )
        return row[0]

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
            self._db.execute("COMMIT")
        except BaseException:
            if self._db.in_transaction:
                self._db.execute("ROLLBACK")
            raise
        self.has_journal = True

    def empty_journal(self) -> None:
        """Checkpoint the WAL into the database file (7 ms, so not after every commit).

        SQLite ignores a damaged WAL from the point of damage on: later commits would be lost
        without an error. So the WAL is kept empty while there are no writes.
        """
        self.has_journal = False
        try:
            self._db.execute("PRAGMA busy_timeout = 0")
            try:
                self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
            finally:
                self._db.execute(f"PRAGMA busy_timeout = {self._busy_timeout_ms}")
        except sqlite3.Error:  # there is a reader, or the disk is full: retry after the next commit
            return

    def get(self, key: str) -> MetadataEntry | None:
        """The entry, unless it belongs to a dead session."""
        return next(iter(self._select("key = ?", key)), None)

    def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """The entries with this prefix, ordered by key."""
        return self._select("key >= ? AND key < ? ORDER BY key", prefix, prefix + _KEY_AFTER_ALL)

    def _select(self, where: str, *values: str) -> Sequence[MetadataEntry]:
        entries: list[MetadataEntry] = []
        dead: dict[int, bool] = {}
        for key, value, version, crc, session in self._db.execute(
            _SELECT + where, values
        ).fetchall():
            if session is not None:
                if session not in dead:
                    dead[session] = self._end_if_dead(session)
                if dead[session]:
                    continue
            if row_crc(key, value, version) != crc:
                raise DataCorrupt(
                    f"checksum mismatch in the value of {key} in {self._path}: restore"
                    f" {self._path.name} from a backup",
                    path=str(self._path),
                    key=key,
                )
            entries.append(MetadataEntry(key, value, version))
        return entries

    def write(self, changes: Sequence[Sequence[MultiOperation]]) -> Sequence[Outcome]:
        """Apply each change completely or not at all; its result is the new versions, or the
        conflict. All of them share one transaction, and so one sync."""
        return self._write(changes, None)

    def write_ephemeral(self, operations: Sequence[MultiOperation]) -> Outcome:
        """Apply one change whose keys are deleted when this session ends."""
        (outcome,) = self._write([operations], self._live_session())
        return outcome

    def _write(
        self, changes: Sequence[Sequence[MultiOperation]], session: int | None
    ) -> Sequence[Outcome]:
        for operations in changes:
            for key, _, expected in operations:
                if expected != ANY:
                    self.get(key)  # deletes it if its session is dead, so that it cannot conflict
        outcomes: list[Outcome] = []
        changed: list[str] = []
        with self._transaction():
            first = sequence = self._one("SELECT value FROM counters WHERE name = 'sequence'")
            for operations in changes:
                self._db.execute("SAVEPOINT change")
                try:
                    versions, keys = self._apply_all(operations, session, sequence)
                except VersionConflict as error:
                    self._db.execute("ROLLBACK TO change")
                    outcomes.append(error)
                else:
                    sequence += len(keys)
                    changed += keys
                    outcomes.append(versions)
                self._db.execute("RELEASE change")
            if sequence > first:
                self._advance(sequence)
        self._wrote(first, sequence, changed)
        return outcomes

    def _apply_all(
        self, operations: Sequence[MultiOperation], session: int | None, sequence: int
    ) -> tuple[Sequence[int], Sequence[str]]:
        """The versions, and the keys that changed. Raises VersionConflict."""
        versions: list[int] = []
        changed: list[str] = []
        for operation in operations:
            version = self._apply(operation, session, sequence + len(changed) + 1)
            if version is not None:
                changed.append(operation.key)
            versions.append(ABSENT if version is None or operation.value is None else version)
        return versions, changed

    def _apply(self, operation: MultiOperation, session: int | None, sequence: int) -> int | None:
        """Apply one operation within a transaction; the new version, None if nothing changed."""
        key, value, expected = operation
        query = "SELECT version FROM facts WHERE key = ? AND value IS NOT NULL"
        row = self._db.execute(query, (key,)).fetchone()
        version = next_version(key, row[0] if row else ABSENT, expected)
        if value is None:
            if row is None:
                return None
            self._bury(key, sequence)
        else:
            crc = row_crc(key, value, version)
            fields = (key, value, version, crc, session, sequence, self._clock.now_ms())
            self._db.execute("INSERT OR REPLACE INTO facts VALUES (?, ?, ?, ?, ?, ?, ?)", fields)
        return version

    def _bury(self, key: str, sequence: int) -> None:
        change = "value = NULL, session = NULL, sequence = ?, changed_ms = ?"
        query = f"UPDATE facts SET {change} WHERE key = ?"  # noqa: S608 -- a constant
        self._db.execute(query, (sequence, self._clock.now_ms(), key))

    def _advance(self, sequence: int) -> None:
        self._db.execute("UPDATE counters SET value = ? WHERE name = 'sequence'", (sequence,))

    def _wrote(self, first: int, last: int, keys: Sequence[str]) -> None:
        """Record this process's own changes, so that a poll does not report them again."""
        self.changed += keys
        if self._seen == first:  # otherwise another process wrote in between: the poll finds it
            self._seen = last

    def poll(self) -> None:
        """Detect changes by other processes and, less often, dead sessions."""
        version = self._one("PRAGMA data_version")
        if version != self._data_version:
            query = "SELECT key, sequence FROM facts WHERE sequence > ? ORDER BY sequence"
            for key, sequence in self._db.execute(query, (self._seen,)).fetchall():
                self.changed.append(key)
                self._seen = sequence
            self._data_version = version
        self._polls += 1
        if self._polls % _POLLS_PER_SESSION_CHECK == 0:
            query = "SELECT DISTINCT session FROM facts WHERE session IS NOT NULL"
            for (session,) in self._db.execute(query).fetchall():
                self._end_if_dead(session)

    # sessions

    def _lock_path(self, session: int) -> Path:
        return self._path.with_name(f"{self._path.name}-session-{session}")

    def _live_session(self) -> int:
        """This store's session, started with its first ephemeral key."""
        if self._session is None:
            with self._transaction():
                session: int = self._one("SELECT value FROM counters WHERE name = 'session'") + 1
                update = "UPDATE counters SET value = ? WHERE name = 'session'"
                self._db.execute(update, (session,))
            flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
            self._session_lock = os.open(self._lock_path(session), flags, 0o600)
            fcntl.flock(self._session_lock, fcntl.LOCK_EX)
            self._session = session
        return self._session

    def _is_alive(self, session: int) -> bool:
        if session == self._session:
            return True
        try:
            probe = os.open(self._lock_path(session), os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(probe, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(probe)
        return False

    def _end_if_dead(self, session: int) -> bool:
        """Delete the session's keys if its lock is free; returns whether it was."""
        if self._is_alive(session):
            return False
        self._end_session(session)
        return True

    def _end_session(self, session: int) -> None:
        query = "SELECT key FROM facts WHERE session = ? ORDER BY sequence"
        with self._transaction():
            keys = [key for (key,) in self._db.execute(query, (session,))]
            first = sequence = self._one("SELECT value FROM counters WHERE name = 'sequence'")
            for key in keys:
                sequence += 1
                self._bury(key, sequence)
            self._advance(sequence)
        self._wrote(first, sequence, keys)
        self._lock_path(session).unlink(missing_ok=True)

    def close(self) -> None:
        """End the session and close the file, even if an error occurs."""
        try:
            if self._session is not None:
                self._end_session(self._session)
        finally:
            if self._session_lock >= 0:
                os.close(self._session_lock)
            self._db.close()
