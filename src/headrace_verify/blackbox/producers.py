"""Producers with three Python libraries, used as ordinary users would.

Invariants: an error is `fail` only if the broker has definitely rejected the record; all others are
`info`. A producer that retries without sequence numbers marks its values with `again`.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.history import FAIL, INFO, OK

if TYPE_CHECKING:
    from headrace_verify.blackbox.context import Context

TICK_S = 0.02
IN_FLIGHT_MAX = 300
PATIENCE_S = 45
"""For records in flight when the run ends: longer than any fault."""
REFUSED = {10, 18, 87}
"""MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE, INVALID_RECORD."""


def burst(context: Context) -> int:
    """How many records to send in this tick."""
    mean = context.spec.rate_per_s * TICK_S
    return int(mean * context.rng.choice((0.0, 0.5, 1.0, 2.0)) + context.rng.random())


def run_librdkafka_producer(context: Context) -> None:
    """confluent-kafka; `idempotent`, or without any retry."""
    from confluent_kafka import KafkaException, Producer

    is_idempotent = bool(context.spec.options.get("idempotent"))
    # It assumes that "not the leader" means "not stored", and resends whatever `retries` says: a
    # former leader may return it for a record that its successor finds.
    again = not is_idempotent and len(context.addresses) > 1
    settings: dict[str, Any] = {
        "bootstrap.servers": context.spec.bootstrap,
        "enable.idempotence": is_idempotent,
        "acks": "all",
        "linger.ms": context.rng.choice((0, 1, 20)),
        "compression.type": context.rng.choice(("none", "lz4", "zstd")),
        "reconnect.backoff.ms": 10,
        "reconnect.backoff.max.ms": 250,
        "retry.backoff.ms": 20,
        "retry.backoff.max.ms": 200,
        "socket.timeout.ms": 4_000,
        # An idempotent producer that drops a record takes a new epoch, and may store others twice.
        "message.timeout.ms": 3_600_000 if is_idempotent else 6_000,
        "log_level": 0,
    }
    if is_idempotent:
        # Logged by the client: why it started a new epoch, if it ever does.
        settings |= {"debug": "eos", "log_level": 7}
    else:
        settings["retries"] = 0

    def failed(error: Any) -> None:
        if error.fatal():
            context.gave_up(error)
            context.over.set()

    producer = Producer(settings | {"error_cb": failed})

    def delivered(topic: str, part: int, value: int, error: Any, message: Any) -> None:
        if error is None:
            # None: a retry was acknowledged as a duplicate, and the library does not know its
            # offset.
            offset = message.offset()
            context.end_send(OK, topic, part, value, offset=-1 if offset is None else offset)
        else:
            kind = FAIL if error.code() in REFUSED else INFO
            context.end_send(kind, topic, part, value, error=str(error))

    while not context.over.is_set():
        if len(producer) < IN_FLIGHT_MAX:
            for _ in range(burst(context)):
                topic, part = context.rng.choice(context.places)
                value, data = context.begin_send(topic, part, again=again)
                report = partial(delivered, topic, part, value)
                try:
                    producer.produce(topic, data, partition=part, on_delivery=report)
                except (BufferError, KafkaException) as error:
                    context.end_send(INFO, topic, part, value, error=str(error))
        producer.poll(TICK_S)
    left = producer.flush(PATIENCE_S)
    if left:
        context.gave_up(f"{left} records got no result")


def run_kafka_python_producer(context: Context) -> None:
    """kafka-python, idempotent as it is by default."""
    from kafka import KafkaProducer
    from kafka.errors import KafkaError

    producer = KafkaProducer(
        bootstrap_servers=context.spec.bootstrap,
        reconnect_backoff_ms=10,
        reconnect_backoff_max_ms=250,
        request_timeout_ms=5_000,
        delivery_timeout_ms=300_000,
        bootstrap_timeout_ms=300_000,  # it may be started while the broker is down
        max_block_ms=10_000,
        linger_ms=context.rng.choice((0, 5)),
    )

    def ended(topic: str, part: int, value: int, told: Any) -> None:
        context.end_send(OK, topic, part, value, offset=told.offset)

    def failed(topic: str, part: int, value: int, error: Any) -> None:
        context.end_send(INFO, topic, part, value, error=repr(error)[:200])

    while not context.over.is_set():
        for _ in range(burst(context)):
            topic, part = context.rng.choice(context.places)
            value, data = context.begin_send(topic, part)
            try:
                future = producer.send(topic, value=data, partition=part)
            except KafkaError as error:
                failed(topic, part, value, error)
                continue
            future.add_callback(partial(ended, topic, part, value))
            future.add_errback(partial(failed, topic, part, value))
        context.pause(TICK_S)
    try:
        producer.flush(PATIENCE_S)
    except KafkaError as error:
        context.gave_up(f"flush: {error!r}")
    producer.close(5)


def run_aiokafka_producer(context: Context) -> None:
    """aiokafka, with idempotence or without."""
    asyncio.run(_aiokafka(context))


async def _aiokafka(context: Context) -> None:
    from aiokafka import AIOKafkaProducer
    from aiokafka.errors import KafkaError

    is_idempotent = bool(context.spec.options.get("idempotent"))
    producer = AIOKafkaProducer(
        bootstrap_servers=context.spec.bootstrap,
        enable_idempotence=is_idempotent,
        acks="all",
        request_timeout_ms=300_000 if is_idempotent else 10_000,
        retry_backoff_ms=50,
        linger_ms=context.rng.choice((0, 5)),
    )
    while True:
        try:
            await producer.start()
            break
        except (KafkaError, OSError):
            await asyncio.sleep(0.2)
    flying: set[asyncio.Future[Any]] = set()

    def ended(topic: str, part: int, value: int, future: asyncio.Future[Any]) -> None:
        flying.discard(future)
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or error is not None:
            context.end_send(INFO, topic, part, value, error=repr(error)[:200])
        else:
            context.end_send(OK, topic, part, value, offset=future.result().offset)

    while not context.over.is_set():
        for _ in range(burst(context) if len(flying) < IN_FLIGHT_MAX else 0):
            topic, part = context.rng.choice(context.places)
            value, data = context.begin_send(topic, part, again=not is_idempotent)
            try:
                future = await producer.send(topic, data, partition=part)
            except KafkaError as error:
                context.end_send(INFO, topic, part, value, error=repr(error)[:200])
                continue
            flying.add(future)
            future.add_done_callback(partial(ended, topic, part, value))
        await asyncio.sleep(TICK_S)
    try:
        await asyncio.wait_for(producer.flush(), PATIENCE_S)
        await asyncio.wait_for(producer.stop(), 5)
    except (TimeoutError, KafkaError) as error:
        context.gave_up(f"{len(flying)} records got no result: {error!r}")
