"""What waits for one group commit, and what is known of a ledger meanwhile.

Invariants: plain state without behaviour beyond itself; `group_commit` alone changes it.
`start <= written_end <= end`; a ledger's `readable <= end`, and between them lie the bytes that
must not be visible yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, LedgerSealed

if TYPE_CHECKING:
    from headrace.runtime.completion import Completion
    from headrace.storage.files.segment_write_buffer import Tail
    from headrace.storage.ledger import Buffer


class Ledger:
    """One ledger of the folder."""

    __slots__ = (
        "blocked",
        "corrupt",
        "end",
        "fd",
        "has_file",
        "id",
        "is_dirty",
        "is_recent",
        "is_sealed",
        "must_rewrite",
        "readable",
        "run",
        "sync_until",
        "tail",
    )

    def __init__(self, ledger: int, length: int = 0) -> None:
        self.id = ledger
        self.end = length
        """Where the next append goes."""
        self.readable = length
        """What has been acknowledged."""
        self.run: Run | None = None
        """Its appends in the group that is being collected."""
        self.sync_until = 0
        """The last group in which an append asked for a sync: later ones complete behind it."""
        self.is_sealed = False
        self.blocked: HeadraceError | None = None
        """Why it takes no appends: sealed, sealing, deleting, quarantined."""
        self.corrupt: HeadraceError | None = None
        """Why it is quarantined: neither appends nor reads."""
        self.fd = -1
        self.has_file = length > 0
        self.is_recent = False
        self.is_dirty = False
        """Written since the last checkpoint began."""
        self.tail: Tail | None = None
        """Its last bytes, where they are not in the segment yet."""
        self.must_rewrite = False
        """A sync of its segment failed: the page cache may hold less than it seems to."""

    def seal(self) -> None:
        """Take no more appends, from now on and for ever."""
        self.is_sealed = True
        self.unblock()

    def unblock(self) -> None:
        """A seal or delete has failed: take appends again, unless something else forbids it."""
        self.blocked = self.corrupt or (ledger_sealed(self.id) if self.is_sealed else None)


def ledger_sealed(ledger: int) -> LedgerSealed:
    """The error of an append to a ledger that is sealed."""
    return LedgerSealed(
        f"ledger {ledger} is sealed: append to the ledger that follows it", ledger=ledger
    )


def fresh(error: HeadraceError) -> HeadraceError:
    """A copy to raise: an instance that is raised again and again gathers tracebacks."""
    return type(error)(str(error), **error.fields)


class Run:
    """The appends of one group to one ledger: bytes that lie next to each other."""

    __slots__ = ("end", "ledger", "parts", "start", "written_end")

    def __init__(self, ledger: Ledger, start: int) -> None:
        self.ledger = ledger
        self.start = start
        self.end = start
        self.written_end = start
        """Up to here the appends asked for no sync."""
        self.parts: list[Buffer] = []


class Change:
    """A CREATE, SEAL or DELETE in a group."""

    __slots__ = ("kind", "ledger", "payload", "position")

    def __init__(self, kind: int, ledger: Ledger, position: int, payload: bytes) -> None:
        self.kind = kind
        self.ledger = ledger
        self.position = position
        self.payload = payload


class Group:
    """What becomes durable together: one WAL frame."""

    __slots__ = ("changes", "durable", "flush_ms", "frame", "runs", "sequence", "size", "written")

    def __init__(self, sequence: int) -> None:
        self.sequence = sequence
        self.size = 0
        self.frame = -1
        """Where its frame begins in the WAL, once it is written."""
        self.runs: list[Run] = []
        self.changes: list[Change] = []
        self.durable: Completion | None = None
        """Completes all appends that asked for a sync."""
        self.written: Completion | None = None
        """Completes all others."""
        self.flush_ms = 0
        """The shortest delay that one of the others allows."""


class Catalog:
    """The ledgers of a folder, and the id that the next one gets."""

    __slots__ = ("ledgers", "next_ledger")

    def __init__(self) -> None:
        self.ledgers: dict[int, Ledger] = {}
        self.next_ledger = 1
