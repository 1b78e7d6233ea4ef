"""The state of a group commit, and of the ledgers in it.

Invariants: plain state, changed by `group_commit` only. `start <= written_end <= end`; a ledger's
`readable <= end`, and the bytes between them must not be visible yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, LedgerSealed

if TYPE_CHECKING:
    from headrace.runtime.completion import Completion
    from headrace.storage.files.segment_write_buffer import BufferedRun
    from headrace.storage.ledger import Buffer


CLEAN: Final = -1
"""A segment without writes that a checkpoint has still to sync."""


class Ledger:
    """One ledger of the folder."""

    __slots__ = (
        "blocked",
        "buffered",
        "corrupt",
        "dirty_from",
        "end",
        "fd",
        "has_file",
        "id",
        "is_recent",
        "is_sealed",
        "must_rewrite",
        "readable",
        "run",
        "sync_until",
    )

    def __init__(self, ledger: int, length: int = 0) -> None:
        self.id = ledger
        self.end = length
        """The position of the next append."""
        self.readable = length
        """The end of the acknowledged bytes."""
        self.run: AppendRun | None = None
        """Its appends in the current group."""
        self.sync_until = 0
        """The last group with an append that requested a sync: later appends complete after it."""
        self.is_sealed = False
        self.blocked: HeadraceError | None = None
        """Why it refuses appends: sealed, sealing, deleting, quarantined."""
        self.corrupt: HeadraceError | None = None
        """Why it is quarantined: it refuses appends and reads."""
        self.fd = -1
        self.has_file = length > 0
        self.is_recent = False
        self.dirty_from = CLEAN
        """Where its first write since the last checkpoint began; CLEAN if there was none."""
        self.buffered: BufferedRun | None = None
        """Its last bytes, if they are buffered and not in the segment yet."""
        self.must_rewrite = False
        """A sync of its segment failed: the page cache may have lost data."""

    def seal(self) -> None:
        """Refuse all further appends."""
        self.is_sealed = True
        self.unblock()

    def unblock(self) -> None:
        """A seal or delete has failed: accept appends again, unless something else forbids it."""
        self.blocked = self.corrupt or (ledger_sealed(self.id) if self.is_sealed else None)


def ledger_sealed(ledger: int) -> LedgerSealed:
    """The error of an append to a sealed ledger."""
    return LedgerSealed(f"ledger {ledger} is sealed: append to the next ledger", ledger=ledger)


def fresh(error: HeadraceError) -> HeadraceError:
    """A copy to raise: an instance raised repeatedly would accumulate tracebacks."""
    return type(error)(str(error), **error.fields)


class AppendRun:
    """The appends of one group to one ledger, which are contiguous."""

    __slots__ = ("end", "ledger", "parts", "start", "written_end")

    def __init__(self, ledger: Ledger, start: int) -> None:
        self.ledger = ledger
        self.start = start
        self.end = start
        self.written_end = start
        """The end of the appends that requested no sync."""
        self.parts: list[Buffer] = []


class Change:
    """A CREATE, SEAL, DELETE or EXTEND in a group."""

    __slots__ = ("kind", "ledger", "payload", "position")

    def __init__(self, kind: int, ledger: Ledger, position: int, payload: bytes) -> None:
        self.kind = kind
        self.ledger = ledger
        self.position = position
        self.payload = payload


class CommitGroup:
    """The unit of group commit: one WAL frame."""

    __slots__ = ("changes", "durable", "flush_ms", "frame", "runs", "sequence", "size", "written")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.size = 0
        self.frame = -1
        """The position of its frame in the WAL, once written."""
        self.runs: list[AppendRun] = []
        self.changes: list[Change] = []
        self.durable: Completion | None = None
        """Completes all appends that requested a sync."""
        self.written: Completion | None = None
        """Completes all others."""
        self.flush_ms = 0
        """The shortest `flush_ms` of the others."""


class Catalog:
    """The ledgers of a folder, and the next ledger id."""

    __slots__ = ("ledgers", "next_ledger")

    def __init__(self) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self.next_ledger = 1
