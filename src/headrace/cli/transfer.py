"""Moves records from topic to topic: reads up to an end, and sends copies.

Invariants: the end offsets are determined before reading begins, so a move terminates. A
transactional move fences its predecessor before it reads its offsets: otherwise a transaction that
is still committing could advance them, and its records would be sent twice.
"""

from __future__ import annotations

import time
from contextlib import suppress
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.cli.client import kafka
from headrace.cli.failures import CONFLICT, CommandFailed, from_kafka
from headrace.cli.progress import counting
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.cli.client import Client, Message
    from headrace.cli.session import CliSession

BATCH_RECORDS: Final = 500
POLL_S: Final = 1.0
QUIET_S_MAX: Final = 30.0
_FENCED: Final = {"_FENCED", "PRODUCER_FENCED", "INVALID_PRODUCER_EPOCH"}


UNTIL_ENDS: Final[Mapping[str, Any]] = MappingProxyType({"enable.partition.eof": True})
"""What the consumer of `messages_until` needs: batches without records, which half messages and
delayed ones leave, move its position only when it reaches the log's end."""


def messages_until(consumer: Client, ends: dict[int, int]) -> Iterator[list[Message]]:
    """Yield bundles of records up to `ends`; raises CommandFailed if nothing arrives for long."""
    library = kafka()
    quiet_since_s = time.monotonic()
    open_ = dict(ends)
    while open_:
        bundle = []
        for message in consumer.consume(BATCH_RECORDS, POLL_S):
            if _is_record(message):
                bundle.append(message)
            elif _is_end(message) and message.offset() >= open_.get(message.partition(), 0):
                open_.pop(message.partition(), None)
        parts = [library.TopicPartition(_topic_of(consumer), number) for number in open_]
        if bundle:
            quiet_since_s = time.monotonic()
            yield [m for m in bundle if m.offset() < ends[m.partition()]]
        # Positions skip markers, which are not messages.
        for part in consumer.position(parts):
            if part.offset >= open_[part.partition]:
                del open_[part.partition]
        if time.monotonic() - quiet_since_s > QUIET_S_MAX:
            raise CommandFailed(
                f"no records for {QUIET_S_MAX:g} s before the topic's end; the rest was not read",
                "Check that its partitions are served: headrace topic describe",
            )


def _topic_of(consumer: Client) -> str:
    return str(consumer.assignment()[0].topic)


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.retriable() or _is_end(message):
        return False
    raise from_kafka(error, "read records")


def _is_end(message: Message) -> bool:
    error = message.error()
    return error is not None and error.name() == "_PARTITION_EOF"


def begin_transactions(session: CliSession, producer: Client, name: str) -> None:
    """Fence earlier producers with the same id, `name`. Raises CommandFailed."""
    try:
        producer.init_transactions(session.timeout_s)
    except kafka().KafkaException as error:
        right = Right("write", "transactional-id", name)
        raise session.failure(error.args[0], "start moving records", right) from None


class TransactionalMove:
    """Sends bundles of records, each in one transaction with its consumer's offsets."""

    def __init__(
        self, session: CliSession, consumer: Client, producer: Client, name: str, doing: str
    ) -> None:
        """`producer`: after `begin_transactions`. `name` and `doing` are for messages, such as
        "move of this backlog" and "move a backlog"."""
        self._session = session
        self._consumer = consumer
        self._producer = producer
        self._name = name
        self._doing = doing

    def send(self, bundle: list[Message], copy: Callable[[Message], None]) -> None:
        """Send what `copy` passes to the producer for each record, and commit; atomic.

        Raises CommandFailed, including that of `copy`.
        """
        timeout_s = self._session.timeout_s
        last: dict[tuple[str, int], int] = {}
        library = kafka()
        try:
            self._producer.begin_transaction()
            for message in bundle:
                copy(message)
                last[message.topic(), message.partition()] = message.offset() + 1
            self._producer.flush(timeout_s)  # serves delivery reports
            offsets = [library.TopicPartition(*place, offset) for place, offset in last.items()]
            metadata = self._consumer.consumer_group_metadata()
            self._producer.send_offsets_to_transaction(offsets, metadata, timeout_s)
            self._producer.commit_transaction(timeout_s)
        except CommandFailed:
            self._abort()
            raise
        except library.KafkaException as error:
            failed = error.args[0]
            if not failed.fatal():
                self._abort()
            if failed.name() in _FENCED:
                raise CommandFailed(
                    f"another {self._name} has taken over; this one has stopped",
                    "Wait for it, or restart this one",
                    CONFLICT,
                ) from None
            raise from_kafka(failed, self._doing) from None

    def _abort(self) -> None:
        with suppress(kafka().KafkaException):  # the next run's begin_transactions aborts it, too
            self._producer.abort_transaction(self._session.timeout_s)


