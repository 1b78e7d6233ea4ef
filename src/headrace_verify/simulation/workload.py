"""The clients of a simulated run: they write, read and query.

Invariants: each client is a separate host with its own random numbers, so that one can be cut off,
stopped for a while or left out without changing the others. Every operation goes into the journal;
an error response is certain only if Kafka defines it as not retriable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.records.batch import iterate_headers
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace_verify.blackbox.payload import number_of, value_bytes, value_number
from headrace_verify.history import FAIL, INFO, OK
from headrace_verify.kafka_wire import (
    FETCH,
    INIT_PRODUCER_ID,
    LIST_OFFSETS,
    PRODUCE,
    Refused,
)
from headrace_verify.simulation.client import Leader, Routes, check

if TYPE_CHECKING:
    from random import Random  # noqa: TID251 - a type

    from headrace.broker.node import Node
    from headrace.broker.topics.topic import Topic
    from headrace_verify.simulation.client import Wire
    from headrace_verify.simulation.clock import SimulatedClock
    from headrace_verify.simulation.journal import Journal

RETRY_S = 0.2
LATEST, EARLIEST = -1, -2
OUT_OF_RANGE = 1
FETCH_BYTES = 1 << 20
CONFIGS = {
    "retention.ms": "1800000",
    "segment.ms": "20000",
    "segment.bytes": "16384",
    "message.timestamp.after.max.ms": str(2**63 - 1),
}
"""Ledgers roll often; retention is longer than any run, so no record may be deleted."""
OVERTAKEN_SHARE = 0.05
"""Of idempotent producers' batches: after these, the producer takes its next epoch."""
CERTAIN = {10, 45, 47, 87}
"""Codes that mean that nothing was stored, and never will be."""


Ask = Callable[["Node", "Topic"], Coroutine[Any, Any, Any]]
AskOwner = Callable[[str, int, Ask], Coroutine[Any, Any, Any]]


class Context(NamedTuple):
    """The dependencies of a client."""

    name: str
    number: int
    journal: Journal
    rng: Random
    clock: SimulatedClock
    addresses: list[tuple[str, int]]
    places: list[tuple[str, int]]
    over: asyncio.Event
    rate_per_s: float
    isolation: int = 0
    """The readers' isolation level; 1: read_committed."""
    owners: AskOwner | None = None

    async def ask_owner(self, topic: str, part: int, ask: Ask) -> Any:
        """Run `ask(node, topic)` in the process of the partition's owner, and return its result.

        Raises OSError if there is no owner, TimeoutError if the result is unknown.
        """
        assert self.owners is not None
        return await self.owners(topic, part, ask)

    def routes(self) -> Routes:
        """Create separate connections."""
        return Routes(list(self.addresses), self.rng)

    async def pause(self, seconds: float) -> None:
        """Wait for this long on average, or until the end of the run."""
        try:
            async with asyncio.timeout(self.rng.expovariate(1 / seconds)):
                await self.over.wait()
        except TimeoutError:
            pass


async def until_answered(
    context: Context,
    routes: Routes,
    of: Any,
    ask: Callable[[Wire], Coroutine[Any, Any, Any]],
) -> Any:
    """Repeat until there is an answer; None at the end of the run. Raises Refused if it is
    final."""
    while not context.over.is_set():
        try:
            return await ask(await routes.wire(of))
        except (OSError, TimeoutError) as error:
            if not routes.failed(error):
                raise
        await context.pause(RETRY_S)
    return None


# --- writing ---------------------------------------------------------------------------------


def encoded(
    context: Context,
    values: list[int],
    producer: tuple[int, int],
    first: int,
    *,
    is_transactional: bool = False,
) -> bytes:
    """Build a batch of these values."""
    now_ms = context.clock.now_ms()
    return encode_batch(
        [Record(0, now_ms, None, value_bytes(value)) for value in values],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=first,
        is_transactional=is_transactional,
    )


async def produce(wire: Wire, topic: str, part: int, batch: bytes) -> int:
    """Produce with acks=all; returns the base offset. Raises Refused."""
    data = {"name": topic, "partition_data": [{"index": part, "records": batch}]}
    done = await wire.call(PRODUCE, 7, acks=-1, timeout=5000, topic_data=[data])
    answer = done.responses[0].partition_responses[0]
    check(answer.error_code)
    return int(answer.base_offset)


