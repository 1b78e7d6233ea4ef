"""Detects bookies with ledgers whose ids ZooKeeper allocates again.

Invariants: read-only; in particular no id is allocated, or the next check would start after it.
ZooKeeper numbers ledgers; restored from an old backup, or after a loss of changes, it allocates the
ids since then again. Bookies still have entries with these ids, which a recovery would take for
records of the new ledger, and their garbage collection deletes ledgers that ZooKeeper does not
list. A bookie that does not answer is ignored. How far ids were allocated is on the bookies
themselves (`id_mark`): ledgers in between may have been deleted, also by the bookies.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import LedgerUnknown
from headrace.storage.bookkeeper.wire import NO_ENTRY, OK
from headrace.storage.ledger import IdsAhead, LedgerId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.storage.bookkeeper.id_mark import IdMark
    from headrace.storage.bookkeeper.open_ledger import StoreState

WINDOW = 128
"""Ids checked at once. The check ends after a window beyond the recorded ids in which no bookie
knows a ledger: earlier versions did not record ids."""
ANSWER_S = 2.0
NEW_ANSWER_S = 0.25
"""For a new ledger, which clients may wait for."""
LAG_S = 1.0


async def ids_ahead(cluster: StoreState, mark: IdMark) -> IdsAhead | None:
    """What was allocated from the next id on. Raises MetadataUnavailable."""
    block = await mark.newest_block()
    found: list[LedgerId] = []
    next_id = at = await cluster.service.peek_id()
    while True:
        # These ids may have been allocated since; metadata is written before the first entry, but
        # a lagging server does not show it yet.
        held = await _without_metadata(cluster, await _held(cluster, range(at, at + WINDOW)))
        if held:
            await asyncio.sleep(LAG_S)
            held = await _without_metadata(cluster, held)
        at += WINDOW
        found += held
        if not held and at >= block.stop:
            break
    last = max([*found, -1])
    if block and next_id <= block.start:
        # The bookies may have deleted all these ledgers, as ZooKeeper does not list them.
        await asyncio.sleep(LAG_S)
        if await cluster.service.peek_id() <= block.start:
            last = max(last, block.start)
    return IdsAhead(next_id, last, found) if last >= 0 else None


async def skip_ids(cluster: StoreState, last: int) -> None:
    """Allocate all ids up to `last`, so that they are not used. Raises MetadataUnavailable."""
    while await cluster.service.next_id() < last:
        pass


async def _without_metadata(cluster: StoreState, ledgers: Iterable[LedgerId]) -> list[LedgerId]:
    found = []
    for ledger in ledgers:
        try:
            await cluster.service.read(ledger)
        except LedgerUnknown:
            found.append(ledger)
    return found


async def is_held(cluster: StoreState, ledger: int, bookies: Sequence[str]) -> bool:
    """Whether one of these bookies has the ledger; one that does not answer at once has not."""
    return bool(await _ask(cluster, [ledger], bookies, NEW_ANSWER_S))


async def _held(cluster: StoreState, ledgers: Sequence[int]) -> list[LedgerId]:
    """The subset that exists on a bookie that answers in time."""
    bookies = cluster.pool.state(cluster.clock.now_ns()).registered
    return await _ask(cluster, ledgers, bookies, ANSWER_S)


async def _ask(
    cluster: StoreState, ledgers: Sequence[int], bookies: Sequence[str], patience_s: float
) -> list[LedgerId]:
    held: dict[LedgerId, None] = {}
    left = len(ledgers) * len(bookies)
    done = asyncio.Event()

    def answered(code: int, _body: memoryview, ledger: LedgerId) -> None:
        nonlocal left
        left -= 1
        if code in {OK, NO_ENTRY}:
            held[ledger] = None
        if not left:
            done.set()

    for ledger in ledgers:
        for bookie in bookies:
            cluster.bookies[bookie].read(ledger, 0, answered, LedgerId(ledger))
    if left:
        try:
            async with asyncio.timeout(patience_s):
                await done.wait()
        except TimeoutError:
            pass
    return sorted(held)
