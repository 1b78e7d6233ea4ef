"""One partition's named sequences: how far each named producer has come (exactly-once appends).

Invariants: knows names, sequences and offsets, not records or files; never reads the clock. State
is rebuilt by `apply` alone, live and on replay, and kept in footers. A record whose sequence is not
higher than the highest one of its name is a duplicate, however long ago that was appended.
How it works: a dict in the order of last use, with one entry for each name. At most `NAMES_MAX`
names are kept: the one that was used least recently goes first, and its next record counts as
new. So exactly-once holds for a name until `NAMES_MAX` other names have written to the partition
after it. What an append that is not safe yet has changed is kept beside, so that it can fail.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import BatchCorrupt, DataCorrupt
from headrace.records.attributes import NamedSequence, named_sequences_of
from headrace.records.codec import payload_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.log.appended import Appended
    from headrace.log.partition_log import PartitionLog
    from headrace.records.batch import BatchHeader, Buffer

NAMES_MAX: Final = 10_000
"""About 2 MB of memory, and 1 MB of a ledger's footer, for names of 50 bytes."""
_COUNT: Final = Struct(">I")
_ENTRY: Final = Struct(">qqB")


class _Highest(NamedTuple):
    sequence: int
    offset: int
    """Of the last batch that had the name."""


class _Change(NamedTuple):
    offset: int
    name: str
    before: _Highest | None
    evicted: tuple[str, _Highest] | None


class NamedSequences:
    """The named producers of one partition."""

    __slots__ = ("_changes", "_highest", "evicted_total")

    def __init__(self) -> None:
        self._highest: dict[str, _Highest] = {}
        self._changes: list[_Change] = []
        """Of the appends that may still fail, in the order of their offsets."""
        self.evicted_total = 0
        """Names that were forgotten because there were too many."""

    def __len__(self) -> int:
        return len(self._highest)

    def find(self, named: NamedSequence) -> int | None:
        """The offset up to which the earlier append is to be found; None for a new sequence."""
        highest = self._highest.get(named.producer)
        if highest is None or named.sequence > highest.sequence:
            return None
        return highest.offset

    def apply(self, named: Iterable[NamedSequence], base_offset: int, safe_offset: int) -> None:
        """Take note of a batch's records, appended at `base_offset`.

        No append below `safe_offset` will ever be forgotten.
        """
        changes = self._changes
        settled = 0
        while settled < len(changes) and changes[settled].offset < safe_offset:
            settled += 1
        del changes[:settled]
        for producer, sequence in named:
            before = self._highest.pop(producer, None)
            highest = sequence if before is None else max(before.sequence, sequence)
            self._highest[producer] = _Highest(highest, base_offset)
            evicted = None
            if len(self._highest) > NAMES_MAX:
                oldest = next(iter(self._highest))
                evicted = oldest, self._highest.pop(oldest)
                self.evicted_total += 1
            changes.append(_Change(base_offset, producer, before, evicted))

    def truncate(self, end_offset: int) -> None:
        """Forget the appends at and after `end_offset`: they failed."""
        changes, highest = self._changes, self._highest
        restored: dict[str, _Highest] = {}
        """The newest first."""
        while changes and changes[-1].offset >= end_offset:
            _, name, before, evicted = changes.pop()
            highest.pop(name, None)
            restored.pop(name, None)
            if evicted is not None:
                restored[evicted[0]] = evicted[1]
            if before is not None:
                restored[name] = before
        if restored:
            # In front: in the order of use they are among the oldest, or close to it.
            self._highest = {**dict(reversed(restored.items())), **highest}

    def encode(self) -> bytes:
        """For a footer (`docs/FORMAT.md`). Do not change: stored."""
        parts = [_COUNT.pack(len(self._highest))]
        for producer, (sequence, offset) in self._highest.items():
            name = producer.encode()
            parts += (_ENTRY.pack(sequence, offset, len(name)), name)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> NamedSequences:
        """The reverse of `encode`. Raises DataCorrupt."""
        found = cls()
        try:
            (count,) = _COUNT.unpack_from(data)
            at = _COUNT.size
            for _ in range(count):
                sequence, offset, size = _ENTRY.unpack_from(data, at)
                at += _ENTRY.size
                name = data[at : at + size].decode()
                at += size
                found._highest[name] = _Highest(sequence, offset)
            if at > len(data):
                raise ValueError("it is cut short")
        except Exception as error:
            raise DataCorrupt(f"a footer's named sequences are damaged: {error}") from error
        return found


def append_named(
    target: PartitionLog, batch: Buffer, header: BatchHeader, named: Sequence[NamedSequence]
) -> Appended | None:
    """`PartitionLog.append` of a batch with the mark NAMED, whose records are no duplicates."""
    sequences, base_offset = target.producers.named, target.end_offset
    # First: once the batch is appended, a footer may be made at any time.
    sequences.apply(named, base_offset, target.high_watermark)
    try:
        return target.append(batch, header)
    finally:
        if target.end_offset == base_offset:  # not now, refused, or an idempotent retry
            sequences.truncate(base_offset)


def named_sequences_in(data: Buffer, at: int, header: BatchHeader) -> list[NamedSequence]:
    """The named sequences of the stored batch at `at`, whose header says that it has some."""
    try:
        return named_sequences_of(payload_of(memoryview(data)[at:], header), header)
    except BatchCorrupt:
        # Not from this broker, which reads the records before it sets the bit; its CRC is right.
        return []
