"""The load on a real broker that is killed: three clients that record what was acknowledged.

Invariants: payloads are self-describing (seed, partition and number determine every byte). Clients
keep what they sent, what was acknowledged, and at which offset.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from headrace.records.codec import Record, encode_batch
from headrace_verify.kafka_wire import KafkaWire, Refused
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from headrace_verify.real_broker import RealBroker

TOPIC, GROUP = "verify", "verifiers"
LIBRARY_PARTITIONS, RAW_PARTITION = (0, 1), 2
PARTITION_COUNT = 3
_IN_FLIGHT_MAX = 400


def value_of(seed: int, partition: int, number: int) -> bytes:
    """Return the bytes of one record."""
    rng = seeded(f"{seed} {partition} {number}")
    head = b"%d %d %d " % (seed, partition, number)
    return head + rng.randbytes(rng.choice((0, 10, 100, 2_000)))


class LibraryLoad(threading.Thread):
    """An idempotent librdkafka producer that keeps running across broker restarts."""

    def __init__(self, seed: int, broker: RealBroker) -> None:
        super().__init__(name="verify-library", daemon=True)
        from confluent_kafka import Producer

        self._seed = seed
        self._rng = seeded(seed)
        host, port = broker.address
        self._producer = Producer(
            {
                "bootstrap.servers": f"{host}:{port}",
                "enable.idempotence": True,
                "linger.ms": 1,
                "reconnect.backoff.ms": 5,
                "reconnect.backoff.max.ms": 50,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 100,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        self.sent = dict.fromkeys(LIBRARY_PARTITIONS, 0)
        self.acknowledged: dict[int, dict[int, int]] = {part: {} for part in LIBRARY_PARTITIONS}
        """By partition: number -> offset."""
        self.failed: list[str] = []
        self._over = threading.Event()

    @property
    def count(self) -> int:
        """The number of acknowledged records."""
        return sum(len(found) for found in self.acknowledged.values())

    def run(self) -> None:
        """Produce until stopped."""
        while not self._over.is_set():
            if len(self._producer) < _IN_FLIGHT_MAX:
                for _ in range(self._rng.choice((1, 5, 20))):
                    self._send(self._rng.choice(LIBRARY_PARTITIONS))
            self._producer.poll(0.002)

    def _send(self, partition: int) -> None:
        number = self.sent[partition]
        self.sent[partition] = number + 1

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                self.failed.append(f"partition {partition}, record {number}: {error}")
            else:
                self.acknowledged[partition][number] = message.offset()

        self._producer.produce(
            TOPIC,
            value_of(self._seed, partition, number),
            partition=partition,
            on_delivery=delivered,
        )

    def finish(self) -> int:
        """Stop producing and wait for the rest; returns how many got no result."""
        self._over.set()
        self.join()
        return int(self._producer.flush(60))


class RawLoad(threading.Thread):
    """Sends one request at a time with acks=all and checks each response; also commits offsets."""

    def __init__(self, seed: int, broker: RealBroker, producer: tuple[int, int]) -> None:
        super().__init__(name="verify-raw", daemon=True)
        self._seed = seed
        self._broker = broker
        self._producer = producer
        self._rng = seeded(seed + 1)
        self.batches: list[tuple[bytes, int]] = []
        """(batch, its first number); the last may be unacknowledged."""
        self.acknowledged = 0
        """The number of acknowledged batches."""
        self.offsets: list[int] = []
        self.committed_sent = -1
        self.committed = -1
        self.refused: list[str] = []
        self._over = threading.Event()

    @property
    def next_number(self) -> int:
        """The number of the next record."""
        if not self.batches:
            return 0
        batch, first = self.batches[-1]
        return first + int.from_bytes(batch[57:61], "big")

    def run(self) -> None:
        """Produce until the connection breaks."""
        try:
            wire = KafkaWire(self._broker.address)
        except OSError:
            return
        try:
            if self.acknowledged < len(self.batches):
                self._send(wire, self.batches[-1][0])
            while not self._over.is_set():
                first = self.next_number
                batch = self._batch(first, self._rng.choice((1, 3, 10)))
                self.batches.append((batch, first))
                self._send(wire, batch)
                if self._rng.random() < 0.3:
                    self.committed_sent = self.offsets[-1]
                    wire.commit(GROUP, TOPIC, RAW_PARTITION, self.committed_sent)
                    self.committed = self.committed_sent
        except Refused as error:
            self.refused.append(str(error))
        except OSError:
            pass  # killed, as intended
        finally:
            wire.close()

    def _batch(self, first: int, count: int) -> bytes:
        values = [value_of(self._seed, RAW_PARTITION, first + at) for at in range(count)]
        records = [Record(0, 1_700_000_000_000, None, value) for value in values]
        return encode_batch(
            records,
            producer_id=self._producer[0],
            producer_epoch=self._producer[1],
            base_sequence=first,
        )

    def _send(self, wire: KafkaWire, batch: bytes) -> None:
        self.offsets.append(wire.produce(TOPIC, RAW_PARTITION, batch))
        self.acknowledged += 1

    def again(self) -> RawLoad:
        """Reconnect the client; unacknowledged batches are sent again."""
        other = RawLoad(self._seed, self._broker, self._producer)
        other.__dict__.update(
            {
                name: self.__dict__[name]
                for name in (
                    "_rng",
                    "acknowledged",
                    "batches",
                    "committed",
                    "committed_sent",
                    "offsets",
                    "refused",
                )
            }
        )
        return other

    def finish(self) -> None:
        """Stop after the current request."""
        self._over.set()
        self.join()
