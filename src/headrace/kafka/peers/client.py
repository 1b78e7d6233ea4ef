"""Calls other brokers in Kafka's own protocol, over their inter-broker listener.

Invariants: few connections to each broker, opened when all others are busy and dropped on any
error; one request at a time on each, with a timeout, so that no request waits for the append of
another. A request without a response raises BrokerUnreachable; retrying is the caller's
responsibility.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.coordination.transactions.commands import AddPartitionsReply
from headrace.errors import BrokerUnreachable, HeadraceError, TransactionAbortable
from headrace.kafka import apis
from headrace.kafka.client.asynchronous import AsyncConnection
from headrace.kafka.error_codes import error_of
from headrace.kafka.wire.primitives import FrameInvalid
from headrace.kafka.wire.schema import read_response, write_request
from headrace.runtime.access import OPEN, Access
from headrace.runtime.fair_locks import FairLock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.coordinators.peer_calls import MarkerRequest
    from headrace.coordination.transactions.commands import AddPartitionsCommand
    from headrace.coordination.transactions.state_records import Partition
    from headrace.kafka.peers.login import LogIn, PeerLogin
    from headrace.kafka.wire.schema import Answer
    from headrace.metadata.facts import BrokerFact

TIMEOUT_S = 5.0
ANSWER_BYTES_MAX = 8 * 1024 * 1024
CONNECTIONS_MAX = 8
"""To one broker."""
IDLE_S_MAX = 30.0
"""A connection that is not used for this long is closed."""
CLIENT_ID = b"headrace-broker"
MARKERS_VERSION, ADD_VERSION = 2, 5


class PeerTarget(NamedTuple):
    """A broker's address, and how it is reached."""

    address: tuple[str, int]
    access: Access = OPEN
    log_in: LogIn | None = None
    """None: no need."""


class PeerAccess(NamedTuple):
    """How brokers reach each other."""

    listener: str = ""
    """The Kafka listener of other brokers that is called (`inter.broker.listener.name`); "": the
    first one."""
    access: Access = OPEN
    login: PeerLogin | None = None
    """None: brokers do not log in."""

    def target(self, broker: BrokerFact) -> PeerTarget:
        """How other brokers reach this one."""
        log_in = None if self.login is None else self.login.at(broker)
        return PeerTarget(broker.kafka_address(self.listener), self.access, log_in)


