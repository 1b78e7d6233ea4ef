"""A share group on a compacted topic: it passes gaps that are longer than what a request asks for.

Invariants: the topic is written before the clients start, so which records compaction keeps is
known: a record that a later one supersedes is recorded as such, and may be missing. The consumer
waits until compaction has left a gap; the checkers and the end of a run are those of queues.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.records.batch import iterate_headers
from headrace.records.codec import Record, encode_batch
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox import queue_part
from headrace_verify.blackbox.parts import Part, Role
from headrace_verify.blackbox.queue_consumers import HttpFace, QueueConsumer, receive_everywhere
from headrace_verify.blackbox.routing import RETRY_S, Connection, Place
from headrace_verify.blackbox.web import Web
from headrace_verify.history import OK
from headrace_verify.workloads import COMPACTED

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace_verify.blackbox.context import Context

PLACE: Final = Place("compacted-0", 0)
TOPICS: Final = {PLACE.topic: 1}
DEAD_TOPIC: Final = "compacted-dead"
GAP: Final = 600
"""Records of one key; a receive asks for 20 at most."""
KEPT: Final = 40
"""Records before and after the gap, each of another key."""
BATCH: Final = 50
INSIDE: Final = KEPT // 2 + BATCH
"""An offset in a batch of the gap from which compaction leaves nothing."""
CONFIGS: Final = {
    "cleanup.policy": "compact",
    "min.cleanable.dirty.ratio": "0.01",
    "segment.bytes": "2048",
}
BROKER_RESOURCE: Final = 4
OFTEN: Final = {"log.cleaner.backoff.ms": "200"}
GROUPS: Final = {
    COMPACTED: queue_part.GROUPS["shared"] | {"errors.deadletterqueue.topic.name": DEAD_TOPIC}
}
READING: Final = queue_part.Reading(GROUPS, TOPICS, DEAD_TOPIC)


def prepare(context: Context) -> None:
    """Configure, and write what compaction will leave a gap in. Raises OSError."""
    connection = Connection(context, queue_part.PATIENCE_S)
    queue_part.configure(connection, queue_part.TOPIC_RESOURCE, PLACE.topic, CONFIGS)
    queue_part.configure(connection, BROKER_RESOURCE, "", OFTEN)
    for group, configs in GROUPS.items():
        queue_part.configure(connection, queue_part.GROUP_RESOURCE, group, configs)
    producer = connection.until_answered(lambda wire: wire.new_producer())
    kept = [f"k{number}" for number in range(KEPT)]
    gap = ["gap"] * GAP
    keys = [*kept[: KEPT // 2], *gap, *kept[KEPT // 2 :]]
    newest = {key: at for at, key in enumerate(keys)}
    for first in range(0, len(keys), BATCH):
        batch = range(first, min(first + BATCH, len(keys)))
        _write(context, connection, producer, [(at, keys[at], newest[keys[at]]) for at in batch])
    connection.drop()


def _write(
    context: Context,
    connection: Connection,
    producer: tuple[int, int],
    batch: Iterable[tuple[int, str, int]],
) -> None:
    """Write records, as (sequence, key, the sequence of the newest one of the key)."""
    now_ms = SystemClock().now_ms()
    records, values, sequences = [], [], []
    for sequence, key, newest in batch:
        value, data = context.begin_send(*PLACE, superseded=sequence < newest)
        records.append(Record(0, now_ms, key.encode(), data))
        values.append(value)
        sequences.append(sequence)
    data = encode_batch(
        records, producer_id=producer[0], producer_epoch=producer[1], base_sequence=sequences[0]
    )
    offset = connection.until_answered(lambda wire: wire.produce(*PLACE, data), PLACE)
    for at, value in enumerate(values):
        context.end_send(OK, *PLACE, value, offset=offset + at)


def run_compacted_consumer(context: Context) -> None:
    """Receive over HTTP once there is a gap."""
    connection = Connection(context)
    while not context.over.is_set():
        found = connection.until_answered(lambda wire: wire.fetch(*PLACE, INSIDE), PLACE)
        if found is None or _begins_with_a_gap(found[0]):
            break
        context.pause(RETRY_S)
    connection.drop()
    web, group = Web(context), context.spec.group or ""
    receive_everywhere(context, QueueConsumer(context, group, HttpFace(group, web)))
    web.close()


def _begins_with_a_gap(data: bytes) -> bool:
    """Whether compaction has left nothing, or a batch without records, from `INSIDE` on."""
    first = next((header for _, header in iterate_headers(data)), None)
    return first is not None and (first.record_count == 0 or first.base_offset > INSIDE)


PART: Final = Part(
    COMPACTED,
    (
        Role(
            "compacted-shared", "compacted-consumer", group=COMPACTED, part=COMPACTED, topics=TOPICS
        ),
    ),
    TOPICS | {DEAD_TOPIC: queue_part.DEAD_PARTITIONS},
    ("acquire ok", "settle ok", "drained ok"),
    prepare,
    partial(queue_part.settle_all, READING),
    partial(queue_part.read_back_all, READING),
)
