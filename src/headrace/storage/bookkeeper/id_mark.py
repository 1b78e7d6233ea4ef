"""The highest ledger id that was ever allocated, recorded on the bookies themselves.

Invariants: knows ids, not what ledgers contain. An id is used only once the record covers it, so
the record is never behind an id in use. Entries say the same whoever writes them: brokers need no
agreement, and a write that is repeated changes nothing.

ZooKeeper's counter is lost with ZooKeeper, and bookies cannot list their ledgers: their protocol
has no such operation (`OperationType` of BookKeeper 4.17 lists the entries of one ledger only). So
one ledger with a fixed id has an entry for each block of ids, on every bookie. The last entry of
any bookie (a read of the last add confirmed) tells how far ids were allocated.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import LedgerUnknown, MetadataUnavailable, StorageUnavailable, VersionConflict
from headrace.runtime.fair_locks import FairLock
from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata, LedgerState
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.wire import (
    FLAG_RECOVERY_ADD,
    LAST_ADD_CONFIRMED,
    NO_ENTRY,
    NO_LEDGER,
    OK,
    add_frame,
    check_entry,
    master_key,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from headrace.storage.bookkeeper.open_ledger import StoreState

MARK_LEDGER: Final = 1 << 62
"""Beyond every id that is allocated. Do not change: stored."""
BLOCK: Final = 256
"""Ids per entry: the entry n covers ids from n * BLOCK on. Do not change: stored."""
IDS_END: Final = 1 << 31
"""Longer ids are numbered by another counter, which is not checked."""
ANSWER_S: Final = 2.0
CHANGES_TRIED: Final = 10
_KEY: Final = master_key(b"")
_LABELS: Final = {"application": b"headrace", "purpose": b"allocated ledger ids"}
_PAYLOAD: Final = BLOCK.to_bytes(8, "big")


class _Level(NamedTuple):
    """The last entry of one bookie."""

    bookie: str
    entry: int


class IdMark:
    """The record, as read and extended by one store."""

    def __init__(self, cluster: StoreState) -> None:
        self._cluster = cluster
        self._levels: dict[str, int] = {}
        """The last entry known to be on each bookie."""
        self._covered = -1
        """The last entry on an ack quorum."""
        self._lock = FairLock()

    async def newest_block(self) -> range:
        """The newest ids that are recorded: ids before these were allocated, and at least one of
        these, too. Empty if no bookie that answers has the record."""
        levels = await self._read(self._registered())
        last = max((level.entry for level in levels), default=-1)
        return range(last * BLOCK, (last + 1) * BLOCK) if last >= 0 else range(0)

    async def cover(self, ledger: int) -> None:
        """Wait until the record covers `ledger`. Raises StorageUnavailable, MetadataUnavailable."""
        entry = ledger // BLOCK
        if entry <= self._covered or ledger >= IDS_END:
            return
        async with self._lock:
            if entry > self._covered:
                await self._extend(ledger, entry)

    async def _extend(self, ledger: int, entry: int) -> None:
        cluster = self._cluster
        pool = cluster.pool.state(cluster.clock.now_ns())
        writable = [bookie for bookie in pool.registered if bookie not in pool.read_only]
        needed = min(cluster.settings.quorum.ack, max(len(writable), 1))
        await self._keep(writable, needed)
        unknown = [bookie for bookie in writable if bookie not in self._levels]
        self._levels.update(await self._read(unknown))
        known = [bookie for bookie in writable if bookie in self._levels]
        count = await self._add(known, entry, needed)
        if count < needed:
            raise StorageUnavailable(
                f"ledger id {ledger} cannot be used: {count} of {len(writable)} bookies have"
                f" recorded that it is taken, and {needed} must; start bookies, or wait",
                ledger=ledger,
            )
        self._covered = entry

    def _registered(self) -> Sequence[str]:
        return self._cluster.pool.state(self._cluster.clock.now_ns()).registered

    async def _read(self, bookies: Sequence[str]) -> list[_Level]:
        """The last entry of each bookie that answers in time, -1 for none."""
        found: list[_Level] = []

        def answered(code: int, body: memoryview, answer: tuple[str, Callable[[], None]]) -> None:
            bookie, done = answer
            if code == OK:
                entry = check_entry(MARK_LEDGER, LAST_ADD_CONFIRMED, body)
                if entry is not None:
                    found.append(_Level(bookie, entry.entry))
            elif code in {NO_LEDGER, NO_ENTRY}:
                found.append(_Level(bookie, -1))
            done()

        def read(bookie: str, done: Callable[[], None]) -> None:
            connection = self._cluster.bookies[bookie]
            connection.read(MARK_LEDGER, LAST_ADD_CONFIRMED, answered, (bookie, done))

        await _all_answer((partial(read, bookie) for bookie in bookies), lambda: False)
        return sorted(found)

    async def _add(self, bookies: Sequence[str], last: int, needed: int) -> int:
        """Add the entries up to `last` that each bookie lacks; returns how many bookies have them
        all, once `needed` do or all have answered."""
        complete = {bookie for bookie in bookies if self._levels[bookie] >= last}
        missing = {bookie: last - self._levels[bookie] for bookie in bookies}

        def answered(code: int, _body: memoryview, answer: tuple[str, Callable[[], None]]) -> None:
            bookie, done = answer
            if code == OK:
                missing[bookie] -= 1
                if not missing[bookie]:
                    complete.add(bookie)
                    self._levels[bookie] = max(last, self._levels.get(bookie, last))
            else:
                self._levels.pop(bookie, None)  # to be read again
            done()

        def add(bookie: str, entry: int, frame: bytearray, done: Callable[[], None]) -> None:
            self._cluster.bookies[bookie].add(MARK_LEDGER, entry, frame, answered, (bookie, done))

        # Entries in order, so that the last one of a bookie says that it has all before it.
        first = min((self._levels[bookie] for bookie in bookies), default=last) + 1
        adds = [
            partial(add, bookie, entry, frame)
            for entry in range(first, last + 1)
            for frame in [_frame(entry)]
            for bookie in bookies
            if entry > self._levels[bookie]
        ]
        await _all_answer(adds, lambda: len(complete) >= needed)
        return len(complete)

    async def _keep(self, bookies: Sequence[str], needed: int) -> None:
        """Have ZooKeeper list the ledger on these bookies, which would delete it otherwise, and
        have AutoRecovery replace its copies."""
        service, size = self._cluster.service, len(bookies)
        wanted = LedgerMetadata(
            Quorum(size, size, needed),
            (Ensemble(0, tuple(sorted(bookies))),),
            created_ms=0,
            custom=_LABELS,
        )

        def changed(known: LedgerMetadata) -> LedgerMetadata | None:
            is_kept = set(bookies) <= set(known.last_ensemble.bookies)
            return None if is_kept and known.state is LedgerState.OPEN else wanted

        for _attempt in range(CHANGES_TRIED):
            try:
                try:
                    known = await service.read(MARK_LEDGER)
                except LedgerUnknown:
                    known = await service.create_as(MARK_LEDGER, wanted)
                await service.update(MARK_LEDGER, known, changed)
            except (VersionConflict, LedgerUnknown):
                continue  # another broker made it or changed it meanwhile, most likely as we would
            return
        raise MetadataUnavailable(
            f"the record of ledger ids was changed {CHANGES_TRIED} times while it was read;"
            " try again"
        )


def _frame(entry: int) -> bytearray:
    # With the flag, it is accepted although AutoRecovery has fenced and closed the ledger.
    length = (entry + 1) * len(_PAYLOAD)
    return add_frame(MARK_LEDGER, entry, entry - 1, length, _KEY, FLAG_RECOVERY_ADD, _PAYLOAD)


async def _all_answer(
    requests: Iterable[Callable[[Callable[[], None]], None]], is_enough: Callable[[], bool]
) -> None:
    """Make the requests and wait until all have called back, `is_enough`, or the time is over."""
    pending, finished = list(requests), asyncio.Event()
    left = len(pending)

    def done() -> None:
        nonlocal left
        left -= 1
        if not left or is_enough():
            finished.set()

    for request in pending:
        request(done)
    if left:
        try:
            async with asyncio.timeout(ANSWER_S):
                await finished.wait()
        except TimeoutError:
            pass
