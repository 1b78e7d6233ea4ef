"""Topics that come, are written and read, and go.

Rules of the room: as in `workload`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.verify.history import INFO, OK
from headrace.verify.kafka_wire import CREATE_TOPICS, DELETE_TOPICS, Refused
from headrace.verify.simulation.client import Leader, Routes, check
from headrace.verify.simulation.workload import (
    CONFIGS,
    RETRY_S,
    Context,
    Sender,
    encoded,
    fetch,
    note_poll,
    produce,
    until_answered,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from headrace.verify.simulation.client import Wire

TOPIC_EXISTS, TOPIC_UNKNOWN = 36, 3
OVERTAKEN, TIMED_OUT = -1, 7


async def create_topic(wire: Wire, name: str, partitions: int) -> None:
    """Raises Refused."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [{"name": key, "value": value} for key, value in CONFIGS.items()],
    }
    made = await wire.call(CREATE_TOPICS, 5, topics=[topic], timeout=5000)
    check(made.topics[0].error_code)


def _deletion_of(name: str) -> Callable[[Wire], Coroutine[Any, Any, None]]:
    async def delete(wire: Wire) -> None:
        done = await wire.call(DELETE_TOPICS, 1, topic_names=(name,), timeout=5000)
        check(done.responses[0].error_code)

    return delete


async def make_topic(context: Context, routes: Routes, name: str, partitions: int) -> bool:
    """Until it is there; False at the end of the run."""

    async def make(wire: Wire) -> None:
        await create_topic(wire, name, partitions)

    return await until_done(context, routes, make, TOPIC_EXISTS)


async def until_done(
    context: Context, routes: Routes, ask: Callable[[Wire], Coroutine[Any, Any, None]], known: int
) -> bool:
    """Make or delete a topic; `known` says that an earlier try has done it. False: the end."""

    async def one(wire: Wire) -> bool:
        try:
            await ask(wire)
        except Refused as error:
            if error.code not in {known, OVERTAKEN}:
                raise
            if error.code == OVERTAKEN:
                raise Refused(TIMED_OUT) from None  # a change that others overtook: once more
        return True

    return bool(await until_answered(context, routes, None, one))


async def run_churn(context: Context) -> None:
    """Topics that come, are written and read, and go."""
    routes, sender = context.routes(), Sender(context)
    life = 0
    while not context.over.is_set():
        life += 1
        name = f"{context.name}-{life}"
        try:
            if not await make_topic(context, routes, name, 2):
                break
            await _use(context, routes, sender, name)
            await until_done(context, routes, _deletion_of(name), TOPIC_UNKNOWN)
        except Refused as error:
            context.journal.problem(f"{context.name}: topic {name}: {error}")
            break
        await context.pause(4 / context.rate_per_s)
    routes.drop()


async def _use(context: Context, routes: Routes, sender: Sender, name: str) -> None:
    written: dict[int, int] = {}
    for _ in range(context.chance.randint(1, 4)):
        part = context.chance.randrange(2)
        values = sender.begin(name, part, 1)
        try:
            wire = await routes.wire(Leader(name, part))
            batch = encoded(context, values, (-1, -1), -1)
            offset = await produce(wire, name, part, batch)
        except (OSError, TimeoutError) as error:
            sender.end(INFO, name, part, values)
            routes.failed(error)
            await context.pause(RETRY_S)
        else:
            sender.end(OK, name, part, values, offset)
            written[part] = max(written.get(part, 0), offset + 1)
    for part, end in written.items():
        position = 0
        while position < end and not context.over.is_set():
            since_ns = context.journal.now_ns
            try:
                wire = await routes.wire(Leader(name, part))
                records, _ = await fetch(wire, name, part, position, 200)
            except (OSError, TimeoutError) as error:
                routes.failed(error)
                await context.pause(RETRY_S)
                continue
            if records:
                position = records[-1][0] + 1
                note_poll(context, since_ns, name, part, records)
