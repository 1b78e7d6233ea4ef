"""Fetch: reads batches, with long polling.

Invariants: data in memory is returned in the turn in which it was requested; reads from disk run in
a task. A fetch that finds less than `bytes_min` waits at its partitions at no cost, and is answered
when a bound moves or its time is over. Several partitions that move in one turn cause one response.
The isolation level is a bound: the high watermark, or the last stable offset for a reader of
committed transactions, whose response lists the aborted ones.
"""

from __future__ import annotations

import asyncio
import logging
from struct import Struct
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from headrace.broker.security.authorizer import Operation
from headrace.broker.services.long_poll import LongPoll
from headrace.coordination.quotas.entities import CONSUMER
from headrace.errors import (
    HeadraceError,
    NotOwner,
    OffsetOutOfRange,
)
from headrace.kafka.apis import FETCH
from headrace.kafka.error_codes import code_of
from headrace.kafka.handlers.fetch_sessions import INITIAL_EPOCH, FetchSession, FetchSessions
from headrace.kafka.handlers.leaders import leader_hint
from headrace.kafka.tenancy import topic_prefix
from headrace.kafka.topic_rights import TopicRights
from headrace.kafka.wire.fetch import (
    FLEXIBLE,
    TOPIC_IDS,
    FetchPartition,
    FetchRequest,
    FetchResult,
    read_fetch,
    write_fetch,
)
from headrace.log.partition_log import PartitionLog
from headrace.log.reading import Miss, aborted_now, check_offset
from headrace.runtime.file_bytes import FileBytes, in_memory

if TYPE_CHECKING:
    from headrace.broker.services.connection_memory import ResponseMemory
    from headrace.broker.services.services import Services
    from headrace.broker.topics.topic import Topic
    from headrace.kafka.connection import Gate, KafkaConnection, Reply
    from headrace.kafka.request_figures import RequestFigures
    from headrace.runtime.file_bytes import Sendable
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

WAIT_MS_MAX: Final = 10 * 60 * 1000
SETTLING_WAIT_MS: Final = 20
SETTLING_NS: Final = 100_000_000
"""After ListOffsets and OffsetForLeaderEpoch a client adds partitions, but its next Fetch may not
contain them yet: for 100 ms, a Fetch waits at most 20 ms."""
BATCH_BYTES: Final = 1024 * 1024
"""A response may be this large whatever the limit: its first batch is returned whole."""
EMPTY: Final = b""
_HEAD: Final = Struct(">ii")
_FLEXIBLE_HEAD: Final = Struct(">iib")
_NONE: Final[dict[bytes, Any]] = {}


class _Fetch:
    """One request in progress: waits, is notified, and responds once."""

    __slots__ = (
        "bytes_max",
        "correlation_id",
        "handler",
        "is_done",
        "is_incremental",
        "partitions",
        "poll",
        "prefix",
        "reply",
        "request",
        "rights_version",
        "session",
        "version",
        "wanted",
    )

    def __init__(
        self, handler: FetchHandler, reply: Reply, request: FetchRequest, version: int
    ) -> None:
        self.handler = handler
        self.reply = reply
        self.request = request
        self.version = version
        self.correlation_id = 0
        self.prefix = b""
        """What precedes the client's names in the keys of its tenant's topics. Requests, sessions
        and responses have the names."""
        self.session: FetchSession | None = None
        self.is_incremental = False
        self.wanted: list[FetchPartition] = []
        self.partitions: list[PartitionLog | HeadraceError] = []
        self.bytes_max = 0
        self.rights_version = 0
        """Of the rules by which its partitions were found."""
        self.poll: LongPoll | None = None
        """While it waits."""
        self.is_done = False

    def look(self, is_over: bool) -> None:  # a callback
        """See LongPoll."""
        if is_over:
            self.request = self.request._replace(wait_ms_max=0)
        self.handler.again(self)