class PeerConnection:
    """A connection to one broker, for one call at a time."""

    def __init__(self, target: PeerTarget, answer_bytes_max: int) -> None:
        self._target = target
        self._answer_bytes_max = answer_bytes_max
        self._connection: AsyncConnection | None = None

    @property
    def is_open(self) -> bool:
        """Whether the next call needs no new connection, as far as this end knows."""
        return self._connection is not None and self._connection.is_open

    async def call(
        self, api_key: int, version: int, body: Answer, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Send a request and wait for its response. Raises BrokerUnreachable."""
        try:
            async with asyncio.timeout(timeout_s):
                return await self._call(api_key, version, body)
        except BaseException as problem:
            self.close()
            if not isinstance(problem, OSError | TimeoutError | FrameInvalid):
                raise
            host, port = self._target.address
            raise BrokerUnreachable(
                f"broker at {host}:{port} did not answer ({type(problem).__name__}: {problem})"
            ) from problem

    async def _call(self, api_key: int, version: int, body: Answer) -> Any:
        if self._connection is None:
            address, access, log_in = self._target
            self._connection = await AsyncConnection.open(
                address, CLIENT_ID, self._answer_bytes_max, access
            )
            if log_in is not None:
                await log_in(self._connection)
        request = write_request(api_key, version, body)
        answer = await self._connection.ask(api_key, version, request, is_flexible=True)
        return read_response(api_key, version, answer, 0)

    def close(self) -> None:
        """Drop the connection; the next call opens a new one."""
        if self._connection is not None:
            self._connection.abort()
            self._connection = None


class PeerConnections:
    """Connections to one broker, each for one call at a time."""

    def __init__(
        self, target: PeerTarget, count_max: int, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self._target = target
        self._count_max = count_max
        self._answer_bytes_max = answer_bytes_max
        self._turn = FairLock(count_max)
        self._idle: dict[PeerConnection, float] = {}
        """With when each was used, by the loop's clock; the first is the one that waits longest."""
        self._trimmer: asyncio.TimerHandle | None = None
        self._busy: dict[PeerConnection, None] = {}
        self._is_closed = False

    async def call(
        self, api_key: int, version: int, body: Answer, timeout_s: float = TIMEOUT_S
    ) -> Any:
        """Send a request and wait for its response. Raises BrokerUnreachable."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._turn.acquire()
        except TimeoutError as error:
            host, port = self._target.address
            raise BrokerUnreachable(
                f"broker at {host}:{port} is slow: all {self._count_max} connections to it are busy"
            ) from error
        connection = self._next_idle()
        self._busy[connection] = None
        try:
            return await connection.call(api_key, version, body, timeout_s)
        finally:
            del self._busy[connection]
            if self._is_closed:
                connection.close()  # one that was being opened meanwhile
            elif connection.is_open:
                loop = asyncio.get_running_loop()
                self._idle[connection] = loop.time()
                if self._trimmer is None:
                    self._trimmer = loop.call_later(IDLE_S_MAX, self._trim, loop)
            self._turn.release()

    def _next_idle(self) -> PeerConnection:
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.is_open:
                return connection
            connection.close()  # closed by the other end
        return PeerConnection(self._target, self._answer_bytes_max)

    def _trim(self, loop: asyncio.AbstractEventLoop) -> None:
        """Close what a burst of calls has opened and nothing has used since."""
        self._trimmer = None
        while self._idle:
            connection, used_s = next(iter(self._idle.items()))
            if (left_s := used_s + IDLE_S_MAX - loop.time()) > 0:
                self._trimmer = loop.call_later(left_s, self._trim, loop)
                return
            del self._idle[connection]
            connection.close()

    def close(self) -> None:
        """Drop all connections, also those that calls under way open from now on."""
        self._is_closed = True
        if self._trimmer is not None:
            self._trimmer.cancel()
        for connection in (*self._idle, *self._busy):
            connection.close()
        self._idle.clear()


class PeerPool:
    """Connections to all brokers that were called: at most `count_max` to each."""

    def __init__(
        self, way: PeerAccess, count_max: int, answer_bytes_max: int = ANSWER_BYTES_MAX
    ) -> None:
        self._way = way
        self._count_max = count_max
        self._answer_bytes_max = answer_bytes_max
        self._peers: dict[PeerTarget, PeerConnections] = {}

    def to(self, broker: BrokerFact) -> PeerConnections:
        """Those to one broker."""
        target = self._way.target(broker)
        peer = self._peers.get(target)
        if peer is None:
            peer = PeerConnections(target, self._count_max, self._answer_bytes_max)
            self._peers[target] = peer
        return peer

    def close(self) -> None:
        """Drop all connections."""
        for peer in self._peers.values():
            peer.close()


class KafkaPeerClient:
    """Implements `broker.peer_calls.PeerCalls`."""

    def __init__(self, way: PeerAccess) -> None:
        self._pool = PeerPool(way, CONNECTIONS_MAX)
        self.close = self._pool.close
        """Drops all connections."""

    async def call(self, broker: BrokerFact, api_key: int, version: int, body: Answer) -> Any:
        """Send a request to a broker; returns its response. Raises BrokerUnreachable."""
        return await self._pool.to(broker).call(api_key, version, body)

    async def write_markers(
        self, broker: BrokerFact, requests: Sequence[MarkerRequest]
    ) -> list[dict[Partition, HeadraceError | None]]:
        """See PeerCalls."""
        body = {
            "markers": [
                {
                    "producer_id": marker.producer_id,
                    "producer_epoch": marker.producer_epoch,
                    "transaction_result": marker.is_commit,
                    "topics": [
                        {"name": topic, "partition_indexes": numbers}
                        for topic, numbers in by_topic(partitions).items()
                    ],
                    "coordinator_epoch": marker.coordinator_epoch,
                    "transaction_version": marker.transaction_version,
                }
                for marker, partitions in requests
            ]
        }
        answer = await self._pool.to(broker).call(apis.WRITE_TXN_MARKERS, MARKERS_VERSION, body)
        asked = [request.marker.producer_id for request in requests]
        if [marker.producer_id for marker in answer.markers] != asked:
            raise BrokerUnreachable("the response does not match the markers that were sent")
        # By position: one request may contain markers of two transactions of a producer.
        return [
            {
                (topic.name, item.partition_index): error_of(item.error_code)
                for topic in marker.topics
                for item in topic.partitions
            }
            for marker in answer.markers
        ]

    async def add_partitions(
        self, broker: BrokerFact, command: AddPartitionsCommand
    ) -> AddPartitionsReply:
        """See PeerCalls."""
        body = {
            "transactions": [
                {
                    "transactional_id": command.transactional_id,
                    "producer_id": command.producer_id,
                    "producer_epoch": command.producer_epoch,
                    "verify_only": command.is_verify_only,
                    "topics": [
                        {"name": topic, "partitions": numbers}
                        for topic, numbers in by_topic(sorted(command.partitions)).items()
                    ],
                }
            ]
        }
        answer = await self._pool.to(broker).call(apis.ADD_PARTITIONS_TO_TXN, ADD_VERSION, body)
        first = error_of(answer.error_code)
        absent: list[Partition] = []
        for result in answer.results_by_transaction:
            for topic in result.topic_results:
                for item in topic.results_by_partition:
                    found = error_of(item.partition_error_code)
                    if isinstance(found, TransactionAbortable):
                        absent.append((topic.name, item.partition_index))
                    else:
                        first = first or found
        return AddPartitionsReply(first, frozenset(absent))


def by_topic(partitions: Sequence[Partition]) -> dict[str, list[int]]:
    """Partition numbers by topic."""
    topics: dict[str, list[int]] = {}
    for topic, number in partitions:
        topics.setdefault(topic, []).append(number)
    return topics
