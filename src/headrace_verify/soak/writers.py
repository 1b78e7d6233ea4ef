"""Producers that record what was acknowledged, and the final check of all records.

Invariants: writer and number determine a record's bytes. Records deleted by retention are ignored;
from a log's start offset on, every acknowledged record is at its offset with its bytes, and offsets
have no holes.
"""

from __future__ import annotations

from array import array
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from headrace.records.codec import Record, encode_batch, iterate_records
from headrace.runtime.clock import SystemClock
from headrace_verify.blackbox.routing import Place
from headrace_verify.kafka_wire import LIST_OFFSETS, KafkaWire, Refused
from headrace_verify.rng import seeded
from headrace_verify.soak.worker import Asking, WireWorker, Worker

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

IN_FLIGHT_MAX = 500
LARGE_BYTES = 100_000
_SIZES = (0, 20, 100, 300, 1000)
EARLIEST = -2
WRONG_KEPT = 5


@lru_cache(maxsize=1)
def _filler() -> bytes:
    return seeded("soak").randbytes(1 << 20)


def value_of(writer: str, number: int) -> bytes:
    """The bytes of one record; every 500th is large."""
    size = LARGE_BYTES if number % 500 == 499 else _SIZES[number * 7 % len(_SIZES)]
    at = number * 8191 % ((1 << 20) - LARGE_BYTES)
    return b"%s %d " % (writer.encode(), number) + _filler()[at : at + size]


class Acknowledged:
    """Numbers and offsets of one writer's records in one partition."""

    def __init__(self, writer: str, topic: str, partition: int) -> None:
        self.writer = writer
        self.topic = topic
        self.partition = partition
        self._numbers = array("q")
        self._offsets = array("q")

    def __len__(self) -> int:
        return len(self._numbers)

    def note(self, number: int, offset: int) -> None:
        """Record an acknowledgement."""
        self._numbers.append(number)
        self._offsets.append(offset)

    def by_offset(self) -> Iterator[tuple[int, int]]:
        """(offset, number) of each."""
        return zip(self._offsets, self._numbers, strict=True)


