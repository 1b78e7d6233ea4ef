"""A Kafka client of a simulated host: connections, routing, one request at a time on each.

Invariants: no retries of its own and nothing hidden: the caller decides what an error means.
Requests and responses are kio's, as `verify/kafka_wire` builds them.
"""

from __future__ import annotations

import asyncio
from functools import lru_cache
from typing import Any, NamedTuple

from headrace.kafka.client.asynchronous import AsyncConnection
from headrace_verify.kafka_wire import (
    FIND_COORDINATOR,
    METADATA,
    PRODUCE,
    Refused,
    decoded_body,
    encoded_body,
)

TIMEOUT_S = 5.0
RETRIABLE = {2, 3, 5, 6, 7, 14, 15, 16, 19, 44, 51, 56, 74, 75, 88}
"""Kafka's retriable codes; 44, a full disk, is final for an application, but these clients retry
until there is space."""
LEADER_NOT_AVAILABLE = 5
CLIENT_ID = b"verify"
KNOWN_MAX = 4_096
"""Cached bodies of encoded requests and responses."""


_requests: dict[tuple[int, int, str], tuple[bytes, bool]] = {}


def _encoded(api: int, version: int, values: dict[str, Any]) -> tuple[bytes, bool]:
    """As `encoded_body`. Clients repeat requests, and kio is slow: cached."""
    if api == PRODUCE:
        return encoded_body(api, version, values)
    key = api, version, repr(values)
    found = _requests.get(key)
    if found is None:
        if len(_requests) >= KNOWN_MAX:
            _requests.clear()
        found = _requests[key] = encoded_body(api, version, values)
    return found


_decoded = lru_cache(KNOWN_MAX)(decoded_body)
"""Entities are immutable, so they may be shared."""


class Leader(NamedTuple):
    """A partition, for requests to its leader."""

    topic: str
    part: int


class Coordinator(NamedTuple):
    """A group or a transactional id, for requests to its coordinator."""

    group: str
    is_of_transactions: bool = False


class Wire:
    """One connection."""

    def __init__(self, connection: AsyncConnection) -> None:
        self._connection = connection

    async def call(self, api: int, version: int, **values: Any) -> Any:
        """Send a request and wait for the response. On OSError or TimeoutError the connection is
        unusable."""
        body, is_flexible = _encoded(api, version, values)
        answered = self._connection.ask(api, version, body, is_flexible=is_flexible)
        timer = asyncio.get_running_loop().call_later(TIMEOUT_S, _give_up, answered)
        try:
            answer = await answered
        finally:
            timer.cancel()
        return _decoded(api, version, answer)

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def _give_up(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError())


class Routes:
    """One client's connections, and the routing of requests."""

    def __init__(self, addresses: list[tuple[str, int]], random: Any) -> None:
        self._addresses = addresses
        self._random = random
        self._wires: dict[tuple[str, int], Wire] = {}
        self._nodes: dict[Leader | Coordinator, tuple[str, int]] = {}
        self.made = 0
        """The number of connections created."""

    async def wire(self, of: Leader | Coordinator | None = None) -> Wire:
        """The connection to the leader or coordinator; without `of`, to any broker.

        Raises OSError, TimeoutError, Refused.
        """
        if of is None:
            known = [address for address in self._addresses if address in self._wires]
            return await self._to(known[0] if known else self._random.choice(self._addresses))
        node = self._nodes.get(of)
        if node is None:
            if isinstance(of, Leader):
                node = await self._find_leader(of)
            else:
                node = await self._find_coordinator(of)
            self._nodes[of] = node
        return await self._to(node)

    def place_of(self, of: Leader | Coordinator) -> str:
        """The name of the leader or coordinator at the last lookup."""
        return self._nodes.get(of, ("", 0))[0]

    async def at(self, address: tuple[str, int]) -> Wire:
        """The connection to this broker. Raises OSError, TimeoutError."""
        return await self._to(address)

    async def _to(self, address: tuple[str, int]) -> Wire:
        wire = self._wires.get(address)
        if wire is None:
            async with asyncio.timeout(TIMEOUT_S):
                connection = await AsyncConnection.open(address, CLIENT_ID)
            wire = self._wires[address] = Wire(connection)
            self.made += 1
        return wire

    async def _find_leader(self, place: Leader) -> tuple[str, int]:
        response = await (await self.wire()).call(METADATA, 1, topics=[{"name": place.topic}])
        nodes = {int(node.node_id): (str(node.host), int(node.port)) for node in response.brokers}
        (topic,) = response.topics
        check(topic.error_code)
        for partition in topic.partitions:
            if int(partition.partition_index) == place.part and int(partition.leader_id) in nodes:
                return nodes[int(partition.leader_id)]
        raise Refused(LEADER_NOT_AVAILABLE)

    async def _find_coordinator(self, group: Coordinator) -> tuple[str, int]:
        wire, kind = await self.wire(), int(group.is_of_transactions)
        response = await wire.call(FIND_COORDINATOR, 1, key=group.group, key_type=kind)
        check(response.error_code)
        return str(response.host), int(response.port)

    def failed(self, error: Exception) -> bool:
        """Update the routes after an error; returns whether a retry makes sense."""
        self._nodes.clear()
        if isinstance(error, Refused):
            if error.code in RETRIABLE and self._random.random() < 0.3:
                self.drop()  # the broker's metadata may be stale
            return error.code in RETRIABLE
        self.drop()
        return True

    def drop(self) -> None:
        """Close everything and clear the routes."""
        wires, self._wires = self._wires, {}
        self._nodes.clear()
        for wire in wires.values():
            wire.close()


def check(code: Any) -> None:
    """Raises Refused."""
    if int(code):
        raise Refused(int(code))