class Sender:
    """Allocates values and records their outcomes."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._count = 0

    def begin(self, topic: str, part: int, count: int, **more: Any) -> list[int]:
        """Allocate values, and record their invocation."""
        values = []
        for _ in range(count):
            self._count += 1
            value = value_number(self._context.number, self._count)
            fields = {"topic": topic, "part": part, "value": value, **more}
            self._context.journal.invoke(self._context.name, "send", **fields)
            values.append(value)
        return values

    def end(self, kind: str, topic: str, part: int, values: list[int], offset: int = -1) -> None:
        """Record their outcome."""
        if kind == OK:
            self._context.journal.note_end(topic, part, offset + len(values))
        for at, value in enumerate(values):
            fields = {"topic": topic, "part": part, "value": value}
            if kind == OK:
                fields["offset"] = offset + at
            self._context.journal.write(self._context.name, kind, "send", **fields)


async def run_idempotent(context: Context) -> None:
    """Send each batch until it is acknowledged; occasionally, retry an acknowledged one."""
    routes, sender = context.routes(), Sender(context)
    producer: tuple[int, int] | None = await until_answered(context, routes, None, new_producer)
    sequences = dict.fromkeys(context.places, 0)
    last: dict[tuple[str, int], tuple[Callable[[Wire], Any], list[int]]] = {}
    while not context.over.is_set() and producer is not None:
        topic, part = place = context.rng.choice(context.places)
        count = context.rng.choice((1, 1, 2, 5))
        values = sender.begin(topic, part, count)
        batch = encoded(context, values, producer, sequences[place])
        before = last.get(place)

        async def ask(wire: Wire, topic: str = topic, part: int = part, data: bytes = batch) -> int:
            return await produce(wire, topic, part, data)

        try:
            if before is not None and context.rng.random() < 0.1:
                # Acknowledged some time ago, perhaps by another owner: the retry must have no
                # effect.
                again = await until_answered(context, routes, Leader(topic, part), before[0])
                if again is not None:
                    sender.end(OK, topic, part, before[1], again)
            offset = await until_answered(context, routes, Leader(topic, part), ask)
            if offset is None:
                sender.end(INFO, topic, part, values)
                break
            sender.end(OK, topic, part, values, offset)
            sequences[place] += count
            last[place] = (ask, values)
            if context.rng.random() < 0.1:
                again = await until_answered(context, routes, Leader(topic, part), ask)
                if again is not None:
                    sender.end(OK, topic, part, values, again)
            if context.rng.random() < OVERTAKEN_SHARE:
                await _overtake(context, routes, sender, place, producer, sequences[place])
                producer, sequences = (producer[0], producer[1] + 1), dict.fromkeys(sequences, 0)
                sequences[place] = 1
                last.clear()
        except Refused as error:
            sender.end(INFO, topic, part, values)
            context.journal.problem(f"{context.name}: a valid batch was rejected: {error}")
            break
        await context.pause(count / context.rate_per_s)
    routes.drop()


async def _overtake(
    context: Context,
    routes: Routes,
    sender: Sender,
    place: tuple[str, int],
    producer: tuple[int, int],
    sequence: int,
) -> None:
    """Write with the producer's next epoch; later batches of the previous one must be rejected."""

    async def write(values: list[int], epoch: int, first: int) -> int | None:
        batch = encoded(context, values, (producer[0], epoch), first)
        done: int | None = await until_answered(
            context, routes, Leader(*place), lambda wire: produce(wire, *place, batch)
        )
        return done

    values = sender.begin(*place, 1)
    offset = await write(values, producer[1] + 1, 0)
    sender.end(INFO if offset is None else OK, *place, values, offset or 0)
    if offset is None:
        return
    values = sender.begin(*place, 1)
    try:
        offset = await write(values, producer[1], sequence)
    except Refused as error:
        sender.end(FAIL if error.code in CERTAIN else INFO, *place, values)
        return
    sender.end(INFO, *place, values)
    if offset is not None:
        context.journal.problem(
            f"former epoch's batch: {place[0]}-{place[1]} accepted one of epoch {producer[1]}"
            f" of producer {producer[0]} at {offset}, after one of the next epoch"
        )


async def new_producer(wire: Wire) -> tuple[int, int]:
    """Return a producer id and its first epoch. Raises Refused."""
    made = await wire.call(INIT_PRODUCER_ID, 1, transaction_timeout=1000)
    check(made.error_code)
    return int(made.producer_id), int(made.producer_epoch)


async def run_plain(context: Context) -> None:
    """Send each batch once; unanswered ones stay in doubt."""
    routes, sender = context.routes(), Sender(context)
    while not context.over.is_set():
        topic, part = context.rng.choice(context.places)
        try:
            wire = await routes.wire(Leader(topic, part))
        except (OSError, TimeoutError) as error:
            routes.failed(error)
            await context.pause(RETRY_S)
            continue
        count = context.rng.choice((1, 1, 3))
        values = sender.begin(topic, part, count)
        try:
            offset = await produce(wire, topic, part, encoded(context, values, (-1, -1), -1))
        except (OSError, TimeoutError) as error:
            is_certain = isinstance(error, Refused) and error.code in CERTAIN
            sender.end(FAIL if is_certain else INFO, topic, part, values)
            routes.failed(error)
        else:
            sender.end(OK, topic, part, values, offset)
        await context.pause(count / context.rate_per_s)
    routes.drop()


# --- reading ---------------------------------------------------------------------------------


class Fetched(NamedTuple):
    """The result of a fetch."""

    records: list[tuple[int, int]]
    """(offset, value); only of committed transactions with read_committed."""
    high_watermark: int
    next_offset: int
    """The next offset, after markers and aborted records."""


