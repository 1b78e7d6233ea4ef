"""The final checks: progress after healing, all stored records, and again after a power loss.

Invariants: uses requests that any client could send. Bounds are simulated time: a healed cluster,
except for what stays broken, has no reason to reject requests.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.storage.bookkeeper.ledger_store import BookKeeperLedgerStore
from headrace_verify.history import INFO, OK
from headrace_verify.simulation import workload
from headrace_verify.simulation.asker import REQUESTS
from headrace_verify.simulation.client import Leader, Routes

if TYPE_CHECKING:
    from headrace_verify.simulation.client import Wire
    from headrace_verify.simulation.run import Run

REGAINED_S = 130.0
"""Longer than the quarantine of a bookie that failed repeatedly."""
PROGRESS_S = 60.0
"""Within this time, each partition must accept a new record, and all records must be readable."""


async def look_at_everything(run: Run, context: workload.Context) -> None:
    """Write and read in every partition, twice."""
    context = context._replace(
        over=asyncio.Event(),
        addresses=[address for address in context.addresses if _lives(run, address[0])],
    )
    sender = workload.Sender(context)
    if await _check_progress(run, context, sender, "after healing") and await _have_all_bookies(
        run
    ):
        cluster = run.cluster
        for bookie in cluster.bookies:
            bookie.end(is_notified=False)
        for broker in cluster.brokers:
            broker.end(is_notified=False)
        await asyncio.sleep(1.0)
        for bookie in cluster.bookies:
            bookie.start()
        for broker in cluster.brokers:
            broker.start()
        await _check_progress(run, context, sender, "after a loss of power")


async def _have_all_bookies(run: Run) -> bool:
    """Check that each open ledger has a running bookie in each slot, or gets one soon."""
    cluster = run.cluster
    running = sum(bookie.host is not None for bookie in cluster.bookies)
    if running < cluster.world.quorum.ensemble:
        return True
    end_s = run.loop.now_s + REGAINED_S
    while lacking := _lacking_bookies(run):
        if run.loop.now_s >= end_s:
            run.journal.problem(
                f"copies: {running} bookies run, but ledgers {lacking} still lack one after"
                f" {REGAINED_S:.0f} s"
            )
            return False
        await asyncio.sleep(1.0)
    return True


def _lacking_bookies(run: Run) -> list[int]:
    found: list[int] = []
    for broker in run.cluster.ready():
        assert broker.node is not None
        store = broker.node.store
        if isinstance(store, BookKeeperLedgerStore):
            found += store.without_bookie()
    return sorted(found)


def _lives(run: Run, name: str) -> bool:
    return any(broker.name == name for broker in run.cluster.brokers)


async def _check_progress(
    run: Run, context: workload.Context, sender: workload.Sender, when: str
) -> bool:
    routes = context.routes()
    for topic, part in context.places:
        try:
            async with asyncio.timeout(PROGRESS_S):
                await _write(context, routes, sender, topic, part)
                await _read(context, routes, topic, part)
        except TimeoutError:
            context.journal.problem(
                f"no progress: {when} {topic}-{part} accepts and returns nothing within"
                f" {PROGRESS_S:.0f} s: {_why(run, topic, part)}"
            )
            routes.drop()
            return False
    for address in context.addresses:
        try:
            async with asyncio.timeout(PROGRESS_S):
                await _query_everything(context, routes, address)
        except TimeoutError:
            context.journal.problem(
                f"no answer: {when} {address[0]} does not answer a request for {PROGRESS_S:.0f} s"
            )
            routes.drop()
            return False
    routes.drop()
    return True


async def _query_everything(
    context: workload.Context, routes: Routes, address: tuple[str, int]
) -> None:
    """Send one broker requests that need its locks and quotas: none may be held forever."""
    for ask in REQUESTS:
        while True:
            try:
                await ask(await routes.at(address))
            except (OSError, TimeoutError) as error:
                if routes.failed(error):
                    await asyncio.sleep(workload.RETRY_S)
                    continue
            break


async def _write(
    context: workload.Context, routes: Routes, sender: workload.Sender, topic: str, part: int
) -> None:
    while True:
        values = sender.begin(topic, part, 1)
        batch = workload.encoded(context, values, (-1, -1), -1)
        try:
            wire = await routes.wire(Leader(topic, part))
            offset = await workload.produce(wire, topic, part, batch)
        except (OSError, TimeoutError) as error:
            sender.end(INFO, topic, part, values)
            routes.failed(error)
            await asyncio.sleep(workload.RETRY_S)
        else:
            sender.end(OK, topic, part, values, offset)
            return


async def _read(context: workload.Context, routes: Routes, topic: str, part: int) -> None:
    """Read everything, from the first offset to the last."""

    async def all_of_it(wire: Wire) -> None:
        since_ns = context.journal.now_ns
        position, end = await workload.note_ends(context, wire, topic, part)
        if position > 0:
            context.journal.problem(f"young records deleted: {topic}-{part} begins at {position}")
        found: list[tuple[int, int]] = []
        while position < end:
            fetched = await workload.fetch(wire, topic, part, position, isolation=context.isolation)
            if fetched.next_offset == position:
                raise TimeoutError
            found += fetched.records
            position = fetched.next_offset
        workload.note_poll(
            context, since_ns, topic, part, found, final=True, upto={str(part): position}
        )

    context.journal.write(context.name, OK, "assign", parts=[[topic, part]])
    while True:
        try:
            await all_of_it(await routes.wire(Leader(topic, part)))
            return
        except (OSError, TimeoutError) as error:
            routes.failed(error)
            await asyncio.sleep(workload.RETRY_S)


def _why(run: Run, topic: str, part: int) -> str:
    """Describe what each broker knows about the partition."""
    views = []
    for broker in run.cluster.ready():
        node = broker.node
        found = None if node is None else node.topics.by_name.get(topic)
        if node is None or found is None:
            views.append(f"{broker.name} does not know it")
        elif node.ownership.is_mine(found, part):
            failure = found.require_log(part).failure
            views.append(f"{broker.name} has it (failure: {failure})")
        else:
            views.append(f"{broker.name} sees {node.ownership.leader(found, part)}")
    return "; ".join(views) or "no broker is up"
