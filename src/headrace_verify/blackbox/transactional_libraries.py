"""Transactional producers: librdkafka and aiokafka.

Invariants: a call is retried only if the library permits.
"""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.context import now_ns
from headrace_verify.blackbox.copier_sources import AssignedSource, GroupSource
from headrace_verify.blackbox.copying import Driver
from headrace_verify.blackbox.transactional import Failed

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from headrace_verify.blackbox.context import Context
    from headrace_verify.blackbox.transactional import Offsets

TRY_S, POLL_S = 5.0, 0.05
PATIENCE_S = 30.0
"""For a retriable call: longer than any fault."""
TIMEOUTS_MS = (5_000, 8_000)
_STUCK: list[Any] = []
"""Abandoned producers: to destroy one would wait for its hanging call."""


class LibrdkafkaInstance:
    """See Instance."""

    def __init__(self, context: Context, transactional_id: str) -> None:
        from confluent_kafka import Producer

        timeout_ms = context.rng.choice(TIMEOUTS_MS)
        self.timeout_s = timeout_ms / 1000
        self._is_stuck = False
        self._flying = 0
        """Records in flight."""
        self._producer = Producer(
            {
                "bootstrap.servers": context.spec.bootstrap,
                "client.id": context.spec.name,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": context.rng.choice((0, 1, 5)),
                "compression.type": context.rng.choice(("none", "lz4", "zstd")),
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 250,
                "retry.backoff.ms": 20,
                "retry.backoff.max.ms": 200,
                "socket.timeout.ms": 4_000,
                # A rebootstrap would drop the broker that it commits offsets to, and wait for it
                # (librdkafka issue 5511).
                "metadata.recovery.strategy": "none",
                "log_level": 0,
            }
        )

    def _until_done(self, call: Callable[..., Any], *arguments: Any) -> None:
        """Raises Failed."""
        from confluent_kafka import KafkaException

        deadline_ns = now_ns() + int(PATIENCE_S * 1e9)
        while True:
            try:
                call(*arguments, TRY_S)
            except KafkaException as failure:
                error = failure.args[0]
                if not error.retriable() or now_ns() > deadline_ns:
                    raise Failed(error, may_abort=error.txn_requires_abort()) from failure
            except Exception as error:
                raise Failed(error, may_abort=False) from error
            else:
                return

    def init(self) -> None:
        """See Instance."""
        self._until_done(self._producer.init_transactions)

    def begin(self) -> None:
        """See Instance."""
        self._until_done(lambda _timeout_s: self._producer.begin_transaction())

    def send(self, topic: str, part: int, data: bytes, ended: Callable[..., None]) -> None:
        """See Instance."""
        from confluent_kafka import KafkaException

        def delivered(error: Any, message: Any) -> None:
            self._flying -= 1
            if error is not None:
                ended(error=str(error))
                return
            offset = message.offset()  # None: a retry was acknowledged as a duplicate
            ended(-1 if offset is None else offset)

        self._flying += 1
        try:
            self._producer.produce(topic, data, partition=part, on_delivery=delivered)
        except (BufferError, KafkaException) as error:
            self._flying -= 1
            ended(error=str(error))
            raise Failed(error, may_abort=True) from error

    def flush(self) -> None:
        """See Instance.

        The library raises a fatal error in whatever call serves the callbacks: as a KafkaException,
        as a KafkaError or, if a callback is running, as a SystemError. Its own `flush` may hang
        then.
        """
        deadline_ns = now_ns() + int(PATIENCE_S * 1e9)
        while self._flying and now_ns() < deadline_ns:
            try:
                self._producer.poll(POLL_S)
            except Exception as error:
                raise Failed(error, may_abort=False) from error
        if self._flying:
            raise Failed(f"{self._flying} records were not acknowledged", may_abort=True)

    def send_offsets(self, group: str, offsets: Offsets, metadata: Any) -> None:
        """See Instance."""
        from confluent_kafka import TopicPartition

        del group  # the metadata names it
        listed = [TopicPartition(*place, end) for place, end in offsets.items()]
        # In a thread: librdkafka 2.16 ignores time-outs while it waits for a broker that it has
        # dropped (its issues 5456 and 5511).
        raised: list[Failed] = []

        def send() -> None:
            try:
                self._until_done(self._producer.send_offsets_to_transaction, listed, metadata)
            except Failed as error:
                raised.append(error)

        thread = threading.Thread(target=send, daemon=True)
        thread.start()
        thread.join(PATIENCE_S)
        if thread.is_alive():
            self._is_stuck = True
            raise Failed("send_offsets_to_transaction does not return", may_abort=False)
        if raised:
            raise raised[0]

    def commit(self) -> None:
        """See Instance."""
        self._until_done(self._producer.commit_transaction)

    def abort(self) -> None:
        """See Instance."""
        self._until_done(self._producer.abort_transaction)

    def close(self) -> None:
        """See Instance."""
        if self._is_stuck:
            _STUCK.append(self._producer)
            return
        try:
            self._producer.purge()
            self._producer.poll(0)  # reports purged records
        except Exception:  # noqa: BLE001, S110 - see `flush`
            pass  # every call reports a fatal error again
        del self._producer


