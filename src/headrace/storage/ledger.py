"""The one seam under the log: a store of ledgers.

A ledger is an append-only run of opaque bytes with one writer. Positions are bytes from its
start; consecutive appends lie next to each other, so a read may span many of them.

The contract, which every implementation passes (`tests/contract/test_ledger_store.py`):
1. When the Completion of an append succeeds, its bytes survive a crash of the process and (with
   `flush_ms=None`) of the machine, and so do all earlier appends to the ledger.
2. An append that failed with StorageUnavailable left no trace: the next append takes its position,
   `end` does not count it, and no recovery brings it back. Where storage lies behind a network an
   append may be in doubt. It then fails with LedgerLost, and so does every later one: this writer
   has lost the ledger, `recover` decides which of the appends in doubt are in it, and seals it.
3. Appends to one ledger succeed in order. A failure may be told before earlier appends have
   succeeded; those behind it fail too. Appends of one turn of the loop share a Completion where the
   implementation commits them together.
4. A ledger id is never given out twice, not even after a crash right behind `create`.
5. After a crash a ledger ends at a boundary between appends, at or behind the last acknowledged
   one; nothing that was not appended is ever in it.
6. `seal` is final: later appends raise LedgerSealed. `delete` is final: a deleted ledger stays
   gone after a crash, reads of it raise LedgerUnknown.
7. Bytes that do not match their checksum are reported as DataCorrupt, never returned as data.
8. `recover` fences: a writer elsewhere that still holds the ledger gets LedgerFenced for every
   append that was not acknowledged before, and none is acknowledged that `recover` did not find.
   Where several brokers share a store, a recovered ledger is sealed, without a footer unless its
   writer had stored that before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.runtime.completion import Completion
    from headrace.runtime.file_bytes import FileBytes

LedgerId = NewType("LedgerId", int)
Position = NewType("Position", int)
Buffer = bytes | bytearray | memoryview
FOOTER_BYTES_MAX = 16 << 20
"""What a seal keeps beside the bytes."""


class Copies(NamedTuple):
    """How a ledger is kept where storage is many machines: ensemble >= write >= ack >= 1."""

    ensemble: int
    """So many machines hold parts of it."""
    write: int
    """So many of them get each append."""
    ack: int
    """So many of these must have made an append durable before it counts as that."""


class LedgerInfo(NamedTuple):
    """What the store knows of one ledger."""

    ledger: LedgerId
    end: int
    """Bytes that are readable: acknowledged as far as each append asked for."""
    is_sealed: bool
    footer: bytes | None
    """What the writer gave to `seal`."""


class Missing(NamedTuple):
    """Copies of a ledger's entries that lie on machines which are not there."""

    copies: int = 0
    """Those of the newest entries of a ledger that is not closed are not counted."""
    machines: Sequence[str] = ()
    """By name."""


class LedgerRecord(NamedTuple):
    """What a shared store knows of a ledger without opening it."""

    ledger: LedgerId
    is_closed: bool
    created_ms: int
    custom: Mapping[str, bytes]
    """The labels that its maker gave it: bytes from outside, to be checked."""
    size_bytes: int = 0
    """Of all that is in it; counts only once it is closed."""
    missing: Missing = Missing()

    @property
    def is_empty(self) -> bool | None:
        """Whether nothing was ever stored in it; None while it is open."""
        return not self.size_bytes if self.is_closed else None


@runtime_checkable
class LocatesBytes(Protocol):
    """What a LedgerStore may do besides, if its bytes lie in files of this machine."""

    def locate_cached(self, ledger: LedgerId, position: int, size: int) -> FileBytes | None:
        """Exactly `size` readable bytes where they lie; None if a disk would have to be waited for.

        For this turn of the loop. Raises LedgerUnknown.
        """
        ...


@runtime_checkable
class NamesFiles(Protocol):
    """What a LedgerStore may do besides, if other processes can read its ledgers in files."""

    def file_of(self, ledger: LedgerId) -> str | None:
        """The file that holds all bytes of a sealed ledger, and nothing before them; None if there
        is none, or a part of them is elsewhere.

        It has that name until the ledger is deleted, and never changes. Raises LedgerUnknown.
        """
        ...


class Note(NamedTuple):
    """Something that a writer left in its ledger, beside the bytes."""

    position: int
    """Bytes that had been appended before it, and are in the ledger wherever the note is."""
    data: bytes


@runtime_checkable
class KeepsNotes(Protocol):
    """What a LedgerStore may do besides, if nothing that was once in a ledger can change.

    A note is no part of the bytes. It comes behind all that was appended before it, and is found
    by a recovery only together with that.
    """

    def note(self, ledger: LedgerId, data: bytes) -> None:
        """Leave a note behind what is appended by now. It may get lost, which is not reported.

        Raises as `append` does.
        """
        ...

    async def notes(self, ledger: LedgerId) -> Sequence[Note]:
        """The notes of a sealed ledger, from old to new; none where they are not worth a search.

        Raises LedgerUnknown, StorageUnavailable, DataCorrupt.
        """
        ...


