"""Read-committed fetches without a library, and groups' stable committed offsets.

Invariants: aborted records are filtered by the broker's list, so a wrong list shows as a wrong
read. Committed offsets are requested with `require_stable`, which waits for pending transactional
commits, because their producers may already have received a success response.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.records.batch import BatchHeader, iterate_headers
from headrace.records.codec import decode_batch
from headrace_verify.blackbox.context import of_batches
from headrace_verify.blackbox.routing import RETRIABLE, RETRY_S, Connection, Group, Place
from headrace_verify.history import ASSIGN, COMMITTED, OK, POLL, now_ns
from headrace_verify.kafka_wire import FETCH, LIST_OFFSETS, OFFSET_FETCH, Refused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace_verify.blackbox.context import Context
    from headrace_verify.kafka_wire import KafkaWire

FETCH_BYTES = 4 << 20
TIMEOUT_S = 20
PATIENCE_S = 60
"""Enough for a partition whose owner has just started, and for a transaction to time out."""
POLL_INTERVAL_S = 0.2
"""Between two reads of the groups' committed offsets."""
UNSTABLE_OFFSET_COMMIT = 88
_READ_COMMITTED = 1
_LATEST = -1
Progress = dict[tuple[str, int], int]
"""Topic and partition -> a group's committed offset; -1: none."""


class Fetched(NamedTuple):
    """The result of a read_committed fetch."""

    records: list[tuple[int, bytes | None]]
    """(offset, value)."""
    next_offset: int
    """The next offset, after markers and aborted records."""
    high_watermark: int
    last_stable_offset: int
    headers: list[BatchHeader]


def fetch_committed(wire: KafkaWire, place: Place, offset: int) -> Fetched:
    """Fetch committed records from `offset` on. Raises OSError, Refused."""
    asked = {"partition": place.part, "fetch_offset": offset, "partition_max_bytes": FETCH_BYTES}
    found = wire.call(
        FETCH,
        4,
        replica_id=-1,
        max_bytes=FETCH_BYTES,
        isolation_level=_READ_COMMITTED,
        topics=[{"topic": place.topic, "partitions": [asked]}],
    )
    answer = found.responses[0].partitions[0]
    if int(answer.error_code):
        raise Refused(int(answer.error_code))
    aborted = [
        (int(one.first_offset), int(one.producer_id)) for one in answer.aborted_transactions or ()
    ]
    records, next_offset, headers = _consumed(bytes(answer.records or b""), offset, aborted)
    ends = int(answer.high_watermark), int(answer.last_stable_offset)
    return Fetched(records, next_offset, *ends, headers)


def _consumed(
    data: bytes, offset: int, aborted: list[tuple[int, int]]
) -> tuple[list[tuple[int, bytes | None]], int, list[BatchHeader]]:
    """Return records, next offset, headers; `aborted`: (first offset, producer), up to its
    marker."""
    records: list[tuple[int, bytes | None]] = []
    headers: list[BatchHeader] = []
    next_offset, waiting, leaving_out = offset, sorted(aborted), set[int]()
    for start, header in iterate_headers(data):
        headers.append(header)
        next_offset = max(next_offset, header.last_offset + 1)
        while waiting and waiting[0][0] <= header.last_offset:
            leaving_out.add(waiting.pop(0)[1])
        if header.is_control:
            leaving_out.discard(header.producer_id)
        elif not (header.is_transactional and header.producer_id in leaving_out):
            decoded = decode_batch(data, start)
            records += [(one.offset, one.value) for one in decoded if one.offset >= offset]
    return records, next_offset, headers


def ends_of(wire: KafkaWire, place: Place) -> tuple[int, int]:
    """Return (last stable offset, high watermark). Raises OSError, Refused."""
    return _end(wire, place, _READ_COMMITTED), _end(wire, place, 0)


def _end(wire: KafkaWire, place: Place, isolation: int) -> int:
    asked = {"partition_index": place.part, "timestamp": _LATEST}
    topics = [{"name": place.topic, "partitions": [asked]}]
    response = wire.call(LIST_OFFSETS, 2, replica_id=-1, isolation_level=isolation, topics=topics)
    answer = response.topics[0].partitions[0]
    if int(answer.error_code):
        raise Refused(int(answer.error_code))
    return int(answer.offset)


