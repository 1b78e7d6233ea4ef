"""A partition's named sequences: the last sequence of each named producer, for exactly-once.

Invariants: knows names, sequences and offsets, not records or files; never reads the clock. State
changes only in `apply`, live and on replay, and is stored in footers. A record whose sequence is
not above the highest one of its name is a duplicate, however long ago that was appended.
A dict in order of last use has one entry per name. At most `NAMES_MAX` names are kept: the least
recently used one is evicted, and its next record counts as new. So a name has exactly-once
semantics until `NAMES_MAX` other names have written to the partition after it. Changes by appends
that are not durable yet are recorded, so that they can be undone.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import BatchCorrupt, DataCorrupt
from headrace.records.attributes import NamedSequence, named_sequences_of
from headrace.records.codec import payload_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace.records.batch import BatchHeader, Buffer

NAMES_MAX: Final = 10_000
"""About 2 MB of memory, and 1 MB of a ledger's footer, for names of 50 bytes."""
_COUNT: Final = Struct(">I")
_ENTRY: Final = Struct(">qqB")


class _Highest(NamedTuple):
    sequence: int
    offset: int
    """Base offset of the last batch with this name."""


class _Change(NamedTuple):
    offset: int
    name: str
    before: _Highest | None
    evicted: tuple[str, _Highest] | None


class NamedSequences:
    """The named sequences of one partition."""

    __slots__ = ("_changes", "_highest", "evicted_total")

    def __init__(self) -> None:
        self._highest: dict[str, _Highest] = {}
        self._changes: list[_Change] = []
        """Changes by appends that may still fail, in offset order."""
        self.evicted_total = 0
        """Names evicted because there were too many."""

    def __len__(self) -> int:
        return len(self._highest)

    def find(self, named: NamedSequence) -> int | None:
        """The offset up to which a duplicate's first append is found; None for a new sequence."""
        highest = self._highest.get(named.producer)
        if highest is None or named.sequence > highest.sequence:
            return None
        return highest.offset

    def apply(self, named: Iterable[NamedSequence], base_offset: int, safe_offset: int) -> None:
        """Record the sequences of a batch appended at `base_offset`.

        No append below `safe_offset` will be undone.
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
        """Undo the appends at and after `end_offset`, which failed."""
        changes, highest = self._changes, self._highest
        restored: dict[str, _Highest] = {}
        """Newest first."""
        while changes and changes[-1].offset >= end_offset:
            _, name, before, evicted = changes.pop()
            highest.pop(name, None)
            restored.pop(name, None)
            if evicted is not None:
                restored[evicted[0]] = evicted[1]
            if before is not None:
                restored[name] = before
        if restored:
            # In front: they are among the least recently used.
            self._highest = {**dict(reversed(restored.items())), **highest}

    def snapshot(self) -> NamedSequences:
        """These as they are now, to be encoded later."""
        taken = NamedSequences()
        taken._highest = self._highest.copy()
        return taken

    def encode(self) -> bytes:
        """Encode for a footer (`docs/FORMAT.md`). Do not change: stored."""
        parts = [_COUNT.pack(len(self._highest))]
        for producer, (sequence, offset) in self._highest.items():
            name = producer.encode()
            parts += (_ENTRY.pack(sequence, offset, len(name)), name)
        return b"".join(parts)

    @classmethod
    def decode(cls, data: bytes) -> NamedSequences:
        """Decode. Raises DataCorrupt."""
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
                raise ValueError("it is truncated")
        except Exception as error:
            raise DataCorrupt(f"a footer's named sequences are corrupt: {error}") from error
        return found


def named_sequences_in(data: Buffer, at: int, header: BatchHeader) -> list[NamedSequence]:
    """The named sequences of the stored batch at `at`, whose header has the flag."""
    try:
        return named_sequences_of(payload_of(memoryview(data)[at:], header), header)
    except BatchCorrupt:
        # Not set by a broker, which decodes the records before; its CRC rules out corruption.
        return []
