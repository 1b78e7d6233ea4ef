"""Reads every partition from start to end, with the leader epochs of its batches.

Invariants: an ordinary client, run at the end when all faults are healed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.records.batch import iterate_headers
from headrace.records.codec import iterate_records
from headrace_verify.blackbox.context import of_batches
from headrace_verify.blackbox.raw_clients import note_ends
from headrace_verify.blackbox.routing import RETRIABLE, RETRY_S, Connection, Place
from headrace_verify.history import ASSIGN, OK, POLL, now_ns
from headrace_verify.kafka_wire import Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_verify.blackbox.context import Context
    from headrace_verify.kafka_wire import KafkaWire

TIMEOUT_S = 20
PATIENCE_S = 60
"""Enough for a partition whose owner has just started."""


def read_back(context: Context, topics: Mapping[str, int]) -> Iterator[str]:
    """Read everything into the context's history; returns what could not be read, as text."""
    connection = Connection(context, TIMEOUT_S)
    deadline_ns = now_ns() + int(PATIENCE_S * 1e9)
    for place in (Place(topic, part) for topic, n in topics.items() for part in range(n)):
        while True:
            try:
                yield from _read_partition(context, connection.wire(place), place)
            except OSError as error:
                is_final = isinstance(error, Refused) and error.code not in RETRIABLE
                connection.failed(error)
                if is_final or now_ns() > deadline_ns:
                    yield f"{place.topic}-{place.part} cannot be read: {error}"
                    break
                context.pause(RETRY_S)
                context.history.write(OK, ASSIGN, parts=[list(place)])  # from the start
            else:
                break
    connection.drop()


def _read_partition(context: Context, wire: KafkaWire, place: Place) -> Iterator[str]:
    topic, part = place
    position, end = note_ends(context, wire, topic, part)
    while True:
        since_ns = now_ns()
        data, end = wire.fetch(topic, part, position)
        found = [
            (part, one.offset, one.value) for one in iterate_records(data) if one.offset >= position
        ]
        headers = [header for _, header in iterate_headers(data)]
        context.polled(
            since_ns,
            topic,
            found,
            final=True,
            **of_batches(part, headers),
        )
        if headers and headers[-1].last_offset >= position:
            position = headers[-1].last_offset + 1  # a batch may have no records left
            continue
        if position < end:
            yield f"{topic}-{part}: a fetch at offset {position} of {end} returns nothing"
        context.history.write(
            OK, POLL, since=since_ns, topic=topic, recs=[], final=True, upto={str(part): end}
        )
        return
