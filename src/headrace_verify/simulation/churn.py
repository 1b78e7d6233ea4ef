"""Topics that are created, written, read, deleted, and recreated under the same names.

Invariants: as in `workload`. A name is not reused after a response was lost, because a delayed
request would affect the next topic of that name, which is not a broker's fault. Histories
distinguish the lives: `name#life`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_verify.history import INFO, OK
from headrace_verify.kafka_wire import CREATE_TOPICS, DELETE_TOPICS, Refused
from headrace_verify.simulation.client import Leader, Routes, check
from headrace_verify.simulation.workload import (
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

    from headrace_verify.simulation.client import Wire

TOPIC_EXISTS, TOPIC_UNKNOWN = 36, 3
OVERTAKEN, TIMED_OUT = -1, 7
NEVER_STORED = {TOPIC_UNKNOWN}


async def create_topic(
    wire: Wire, name: str, partitions: int, configs: dict[str, str] | None = None
) -> None:
    """Raises Refused."""
    topic = {
        "name": name,
        "num_partitions": partitions,
        "replication_factor": 1,
        "configs": [
            {"name": key, "value": value} for key, value in (CONFIGS | (configs or {})).items()
        ],
    }
    made = await wire.call(CREATE_TOPICS, 5, topics=[topic], timeout=5000)
    check(made.topics[0].error_code)


def _deletion_of(name: str) -> Callable[[Wire], Coroutine[Any, Any, None]]:
    async def delete(wire: Wire) -> None:
        done = await wire.call(DELETE_TOPICS, 1, topic_names=(name,), timeout=5000)
        check(done.responses[0].error_code)

    return delete


async def make_topic(
    context: Context,
    routes: Routes,
    name: str,
    partitions: int,
    configs: dict[str, str] | None = None,
) -> bool | None:
    """Wait until it exists; result as in `until_done`."""

    async def make(wire: Wire) -> None:
        await create_topic(wire, name, partitions, configs)

    return await until_done(context, routes, make, TOPIC_EXISTS)


async def until_done(
    context: Context, routes: Routes, ask: Callable[[Wire], Coroutine[Any, Any, None]], known: int
) -> bool | None:
    """Create or delete a topic; returns whether the first response arrived; None at the end of the
    run.

    `known`: an earlier attempt has already done it.
    """
    tries = 0

    async def one(wire: Wire) -> bool:
        nonlocal tries
        tries += 1
        try:
            await ask(wire)
        except Refused as error:
            if error.code not in {known, OVERTAKEN}:
                raise
            if error.code == OVERTAKEN:
                raise Refused(TIMED_OUT) from None  # superseded by a concurrent change: retry
        return True

    return tries == 1 if await until_answered(context, routes, None, one) else None


async def run_churn(context: Context) -> None:
    """Create, write, read, delete and recreate topics."""
    routes, sender = context.routes(), Sender(context)
    number, life = 1, 0
    while not context.over.is_set():
        life += 1
        topic = _Life(f"{context.name}-{number}", f"{context.name}-{number}#{life}")
        try:
            is_sure = await _live(context, routes, sender, topic)
        except Refused as error:
            context.journal.problem(f"{context.name}: topic {topic.label}: {error}")
            break
        if not is_sure or context.rng.random() < 0.2:
            number += 1
        # else recreate immediately, before all brokers know of the deletion
        if context.rng.random() < 0.5:
            await context.pause(8 / context.rate_per_s)
    routes.drop()


class _Life(NamedTuple):
    """One topic of a name, and its label in the history."""

    name: str
    label: str


async def _live(context: Context, routes: Routes, sender: Sender, topic: _Life) -> bool:
    """Create, use and delete it; returns whether every response arrived. Raises Refused."""
    is_made = await make_topic(context, routes, topic.name, 2)
    if is_made is None:
        return False
    is_used = await _use(context, routes, sender, topic)
    is_gone = await until_done(context, routes, _deletion_of(topic.name), TOPIC_UNKNOWN)
    return is_made and is_used and bool(is_gone)


async def _use(context: Context, routes: Routes, sender: Sender, topic: _Life) -> bool:
    """Write and read; returns whether every response arrived."""
    name, label = topic
    is_sure = True
    written: dict[int, int] = {}
    for _ in range(context.rng.randint(1, 4)):
        part = context.rng.randrange(2)
        values = sender.begin(label, part, 1)
        try:
            wire = await routes.wire(Leader(name, part))
            batch = encoded(context, values, (-1, -1), -1)
            offset = await produce(wire, name, part, batch)
        except (OSError, TimeoutError) as error:
            sender.end(INFO, label, part, values)
            is_sure &= isinstance(error, Refused) and error.code in NEVER_STORED
            routes.failed(error)
            await context.pause(RETRY_S)
        else:
            sender.end(OK, label, part, values, offset)
            written[part] = max(written.get(part, 0), offset + 1)
    for part, end in written.items():
        position = 0
        while position < end and not context.over.is_set():
            since_ns = context.journal.now_ns
            try:
                wire = await routes.wire(Leader(name, part))
                records = (await fetch(wire, name, part, position, 200)).records
            except (OSError, TimeoutError) as error:
                routes.failed(error)
                await context.pause(RETRY_S)
                continue
            if records:
                position = records[-1][0] + 1
                note_poll(context, since_ns, label, part, records)
    return is_sure
