"""One group's share of the lite topics of a partition: progress, deliveries, subscriptions.

Invariants: changed by `apply_*` alone. The records of a lite topic are delivered in order, to one
client at a time: nothing more of it is delivered until all that was delivered is settled or its
locks have expired. A client's `ready` names exactly those of its lite topics that have a record to
deliver, so a receive looks at no others.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.coordination.shares.commands import DeliveryState
from headrace.coordination.shares.config import ShareConfig
from headrace.coordination.shares.lite_backlog import LiteBacklog
from headrace.coordination.shares.lite_records import Progress
from headrace.coordination.shares.window import ACQUIRED, ARCHIVING, AVAILABLE, STATE_NAMES

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Mapping

    from headrace.coordination.shares.lite_index import LiteIndex
    from headrace.coordination.shares.lite_records import (
        Delivery,
        LiteDelivering,
        LiteProgress,
        LiteSettled,
        LiteSubscribed,
    )

SETTLED_MAX: Final = 10_000
"""Settlements that are remembered, so that a repeated one is answered as the first one was."""
TOGETHER_MAX: Final = 100
"""Records of one lite topic between the first unfinished one and the last that is finished or being
delivered, as in RocketMQ."""
BEGINNING: Final = Progress()


class NotesReady(Protocol):
    """Someone who wants to know which clients may get a record: of any number of them at once."""

    def add(self, ready: tuple[str, str], /) -> None:
        """(group, client). Must not block, raise, or ask the machine anything."""
        ...


class LiteClient:
    """What one client subscribes to."""

    __slots__ = ("names", "ready", "until_ms")

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        """Each with the stay in which it was last subscribed to (LiteSyncCommand)."""
        self.ready: dict[str, None] = {}
        """Those with a record to deliver, the one that waits longest first."""
        self.until_ms = 0


class LiteGroupLag(NamedTuple):
    """What a group has left of the lite topics of a partition."""

    first: int
    """The offset of the first unfinished record; without any, where the next one may come."""
    records: int
    """Unfinished ones, of the lite topics in which the group has finished records, or to which a
    client subscribes."""
    acquired: int
    archiving: int
    """Of those: held by members, and waiting for their copies in the dead letter topic."""
    retried: int
    """Of those: delivered before."""


class LiteGroup:
    """See the module."""

    def __init__(self, number: int, group_id: str, index: LiteIndex, ready: NotesReady) -> None:
        self.number = number
        self.group_id = group_id
        self.config = ShareConfig()
        self.progress: dict[str, Progress] = {}
        self.delayed: dict[str, int] = {}
        """Until when no record of these lite topics is delivered."""
        self.delivering: dict[str, Mapping[int, Delivery]] = {}
        self.held: dict[str, dict[int, str]] = {}
        """The lite topic of each offset that a member holds."""
        self.clients: dict[str, LiteClient] = {}
        self.subscribers: dict[str, dict[str, None]] = {}
        self.settled: OrderedDict[tuple[str, int], int] = OrderedDict()
        self.backlog = LiteBacklog()
        """Of the lite topics that a client subscribes to, or of which the group has finished
        records."""
        self.retried = 0
        """Unfinished records of which a delivery has ended."""
        self._index = index
        self._ready = ready

    # --- looking -----------------------------------------------------------------------------

    @property
    def known_end(self) -> int:
        """The offset up to which the records of lite topics are known."""
        return self._index.end

    def left(self, name: str) -> Iterator[int]:
        """The unfinished offsets of a lite topic, ascending."""
        position, finished, _counts, _at_ms = self.progress.get(name, BEGINNING)
        return self._index.after(name, position, finished)

    def left_after(self, name: str, position: int, finished: Container[int]) -> Iterator[int]:
        """The same, as if these were finished."""
        return self._index.after(name, position, finished)

    def is_ready(self, name: str) -> bool:
        """Whether a record of the lite topic, to which a client subscribes, could be delivered."""
        return self._is_free(name) and self.count_left(name)[0] > 0

    def _is_free(self, name: str) -> bool:
        """Whether neither a delivery nor a delay holds up the lite topic."""
        return name not in self.delivering and name not in self.delayed

    def count_left(self, name: str) -> tuple[int, int]:
        """(how many records of the lite topic are the group's and unfinished, the first one)."""
        progress = self.progress.get(name)
        if progress is not None:
            return self._index.left(name, progress.position, progress.finished)
        return self._index.left(name, 0, ()) if name in self.subscribers else (0, -1)

    def has(self, name: str) -> bool:
        """Whether the lite topic is one of the group's."""
        return name in self.progress or name in self.delivering or name in self.subscribers

    def state(self, name: str, offset: int, has_expired: bool) -> DeliveryState:
        """The state of a record of a lite topic."""
        position, finished, counts, at_ms = self.progress.get(name, BEGINNING)
        held = self.delivering.get(name, {}).get(offset)
        if held is not None:
            word = STATE_NAMES[ACQUIRED if held.member else ARCHIVING]
            until_ms = held.until_ms if held.member else 0
            return DeliveryState(self.group_id, word, held.deliveries, held.member, until_ms)
        if has_expired or offset < position or offset in finished:
            return DeliveryState(self.group_id, "finished", 0, "", 0)
        count = dict(counts).get(offset, 0)
        word = STATE_NAMES[AVAILABLE] if count else "waiting"
        return DeliveryState(self.group_id, word, count, "", at_ms)

    def is_orphan(self, name: str) -> bool:
        """Whether the group's progress in the lite topic is no longer of use."""
        return name not in self._index and name in self.progress and name not in self.delivering

    def next_of(
        self, client: LiteClient, most: int, read: Container[int] | None = None
    ) -> dict[str, list[int]]:
        """What the client could get, by lite topic; with `read`, of what was read."""
        found: dict[str, list[int]] = {}
        for name in client.ready:
            if most <= 0:
                break
            offsets: list[int] = []
            # While the first one is retried, others are finished: these must not become many.
            finished = len(self.progress.get(name, BEGINNING).finished)
            for offset in islice(self.left(name), min(most, max(TOGETHER_MAX - finished, 1))):
                if read is not None and offset not in read:
                    break
                offsets.append(offset)
            if offsets:
                found[name] = offsets
                most -= len(offsets)
        return found

    def wait_ms(self, client: LiteClient, now_ms: int) -> int:
        """When a lock on records of the client's lite topics ends, or a delay; -1: there is none.
        Looks at what is delivered or delayed, of any client."""
        times = [
            one.until_ms
            for name, deliveries in self.delivering.items()
            if name in client.names
            for one in deliveries.values()
            if one.member
        ]
        times += [at_ms for name, at_ms in self.delayed.items() if name in client.names]
        return max(min(times) - now_ms, 0) if times else -1

    # --- changes -----------------------------------------------------------------------------

    def refresh(self, name: str) -> None:
        """Whether the lite topic has a record to deliver, or how many, may have changed."""
        count, first = self.count_left(name)
        self.backlog.set(name, count, first)
        subscribers = self.subscribers.get(name)
        if not subscribers:
            return
        if count and self._is_free(name):
            for client in subscribers:
                self.clients[client].ready[name] = None
                self._ready.add((self.group_id, client))
        else:
            for client in subscribers:
                self.clients[client].ready.pop(name, None)

    def refresh_unknown(self, name: str) -> None:
        """As `refresh`, where the lite topic may be without records."""
        if self.is_orphan(name):
            self._index.orphans[name] = None
        self.refresh(name)

    def apply_progress(self, record: LiteProgress) -> None:
        """The group's progress in one lite topic."""
        self.retried -= len(self.progress.get(record.name, BEGINNING).counts)
        if record.progress is None:
            self.progress.pop(record.name, None)
        else:
            self.progress[record.name] = record.progress
            self.retried += len(record.progress.counts)
        self.delayed.pop(record.name, None)
        if record.progress is not None and record.progress.at_ms:
            self.delayed[record.name] = record.progress.at_ms
        self.refresh_unknown(record.name)

    def apply_delivering(self, record: LiteDelivering) -> None:
        """What is being delivered of one lite topic."""
        name = record.name
        for offset, former in self.delivering.get(name, {}).items():
            held = self.held.get(former.member)
            if held is not None:
                held.pop(offset, None)
                if not held:
                    del self.held[former.member]
        if record.deliveries:
            self.delivering[name] = record.deliveries
            for offset, one in record.deliveries.items():
                self.held.setdefault(one.member, {})[offset] = name
        else:
            self.delivering.pop(name, None)
        self.refresh_unknown(name)

    def apply_subscribed(self, record: LiteSubscribed) -> None:
        """A client's subscriptions."""
        client = self.clients.setdefault(record.client, LiteClient())
        client.until_ms = max(client.until_ms, record.until_ms)
        for name in record.removed:
            self._unsubscribe(record.client, client, name)
        for name in record.added:
            client.names[name] = record.stay
            self.subscribers.setdefault(name, {})[record.client] = None
            count, first = self.count_left(name)
            self.backlog.set(name, count, first)
            if count and self._is_free(name):
                client.ready[name] = None
                self._ready.add((self.group_id, record.client))

    def apply_left(self, client_id: str) -> None:
        """A client has ended."""
        client = self.clients.pop(client_id, None)
        if client is not None:
            for name in list(client.names):
                self._unsubscribe(client_id, client, name)

    def _unsubscribe(self, client_id: str, client: LiteClient, name: str) -> None:
        client.names.pop(name, None)
        client.ready.pop(name, None)
        subscribers = self.subscribers.get(name)
        if subscribers is not None:
            subscribers.pop(client_id, None)
            if not subscribers:
                del self.subscribers[name]
                self.backlog.set(name, *self.count_left(name))

    def forget_before(self, start: int, most: int) -> bool:
        """The records before `start` are deleted, which concerns up to `most` lite topics; returns
        whether it concerns more."""
        for _ in range(most):
            first = self.backlog.first()
            if first is None or first >= start:
                return False
            self.refresh(self.backlog.first_name())
        return True

    def describe(self) -> LiteGroupLag:
        """What the group has left here; costs nothing for lite topics."""
        archiving = len(self.held.get("", ()))
        first = self.backlog.first()
        return LiteGroupLag(
            self.known_end if first is None else first,
            self.backlog.records,
            sum(map(len, self.held.values())) - archiving,
            archiving,
            self.retried,
        )

    def apply_settled(self, record: LiteSettled) -> None:
        """A settlement that may be repeated."""
        self.settled[record.member, record.offset] = record.kind
        if len(self.settled) > SETTLED_MAX:
            self.settled.popitem(last=False)

    def validate(self) -> None:
        """Assert what holds between commands."""
        for name, deliveries in self.delivering.items():
            assert deliveries, name
            progress = self.progress.get(name, BEGINNING)
            for offset, one in deliveries.items():
                is_deleted = offset < self._index.start
                assert is_deleted or offset >= progress.position, (name, offset)
                assert offset not in progress.finished, (name, offset)
                assert self.held[one.member][offset] == name
        assert sum(map(len, self.held.values())) == sum(map(len, self.delivering.values()))
        for client_id, client in self.clients.items():
            assert {*client.ready} == {one for one in client.names if self.is_ready(one)}
            assert all(client_id in self.subscribers[name] for name in client.names)
        assert sum(len(one.names) for one in self.clients.values()) == sum(
            map(len, self.subscribers.values())
        )
        counts = {name: self.count_left(name) for name in {*self.progress, *self.subscribers}}
        left = [one for one in counts.values() if one[0]]
        first = self.backlog.first()
        if first is None or first >= self._index.start:  # otherwise they are still counted anew
            assert self.backlog.records == sum(count for count, _first in left)
            assert first == min((first for _count, first in left), default=None)
        assert self.retried == sum(len(one.counts) for one in self.progress.values())
        for name, progress in self.progress.items():
            assert not self.is_orphan(name) or name in self._index.orphans, name
            assert list(progress.finished) == sorted({*progress.finished})
            assert all(offset > progress.position for offset in progress.finished)
