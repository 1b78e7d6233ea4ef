"""Clients without a library: they send requests that no library would, and check every response.

Invariants: one request at a time; an error response is certain (`fail`), a broken connection is not
(`info`, or a retry where the broker must recognise it).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.context import Context, now_ns
from headrace_verify.blackbox.routing import RETRY_S, Connection, Group, Place
from headrace_verify.history import FAIL, INFO, OK
from headrace_verify.kafka_wire import LIST_OFFSETS, KafkaWire, Refused

if TYPE_CHECKING:
    from collections.abc import Callable

RETRY_PROBABILITY = 0.1
"""How often an acknowledged batch is sent again: it must be recognised."""
LATEST, EARLIEST = -1, -2
_NEVER_STORED = {3, 10, 17, 18, 87}
"""Codes that say so. Any other may follow an append whose outcome the leader does not know, and
which its successor may find."""


def encoded(values: list[bytes], producer: tuple[int, int] = (-1, -1), first: int = -1) -> bytes:
    """Build a batch of these values; with producer id and epoch, and the first sequence."""
    now_ms = SystemClock().now_ms()
    return encode_batch(
        [Record(0, now_ms, None, value) for value in values],
        producer_id=producer[0],
        producer_epoch=producer[1],
        base_sequence=first,
    )


def run_raw_producer(context: Context) -> None:
    """A hand-written idempotent producer. A tenth of its batches is sent again after the
    acknowledgement, and the last batch of each partition on every new connection."""
    connection = Connection(context)
    producer = connection.until_answered(lambda wire: wire.new_producer())
    sequences = dict.fromkeys(context.places, 0)
    last: dict[tuple[str, int], Callable[[], None]] = {}
    while not context.over.is_set():
        topic, part = place = context.rng.choice(context.places)
        made, count = connection.made, context.rng.choice((1, 1, 2, 5))
        sent = [context.begin_send(topic, part) for _ in range(count)]
        batch = encoded([data for _, data in sent], producer, sequences[place])

        asked: list[KafkaWire] = []

        def ask(
            wire: KafkaWire,
            topic: str = topic,
            part: int = part,
            data: bytes = batch,
            asked: list[KafkaWire] = asked,
        ) -> int:
            asked.append(wire)
            return wire.produce(topic, part, data)

        def repeat(
            ask: Callable[[KafkaWire], int] = ask,
            place: tuple[str, int] = place,
            sent: list[tuple[int, bytes]] = sent,
        ) -> None:
            again = connection.until_answered(ask, Place(*place))
            if again is not None:
                _end(context, *place, sent, again)

        try:
            offset = connection.until_answered(ask, Place(topic, part))
            # The node that acknowledged the first attempt has stored it, in its own epoch.
            by = asked[0].address if len(asked) == 1 else None
            _end(context, topic, part, sent, offset, by)
            if offset is None:
                break
            sequences[place] += count
            last[place] = repeat
            if context.rng.random() < RETRY_PROBABILITY:
                repeat()
            if connection.made > made:
                for again in last.values():
                    again()
        except Refused as error:
            # It may have been stored before it was rejected: a response can have been lost.
            _end(context, topic, part, sent, None)
            context.gave_up(f"a valid batch was rejected: {error}")
            break
        context.pause(count / max(1, context.spec.rate_per_s))
    connection.drop()


def _end(
    context: Context,
    topic: str,
    part: int,
    sent: list[tuple[int, bytes]],
    offset: int | None,
    by: tuple[str, int] | None = None,
) -> None:
    fields = {"by": f"{by[0]}:{by[1]}"} if by is not None else {}
    for at, (value, _) in enumerate(sent):
        if offset is None:
            context.end_send(INFO, topic, part, value, error="not answered")
        else:
            context.end_send(OK, topic, part, value, offset=offset + at, **fields)


def run_raw_reader(context: Context) -> None:
    """Read every partition from its start, one after the other, and record the responses' high
    watermarks."""
    connection = Connection(context)
    positions = dict.fromkeys(context.places, 0)
    context.history.write(OK, "assign", parts=context.owned(context.places))
    while not context.over.is_set():
        before = sum(positions.values())
        for (topic, part), position in positions.items():
            since_ns = now_ns()
            try:
                wire = connection.wire(Place(topic, part))
                data, high_watermark = wire.fetch(topic, part, position)
            except OSError as error:
                if not connection.failed(error):
                    context.gave_up(f"fetch of {topic}-{part} at {position}: {error}")
                    context.over.set()
                context.pause(RETRY_S)
                continue
            records = [one for one in iterate_records(data) if one.offset >= position]
            found = [(part, one.offset, one.value) for one in records]
            context.polled(since_ns, topic, found, hw={str(part): high_watermark})
            if records:
                positions[topic, part] = records[-1].offset + 1
        context.pause(0.01 if sum(positions.values()) > before else 0.05)
    connection.drop()


def run_observer(context: Context) -> None:
    """Query log ends and committed offsets repeatedly."""
    connection = Connection(context)
    groups = list(context.spec.options.get("groups", ()))
    while not context.over.is_set():
        try:
            for topic, part in context.places:
                note_ends(context, connection.wire(Place(topic, part)), topic, part)
            for group in groups:
                note_committed(context, connection.wire(Group(group)), group)
        except OSError as error:
            connection.failed(error)  # or the coordinator is loading, or the partition
        context.pause(0.1)
    connection.drop()


def note_ends(context: Context, wire: KafkaWire, topic: str, part: int) -> tuple[int, int]:
    """(log start offset, high watermark), noted too. Raises OSError."""
    since_ns = now_ns()
    found = [_listed(wire, topic, part, timestamp) for timestamp in (EARLIEST, LATEST)]
    start, end = found
    fields = {"topic": topic, "part": part, "start": start, "end": end}
    context.history.write(OK, "offsets", since=since_ns, **fields)
    return start, end


def _listed(wire: KafkaWire, topic: str, part: int, timestamp: int) -> int:
    asked = {"partition_index": part, "timestamp": timestamp}
    response = wire.call(
        LIST_OFFSETS, 1, replica_id=-1, topics=[{"name": topic, "partitions": [asked]}]
    )
    answer = response.topics[0].partitions[0]
    if int(answer.error_code):
        raise Refused(int(answer.error_code))
    return int(answer.offset)


def note_committed(context: Context, wire: KafkaWire, group: str) -> dict[tuple[str, int], int]:
    """Fetch and record a group's committed offset. Raises OSError."""
    since_ns = now_ns()
    found = wire.all_committed(group, context.spec.topics)
    listed = [[topic, part, offset] for (topic, part), offset in sorted(found.items())]
    context.history.write(OK, "committed", since=since_ns, group=group, offs=listed)
    return found