class AiokafkaInstance:
    """See Instance: an aiokafka producer on its own loop."""

    def __init__(self, context: Context, transactional_id: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        timeout_ms = context.rng.choice(TIMEOUTS_MS)
        self.timeout_s = timeout_ms / 1000
        self._settings = {
            "bootstrap_servers": context.spec.bootstrap,
            "client_id": context.spec.name,
            "transactional_id": transactional_id,
            "transaction_timeout_ms": timeout_ms,
            "request_timeout_ms": 10_000,
            "retry_backoff_ms": 50,
        }
        self._producer: Any = None
        self._flying: list[asyncio.Future[Any]] = []
        self._has_begun = False

    def _run(self, work: Coroutine[Any, Any, Any], timeout_s: float = PATIENCE_S) -> Any:
        """Raises Failed."""
        from aiokafka.errors import IllegalOperation, KafkaError, ProducerFenced

        future = asyncio.run_coroutine_threadsafe(asyncio.wait_for(work, timeout_s), self._loop)
        try:
            return future.result()
        except (KafkaError, IllegalOperation, TimeoutError, OSError, AssertionError) as error:
            # An operation is illegal in an instance that was fenced in the background; aiokafka
            # 0.14 asserts so for an abort after a fatal error.
            is_dead = isinstance(
                error, ProducerFenced | IllegalOperation | TimeoutError | AssertionError
            )
            raise Failed(repr(error), may_abort=not is_dead) from error

    def init(self) -> None:
        """See Instance."""
        self._run(self._start())

    async def _start(self) -> None:
        from aiokafka import AIOKafkaProducer

        self._producer = AIOKafkaProducer(**self._settings)
        await self._producer.start()
        await self._producer.begin_transaction()  # which waits for the producer's id
        self._has_begun = True

    def begin(self) -> None:
        """See Instance."""
        if self._has_begun:
            self._has_begun = False
        else:
            self._run(self._producer.begin_transaction())

    def send(self, topic: str, part: int, data: bytes, ended: Callable[..., None]) -> None:
        """See Instance."""

        def done(future: asyncio.Future[Any]) -> None:
            error = None if future.cancelled() else future.exception()
            if future.cancelled() or error is not None:
                ended(error=repr(error))
            else:
                ended(future.result().offset)

        async def send() -> None:
            future = await self._producer.send(topic, data, partition=part)
            future.add_done_callback(done)
            self._flying.append(future)

        self._run(send())

    def flush(self) -> None:
        """See Instance."""
        flying, self._flying = self._flying, []

        async def wait() -> None:
            await asyncio.gather(*flying)

        self._run(wait())

    def send_offsets(self, group: str, offsets: Offsets, metadata: Any) -> None:
        """See Instance."""
        from aiokafka import TopicPartition

        del metadata  # it takes none
        listed = {TopicPartition(*place): end for place, end in offsets.items()}
        self._run(self._producer.send_offsets_to_transaction(listed, group))

    def commit(self) -> None:
        """See Instance."""
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        """See Instance."""
        self._flying.clear()
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        """See Instance."""
        if self._producer is not None:
            try:
                self._run(self._producer.stop(), TRY_S)
            except Failed:
                pass  # it would wait for responses that never arrive
        self._loop.call_soon_threadsafe(self._loop.stop)


def run_librdkafka_writer(context: Context) -> None:
    """Orders, in transactions."""
    Driver(context, partial(LibrdkafkaInstance, context)).run()


def run_aiokafka_writer(context: Context) -> None:
    """Orders, in transactions."""
    Driver(context, partial(AiokafkaInstance, context)).run()


def run_librdkafka_copier(context: Context) -> None:
    """A member of a group of copiers."""
    Driver(context, partial(LibrdkafkaInstance, context), GroupSource(context)).run()


def run_aiokafka_copier(context: Context) -> None:
    """Assigns all partitions manually: aiokafka cannot be fenced by a group's generation."""
    Driver(context, partial(AiokafkaInstance, context), AssignedSource(context)).run()
