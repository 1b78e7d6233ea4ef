"""The bytes of requests in progress: of each connection, and of all; and their tenants' shares.

Invariants: knows sizes alone. What a request holds is given back once, however it ends.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.broker.services.fair_shares import FREE
from headrace.rocketmq.codes import TOO_MANY_REQUESTS, Refused

if TYPE_CHECKING:
    from headrace.broker.services.fair_shares import Charge

CONNECTION_BYTES_MAX: Final = 64 * 1024 * 1024
ALL_BYTES_MAX: Final = 256 * 1024 * 1024
"""As much as the incomplete requests of a listener may have."""


class InProgress:
    """See the module."""

    def __init__(self) -> None:
        self.bytes_by_connection: Counter[object] = Counter()
        self.bytes = 0

    def begin(self, connection: object, size: int) -> Held:
        """A request of `size` bytes begins. Raises Refused."""
        held = Held(self, connection)
        held.add(size)
        return held

    def add(self, connection: object, size: int) -> None:
        """Raises Refused, and adds nothing, if there are too many."""
        of_connection = self.bytes_by_connection[connection] + size
        if size > 0 and (of_connection > CONNECTION_BYTES_MAX or self.bytes + size > ALL_BYTES_MAX):
            is_one = of_connection > CONNECTION_BYTES_MAX
            bytes_max = CONNECTION_BYTES_MAX if is_one else ALL_BYTES_MAX
            raise Refused(
                TOO_MANY_REQUESTS,
                f"requests in progress {'on this connection' if is_one else 'of all clients'} have"
                f" {bytes_max} bytes, decompressed: wait for their answers",
            )
        self.bytes += size
        if of_connection:
            self.bytes_by_connection[connection] = of_connection
        else:
            del self.bytes_by_connection[connection]


class Held:
    """What one request holds."""

    __slots__ = ("_all", "_bytes", "_connection", "charge")

    def __init__(self, all_: InProgress, connection: object) -> None:
        self._all = all_
        self._connection = connection
        self._bytes = 0
        self.charge: Charge = FREE
        """Of its tenant's share."""

    def add(self, size: int) -> None:
        """Hold as many bytes more, or fewer. Raises Refused if there are too many."""
        self._all.add(self._connection, size)
        self._bytes += size

    def release(self) -> None:
        """The request has ended, or is stored."""
        self.charge.release()
        if self._bytes:
            self.add(-self._bytes)