class FetchHandler:
    """The Fetch API."""

    def __init__(
        self,
        services: Services,
        tasks: Tasks,
        responses: ResponseMemory,
        figures: RequestFigures,
    ) -> None:
        self._figures = figures
        self._services = services
        config = services.settings.current
        self._topics = services.topics.lookup
        self._readable = services.topics.readable
        self._tasks = tasks
        self._responses = responses
        self._bytes_max = config.fetch_bytes_max
        self.loop = asyncio.get_running_loop()
        self._quotas = services.quotas
        self._rights = TopicRights(services, Operation.READ, "Fetch")
        self._gate: Gate | None = services.cluster.guard
        self.sessions = FetchSessions(services.randomness, config.fetch_sessions_max)
        self.bytes_total = 0
        self.waiting = 0
        self._waiting: dict[KafkaConnection, dict[_Fetch, None]] = {}
        self._found: dict[tuple[bytes, bool], dict[bytes, Topic]] = {}
        """Topics by name or id in wire form, for each prefix of names, and whether they are ids; as
        of `_found_version` of the topics."""
        self._found_version = -1

    def handle(
        self,
        connection: KafkaConnection,
        frame: memoryview,
        at: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Handle one request. Raises FrameInvalid, struct.error, IndexError on a malformed one."""
        request = read_fetch(frame, at, version)
        prefix = b""
        if self._services.authorizer.has_tenants and version < TOPIC_IDS:
            prefix = topic_prefix(self._services.authorizer, connection.session)
        bytes_max = min(max(request.bytes_max, 0), self._bytes_max)
        reply = connection.expect(max(bytes_max, BATCH_BYTES))
        fetch = _Fetch(self, reply, request, version)
        fetch.correlation_id = correlation_id
        fetch.prefix = prefix
        fetch.bytes_max = bytes_max
        if self._quotas.is_active:
            self._limit(fetch)
        try:
            if reply.throttle_ms and request.session_epoch == INITIAL_EPOCH:
                # Without a session: in a full fetch, omitted partitions would count as missing.
                self._send(fetch, write_fetch(version, 0, 0, [], reply.throttle_ms))
                return
            fetch.session, fetch.is_incremental = self.sessions.resolve(
                request, connection.session.principal, connection.last_request_ns
            )
        except HeadraceError as error:
            self._send(fetch, write_fetch(version, code_of(error), 0, [], reply.throttle_ms))
            return
        session = fetch.session
        if reply.throttle_ms:
            session_id = 0 if session is None else session.id
            self._send(fetch, write_fetch(version, 0, session_id, [], reply.throttle_ms))
            return
        if session is None:
            fetch.wanted = request.partitions
        else:
            fetch.wanted = [cached.wanted for cached in session.partitions.values()]
        self._find_all(fetch)
        self._look(fetch, is_first=True)

    def _find_all(self, fetch: _Fetch) -> None:
        """Find the partitions, as far as the client may read them."""
        version, authorizer = fetch.version, self._services.authorizer
        if authorizer.is_open:
            fetch.partitions = [self._find(wanted, version, b"") for wanted in fetch.wanted]
            return
        session, is_id, prefix = fetch.reply.connection.session, version >= TOPIC_IDS, fetch.prefix
        fetch.rights_version = authorizer.version
        granted = self._rights.granted(session)
        fetch.partitions = []
        for wanted in fetch.wanted:
            key, error = (prefix, wanted.topic, is_id), None
            if key not in granted:
                topic = prefix + wanted.topic
                error = self._rights.refusal(session, topic, is_id=is_id, grant=key)
            fetch.partitions.append(error or self._find(wanted, version, prefix))

    def _limit(self, fetch: _Fetch) -> None:
        """Throttle a client that is in debt, and limit others to their remaining quota."""
        session = fetch.reply.connection.session
        wait_ms = self._quotas.take(session, CONSUMER, 0)
        fetch.reply.throttle_ms = max(fetch.reply.throttle_ms, wait_ms)
        burst = self._quotas.burst(session, CONSUMER)
        if burst is not None:
            fetch.bytes_max = min(fetch.bytes_max, burst)

    def _find(
        self, wanted: FetchPartition, version: int, prefix: bytes
    ) -> PartitionLog | HeadraceError:
        try:
            topic = self._found.get((prefix, version >= TOPIC_IDS), _NONE).get(wanted.topic)
            if topic is None or self._found_version != self._topics.version:
                topic = self._find_anew(wanted.topic, version, prefix)
            partition = topic.require_log(wanted.partition)
            if not partition.is_loaded:
                partition.load()
            elif wanted.leader_epoch >= 0:
                partition.check_leader_epoch(wanted.leader_epoch)
        except HeadraceError as error:
            return error
        return partition

    def _find_anew(self, name_or_id: bytes, version: int, prefix: bytes) -> Topic:
        if self._found_version != self._topics.version:
            self._found_version = self._topics.version
            self._found.clear()
        if version >= TOPIC_IDS:
            topic = self._readable.get_by_id(UUID(bytes=name_or_id))
        else:
            topic = self._readable.get((prefix + name_or_id).decode(errors="replace"))
        self._found.setdefault((prefix, version >= TOPIC_IDS), {})[name_or_id] = topic
        return topic

    # --- reads -------------------------------------------------------------------------------

    def again(self, fetch: _Fetch) -> None:
        """A bound has moved, or the time is over."""
        begun_ns = self._services.appends.clock.now_ns() if self._quotas.is_active else 0
        self._look_again(fetch)
        if begun_ns:
            took_ns = self._services.appends.clock.now_ns() - begun_ns
            self._quotas.spent(fetch.reply.connection.session, FETCH, took_ns)

    def _look_again(self, fetch: _Fetch) -> None:
        if not fetch.is_done:
            try:
                self._look(fetch, is_first=False)
            except Exception as error:  # noqa: BLE001  # the edge of a callback
                self._give_up(fetch, error)

    def complete_waiting(self, connection: KafkaConnection, *, is_lookup: bool) -> None:
        """Another request has arrived, and responses are sent in request order: complete the
        waiting fetches now. `is_lookup`: it requests positions in partitions."""
        if is_lookup:
            connection.settles_ns = connection.last_request_ns + SETTLING_NS
        for fetch in list(self._waiting.get(connection, ())):
            if fetch.poll is not None:
                fetch.poll.end()
                fetch.request = fetch.request._replace(wait_ms_max=0)
                self._look_again(fetch)  # in the time of the request that has arrived

    def closed(self, connection: KafkaConnection) -> None:
        """Its client has disconnected: cancel its waiting fetches."""
        for fetch in self._waiting.pop(connection, ()):
            fetch.is_done = True
            self._leave(fetch)

    def _give_up(self, fetch: _Fetch, error: Exception) -> None:
        """Without a response the connection would be stuck: every later one waits for it."""
        log.error("internal error in a fetch", exc_info=error)
        self._leave(fetch)
        fetch.is_done = True
        fetch.reply.connection.abort("met an internal error in Fetch")

    def _look(self, fetch: _Fetch, *, is_first: bool) -> None:
        """Read what is available; respond if that is enough, else wait."""
        if self._gate is not None:
            self._begin_reading(fetch)
        if not is_first and fetch.rights_version != self._services.authorizer.version:
            self._find_all(fetch)  # rights have changed while it waited
        results: list[FetchResult] = []
        size, has_error = 0, False
        granted = self._responses.grant(fetch.bytes_max)
        left, isolation = granted, fetch.request.isolation
        for wanted, partition in zip(fetch.wanted, fetch.partitions, strict=True):
            if not isinstance(partition, PartitionLog):
                results.append(self._failed(fetch, wanted, partition))
                has_error = True
                continue
            if not partition.is_loaded or partition.failure is not None or partition.is_deleted:
                self._read_in_task(fetch)
                return
            aborted: list[tuple[int, int]] | Miss | None = None
            try:
                found = self._read_one(partition, wanted, left, size, isolation)
                if isolation and not isinstance(found, Miss) and len(found[0]):
                    aborted = aborted_now(partition, wanted.offset, found[1])
            except HeadraceError as error:
                results.append(self._failed(fetch, wanted, error, partition))
                has_error = True
                continue
            if isinstance(found, Miss) or isinstance(aborted, Miss):
                self._read_in_task(fetch)
                return
            data = found[0]
            length = len(data)
            size += length
            left -= length
            if length:
                partition.traffic.went(found[1] - wanted.offset, length)
            results.append(_result(wanted, partition, data, aborted))
        is_enough = size >= fetch.request.bytes_min or size >= granted
        if has_error or is_enough or fetch.request.wait_ms_max <= 0:
            self._answer(fetch, results)
        elif is_first:
            self._wait(fetch)

    def _read_one(
        self, partition: PartitionLog, wanted: FetchPartition, left: int, size: int, isolation: int
    ) -> tuple[Sendable, int] | Miss:
        """(batches, the offset after them)."""
        offset = wanted.offset
        visibility = partition.visibility
        bound = visibility.acknowledged if not isolation else visibility.committed
        if offset == bound.offset:
            return EMPTY, offset
        if left <= 0 and size:
            check_offset(partition, offset)
            return EMPTY, offset
        bytes_max = min(wanted.bytes_max, max(left, 0))
        found = partition.reader.locate_now(offset, bytes_max, bound)
        if isinstance(found, Miss):
            return found
        # The first batch of a response is returned whatever its size (KIP-74), later ones must fit.
        return found if not size or len(found[0]) <= left else (EMPTY, offset)

    def _read_in_task(self, fetch: _Fetch) -> None:
        self._leave(fetch)
        fetch.is_done = True  # bounds that move meanwhile change nothing
        self._tasks.spawn(self._read_or_give_up(fetch), "fetch from disk")

    async def _read_or_give_up(self, fetch: _Fetch) -> None:
        try:
            await self._read_slowly(fetch)
        except Exception as error:  # noqa: BLE001  # the edge of a task
            self._give_up(fetch, error)

    def _begin_reading(self, fetch: _Fetch) -> None:
        """Data read from here on may be returned in this term only."""
        if self._gate is not None:
            fetch.reply.term = self._gate.term

    async def _read_slowly(self, fetch: _Fetch) -> None:
        self._begin_reading(fetch)
        bytes_max = self._responses.grant(fetch.bytes_max)
        fetch.reply.hold(min(bytes_max, sum(wanted.bytes_max for wanted in fetch.wanted)))
        pairs = list(zip(fetch.wanted, fetch.partitions, strict=True))
        read = await self._services.stored_reads.read(pairs, bytes_max, fetch.request.isolation)
        if fetch.reply.connection.transport is None:
            return  # the client has disconnected meanwhile
        if fetch.rights_version != self._services.authorizer.version:
            self._find_all(fetch)  # rights have changed while it read
        results: list[FetchResult] = []
        has_error = False
        for (wanted, partition), was_read, now in zip(
            pairs, read.found, fetch.partitions, strict=True
        ):
            found = now if isinstance(now, HeadraceError) else was_read
            if isinstance(partition, PartitionLog) and not isinstance(found, HeadraceError):
                results.append(_result(wanted, partition, found.data, found.aborted))
                continue
            assert isinstance(found, HeadraceError), "only a partition has data"
            known = partition if isinstance(partition, PartitionLog) else None
            results.append(self._failed(fetch, wanted, found, known))
            has_error = True
        fetch.is_done = False
        may_wait = fetch.request.wait_ms_max > 0 and fetch.request.bytes_min > 0
        if not read.size and not has_error and may_wait and not read.is_cold_due:
            fetch.reply.hold(0)
            self._wait(fetch)
            self._look(fetch, is_first=False)
        else:
            self._answer(fetch, results)

    # --- waits and responses -----------------------------------------------------------------

    def _wait(self, fetch: _Fetch) -> None:
        poll = fetch.poll = LongPoll(self.loop, fetch.look)
        fetch.reply.waited_ns -= self._services.appends.clock.now_ns()
        for partition in fetch.partitions:
            if isinstance(partition, PartitionLog):
                poll.watch(partition.waiters, fetch.request.isolation)
        connection = fetch.reply.connection
        self._waiting.setdefault(connection, {})[fetch] = None
        self.waiting += 1
        wait_ms = min(fetch.request.wait_ms_max, WAIT_MS_MAX)
        if connection.last_request_ns < connection.settles_ns:
            wait_ms = min(wait_ms, SETTLING_WAIT_MS)
        poll.begin(wait_ms / 1000)

    def _leave(self, fetch: _Fetch) -> None:
        if fetch.poll is not None:
            fetch.poll.end()
            fetch.poll = None
            fetch.reply.waited_ns += self._services.appends.clock.now_ns()
            self.waiting -= 1
            waiting = self._waiting.get(fetch.reply.connection)
            if waiting is not None:
                del waiting[fetch]
                if not waiting:
                    del self._waiting[fetch.reply.connection]

    def _answer(self, fetch: _Fetch, results: list[FetchResult]) -> None:
        if fetch.poll is not None:
            self._leave(fetch)
        fetch.is_done = True
        gate = self._gate
        if gate is not None and gate.term_now() != fetch.reply.term:
            # Read as the owner; another broker may own it by now.
            self._begin_reading(fetch)
            stale = NotOwner("this broker no longer owns the partition: refresh the metadata")
            results = [self._failed(fetch, wanted, stale) for wanted in fetch.wanted]
        session_id = 0
        session = fetch.session
        if session is not None:
            session_id = session.id
            updates = session.updates(results)
            if fetch.is_incremental:
                results = updates
        if self._quotas.is_active:
            size = sum(len(result.records) for result in results)
            client = fetch.reply.connection.session
            fetch.reply.throttle_ms = self._quotas.take(client, CONSUMER, size)
        self._send(
            fetch, write_fetch(fetch.version, 0, session_id, results, fetch.reply.throttle_ms)
        )

    def _send(self, fetch: _Fetch, body: list[Sendable]) -> None:
        if not fetch.reply.is_next:
            body = [*in_memory(body)]  # file-backed data may have moved by the time it is sent
        size = sum(map(len, body))
        self.bytes_total += size
        if fetch.version >= FLEXIBLE:
            head = _FLEXIBLE_HEAD.pack(size + 5, fetch.correlation_id, 0)
        else:
            head = _HEAD.pack(size + 4, fetch.correlation_id)
        first = body[0]
        assert not isinstance(first, FileBytes), "an answer begins with its head"
        fetch.reply.send((head + first, *body[1:]), size)

    def _failed(
        self,
        fetch: _Fetch,
        wanted: FetchPartition,
        error: HeadraceError,
        partition: PartitionLog | None = None,
    ) -> FetchResult:
        start = mark = stable = -1
        if partition is not None and isinstance(error, OffsetOutOfRange):
            # Otherwise these may be of a log that was never read: librdkafka stores them, and takes
            # an error with a high watermark equal to its position for the end of the partition.
            start, mark = partition.log_start_offset, partition.high_watermark
            stable = partition.visibility.last_stable_offset
        listener, is_id = fetch.reply.connection.session.listener, fetch.version >= TOPIC_IDS
        place = fetch.prefix + wanted.topic, wanted.partition
        hint = leader_hint(self._services, place, error, listener, is_id=is_id)
        code = code_of(error)
        self._figures.failed(FETCH, code)
        return FetchResult(*wanted[:2], code, mark, stable, start, EMPTY, hint=hint)


def _result(
    wanted: FetchPartition,
    partition: PartitionLog,
    records: Sendable,
    aborted: list[tuple[int, int]] | None,
) -> FetchResult:
    visibility = partition.visibility
    return FetchResult(
        wanted.topic,
        wanted.partition,
        0,
        visibility.acknowledged.offset,
        visibility.committed.offset,
        partition.log_start_offset,
        records,
        aborted,
    )
