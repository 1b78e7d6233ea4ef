"""Whether bookies hold ledgers whose ids ZooKeeper has yet to give: then it is older than they are.

Invariants: reads alone; in particular no id is taken, or the next look would begin after it.
ZooKeeper numbers ledgers; where it was restored from an old back-up, it gives the ids of that time
again. Bookies still have entries under these ids, which a recovery would take for records of the
new ledger, and their garbage collection deletes what ZooKeeper does not list. A bookie that does
not answer says nothing.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import LedgerUnknown
from headrace.storage.bookkeeper.wire import NO_ENTRY, OK
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.storage.bookkeeper.open_ledger import Cluster

WINDOW = 128
"""Ids that are asked for at once; after so many that no bookie knows, no more are."""
ANSWER_S = 2.0
LAG_S = 1.0


async def ledgers_ahead(cluster: Cluster) -> Sequence[LedgerId]:
    """Ledgers that bookies hold from the next id on. Raises MetadataUnavailable."""
    found: list[LedgerId] = []
    at = await cluster.service.peek_id()
    while True:
        # Others may have been given these ids since, with metadata before the first entry, which
        # a server that lags behind does not show yet.
        held = await _without_metadata(cluster, await _held(cluster, range(at, at + WINDOW)))
        if held:
            await asyncio.sleep(LAG_S)
            held = await _without_metadata(cluster, held)
        if not held:
            return found
        found += held
        at += WINDOW


async def skip_ids(cluster: Cluster, last: int) -> None:
    """Have no id up to `last` given any more. Raises MetadataUnavailable."""
    while await cluster.service.next_id() < last:
        pass


async def _without_metadata(cluster: Cluster, ledgers: Iterable[LedgerId]) -> list[LedgerId]:
    found = []
    for ledger in ledgers:
        try:
            await cluster.service.read(ledger)
        except LedgerUnknown:
            found.append(ledger)
    return found


async def _held(cluster: Cluster, ledgers: Iterable[int]) -> list[LedgerId]:
    """Those of which any bookie that answers in time holds something."""
    held: dict[LedgerId, None] = {}
    bookies = cluster.pool.state(cluster.clock.now_ns()).registered
    left = WINDOW * len(bookies)
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
    if bookies:
        try:
            async with asyncio.timeout(ANSWER_S):
                await done.wait()
        except TimeoutError:
            pass
    return sorted(held)
