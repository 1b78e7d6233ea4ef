"""Produce: appends batches.

Invariants: parsing, error codes and encoding; `broker/services/appends.py` implements the append. A
request's batches are passed on in the turn in which it arrived, in its order, without a task; its
response is written when all of them are stored or refused. A batch that has to wait delays only its
own request.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, TypeAlias
from uuid import UUID

from headrace.broker.security.authorizer import Operation, ResourceType
from headrace.broker.services.appends import Transaction
from headrace.broker.services.fair_shares import path_of
from headrace.broker.services.tenant_view import TenantView
from headrace.errors import (
    AcksInvalid,
    CodecUnsupported,
    HeadraceError,
    NotOwner,
    PolicyViolation,
    RecordInvalid,
)
from headrace.kafka.apis import PRODUCE
from headrace.kafka.connection import ANY_TERM
from headrace.kafka.error_codes import code_of, message_of
from headrace.kafka.handlers.leaders import leader_hint
from headrace.kafka.tenancy import topic_prefix
from headrace.kafka.topic_rights import TopicRights
from headrace.kafka.wire.primitives import INT32
from headrace.kafka.wire.produce import (
    FLEXIBLE,
    TOPIC_IDS,
    ProducePartition,
    ProduceRequest,
    ProduceResult,
    frame_around_one,
    read_one,
    read_produce,
    write_one,
    write_produce,
)
from headrace.log.appended import BatchPlace
from headrace.records.batch import COMPRESSION_MASK, NO_TIMESTAMP, header_of
from headrace.records.compression import ZSTD
from headrace.records.validation import check_single
from headrace.runtime.loop_turns import USER

if TYPE_CHECKING:
    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.appends import Appends
    from headrace.broker.services.fair_shares import Charge
    from headrace.broker.services.services import Services
    from headrace.kafka.connection import Gate, KafkaConnection, Reply
    from headrace.kafka.request_figures import RequestFigures
    from headrace.kafka.wire.leader_hints import LeaderHint
    from headrace.log.partition_log import PartitionLog
    from headrace.records.batch import Fields
    from headrace.runtime.completion import Completion

log = logging.getLogger(__name__)

TRANSACTIONAL_ID: Final = ResourceType.TRANSACTIONAL_ID

ONE_VERSION_MIN: Final = 5
"""From here on a response has the log start offset; older ones take the general path."""
RECORD_ERRORS_MAX: Final = 1_000
"""Refused records listed in a response."""
ZSTD_SINCE: Final = 7
"""From here on batches may be compressed with zstd (KIP-110)."""
KNOWS_ABORTABLE: Final = 11
"""From here on a producer knows the error TransactionAbortable (KIP-890)."""
ADDS_PARTITIONS: Final = 12
"""From here on a write adds its partition to its transaction: transaction version 2."""

_OnePending: TypeAlias = "tuple[Reply, bytes, int, int, bytes, int, bytes]"
"""A request with one batch: (reply, response, version, correlation id, topic, partition, prefix of
its tenant's keys)."""


_Route: TypeAlias = "tuple[PartitionLog, tuple[bytes, bytes, int]]"
"""A partition, and the bytes around its result in a response (see `frame_around_one`)."""


class _Pending:
    """A request whose batches are not all durable yet."""

    __slots__ = (
        "charge",
        "connection",
        "correlation_id",
        "open_count",
        "prefix",
        "reply",
        "results",
        "session",
        "term",
        "transactional_id",
        "version",
    )

    def __init__(self, reply: Reply | None, version: int, correlation_id: int, count: int) -> None:
        self.reply = reply
        self.connection: KafkaConnection | None = None
        """Set if no response is wanted (acks=0): the connection is closed if a batch fails, as in
        Kafka, since there is no other way to make the client refresh its metadata."""
        self.charge: Charge | None = None
        """Set if no response is wanted: what the request holds of its tenant's share."""
        self.version = version
        self.correlation_id = correlation_id
        self.open_count = count
        self.term = ANY_TERM
        """The term in which a refusal may be sent. An acknowledgement comes from storage and may be
        sent at any time."""
        self.results: list[ProduceResult | None] = [None] * count
        self.transactional_id: str | None = None
        self.session: ClientSession | None = None
        """Whose batches they are."""
        self.prefix = b""
        """Of the keys of the client's tenant: the response has names without it."""

    def close_one(self) -> None:
        """One more batch has its result; with the last one, the response is written."""
        self.open_count -= 1
        if self.open_count == 0 and self.connection is not None:
            if self.charge is not None:
                self.charge.release()
            failed = [result for result in self.results if result is not None and result[2]]
            if failed:
                self.connection.abort(f"sent acks=0, and a batch failed (code {failed[0][2]})")
        elif self.open_count == 0 and self.reply is not None:
            results = [result for result in self.results if result is not None]
            if self.prefix:
                results = [_with_name(result, self.prefix) for result in results]
            body = write_produce(self.version, results, self.reply.throttle_ms)
            tags = b"\x00" if self.version >= FLEXIBLE else b""
            size = INT32.pack(len(body) + 4 + len(tags))
            self.reply.term = self.term
            self.reply.send((size + INT32.pack(self.correlation_id) + tags + body,))


def _check_codec(header: Fields, version: int) -> None:
    """Raises CodecUnsupported."""
    if version < ZSTD_SINCE and header[5] & COMPRESSION_MASK == ZSTD:
        raise CodecUnsupported(
            f"Produce v{version} does not allow zstd: use v{ZSTD_SINCE} or later, or another codec"
        )


class ProduceHandler:
    """The Produce API."""

    def __init__(self, services: Services, figures: RequestFigures) -> None:
        self._figures = figures
        self._services = services
        self._topics = services.topics.lookup
        self._appends: Appends = services.appends
        self._rights = TopicRights(services, Operation.WRITE, "Produce")
        self._gate: Gate | None = services.cluster.guard
        self.errors_total = 0
        self._found: dict[tuple[bytes, int, bool], PartitionLog] = {}
        """Partitions by their names in requests, as of `_found_version` of the topics."""
        self._found_version = -1
        self._routes: dict[tuple[int, bytes, int, bytes], _Route] = {}
        """The same for requests with one partition, by version, topic, partition, and the prefix
        of the client's tenant: the response names the topic as the request does."""

    def handle(
        self,
        connection: KafkaConnection,
        frame: memoryview,
        at: int,
        version: int,
        correlation_id: int,
    ) -> None:
        """Handle one request. Raises FrameInvalid, struct.error, IndexError on a malformed one."""
        prefix = b""
        if self._services.authorizer.has_tenants:
            prefix = topic_prefix(self._services.authorizer, connection.session)
        if (
            version >= ONE_VERSION_MIN
            and not connection.throttle_ms
            and self._handle_one(connection, frame, at, version, correlation_id, prefix)
        ):
            return
        request = read_produce(frame, at, version)
        if prefix:
            request = _with_keys(request, prefix, has_names=version < TOPIC_IDS)
        # With acks=0 the client expects no response and must get none.
        reply = connection.expect() if request.acks != 0 else None
        if reply is None and connection.throttle_ms:
            connection.mute(connection.throttle_ms)
        pending = _Pending(reply, version, correlation_id, len(request.partitions))
        pending.session = connection.session
        pending.prefix = prefix
        if reply is None:
            pending.connection = connection
            pending.charge = None if connection.line is None else connection.line.keep()
        if request.transactional_id is not None:
            pending.transactional_id = request.transactional_id.decode(errors="replace")
        refusal: HeadraceError | None = None
        if request.acks not in {-1, 0, 1}:
            refusal = AcksInvalid(f"acks={request.acks} is not valid: use -1, 0 or 1")
        is_open, session = self._services.authorizer.is_open, connection.session
        if not is_open and pending.transactional_id is not None and refusal is None:
            transactional_id = pending.transactional_id
            refusal = self._rights.refusal_of(session, TRANSACTIONAL_ID, transactional_id)
        if not request.partitions:
            pending.open_count = 1
            pending.close_one()
            return
        for index, part in enumerate(request.partitions):
            error = refusal
            if error is None and not is_open:
                error = self._rights.refusal(session, part.topic, is_id=version >= TOPIC_IDS)
            if error is not None:
                self._fail(pending, index, part, error)
                continue
            try:
                partition = self._partition(part.topic, part.partition, version)
                self._take(pending, index, part, partition)
            except HeadraceError as failed:
                self._fail(pending, index, part, failed)

    def _handle_one(
        self,
        connection: KafkaConnection,
        frame: memoryview,
        at: int,
        version: int,
        correlation_id: int,
        prefix: bytes,
    ) -> bool:
        """Handle an ordinary request with one partition on the fast path; False if it needs the
        general one.

        Leaves any other request (an error, a log that is not ready, no response wanted) untouched,
        so the general path sees it as it arrived.
        """
        one = read_one(frame, at, version)
        if one is None:
            return False
        acks, topic, number, records = one
        if acks != -1 and acks != 1:  # a set costs 30 ns more here
            return False
        name = topic
        if prefix and version < TOPIC_IDS:
            topic = prefix + topic
        try:
            if self._found_version != self._topics.version:
                self._forget_found()
            key = (version, topic, number, prefix)
            route = self._routes.get(key)
            if route is None:
                found = self._partition(topic, number, version)
                if not found.config.is_opaque:
                    return False  # before its CRC is computed, so that this happens once
                route = self._routes[key] = (found, frame_around_one(version, name, number))
            partition, around = route
            if not self._services.authorizer.is_open:
                session = connection.session
                if key not in self._rights.granted(session) and self._rights.refusal(
                    session, topic, is_id=version >= TOPIC_IDS, grant=key
                ):
                    return False
            header = check_single(records)
            if version < ZSTD_SINCE:
                _check_codec(header, version)
            appended = self._appends.append_now(partition, records, header)
        except HeadraceError:
            return False
        if appended is None:
            return False
        base_offset, completion = appended
        time_ms = header[8] if partition.config.is_log_append_time else NO_TIMESTAMP
        answer = write_one(around, correlation_id, base_offset, time_ms, partition.log_start_offset)
        reply = connection.expect()
        one_pending = (reply, answer, version, correlation_id, topic, number, prefix)
        completion.then(self._one_stored, one_pending)
        return True

    def _one_stored(self, error: BaseException | None, context: _OnePending) -> None:
        if error is None:
            context[0].send((context[1],))
            return
        reply, _answer, version, correlation_id, topic, number, prefix = context
        pending = _Pending(reply, version, correlation_id, 1)
        pending.prefix = prefix
        self._fail(pending, 0, ProducePartition(topic, number, None), error)

    def _partition(self, topic_key: bytes, number: int, version: int) -> PartitionLog:
        key = (topic_key, number, version >= TOPIC_IDS)
        if self._found_version != self._topics.version:
            self._forget_found()
        partition = self._found.get(key)
        if partition is not None:
            return partition
        if version >= TOPIC_IDS:
            topic = self._topics.get_by_id(UUID(bytes=topic_key))
        else:
            topic = self._topics.get(topic_key.decode(errors="replace"))
        topic.check_partition(number)
        if topic.is_internal:
            raise PolicyViolation(
                f"{topic.name} is an internal topic: only the broker writes to it"
            )
        partition = topic.require_log(number)
        self._found[key] = partition
        return partition

    def _forget_found(self) -> None:
        self._found.clear()
        self._routes.clear()
        self._found_version = self._topics.version

    def _take(
        self, pending: _Pending, index: int, part: ProducePartition, partition: PartitionLog
    ) -> None:
        """Append a batch, now or once it can be. Raises HeadraceError."""
        records = part.records
        header = header_of(check_single(records))
        _check_codec(header, pending.version)
        assert records is not None
        appended = self._appends.append_now(partition, records, header)
        if appended is not None:
            config = partition.config
            time_ms = header.max_timestamp_ms if config.is_log_append_time else NO_TIMESTAMP
            start_offset = partition.log_start_offset
            _set_result(pending, index, part, (appended.base_offset, time_ms, start_offset))
            completion: Completion = appended.completion
            if completion.done and completion.error is None:
                pending.close_one()
            else:
                completion.then(self._stored, (pending, index, part))
            return
        version = pending.version
        transaction = Transaction(
            pending.transactional_id, version >= ADDS_PARTITIONS, version >= KNOWS_ABORTABLE
        )

        def then(outcome: BatchPlace | BaseException) -> None:
            if isinstance(outcome, BatchPlace):
                _set_result(pending, index, part, outcome[:3])
                pending.close_one()
                return
            self._fail(pending, index, part, outcome)

        user = None if pending.session is None else path_of(pending.session, None)[USER]
        self._appends.append(partition, records, header, then, transaction, user)

    def _stored(
        self, error: BaseException | None, context: tuple[_Pending, int, ProducePartition]
    ) -> None:
        pending, index, part = context
        if error is not None:
            self._fail(pending, index, part, error)
        else:
            pending.close_one()

    def _fail(
        self, pending: _Pending, index: int, part: ProducePartition, error: BaseException
    ) -> None:
        self.errors_total += 1
        if not isinstance(error, HeadraceError):
            log.error("internal error while appending a batch", exc_info=error)
        gate = self._gate
        if gate is not None:
            before = gate.term
            pending.term = gate.term_now()
            if pending.term != before:
                # This broker refused it as an owner, which it no longer is.
                error = NotOwner("this broker no longer owns the partition: refresh the metadata")
        hint: LeaderHint | None = None
        if pending.reply is not None:
            listener, is_id = (
                pending.reply.connection.session.listener,
                pending.version >= TOPIC_IDS,
            )
            place = part.topic, part.partition
            hint = leader_hint(self._services, place, error, listener, is_id=is_id)
        code = code_of(error)
        message: str | None = message_of(error)
        view = TenantView(pending.prefix.decode(), hidden_id=self._services.cluster.hidden_id)
        self._figures.failed(PRODUCE, code)
        pending.results[index] = ProduceResult(
            part.topic,
            part.partition,
            code,
            -1,
            NO_TIMESTAMP,
            -1,
            message if message is None else view.text(message),
            hint,
            _record_errors(error),
        )
        pending.close_one()


def _with_keys(request: ProduceRequest, prefix: bytes, *, has_names: bool) -> ProduceRequest:
    """The names of a tenant's request as keys."""
    parts = request.partitions
    if has_names:
        parts = [part._replace(topic=prefix + part.topic) for part in parts]
    name = request.transactional_id
    key = None if name is None else prefix + name
    return ProduceRequest(request.acks, request.timeout_ms, key, parts)


def _with_name(result: ProduceResult, prefix: bytes) -> ProduceResult:
    """A result as its tenant's client may see it."""
    return result._replace(topic=result.topic.removeprefix(prefix))


def _set_result(
    pending: _Pending, index: int, part: ProducePartition, placed: tuple[int, int, int]
) -> None:
    """`placed`: (base offset, timestamp of the log, log start offset)."""
    base_offset, time_ms, start_offset = placed
    pending.results[index] = ProduceResult(
        part.topic, part.partition, 0, base_offset, time_ms, start_offset, None
    )


def _record_errors(error: BaseException) -> tuple[tuple[int, str], ...]:
    """The records that were refused, if known (KIP-467)."""
    if not isinstance(error, RecordInvalid):
        return ()
    refused: list[tuple[int, str]] = error.fields.get("record_errors", [])
    return tuple(refused[:RECORD_ERRORS_MAX])
