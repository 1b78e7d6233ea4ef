"""Routing of a client without a library: connections that are recreated when needed.

Invariants: knows the bootstrap address, and looks up leaders and coordinators, as a library does.
On a broken connection or a not-leader error, the route and its metadata are dropped.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from headrace_verify.kafka_wire import FIND_COORDINATOR, METADATA, KafkaWire, Refused

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

REQUEST_TIMEOUT_S = 4.0
RETRY_S = 0.1
RETRIABLE = {2, 3, 5, 6, 7, 14, 15, 16, 56, 74, 75}
"""Kafka's retriable codes."""
ELSEWHERE = {3, 5, 6, 14, 15, 16, 74, 75}
LEADER_NOT_AVAILABLE = 5


class Client(Protocol):
    """The owner of the connections."""

    @property
    def addresses(self) -> Sequence[tuple[str, int]]:
        """Where it may start."""
        ...

    @property
    def number(self) -> int:
        """The index of the next one."""
        ...

    @property
    def over(self) -> threading.Event:
        """Set when it must end."""
        ...

    def pause(self, seconds: float) -> None:
        """Wait, but not beyond the end of the run."""
        ...


class Place(NamedTuple):
    """A partition, for requests to its leader."""

    topic: str
    part: int


class Group(NamedTuple):
    """A group, for requests to its coordinator."""

    name: str


class Connection:
    """The connections of one client."""

    def __init__(self, client: Client, timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._client = client
        self._timeout_s = timeout_s
        self._wires: dict[tuple[str, int], KafkaWire] = {}
        self._nodes: dict[Place | Group, tuple[str, int]] = {}
        self._first = client.number
        """Which bootstrap address to use; the next one when it does not respond."""
        self.made = 0
        """The number of connections created."""

    def wire(self, of: Place | Group | None = None) -> KafkaWire:
        """The connection to the leader or coordinator; without `of`, to any node.

        Raises OSError, Refused.
        """
        if of is None:
            addresses = self._client.addresses
            return self._to(addresses[self._first % len(addresses)])
        node = self._nodes.get(of)
        if node is None:
            ask = self._leader if isinstance(of, Place) else self._coordinator
            node = self._nodes[of] = ask(of)
        return self._to(node)

    def _to(self, address: tuple[str, int]) -> KafkaWire:
        wire = self._wires.get(address)
        if wire is None:
            wire = self._wires[address] = KafkaWire(address, self._timeout_s)
            self.made += 1
        return wire

    def _leader(self, place: Any) -> tuple[str, int]:
        response = self.wire().call(METADATA, 1, topics=[{"name": place.topic}])
        nodes = {int(node.node_id): (str(node.host), int(node.port)) for node in response.brokers}
        (topic,) = response.topics
        if int(topic.error_code):
            raise Refused(int(topic.error_code))
        for partition in topic.partitions:
            if int(partition.partition_index) == place.part and int(partition.leader_id) in nodes:
                return nodes[int(partition.leader_id)]
        raise Refused(LEADER_NOT_AVAILABLE)

    def _coordinator(self, group: Any) -> tuple[str, int]:
        response = self.wire().call(FIND_COORDINATOR, 0, key=group.name)
        if int(response.error_code):
            raise Refused(int(response.error_code))
        return str(response.host), int(response.port)

    def drop(self) -> None:
        """Close everything and drop the routes."""
        wires, self._wires = self._wires, {}
        self._nodes.clear()
        for wire in wires.values():
            wire.close()

    def failed(self, error: OSError) -> bool:
        """Update the routes after an error; returns whether a retry makes sense."""
        if not isinstance(error, Refused):
            self.drop()
            self._first += 1
            return True
        if error.code in ELSEWHERE:
            self._nodes.clear()
            self._first += 1
        return error.code in RETRIABLE

    def until_answered(
        self, ask: Callable[[KafkaWire], Any], of: Place | Group | None = None
    ) -> Any:
        """Repeat until there is an answer; None at the end of the run. Raises Refused if it is
        final."""
        while not self._client.over.is_set():
            try:
                return ask(self.wire(of))
            except OSError as error:
                if not self.failed(error):
                    raise
            self._client.pause(RETRY_S)
        return None
