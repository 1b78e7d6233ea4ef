"""The LedgerStore interface: the only storage that the log uses.

A ledger is an append-only sequence of opaque bytes with one writer. Positions are byte offsets from
its start; consecutive appends are contiguous, so a read may span many of them.

The contract, which every implementation passes (`tests/contract/test_ledger_store.py`):
1. When the Completion of an append succeeds, its bytes survive a crash of the process and (with
   `flush_ms=None`) of the machine, and so do all earlier appends to the ledger.
2. An append that failed with StorageUnavailable left no trace: the next append takes its position,
   `end` does not count it, and no recovery brings it back. With networked storage the outcome of an
   append may be unknown. It then fails with LedgerLost, and so do all later ones: the writer has
   lost the ledger; `recover` decides which of these appends are in it, and seals it.
3. Appends to one ledger succeed in order. A failure may be reported before earlier appends have
   succeeded; later ones fail, too. Appends in one turn of the loop share a Completion if the
   implementation commits them together.
4. A ledger id is never reused, not even after a crash immediately after `create`.
5. After a crash a ledger ends at a boundary between appends, at or after the last acknowledged
   one, and contains nothing that was not appended.
6. `seal` is final: later appends raise LedgerSealed. `delete` is final: a deleted ledger stays
   deleted after a crash, and reads of it raise LedgerUnknown.
7. Bytes that do not match their checksum are reported as DataCorrupt, never returned as data.
8. `recover` fences: another writer that still has the ledger open gets LedgerFenced for every
   unacknowledged append, and no append is acknowledged that `recover` did not find. If several
   brokers share a store, a recovered ledger is sealed, with a footer only if its writer had
   already stored one.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, NewType, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.runtime.completion import Completion
    from headrace.runtime.file_bytes import FileBytes

LedgerId = NewType("LedgerId", int)
Position = NewType("Position", int)
Buffer = bytes | bytearray | memoryview
FOOTER_BYTES_MAX = 16 << 20
"""Size limit of a footer."""


class Copies(NamedTuple):
    """Replication of a ledger across machines: ensemble >= write >= ack >= 1."""

    ensemble: int
    """Ensemble size: the machines that store parts of the ledger."""
    write: int
    """Write quorum: the machines that store each append."""
    ack: int
    """Ack quorum: the machines that must have made an append durable."""


class IdsAhead(NamedTuple):
    """Ledger ids that were allocated once, and that a store would allocate again."""

    next_id: int
    """The id that it would allocate next."""
    last: int
    """The highest id known to have been allocated."""
    ledgers: Sequence[LedgerId] = ()
    """The ledgers among them whose entries are still stored."""

    def __str__(self) -> str:
        held = (
            f"bookies hold {len(self.ledgers)} of them, from {self.ledgers[0]} to"
            f" {self.ledgers[-1]}, which it does not list"
            if self.ledgers
            else "their ledgers were deleted, by brokers or by bookies, which delete what it does"
            " not list"
        )
        return (
            f"ZooKeeper would allocate ledger ids from {self.next_id} to {self.last} again ({held})"
        )


class LedgerInfo(NamedTuple):
    """The state of a ledger in the store."""

    ledger: LedgerId
    end: int
    """The size of the readable bytes: acknowledged at each append's level of durability."""
    is_sealed: bool
    footer: bytes | None
    """The footer passed to `seal`."""


class MissingCopies(NamedTuple):
    """Copies of a ledger's entries on machines that are not available."""

    copies: int = 0
    """Excludes the latest entries of an open ledger."""
    machines: Sequence[str] = ()
    """Names of the machines."""


class LedgerRecord(NamedTuple):
    """The metadata of a ledger in a shared store, read without opening it."""

    ledger: LedgerId
    is_closed: bool
    created_ms: int
    custom: Mapping[str, bytes]
    """The labels set by its creator: untrusted bytes."""
    size_bytes: int = 0
    """Total size; valid only once it is closed."""
    missing: MissingCopies = MissingCopies()

    @property
    def is_empty(self) -> bool | None:
        """Whether it is closed and empty; None while it is open."""
        return not self.size_bytes if self.is_closed else None


