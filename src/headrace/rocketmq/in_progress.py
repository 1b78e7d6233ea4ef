"""The bytes of requests in progress: of each connection and address, and of all; and their tenants'
shares.

Invariants: knows sizes alone. What a request holds is given back once, however it ends.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.broker.security.client_addresses import client_address
from headrace.broker.security.tenant_shares import USER_FACTOR
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
        self.by_connection: dict[Connection, int] = {}
        self.by_address: dict[str, int] = {}
        self.bytes = 0

    def begin(self, call: Call, size: int) -> Held:
        """A request of `size` bytes begins. Raises Refused."""
        held = Held(self, call)
        held.add(size)
        return held

    def add(self, call: Call, address: str, size: int) -> None:
        """There is so much more, or less. Raises Refused, and adds nothing, if it is too much. An
        address has at most USER_FACTOR times what is left for others: whose calls these are is not
        known yet."""
        connection, by_connection, by_address = call.connection, self.by_connection, self.by_address
        of_connection = by_connection.get(connection, 0) + size
        of_address = by_address.get(address, 0) + size
        if size > 0:
            left = ALL_BYTES_MAX - self.bytes
            if of_connection > CONNECTION_BYTES_MAX:
                raise _refused("on this connection", of_connection)
            if size > left or of_address > USER_FACTOR * left:
                is_of_all = size > left
                whose = "of all clients" if is_of_all else "of this address"
                raise _refused(whose, self.bytes + size if is_of_all else of_address)
        self.bytes += size
        by_connection[connection] = of_connection
        by_address[address] = of_address
        if not of_connection:
            del by_connection[connection]
        if not of_address:
            del by_address[address]


def _refused(whose: str, count: int) -> Refused:
    return Refused(
        TOO_MANY_REQUESTS,
        f"requests in progress {whose} would have {count} bytes, decompressed: wait for their"
        " answers",
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