def stable_progress(wire: KafkaWire, group: str, topics: Mapping[str, int]) -> Progress | None:
    """Return a group's offsets in `topics`; None while a commit is pending. Raises OSError,
    Refused."""
    asked = [
        {"name": name, "partition_indexes": tuple(range(count))} for name, count in topics.items()
    ]
    response = wire.call(OFFSET_FETCH, 7, group_id=group, topics=asked, require_stable=True)
    if int(response.error_code):
        raise Refused(int(response.error_code))
    found: Progress = {}
    for topic in response.topics:
        for part in topic.partitions:
            code = int(part.error_code)
            if code == UNSTABLE_OFFSET_COMMIT:
                return None
            if code:
                raise Refused(code)
            found[str(topic.name), int(part.partition_index)] = int(part.committed_offset)
    return found


def note_stable(
    context: Context, connection: Connection, group: str, topics: Mapping[str, int]
) -> Progress | None:
    """The same, recorded. Raises OSError, Refused."""
    since_ns = now_ns()
    found = stable_progress(connection.wire(Group(group)), group, topics)
    if found is not None:
        offs = [[topic, part, offset] for (topic, part), offset in sorted(found.items())]
        context.history.write(OK, COMMITTED, since=since_ns, group=group, offs=offs)
    return found


def wait_for_progress(
    context: Context, connection: Connection, group: str, topics: Mapping[str, int]
) -> Progress | None:
    """The same once no commit is pending; None at the end of the run. Raises Refused if it is
    final."""
    while not context.over.is_set():
        try:
            found = note_stable(context, connection, group, topics)
        except OSError as error:
            if not connection.failed(error):
                raise
            found = None
        if found is not None:
            return found
        context.pause(RETRY_S)
    return None


def run_committed_reader(context: Context) -> None:
    """Read every partition from its start, and the copiers' committed offsets."""
    connection = Connection(context)
    positions = {Place(*place): 0 for place in context.places}
    groups: Mapping[str, Mapping[str, int]] = context.spec.options["progress"]
    context.history.write(OK, ASSIGN, parts=context.owned(context.places))
    next_read_ns = 0
    while not context.over.is_set():
        moved = False
        for place, position in positions.items():
            since_ns = now_ns()
            try:
                found = fetch_committed(connection.wire(place), place, position)
            except OSError as error:
                if not connection.failed(error):
                    context.gave_up(f"fetch of {place.topic}-{place.part} at {position}: {error}")
                    context.over.set()
                context.pause(RETRY_S)
                continue
            _note(context, since_ns, place, found)
            moved = moved or found.next_offset > position
            positions[place] = found.next_offset
        if now_ns() >= next_read_ns:
            next_read_ns = now_ns() + int(POLL_INTERVAL_S * 1e9)
            try:
                for group, topics in groups.items():
                    note_stable(context, connection, group, topics)
            except OSError as error:
                connection.failed(error)  # or the coordinator is loading
        context.pause(0.02 if moved else 0.1)
    connection.drop()


def _note(context: Context, since_ns: int, place: Place, found: Fetched, **more: object) -> None:
    records = [(place.part, offset, value) for offset, value in found.records]
    # A read_committed fetch must not pass the last stable offset of its response.
    stable = {str(place.part): found.last_stable_offset}
    context.polled(since_ns, place.topic, records, hw=stable, **more)


def read_back(context: Context, topics: Mapping[str, int]) -> Iterator[str]:
    """Read all committed records into the context's history; returns what could not be read, as
    text.

    Once no client is running and transactions have timed out, nothing may hold back readers.
    """
    connection = Connection(context, TIMEOUT_S)
    deadline_ns = now_ns() + int(PATIENCE_S * 1e9)
    for place in (Place(topic, part) for topic, count in topics.items() for part in range(count)):
        position, is_over, since_ns = 0, False, now_ns()
        while not is_over:
            since_ns, problem = now_ns(), ""
            try:
                found = fetch_committed(connection.wire(place), place, position)
            except OSError as error:
                is_final = isinstance(error, Refused) and error.code not in RETRIABLE
                connection.failed(error)
                problem = f"cannot be read: {error}"
                is_over = is_final
            else:
                batches = of_batches(place.part, found.headers)
                _note(context, since_ns, place, found, final=True, **batches)
                is_over = found.next_offset == position >= found.high_watermark
                if found.next_offset == position and not is_over:
                    ends = f"{found.last_stable_offset} of {found.high_watermark}"
                    problem = f"committed records end at offset {position}: {ends}"
                position = found.next_offset
            if problem:
                is_over = is_over or now_ns() > deadline_ns
                if is_over:
                    yield f"{place.topic}-{place.part} {problem}"
                else:
                    context.pause(RETRY_S)
        upto = {str(place.part): position}
        context.history.write(
            OK, POLL, since=since_ns, topic=place.topic, recs=[], final=True, upto=upto
        )
    connection.drop()