def run_churn(context: Context) -> None:
    """Topics created, written, read, deleted, and recreated under the same names.

    A name is not reused after a response of its life was lost: a delayed write would go to the next
    topic of that name, which is not a broker's fault.
    """
    connection = Connection(context)
    name, life = 0, 0
    stem = context.spec.name.replace("~", "-")
    while not context.over.is_set():
        topic = f"{stem}-{name}"
        life += 1
        try:
            is_sure = _one_life(context, connection, topic, f"{topic}#{life}")
        except Refused as error:
            context.gave_up(f"topic {topic}: {error}")
            break
        if not is_sure or context.rng.random() < 0.2:
            name += 1
        context.pause(context.rng.random() * 0.3)
    connection.drop()


def _one_life(context: Context, connection: Connection, topic: str, label: str) -> bool:
    """Returns whether every response arrived."""
    partitions = context.rng.choice((1, 1, 3))
    is_sure = True
    made = _change(context, connection, "create", label, lambda wire: wire.create_topic(
        topic, partitions, {}
    ), known=36)  # fmt: skip
    if made is None:
        return False
    is_sure &= made
    ends = [0] * partitions
    for _ in range(context.rng.randint(1, 6)):
        part = context.rng.randrange(partitions)
        value, data = context.begin_send(label, part, again=True)
        try:
            wire = connection.wire(Place(topic, part))
        except OSError as error:
            connection.failed(error)
            context.end_send(FAIL, label, part, value, error=str(error))
            continue
        try:
            offset = wire.produce(topic, part, encoded([data]))
        except Refused as error:
            connection.failed(error)
            kind = FAIL if error.code in _NEVER_STORED else INFO
            context.end_send(kind, label, part, value, error=str(error))
            is_sure &= kind == FAIL
        except OSError as error:
            connection.failed(error)
            context.end_send(INFO, label, part, value, error=str(error))
            is_sure = False
        else:
            context.end_send(OK, label, part, value, offset=offset)
            ends[part] = max(ends[part], offset + 1)
    _read_life(context, connection, topic, label, ends)
    gone = _change(
        context, connection, "delete", label, lambda wire: wire.delete_topic(topic), known=3
    )
    return is_sure and bool(gone)


def _change(
    context: Context,
    connection: Connection,
    operation: str,
    label: str,
    ask: Callable[[KafkaWire], None],
    known: int,
) -> bool | None:
    """Create or delete a topic: whether the first response arrived; None if the run is over.

    `known`: the error code if an earlier attempt, whose response was lost, has succeeded.
    """
    op = context.history.invoke(operation, topic=label)
    tries = 0

    def attempt(wire: KafkaWire) -> bool:
        nonlocal tries
        tries += 1
        try:
            ask(wire)
        except Refused as error:
            if error.code != known or tries == 1:
                raise
        return True

    try:
        done = connection.until_answered(attempt)
    except Refused as error:
        context.history.write(FAIL, operation, op=op, topic=label, error=str(error))
        raise
    context.history.write(OK if done else INFO, operation, op=op, topic=label)
    return tries == 1 if done else None


def _read_life(
    context: Context, connection: Connection, topic: str, label: str, ends: list[int]
) -> None:
    """Read what was written, once. One fetch may end at the end of a ledger."""
    for part, end in enumerate(ends):
        position = 0
        while position < end:
            since_ns = now_ns()
            try:
                data, _ = connection.wire(Place(topic, part)).fetch(topic, part, position)
            except OSError as error:
                connection.failed(error)
                break
            records = [one for one in iterate_records(data) if one.offset >= position]
            found = [(part, one.offset, one.value) for one in records]
            context.polled(since_ns, label, found)
            if not records:
                context.gave_up(
                    f"{label}: {end} records were acknowledged, but {position} were returned"
                )
                break
            position = records[-1].offset + 1