@runtime_checkable
class ReleasesLedgers(Protocol):
    """What a LedgerStore may do besides, if it keeps something of every ledger that is open."""

    def release(self, ledger: LedgerId) -> None:
        """This broker is done with the ledger: keep nothing of it. It may be opened again.

        Appends that are under way go on, and complete as they would have.
        """
        ...


@runtime_checkable
class FollowsSeals(Protocol):
    """What a LedgerStore may do besides, if brokers share its ledgers."""

    async def open_when_sealed(self, ledger: LedgerId) -> None:
        """Wait until the writer, another broker, has sealed the ledger, and open it; no fence.

        Raises LedgerUnknown, StorageUnavailable, DataCorrupt.
        """
        ...


@runtime_checkable
class CachesBytes(Protocol):
    """What a LedgerStore may tell besides, if it keeps in memory what lies elsewhere."""

    @property
    def cached_bytes(self) -> int:
        """Memory that goes as soon as there is a better use for it."""
        ...


class DiskSpace(NamedTuple):
    """The file system that holds a store's ledgers."""

    free_bytes: int
    total_bytes: int
    reserve_bytes: int
    """Kept free for metadata: appends are refused before they need it."""
    is_full: bool
    """Whether appends are refused for lack of space."""


class ReportsSpace(Protocol):
    """Knows how full the disk is that holds the ledgers."""

    def space(self) -> DiskSpace:
        """As it is now; for the loop's thread. Raises OSError."""
        ...


class Replicas(NamedTuple):
    """The machines that keep a store's ledgers, and which ledgers lack copies."""

    known: Sequence[str]
    """All that belong to the storage, whether they run or not."""
    registered: Sequence[str]
    """Those that run."""
    read_only: Sequence[str]
    """Registered, and take no writes."""
    quarantined: Sequence[str]
    """Registered to take writes, but failed, and have not answered since."""
    writable: Sequence[str]
    ack: int
    """So many must have made an append durable, in ledgers that do not say."""
    lacking: Mapping[LedgerId, int]
    """Ledgers written here that lack copies or a machine, and how many copies are missing."""


@runtime_checkable
class ReplicatesLedgers(Protocol):
    """What a LedgerStore may tell besides, if it keeps each ledger on several machines."""

    def replication(self) -> Replicas:
        """As it is known at this moment; no machine is asked."""
        ...

    async def lacking(self, ledgers: Sequence[LedgerId]) -> Mapping[LedgerId, int]:
        """Those of the closed `ledgers` that lack copies, and how many; the rest left out.

        Reads the metadata of each. Raises StorageUnavailable.
        """
        ...


class LedgerStore(Protocol):
    """Durable ledgers. Methods that may wait are coroutines; the others never block on a sync."""

    async def create(
        self, labels: Mapping[str, bytes] | None = None, copies: Copies | None = None
    ) -> LedgerId:
        """Make an empty ledger; its id is durable on return. Raises StorageUnavailable.

        `labels` say what it is for, to people who find it where brokers share a store. `copies`
        makes a difference only there; None: what the store gives to ledgers that do not say.
        """
        ...

    def append(
        self, ledger: LedgerId, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """Append `parts` (`size` bytes in all) and say where they will start.

        The Completion succeeds when the bytes are durable (`flush_ms` None), or as soon as they
        are handed to the operating system, which then syncs them within `flush_ms` milliseconds.
        It fails with StorageUnavailable if they could not be stored. The buffers are used until
        the end of this turn of the loop at most. Raises LedgerUnknown, LedgerSealed, LedgerFenced,
        LedgerLost.
        """
        ...

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """Read up to `size` bytes if that needs no wait for a disk; None if it would.

        Shorter than `size` only at the end of what is readable. Raises LedgerUnknown, but gives
        None where it takes a look elsewhere to know.
        """
        ...

    async def read(self, ledger: LedgerId, position: int, size: int) -> Buffer:
        """Read up to `size` bytes, waiting for the disk.

        Raises LedgerUnknown, StorageUnavailable.
        """
        ...

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        """Take no more appends, and keep `footer` beside the bytes (at most FOOTER_BYTES_MAX)."""
        ...

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """Fence a former writer and find the true end; the ledger is ready for its new owner."""
        ...

    async def delete(self, ledger: LedgerId) -> None:
        """Remove the ledger and its bytes."""
        ...

    def list(self) -> Sequence[LedgerInfo]:
        """All ledgers, by id; where brokers share a store, those that are open here."""
        ...
