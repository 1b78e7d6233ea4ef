"""Transactional producers and the copiers' consumers: librdkafka and aiokafka.

Invariants: a call is retried only if the library permits. Polled records stay with the copier until
they are committed or it loses them, so it never seeks back.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any

from headrace_verify.blackbox.committed_reads import fetch_committed, wait_for_progress
from headrace_verify.blackbox.consumers import (
    GENERATION_AT,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
)
from headrace_verify.blackbox.context import now_ns
from headrace_verify.blackbox.copying import BATCH_RECORDS, Driver, Polled
from headrace_verify.blackbox.routing import RETRY_S, Connection, Place
from headrace_verify.blackbox.transactional import Failed
from headrace_verify.history import ASSIGN, OK, REVOKE

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

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


# --- copiers' consumers ----------------------------------------------------------------------


class _Floors:
    """A group's committed offset in each partition, looked up on first use."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._connection = Connection(context)
        self._known: dict[tuple[str, int], int] = {}

    def forget(self) -> None:
        """Look it up again: it may have moved."""
        self._known.clear()

    def of(self, topic: str, part: int) -> int | None:
        """The offset from which records are to be copied; None at the end of the run."""
        if (topic, part) not in self._known:
            spec = self._context.spec
            assert spec.group is not None
            found = wait_for_progress(self._context, self._connection, spec.group, spec.topics)
            if found is None:
                return None
            self._known = {place: max(0, offset) for place, offset in found.items()}
        return self._known[topic, part]

    def close(self) -> None:
        """Stop looking up."""
        self._connection.drop()


class GroupSource:
    """See Source: a librdkafka group member, fenced by the group's generations."""

    def __init__(self, context: Context) -> None:
        from confluent_kafka import Consumer

        self._context = context
        self._floors = _Floors(context)
        self._pending: list[Polled] = []
        self._rebalances = 0
        self.metadata: Any = None
        self.identity: tuple[str, int] = ("", -1)
        self._consumer = Consumer(
            {
                "bootstrap.servers": context.spec.bootstrap,
                "group.id": context.spec.group,
                "client.id": context.spec.name,
                "isolation.level": "read_committed",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "max.poll.interval.ms": 60_000,
                "reconnect.backoff.ms": 10,
                "reconnect.backoff.max.ms": 250,
                "socket.timeout.ms": 11_000,
                "log_level": 0,
            }
        )
        self._consumer.subscribe(
            list(context.spec.topics),
            on_assign=partial(self._changed, ASSIGN),
            on_revoke=partial(self._changed, REVOKE),
            on_lost=partial(self._changed, REVOKE),
        )

    def _changed(self, what: str, _consumer: Any, parts: list[Any]) -> None:
        self._rebalances += 1
        self._pending.clear()
        self._floors.forget()
        member, generation = self._whoami()
        listed = self._context.owned((part.topic, part.partition) for part in parts)
        fields: dict[str, Any] = {"group": self._context.spec.group, "parts": listed}
        if what == ASSIGN:
            fields |= {"member": member, "gen": generation}
        self._context.history.write(OK, what, **fields)

    def _whoami(self) -> tuple[str, int]:
        metadata = self._consumer.consumer_group_metadata()
        generation = int.from_bytes(metadata[GENERATION_AT], sys.byteorder, signed=True)
        return self._consumer.memberid() or "", generation

    def restart(self) -> None:
        """See Source."""
        self._floors.forget()

    def poll(self) -> Sequence[Polled]:
        """See Source."""
        fresh: list[tuple[int, Polled, bytes | None]] = []
        while not fresh or len(self._pending) < BATCH_RECORDS:
            # At least once, however much is pending: rebalances happen here.
            since_ns, before = now_ns(), self._rebalances
            message: Any = self._consumer.poll(0 if self._pending else 0.1)
            if self._rebalances != before:
                fresh.clear()
            if message is None or message.error() is not None:
                break
            record = Polled(message.topic(), message.partition(), message.offset())
            fresh.append((since_ns, record, message.value()))
            self._pending.append(record)
        for since_ns, record, data in fresh:
            found = [(record.part, record.offset, data)]
            self._context.polled(since_ns, record.topic, found, group=self._context.spec.group)
        # Read now, not when offsets are sent: a member that was removed meanwhile has none, and its
        # commit would be taken for that of a client without a group.
        self.identity = self._whoami()
        self.metadata = self._consumer.consumer_group_metadata()
        if not self.identity[0] or self.identity[1] < 0:
            return []
        return self._rest()

    def _rest(self) -> Sequence[Polled]:
        """What is pending and not committed yet."""
        rest = []
        for record in self._pending:
            floor = self._floors.of(record.topic, record.part)
            if floor is None:
                return []
            if record.offset >= floor:
                rest.append(record)
        self._pending = rest
        return list(rest)

    def done(self) -> None:
        """See Source."""
        self._pending.clear()

    def close(self) -> None:
        """See Source."""
        self._consumer.close()
        self._floors.close()


class AssignedSource:
    """See Source: assigns all partitions manually, as one process per transactional id does."""

    metadata: Any = None
    identity: tuple[str, int] = ("", -1)

    def __init__(self, context: Context) -> None:
        self._context = context
        self._floors = _Floors(context)
        self._connection = Connection(context)
        self._positions: dict[Place, int] = {}
        self._pending: list[Polled] = []

    def restart(self) -> None:
        """See Source."""
        self._floors.forget()
        self._positions.clear()
        self._pending.clear()

    def poll(self) -> Sequence[Polled]:
        """See Source."""
        if not self._pending:
            try:
                self._fetch()
            except OSError as error:
                self._connection.failed(error)
                self._context.pause(RETRY_S)
        return self._pending[:BATCH_RECORDS]

    def _fetch(self) -> None:
        """Raises OSError."""
        if not self._positions:
            self._begin()
        for place, position in self._positions.items():
            since_ns = now_ns()
            found = fetch_committed(self._connection.wire(place), place, position)
            records = [(place.part, offset, value) for offset, value in found.records]
            self._context.polled(since_ns, place.topic, records)
            self._positions[place] = found.next_offset
            self._pending += [Polled(*place, offset) for offset, _ in found.records]

    def _begin(self) -> None:
        context = self._context
        positions = {}
        for place in context.places:
            floor = self._floors.of(*place)
            if floor is None:
                return
            positions[Place(*place)] = floor
        self._positions = positions
        context.history.write(OK, ASSIGN, parts=context.owned(context.places))

    def done(self) -> None:
        """See Source."""
        del self._pending[:BATCH_RECORDS]

    def close(self) -> None:
        """See Source."""
        self._connection.drop()
        self._floors.close()


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