@runtime_checkable
class LocatesBytes(Protocol):
    """Optional capability of a LedgerStore: its bytes are in files of this machine."""

    def locate_cached(self, ledger: LedgerId, position: int, size: int) -> FileBytes | None:
        """The file range of exactly `size` readable bytes; None if reading would need the disk.

        Valid in this turn of the loop. Raises LedgerUnknown.
        """
        ...


@runtime_checkable
class NamesFiles(Protocol):
    """Optional capability of a LedgerStore: other processes can read its ledgers from files."""

    def file_of(self, ledger: LedgerId) -> str | None:
        """The file that holds all bytes of a sealed ledger, from its start; None if there is none,
        or if part of the ledger is elsewhere.

        The name is valid until the ledger is deleted, and never changes. Raises LedgerUnknown.
        """
        ...


class BulkWriter(Protocol):
    """Writes many bytes to a new ledger; none of them are stored before `finish`."""

    def write(self, parts: Sequence[Buffer], size: int) -> Completion:
        """Write the next `size` bytes; on completion the next may be written.

        Fails with StorageUnavailable; then the ledger must be deleted.
        """
        ...

    async def finish(self) -> None:
        """Make everything durable and readable. Raises StorageUnavailable; then nothing is."""
        ...

    def close(self) -> None:
        """Release all resources; to be called once, also after an error."""
        ...


@runtime_checkable
class WritesInBulk(Protocol):
    """Optional capability of a LedgerStore: small appends do not wait for bulk writes."""

    def bulk_writer(self, ledger: LedgerId) -> BulkWriter | None:
        """A writer for an empty ledger, which refuses appends until the writer is closed; None if
        unsupported. Raises LedgerUnknown, LedgerSealed, StorageUnavailable."""
        ...


class InlineCheckpoint(NamedTuple):
    """The state of a log that a writer stored in its ledger, in addition to the bytes."""

    position: int
    """Bytes appended before it; they are in the ledger whenever the checkpoint is."""
    data: bytes


@runtime_checkable
class StoresInlineCheckpoints(Protocol):
    """Optional capability of a LedgerStore: its contents are immutable once written.

    A checkpoint is not part of the bytes. It is ordered after all earlier appends, and recovered
    only together with them.
    """

    def append_checkpoint(self, ledger: LedgerId, data: bytes) -> None:
        """Store a checkpoint after everything appended so far. It may be lost without an error.

        Raises as `append` does.
        """
        ...

    async def checkpoints(self, ledger: LedgerId) -> Sequence[InlineCheckpoint]:
        """The checkpoints of a sealed ledger, oldest first; empty if a search is too costly.

        Raises LedgerUnknown, StorageUnavailable, DataCorrupt.
        """
        ...


@runtime_checkable
class ReleasesLedgers(Protocol):
    """Optional capability of a LedgerStore: it keeps state for every open ledger."""

    def release(self, ledger: LedgerId) -> None:
        """Release the state of a ledger that this broker no longer uses. It may be reopened.

        Pending appends continue and complete normally.
        """
        ...


@runtime_checkable
class FollowsSeals(Protocol):
    """Optional capability of a LedgerStore: brokers share its ledgers."""

    async def open_when_sealed(self, ledger: LedgerId) -> None:
        """Wait until the writer, another broker, has sealed the ledger, and open it; no fencing.

        Raises LedgerUnknown, StorageUnavailable, DataCorrupt.
        """
        ...


@runtime_checkable
class CachesBytes(Protocol):
    """Optional capability of a LedgerStore: it caches remote data in memory."""

    @property
    def cached_bytes(self) -> int:
        """Memory that is released as soon as it is needed elsewhere."""
        ...