class LibraryWriter(Worker):
    """librdkafka, idempotent, with one codec, into every partition of a topic."""

    rest_s = 0.0

    def __init__(
        self,
        addresses: Sequence[tuple[str, int]],
        topic: str,
        partitions: int,
        codec: str,
        rate_per_s: int,
    ) -> None:
        name = f"{topic}-{codec}"
        super().__init__(addresses, name)
        from confluent_kafka import Producer

        self._name = name
        self._topic = topic
        self._per_turn = rate_per_s / 50
        self._sent = 0
        self.acknowledged = [Acknowledged(name, topic, at) for at in range(partitions)]
        self._producer = Producer(
            {
                "bootstrap.servers": self.bootstrap,
                "enable.idempotence": True,
                "linger.ms": 5,
                "compression.type": codec,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )

    def turn(self) -> None:
        """See Worker: the records of a fiftieth of a second."""
        count = int(self._per_turn + self.rng.random())
        for _ in range(count if len(self._producer) < IN_FLIGHT_MAX else 0):
            self._send()
        self.over.wait(0.02)
        self._producer.poll(0)

    def _send(self) -> None:
        number, self._sent = self._sent, self._sent + 1
        known = self.acknowledged[number % len(self.acknowledged)]

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.fault(f"record {number}: {error}")
            elif message.offset() is not None:  # None: the library does not know it
                known.note(number, message.offset())

        value = value_of(self._name, number)
        self._producer.produce(self._topic, value, partition=known.partition, on_delivery=delivered)

    def end(self) -> None:
        """See Worker."""
        if self._producer.flush(120):
            self.fault("records got no result")


class RawWriter(WireWorker):
    """A hand-written idempotent producer, one batch at a time, with changing codecs."""

    rest_s = 0.05

    def __init__(
        self, addresses: Sequence[tuple[str, int]], topic: str, partition: int, records: int
    ) -> None:
        name = f"{topic}-raw-{partition}"
        super().__init__(addresses, name)
        self._name = name
        self._topic = topic
        self._records = records
        self._producer = (-1, -1)
        self._next = 0
        self._sequence = 0
        self.acknowledged = [Acknowledged(name, topic, partition)]

    def turn(self) -> None:
        """See Worker."""
        if self._producer[0] < 0:
            self._producer, self._sequence = self.asking.ask(KafkaWire.new_producer), 0
        (known,) = self.acknowledged
        first, count = self._next, self.rng.randint(1, self._records)
        now_ms = SystemClock().now_ms()
        batch = encode_batch(
            [Record(0, now_ms, None, value_of(self._name, first + at)) for at in range(count)],
            codec=self.rng.randrange(5),
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=self._sequence,
        )
        self._next += count
        place = Place(self._topic, known.partition)
        offset = self.asking.ask(lambda wire: wire.produce(*place, batch), place)
        self._sequence += count
        for at in range(count):
            known.note(first + at, offset + at)

    def fault(self, what: object) -> None:
        """See Worker: an unacknowledged batch may be stored, so the next one uses another producer
        id."""
        super().fault(what)
        self._producer = (-1, -1)


def find_discrepancies(
    addresses: Sequence[tuple[str, int]],
    acknowledged: Sequence[Acknowledged],
    retained: Mapping[str, int],
) -> tuple[list[str], int]:
    """Read every partition that was written to: (discrepancies, number of records read).

    `retained`: topic -> retention.bytes; other topics keep everything.
    """
    places: dict[Place, list[Acknowledged]] = {}
    for one in acknowledged:
        places.setdefault(Place(one.topic, one.partition), []).append(one)
    wrong: list[str] = []
    count = 0
    asking = Asking(addresses)
    try:
        for place, of_place in sorted(places.items()):
            found, read = _compare(asking, place, of_place, retained.get(place.topic))
            wrong += found
            count += read
    finally:
        asking.close()
    return wrong, count


def _compare(
    asking: Asking,
    place: Place,
    acknowledged: Sequence[Acknowledged],
    retention_bytes: int | None,
) -> tuple[list[str], int]:
    expected = {
        offset: (one.writer, number) for one in acknowledged for offset, number in one.by_offset()
    }
    where = f"{place.topic}-{place.part}"
    wrong: list[str] = []
    if len(expected) < sum(map(len, acknowledged)):
        wrong.append(f"{where}: two records were acknowledged at one offset")
    start = offset = _start(asking, place)
    end, count, size = offset + 1, 0, 0
    while offset < end and len(wrong) < WRONG_KEPT:
        try:
            data, end = _fetch(asking, place, offset)
        except Refused as error:
            if error.code != 1:  # OFFSET_OUT_OF_RANGE: deleted by retention meanwhile
                raise
            start = offset = _start(asking, place)
            size = 0
            continue
        size += len(data)
        records = [record for record in iterate_records(data) if record.offset >= offset]
        if not records:
            break
        for record in records:
            if record.offset != offset:
                wrong.append(f"{where}: offset {record.offset} follows {offset - 1}")
            offset = record.offset + 1
            known = expected.pop(record.offset, None)
            if known is not None and record.value != value_of(*known):
                wrong.append(
                    f"{where}: offset {record.offset} is not record {known[1]} of {known[0]}"
                )
        count += len(records)
    lost = sorted(offset for offset in expected if offset >= start)
    if lost and not wrong:
        first = expected[lost[0]]
        wrong.append(
            f"{where}: {len(lost)} acknowledged records are missing, from offset {lost[0]} on"
            f" (record {first[1]} of {first[0]})"
        )
    if start and size < (retention_bytes or 1 << 62):
        wrong.append(
            f"{where}: retention has taken everything below offset {start}, and {size} bytes are"
            f" left (retention.bytes: {retention_bytes})"
        )
    return wrong[:WRONG_KEPT], count


def _fetch(asking: Asking, place: Place, offset: int) -> tuple[bytes, int]:
    return asking.ask(lambda wire: wire.fetch(*place, offset), place)


def _start(asking: Asking, place: Place) -> int:
    def earliest(wire: KafkaWire) -> int:
        asked = {"partition_index": place.part, "timestamp": EARLIEST}
        response = wire.call(
            LIST_OFFSETS, 1, replica_id=-1, topics=[{"name": place.topic, "partitions": [asked]}]
        )
        answer = response.topics[0].partitions[0]
        if int(answer.error_code):
            raise Refused(int(answer.error_code))
        return int(answer.offset)

    return asking.ask(earliest, place)
