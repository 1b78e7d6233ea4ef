"""A client that sends requests for a partition's owner to every broker, owner or not.

Invariants: as in `workload`. A rejection is always legal; an answer must be at least as recent as
what any client knew when the request was sent. So a broker that was frozen, and does not know yet
that another one has taken over, is queried at the moment it resumes. That needs an open connection:
one is kept in reserve for each unanswered request.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.kafka_wire import FETCH, LIST_OFFSETS, Refused
from headrace_verify.simulation.group import note_committed
from headrace_verify.simulation.workload import FETCH_BYTES, LATEST, OUT_OF_RANGE

if TYPE_CHECKING:
    from headrace_verify.simulation.client import Routes, Wire
    from headrace_verify.simulation.workload import Context

RESERVE = 4
RATE_FACTOR = 4
"""It sends requests this much more often than others: most are rejected."""


async def _probe_ends(context: Context, wire: Wire) -> None:
    """ListOffsets of every partition. Raises OSError, TimeoutError."""
    known = {place: context.journal.ends.get(place, 0) for place in context.places}
    asked = [
        {"name": topic, "partitions": [{"partition_index": part, "timestamp": LATEST}]}
        for topic, part in known
    ]
    told = await wire.call(LIST_OFFSETS, 1, replica_id=-1, topics=asked)
    for topic in told.topics:
        for answer in topic.partitions:
            if not int(answer.error_code):
                place = str(topic.name), int(answer.partition_index)
                _compare(context, place, known[place], int(answer.offset))


async def _probe_records(context: Context, wire: Wire) -> None:
    """Fetch from the log end of every partition. Raises OSError, TimeoutError."""
    known = {place: context.journal.ends.get(place, 0) for place in context.places}
    asked = [
        {
            "topic": topic,
            "partitions": [
                {"partition": part, "fetch_offset": end, "partition_max_bytes": FETCH_BYTES}
            ],
        }
        for (topic, part), end in known.items()
    ]
    told = await wire.call(
        FETCH, 4, replica_id=-1, max_wait=0, min_bytes=1, max_bytes=FETCH_BYTES, topics=asked
    )
    for topic in told.responses:
        for answer in topic.partitions:
            if int(answer.error_code) in {0, OUT_OF_RANGE}:
                place = str(topic.topic), int(answer.partition_index)
                _compare(context, place, known[place], int(answer.high_watermark))


def _compare(context: Context, place: tuple[str, int], known: int, told: int) -> None:
    if told < known:
        context.journal.problem(
            f"an older end: {place[0]}-{place[1]} is reported to end at {told}, but had"
            f" {known} records"
        )


async def _probe_progress(context: Context, wire: Wire) -> None:
    """OffsetFetch of every partition. Raises OSError, TimeoutError, Refused."""
    await note_committed(context, wire, context.places)


PROBES = (_probe_ends, _probe_records, _probe_progress)


class _Reserve:
    """Open connections to every broker, so that one that does not answer can be queried again."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._routes: dict[tuple[str, int], list[Routes]] = {
            address: [] for address in context.addresses
        }

    async def take(self, address: tuple[str, int]) -> tuple[Routes, Wire]:
        """A connection to this broker. Raises OSError, TimeoutError."""
        kept = self._routes[address]
        while len(kept) < RESERVE:
            routes = self._context.routes()
            try:
                await routes.at(address)
            except (OSError, TimeoutError):
                routes.drop()
                if not kept:
                    raise
                break
            kept.append(routes)
        routes = kept.pop(0)
        return routes, await routes.at(address)

    def give_back(self, address: tuple[str, int], routes: Routes) -> None:
        """Return a connection that is still usable."""
        self._routes[address].insert(0, routes)

    def drop(self) -> None:
        """Close them all."""
        for kept in self._routes.values():
            for routes in kept:
                routes.drop()


async def run_prober(context: Context) -> None:
    """Query one broker after the other."""
    reserve = _Reserve(context)
    while not context.over.is_set():
        address = context.rng.choice(context.addresses)
        probe = context.rng.choice(PROBES)
        routes: Routes | None = None
        try:
            routes, wire = await reserve.take(address)
            await probe(context, wire)
        except Refused:
            pass  # it is not the owner, or reports that it is not sure
        except (OSError, TimeoutError):
            if routes is not None:
                routes.drop()
                routes = None
        if routes is not None:
            reserve.give_back(address, routes)
        await context.pause(1 / (context.rate_per_s * RATE_FACTOR))
    reserve.drop()