class DiskSpace(NamedTuple):
    """The file system that holds a store's ledgers."""

    free_bytes: int
    total_bytes: int
    reserve_bytes: int
    """Kept free for metadata: appends are refused before they would use it."""
    is_full: bool
    """Whether appends are refused for lack of disk space."""


class ReportsSpace(Protocol):
    """Reports the free space of the disk that holds the ledgers."""

    def space(self) -> DiskSpace:
        """The current state; call from the loop's thread. Raises OSError."""
        ...


class Replicas(NamedTuple):
    """The machines that store ledgers, and under-replicated ledgers."""

    known: Sequence[str]
    """All that belong to the storage, running or not."""
    registered: Sequence[str]
    """Those that are running."""
    read_only: Sequence[str]
    """Registered, but refusing writes."""
    quarantined: Sequence[str]
    """Registered as writable, but failed, and not yet answering again."""
    writable: Sequence[str]
    ack: int
    """The default ack quorum."""
    lacking: Mapping[LedgerId, int]
    """Under-replicated ledgers written by this store, with the number of missing copies."""
    refusal: str = ""
    """Why this store creates no more ledgers; "" if it does."""
    damaged: Mapping[str, int] = MappingProxyType({})
    """Reads that met a damaged copy, by machine, since the start."""


@runtime_checkable
class ReplicatesLedgers(Protocol):
    """Optional capability of a LedgerStore: it stores each ledger on several machines."""

    def replication(self) -> Replicas:
        """The state currently known; contacts no machine."""
        ...

    async def lacking(self, ledgers: Sequence[LedgerId]) -> Mapping[LedgerId, int]:
        """Those of the closed `ledgers` that are under-replicated, with their missing copies.

        Reads the metadata of each. Raises StorageUnavailable.
        """
        ...

    async def machines(self, ledger: LedgerId, position: int | None = None) -> Sequence[str]:
        """The machines that hold entries of the ledger; with `position`, those of its ensemble
        there as far as the ledger's index tells them apart. Empty if it was deleted.

        Reads metadata alone. Raises StorageUnavailable.
        """
        ...


class LedgerStore(Protocol):
    """Durable ledgers. Methods that may wait are coroutines; the others never block on I/O."""

    async def create(
        self, labels: Mapping[str, bytes] | None = None, copies: Copies | None = None
    ) -> LedgerId:
        """Create an empty ledger; its id is durable on return. Raises StorageUnavailable.

        `labels` describe its purpose to administrators of a shared store. `copies` applies only
        to replicated stores; None: the store's default.
        """
        ...

    def append(
        self, ledger: LedgerId, parts: Sequence[Buffer], size: int, flush_ms: int | None
    ) -> tuple[int, Completion]:
        """Append `parts` (`size` bytes in total); returns their position and a Completion.

        The Completion succeeds when the bytes are durable (`flush_ms` None), or as soon as they
        were handed to the operating system, which then syncs them within `flush_ms` milliseconds.
        It fails with StorageUnavailable if they could not be stored. The buffers are not used
        after this turn of the loop. Raises LedgerUnknown, LedgerSealed, LedgerFenced, LedgerLost.
        """
        ...

    def read_cached(self, ledger: LedgerId, position: int, size: int) -> Buffer | None:
        """Read up to `size` bytes without waiting for a disk; None if that is not possible.

        Shorter than `size` only at the end of the readable bytes. Raises LedgerUnknown, but
        returns None if that cannot be determined without waiting.
        """
        ...

    async def read(self, ledger: LedgerId, position: int, size: int) -> Buffer:
        """Read up to `size` bytes, waiting for the disk.

        Raises LedgerUnknown, StorageUnavailable.
        """
        ...

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        """Refuse further appends, and store `footer` (at most FOOTER_BYTES_MAX)."""
        ...

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        """Fence any former writer and find the end; the ledger is ready for its new owner."""
        ...

    async def delete(self, ledger: LedgerId) -> None:
        """Delete the ledger and its bytes."""
        ...

    def list(self) -> Sequence[LedgerInfo]:
        """All ledgers, by id; in a shared store, those open here."""
        ...
