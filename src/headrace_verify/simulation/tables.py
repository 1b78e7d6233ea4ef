"""A compacted topic: one client writes values and tombstones of a few keys, and reads them all.

Invariants: as in `workload`. The client is the topic's only writer, and each batch is acknowledged
before the next, so each read has known contents: the latest record of every key, at its offset;
tombstones for at least `delete.retention.ms`, if brokers' wall clocks agree; and nothing that it
has not written. Which older records remain is up to compaction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.records.batch import iterate_headers
from headrace.records.codec import Record, decode_batch, encode_batch
from headrace_verify.history import OK
from headrace_verify.kafka_wire import Refused
from headrace_verify.simulation.churn import make_topic
from headrace_verify.simulation.client import Leader
from headrace_verify.simulation.table import RETENTION_S, Table
from headrace_verify.simulation.workload import fetch_batches, new_producer, produce, until_answered

if TYPE_CHECKING:
    from headrace_verify.simulation.client import Routes, Wire
    from headrace_verify.simulation.workload import Context

KEYS: Final = 8
TOMBSTONE_SHARE: Final = 0.25
RATE_FACTOR: Final = 4
"""It writes this much more often than others do: ledgers must be sealed to be compacted."""
CHECK_PROBABILITY: Final = 0.1
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "delete.retention.ms": str(int(RETENTION_S * 1000)),
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "2048",
    "segment.ms": "4000",
}


async def run_table(context: Context) -> None:
    """Write and read."""
    routes = context.routes()
    table = Table(f"{context.name}-table", is_calendar_set=context.journal.is_calendar_set)
    context.journal.tables.append(table)
    producer = await until_answered(context, routes, None, new_producer)
    if producer is not None and await make_topic(context, routes, table.topic, 1, CONFIGS) is None:
        producer = None
    sequence = 0
    while not context.over.is_set() and producer is not None:
        records = [_record(context, number) for number in range(context.rng.choice((1, 1, 3)))]
        batch = encode_batch(
            records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequence
        )

        async def ask(wire: Wire, batch: bytes = batch) -> int:
            return await produce(wire, table.topic, 0, batch)

        try:
            offset = await until_answered(context, routes, Leader(table.topic, 0), ask)
        except Refused as error:
            context.journal.problem(f"{context.name}: a valid batch was rejected: {error}")
            break
        if offset is None:
            table.doubtful = {(record.key or b"", record.value) for record in records}
            break
        table.acknowledged(offset, records, context.journal.now_s)
        sequence += len(records)
        if context.rng.random() < CHECK_PROBABILITY:
            await check_table(context, routes, table)
        await context.pause(1 / (context.rate_per_s * RATE_FACTOR))
    routes.drop()


def _record(context: Context, number: int) -> Record:
    rng = context.rng
    value = None if rng.random() < TOMBSTONE_SHARE else b"%d" % rng.getrandbits(40)
    return Record(number, context.clock.now_ms(), b"key-%d" % rng.randrange(KEYS), value)


async def check_table(context: Context, routes: Routes, table: Table) -> None:
    """Read everything, and compare."""

    async def read(wire: Wire) -> list[Record]:
        found: list[Record] = []
        offset = 0
        while offset < table.end:
            data = await fetch_batches(wire, table.topic, 0, offset)
            if not data:
                raise TimeoutError
            for start, header in iterate_headers(data):
                found += [one for one in decode_batch(data, start) if one.offset >= offset]
                offset = header.last_offset + 1
        return found

    begun_s = context.journal.now_s
    try:
        found = await until_answered(context, routes, Leader(table.topic, 0), read)
    except Refused as error:
        context.journal.problem(f"{context.name}: {table.topic} cannot be read: {error}")
        return
    if found is None:
        return
    for problem in table.problems(found, begun_s):
        context.journal.problem(f"{problem} ({table.topic})")
    left = {"left": len(found), "written": len(table.written)}
    context.journal.write(context.name, OK, "note", what="table", **left)
