"""Moving records from topic to topic: reading up to an end, and sending copies.

Invariants: what is read is known by its end before reading begins, so a move ends.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from headrace.cli.client import kafka
from headrace.cli.failures import CommandFailed, from_kafka

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.cli.client import Client, Message
    from headrace.cli.session import Session

BATCH_RECORDS: Final = 500
POLL_S: Final = 1.0
QUIET_S_MAX: Final = 30.0


def messages_until(consumer: Client, ends: dict[int, int]) -> Iterator[list[Message]]:
    """Bundles of records up to `ends`; raises CommandFailed where nothing comes for long."""
    library = kafka()
    quiet_since_s = time.monotonic()
    open_ = dict(ends)
    while open_:
        bundle = [m for m in consumer.consume(BATCH_RECORDS, POLL_S) if _is_record(m)]
        parts = [library.TopicPartition(_topic_of(consumer), number) for number in open_]
        if bundle:
            quiet_since_s = time.monotonic()
            yield [m for m in bundle if m.offset() < ends[m.partition()]]
        # Positions pass markers, which are no messages.
        for part in consumer.position(parts):
            if part.offset >= open_[part.partition]:
                del open_[part.partition]
        if time.monotonic() - quiet_since_s > QUIET_S_MAX:
            raise CommandFailed(
                f"nothing came for {QUIET_S_MAX:g} s before the topic's end: the rest was left",
                "See whether its partitions are served: headrace topic describe",
            )


def _topic_of(consumer: Client) -> str:
    return str(consumer.assignment()[0].topic)


def _is_record(message: Message) -> bool:
    error = message.error()
    if error is None:
        return True
    if error.retriable():
        return False
    raise from_kafka(error, "read records")


def begin_transactions(session: Session, producer: Client) -> None:
    """Fence what went before under the producer's id. Raises CommandFailed."""
    try:
        producer.init_transactions(session.timeout_s)
    except kafka().KafkaException as error:
        raise from_kafka(error.args[0], "begin to move records") from None


def produce_copy(
    producer: Client,
    topic: str,
    message: Message,
    number: int,
    headers: list[tuple[str, bytes | None]],
) -> None:
    """Hand a copy of `message` to the producer; `number` -1: its key decides the partition."""
    options = {"partition": number} if number >= 0 else {}
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
