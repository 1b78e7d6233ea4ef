"""A client that sends metadata requests to every broker: ids, topics, coordinators.

Invariants: as in `workload`. Any response is accepted; the broker must respond, and must not
allocate an id twice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.kafka_wire import FIND_COORDINATOR, INIT_PRODUCER_ID, METADATA, Refused
from headrace_verify.simulation.churn import create_topic
from headrace_verify.simulation.client import check

if TYPE_CHECKING:
    from headrace_verify.simulation.client import Wire
    from headrace_verify.simulation.workload import Context

TOPIC = "asked-for"
TOPIC_EXISTS = 36


async def take_producer_id(wire: Wire) -> int:
    """Return a new producer id. Raises OSError, TimeoutError, Refused."""
    made = await wire.call(INIT_PRODUCER_ID, 1, transaction_timeout=1000)
    check(made.error_code)
    return int(made.producer_id)


async def _ask_for_topics(wire: Wire) -> int:
    await wire.call(METADATA, 1, topics=None)
    return -1


async def _ask_for_a_coordinator(wire: Wire) -> int:
    response = await wire.call(FIND_COORDINATOR, 0, key="nobody")
    check(response.error_code)
    return -1


async def _make_a_topic_again(wire: Wire) -> int:
    try:
        await create_topic(wire, TOPIC, 1)
    except Refused as error:
        if error.code != TOPIC_EXISTS:
            raise
    return -1


REQUESTS = (take_producer_id, _ask_for_topics, _ask_for_a_coordinator, _make_a_topic_again)
"""Each connects and returns a producer id, or -1."""


async def run_asker(context: Context) -> None:
    """Query one broker after the other."""
    routes = context.routes()
    given: dict[int, None] = {}
    while not context.over.is_set():
        address = context.rng.choice(context.addresses)
        ask = context.rng.choice(REQUESTS)
        try:
            found = await ask(await routes.at(address))
            if found in given:
                context.journal.problem(f"an id allocated twice: producer id {found}")
            elif found >= 0:
                given[found] = None
        except (OSError, TimeoutError) as error:
            routes.failed(error)
        await context.pause(1 / context.rate_per_s)
    routes.drop()
