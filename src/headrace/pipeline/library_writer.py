"""Appends records through librdkafka, for client settings that `direct_writer.py` does not know."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from headrace.pipeline.errors import DeliveryFailed
from headrace.pipeline.refusals import REFUSALS, failure
from headrace.pipeline.written import WRITTEN_HEADER

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.pipeline.options import SinkOptions
    from headrace.pipeline.written import RowToWrite

_POLL_EVERY = 1_000
_BATCH_BYTES_MAX = 1_000_000


class LibraryWriter:
    """One task's idempotent producer, made on first use."""

    def __init__(self, options: SinkOptions, batch_limit_of: Callable[[str], int]) -> None:
        """`batch_limit_of` says how large a topic's batches may be, in bytes."""
        self._options = options
        self._batch_limit_of = batch_limit_of
        self._producer: Any = None
        self._queued_count = 0
        self._batch_bytes = _BATCH_BYTES_MAX
        self._failure: Any = None
        self._topic = self._failed_topic = ""
        self._client_error: type[Exception] = BufferError
        """What the client raises for a record that it refuses itself, such as for its size."""

    def close(self) -> None:
        """Discard what is still queued."""
        if self._producer is not None:
            self._producer.purge()
            self._producer.flush(1.0)

    def produce(self, rows: Sequence[RowToWrite], written: Sequence[bytes]) -> None:
        """Queue records, each with its `written` as WRITTEN_HEADER. Raises RecordRefused,
        DeliveryFailed."""
        for row, content in zip(rows, written, strict=True):
            self._produce(row, [*row.headers, (WRITTEN_HEADER, content)])

    def _produce(self, row: RowToWrite, headers: list[tuple[str, bytes | None]]) -> None:
        if self._producer is None or self._batch_limit_of(row.topic) < self._batch_bytes:
            self._renew_producer(row.topic)
        self._topic = row.topic
        report = partial(self._on_delivery, row.topic)
        while True:
            try:
                self._producer.produce(
                    row.topic,
                    row.value,
                    row.key,
                    row.partition,
                    on_delivery=report,
                    timestamp=row.timestamp_ms,
                    headers=headers,
                )
                break
            except BufferError:
                self._producer.poll(0.05)
                self._check()
            except self._client_error as error:
                if error.args[0].name() not in REFUSALS:
                    raise
                self._failure, self._failed_topic = error.args[0], row.topic
                self._check()
        self._queued_count += 1
        if self._queued_count % _POLL_EVERY == 0:
            self._producer.poll(0)
            self._check()

    def flush(self) -> None:
        """Wait until all is acknowledged. Raises RecordRefused, DeliveryFailed."""
        if self._producer is None:
            return
        left = 0
        try:
            left = self._producer.flush(self._options.delivery_timeout_ms / 1000)
        except SystemError as error:  # of the library: reports went on after a fatal error
            if not isinstance(error.__cause__, self._client_error):
                raise
            self._failure, self._failed_topic = error.__cause__.args[0], self._topic
        self._check()
        if left:
            raise DeliveryFailed(
                f"{left} records were not acknowledged within"
                f" {self._options.delivery_timeout_ms} ms. Is the broker up? Spark retries"
                " the task, which writes the rest; deliveryTimeoutMs sets the limit."
            )

    def _renew_producer(self, topic: str) -> None:
        """Make a producer whose batches the topic takes, too; it would refuse larger ones for
        good."""
        self.flush()
        self._batch_bytes = min(self._batch_bytes, self._batch_limit_of(topic))
        self._producer = self._make_producer()

    def _make_producer(self) -> Any:
        from confluent_kafka import KafkaException, Producer

        self._client_error = KafkaException
        return Producer(
            {
                "log_level": "2",
                "linger.ms": "10",
                # An idempotent librdkafka spins while as many requests are in flight as it allows:
                # 16-18 us of CPU per record of 100 B with 5 of 256 KiB, 9-11 with 3 of 1 MB.
                "batch.size": str(self._batch_bytes),
                "max.in.flight.requests.per.connection": "3",
                "partitioner": "murmur2_random",  # the partitioner of Kafka's own clients
                "queue.buffering.max.messages": "200000",
                **self._options.client,
                "enable.idempotence": "true",
                "acks": "all",
                "delivery.timeout.ms": str(self._options.delivery_timeout_ms),
                "delivery.report.only.error": True,
                "error_cb": self._on_error,
            }
        )

    def _on_delivery(self, topic: str, error: Any, _message: Any) -> None:
        if self._failure is None:
            self._failure, self._failed_topic = error, topic

    def _on_error(self, error: Any) -> None:
        if error.fatal():
            self._on_delivery(self._topic, error, None)

    def _check(self) -> None:
        if self._failure is None:
            return
        text, client = str(self._failure), self._options.client
        raise failure(self._failure.name(), text, client, self._failed_topic)