async def fetch(
    wire: Wire, topic: str, part: int, offset: int, wait_ms: int = 0, *, isolation: int = 0
) -> Fetched:
    """Fetch from `offset` on. Raises Refused."""
    answer = await _fetch(wire, topic, part, offset, wait_ms, isolation)
    records, next_offset = consumed(
        bytes(answer.records or b""),
        offset,
        [
            (int(one.first_offset), int(one.producer_id))
            for one in answer.aborted_transactions or ()
        ],
    )
    return Fetched(records, int(answer.high_watermark), next_offset)


async def fetch_batches(wire: Wire, topic: str, part: int, offset: int) -> bytes:
    """Fetch whole batches, from the one that holds `offset` on. Raises Refused."""
    answer = await _fetch(wire, topic, part, offset, 0, 0)
    return bytes(answer.records or b"")


async def _fetch(
    wire: Wire, topic: str, part: int, offset: int, wait_ms: int, isolation: int
) -> Any:
    asked = {"partition": part, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
    found = await wire.call(
        FETCH,
        4,
        replica_id=-1,
        max_wait=wait_ms,
        min_bytes=1,
        max_bytes=FETCH_BYTES,
        isolation_level=isolation,
        topics=[{"topic": topic, "partitions": [asked]}],
    )
    answer = found.responses[0].partitions[0]
    check(answer.error_code)
    return answer


def consumed(
    data: bytes, offset: int, aborted: list[tuple[int, int]]
) -> tuple[list[tuple[int, int]], int]:
    """Return ([(offset, value)], the next offset) of batches, as a consumer decodes them.

    `aborted`: (first offset, producer) of transactions whose records are skipped, each up to its
    producer's next marker.
    """
    records: list[tuple[int, int]] = []
    next_offset, waiting, leaving_out = offset, sorted(aborted), set[int]()
    for start, header in iterate_headers(data):
        next_offset = max(next_offset, header.last_offset + 1)
        while waiting and waiting[0][0] <= header.last_offset:
            leaving_out.add(waiting.pop(0)[1])
        if header.is_control:
            leaving_out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in leaving_out):
            records += [
                (one.offset, number_of(one.value))
                for one in decode_batch(data, start)
                if one.offset >= offset
            ]
    return records, next_offset


async def run_reader(context: Context) -> None:
    """Read every partition from its start, and record the high watermarks of the responses."""
    routes = context.routes()
    positions = dict.fromkeys(context.places, 0)
    owned = [list(place) for place in context.places]
    context.journal.write(context.name, OK, "assign", parts=owned)
    while not context.over.is_set():
        for (topic, part), position in positions.items():
            since_ns = context.journal.now_ns
            try:
                wire = await routes.wire(Leader(topic, part))
                found = await fetch(wire, topic, part, position, 200, isolation=context.isolation)
            except (OSError, TimeoutError) as error:
                if not routes.failed(error):
                    context.journal.problem(f"{context.name}: fetch of {topic}-{part}: {error!r}")
                await context.pause(RETRY_S)
                continue
            positions[topic, part] = found.next_offset
            if found.records:
                note_poll(context, since_ns, topic, part, found.records, hw=found.high_watermark)
        await context.pause(1 / context.rate_per_s)
    routes.drop()


def note_poll(
    context: Context,
    since_ns: int,
    topic: str,
    part: int,
    records: list[tuple[int, int]],
    hw: int | None = None,
    **fields: Any,
) -> None:
    """Record a poll that returned records."""
    recs = [[part, offset, value] for offset, value in records]
    if hw is not None:
        fields["hw"] = {str(part): hw}
    context.journal.write(
        context.name, OK, "poll", since=since_ns, topic=topic, recs=recs, **fields
    )


async def run_observer(context: Context) -> None:
    """Query where logs begin and end."""
    routes = context.routes()
    while not context.over.is_set():
        topic, part = context.rng.choice(context.places)
        try:
            await note_ends(context, await routes.wire(Leader(topic, part)), topic, part)
        except (OSError, TimeoutError) as error:
            routes.failed(error)
        await context.pause(1 / context.rate_per_s)
    routes.drop()


async def note_ends(context: Context, wire: Wire, topic: str, part: int) -> tuple[int, int]:
    """Return and record (log start offset, high watermark). Raises OSError, TimeoutError,
    Refused."""
    since_ns = context.journal.now_ns
    found = []
    for timestamp in (EARLIEST, LATEST):
        asked = {"partition_index": part, "timestamp": timestamp}
        response = await wire.call(
            LIST_OFFSETS, 1, replica_id=-1, topics=[{"name": topic, "partitions": [asked]}]
        )
        answer = response.topics[0].partitions[0]
        check(answer.error_code)
        found.append(int(answer.offset))
    start, end = found
    fields = {"topic": topic, "part": part, "start": start, "end": end}
    context.journal.write(context.name, OK, "offsets", since=since_ns, **fields)
    context.journal.note_end(topic, part, end)
    return start, end
