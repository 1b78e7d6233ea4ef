"""Clients that wait for messages of lite topics, each woken only when it has some.

Invariants: belongs to one tenure of one partition. A client is known by a number, by which other
brokers wait for it, too; two that share one are woken together. While any client waits, what
arrives is looked at once for all of them, and costs those nothing that do not subscribe to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final
from zlib import crc32

from headrace.broker.shares.lite_room import LiteRoom
from headrace.log.visibility import READ_COMMITTED
from headrace.log.waiters import Waiters
from headrace.runtime.fair_locks import FairLock, Hold

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from headrace.log.partition_log import PartitionLog

CLIENTS_MAX: Final = 20_000
"""Numbers that are remembered; then those for which nobody waits are forgotten."""

IDLE_CLIENTS_MAX: Final = 100


def number_of(group_id: str, client: str) -> int:
    """The number of a client of a group."""
    return crc32(f"{group_id}\n{client}".encode())


class LiteWaits:
    """See the module. Of the machine: `add` a client that has messages. Of the log: `notify`."""

    def __init__(self, data: PartitionLog, learn: Callable[[], None]) -> None:
        """`learn()` begins to look at what has arrived, and ends with `learned`."""
        self._data = data
        self._learn = learn
        self.room = LiteRoom(data.name)
        self.catching_up = FairLock(1, Hold.LONG)
        """Of the receive that reads on for all."""
        self.restored: object = None
        """The machine in which clients have been subscribed again."""
        self.restoring: asyncio.Task[None] | None = None
        """What does it."""
        self.skipped_count = 0
        """Records that it read whose header is not the name of a lite topic."""
        self._is_learning = False
        self._serial = 0
        """Raised whenever a client is woken."""
        self._forgotten = 0
        """The serial when clients were forgotten."""
        self._clients: dict[int, tuple[int, Waiters]] = {}
        """By number: the serial when it was woken last."""
        data.waiters.add(self, READ_COMMITTED)

    def add(self, ready: tuple[str, str]) -> None:
        """A client (group, client) has a lite topic with messages."""
        number = number_of(*ready)
        self._serial += 1
        _before, waiters = self._clients.get(number, (0, Waiters()))
        self._clients[number] = self._serial, waiters
        if len(self._clients) > CLIENTS_MAX:
            self._forget()
        waiters.wake()

    def notify(self) -> None:
        """See Waiter: records have arrived."""
        if any(waiters for _serial, waiters in self._clients.values()):
            self.learn()
        elif len(self._clients) > IDLE_CLIENTS_MAX:  # or each record would look at all of them
            self._forget()

    def _forget(self) -> None:
        """Those for which nobody waits: their next receives find out what has come."""
        self._clients = {key: one for key, one in self._clients.items() if one[1]}
        self._forgotten = self._serial

    def learn(self) -> None:
        """Look at what has arrived, unless that has begun."""
        if not self._is_learning:
            self._is_learning = True
            self._learn()

    def learned(self) -> None:
        """The next records that arrive are looked at anew."""
        self._is_learning = False

    def wake_all(self) -> None:
        """Something is wrong: the next receives find out what."""
        self._serial += 1
        self._forgotten = self._serial
        for _serial, waiters in self._clients.values():
            waiters.wake()

    def woken(self, number: int) -> int:
        """When the client was woken last: as long as it is the same, it has no new messages."""
        serial, _waiters = self._clients.get(number, (0, None))
        return max(serial, self._forgotten)

    def waiters(self, number: int) -> Waiters:
        """What wakes a client."""
        found = self._clients.get(number)
        if found is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._forget()
            found = self._clients[number] = self._forgotten, Waiters()
        return found[1]

    def close(self) -> None:
        """The tenure ends."""
        self._data.waiters.discard(self)