def produce_copy(
    producer: Client,
    topic: str,
    message: Message,
    number: int,
    headers: list[tuple[str, bytes | None]],
    on_delivery: Callable[[Any, Message], None] | None = None,
) -> None:
    """Pass a copy of `message` to the producer; with `number` -1, its key decides the partition.

    `on_delivery(error, stored)` is called before the transaction commits."""
    options: dict[str, Any] = {"partition": number} if number >= 0 else {}
    if on_delivery is not None:
        options["on_delivery"] = on_delivery
    while True:
        try:
            producer.produce(
                topic,
                value=message.value(),
                key=message.key(),
                headers=headers,
                timestamp=max(message.timestamp()[1], 0),
                **options,
            )
        except BufferError:  # its queue is full
            producer.poll(POLL_S)
            continue
        producer.poll(0)
        return


class Throttle:
    """Limits the rate by waiting after each bundle."""

    def __init__(self, rate_per_s: float | None) -> None:
        self._rate_per_s = rate_per_s
        self._begun_s = time.monotonic()
        self._count = 0

    def wait(self, count: int) -> None:
        """Wait until these may be sent."""
        self._count += count
        if self._rate_per_s is not None:
            due_s = self._begun_s + self._count / self._rate_per_s
            time.sleep(max(due_s - time.monotonic(), 0.0))


class SpanMove(NamedTuple):
    """Ranges of a topic's records that are sent elsewhere, with a progress bar.

    Each bundle is one transaction with the offsets of `group`, which so holds the progress.
    """

    group: str
    topic: str
    starts: Mapping[int, int]
    """By partition; of those with an end at least."""
    ends: Mapping[int, int]
    """Exclusive; only of partitions with something to send."""
    label: str
    """Of the progress bar."""
    name: str
    doing: str
    """See TransactionalMove."""

    @property
    def left(self) -> int:
        """The number of offsets to go."""
        return sum(end - self.starts[number] for number, end in self.ends.items())

    def run(
        self,
        session: CliSession,
        producer: Client,
        copy: Callable[[Message], None],
        *,
        rate_per_s: float | None,
        consumer_config: Mapping[str, Any] = MappingProxyType({}),
    ) -> int:
        """Pass each record to `copy`, which sends it; returns their number. `producer`: after
        `begin_transactions`. Raises CommandFailed."""
        if not self.ends:
            return 0
        config = {"group.id": self.group, "enable.auto.commit": False,
                  "isolation.level": "read_committed", **UNTIL_ENDS}  # fmt: skip
        consumer = session.consumer({**config, **consumer_config})
        move = TransactionalMove(session, consumer, producer, self.name, self.doing)
        count, throttle = 0, Throttle(rate_per_s)
        try:
            consumer.assign(
                [kafka().TopicPartition(self.topic, n, self.starts[n]) for n in self.ends]
            )
            with counting(self.label, self.left) as show_done:
                for bundle in messages_until(consumer, dict(self.ends)):
                    move.send(bundle, copy)
                    count += len(bundle)
                    show_done(len(bundle))
                    throttle.wait(len(bundle))
        finally:
            consumer.close()
        return count
