"""The bytes of requests in progress: of each connection and address, and of all; and their tenants'
shares.

Invariants: knows sizes alone. What a request holds is given back once, however it ends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.broker.security.client_addresses import client_address
from headrace.broker.security.tenant_shares import USER_FACTOR, add_count
from headrace.broker.services.fair_shares import FREE
from headrace.rocketmq.codes import TOO_MANY_REQUESTS, Refused

if TYPE_CHECKING:
    from headrace.broker.services.fair_shares import Charge
    from headrace.grpc.service import Call, Connection

CONNECTION_BYTES_MAX: Final = 64 * 1024 * 1024
ALL_BYTES_MAX: Final = 256 * 1024 * 1024
"""As much as the incomplete requests of a listener may have."""


class InProgress:
    """See the module."""

    def __init__(self) -> None:
        self.by_connection: Counter[Connection] = Counter()
        self.by_address: Counter[str] = Counter()
        self.bytes = 0

    def begin(self, call: Call, size: int) -> Held:
        """A request of `size` bytes begins. Raises Refused."""
        held = Held(self, call)
        held.add(size)
        return held

    def check(self, of_connection: int, of_address: int, size: int) -> None:
        """Raise Refused if `size` more is too much. An address has at most USER_FACTOR times what
        is left for others: whose calls these are is not known yet."""
        if of_connection + size > CONNECTION_BYTES_MAX:
            raise _refused("on this connection", CONNECTION_BYTES_MAX)
        left = ALL_BYTES_MAX - self.bytes
        if size > left:
            raise _refused("of all clients", ALL_BYTES_MAX)
        if of_address + size > USER_FACTOR * left:
            raise _refused("of this address", of_address)

    def add(self, call: Call, address: str, size: int) -> None:
        """There is so much more, or less. Raises Refused, and adds nothing, if it is too much."""
        connection = call.connection
        if size > 0:
            self.check(self.by_connection[connection], self.by_address[address], size)
        self.bytes += size
        add_count(self.by_connection, connection, size)
        add_count(self.by_address, address, size)


def _refused(whose: str, count: int) -> Refused:
    return Refused(
        TOO_MANY_REQUESTS,
        f"requests in progress {whose} have {count} bytes, decompressed: wait for their answers",
    )


class Held:
    """What one request holds."""

    __slots__ = ("_address", "_all", "_bytes", "_call", "charge")

    def __init__(self, all_: InProgress, call: Call) -> None:
        self._all = all_
        self._call = call
        self._address = client_address(call.peer)
        self._bytes = 0
        self.charge: Charge = FREE
        """Of its tenant's share."""

    def add(self, size: int) -> None:
        """Hold as many bytes more, or fewer. Raises Refused if there are too many."""
        self._all.add(self._call, self._address, size)
        self._bytes += size

    def release(self) -> None:
        """The request has ended, or is stored."""
        self.charge.release()
        if self._bytes:
            self.add(-self._bytes)
