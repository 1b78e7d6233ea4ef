"""What clients subscribe to, remembered so that the next owner of a partition can ask for it.

Invariants: knows no protocol, and does no I/O. Bounded by names and by time: what a client does not
repeat is forgotten when its session ends. The broker at which a client subscribes remembers, and
another one has a copy, so that either may die; of what they tell, the client's last stay counts.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.shares.lite_commands import ADD, LEAVE, REMOVE, SET, LiteSyncCommand

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from headrace.broker.services.lite_subscriptions import Displaced

NAMES_MAX: Final = 1_000_000
"""Of all clients, with the copies; a client counts as one more. Clients repeat what is not
remembered."""


class Subscriber(NamedTuple):
    """A client of a group on a topic, at the broker (`origin`) where it subscribed."""

    origin: int
    topic: str
    group_id: str
    client: str


class KeptNames(NamedTuple):
    """What one broker remembers of a client in one partition; encoded as a list."""

    is_copy: bool
    group_id: str
    client: str
    stay: str
    left_ms: int
    """Until the client's session ends."""
    names: Sequence[str]


class _Kept:
    __slots__ = ("parts", "stay", "topic_id", "until_ms")

    def __init__(self, topic_id: str, stay: str) -> None:
        self.topic_id = topic_id
        self.stay = stay
        self.until_ms = 0
        self.parts: dict[int, dict[str, None]] = {}
        """The names in each partition."""

    @property
    def count(self) -> int:
        return 1 + sum(map(len, self.parts.values()))


class KeptSubscriptions:
    """See the module."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Subscriber, _Kept] = OrderedDict()
        """The one that was not repeated for the longest time first."""
        self._origins: set[int] = set()
        self._names = 0

    def change(
        self,
        who: Subscriber,
        topic_id: str,
        action: int,
        parts: Mapping[int, Iterable[str]],
        stay: str,
        times_ms: tuple[int, int],
    ) -> dict[int, list[str]]:
        """As LiteSyncCommand changes it; `times_ms`: now, and for how long it holds. Returns what
        was not there before."""
        now_ms, session_ms = times_ms
        self._forget_until(now_ms)
        former = self._kept.get(who)
        if action == LEAVE and stay:
            if former is not None and former.stay == stay:
                self._drop(who)
            return {}
        kept = _Kept(topic_id, stay)
        if former is not None:
            self._drop(who)  # it returns as the last one, by the new end of its session
            if (former.topic_id, former.stay) == (topic_id, stay):
                kept = former
        kept.until_ms = now_ms + session_ms
        # A client that leaves of its own accord is remembered, too, without any name: what an
        # earlier broker of it remembers is outdated.
        before = {} if action == LEAVE else kept.parts
        kept.parts = {} if action in {SET, LEAVE} else dict(before)
        new: dict[int, list[str]] = {}
        for number, names in parts.items():
            had = before.get(number, {})
            if action == REMOVE:
                gone = {*names}
                kept.parts[number] = {name: None for name in had if name not in gone}
            elif action in {ADD, SET}:
                some = dict.fromkeys(names)
                kept.parts[number] = some if action == SET else had | some
                new[number] = [name for name in some if name not in had]
        if self._names + kept.count <= NAMES_MAX:
            self._kept[who] = kept
            self._origins.add(who.origin)
            self._names += kept.count
        return new

    def displaced(self, displaced: Iterable[Displaced]) -> None:
        """These clients do not subscribe to these lite topics any more."""
        for topic, group_id, client, name in displaced:
            for origin in self._origins:
                kept = self._kept.get(Subscriber(origin, topic, group_id, client))
                for some in () if kept is None else kept.parts.values():
                    if name in some:
                        del some[name]
                        self._names -= 1

    def of_partition(
        self, here: int, topic: str, topic_id: str, number: int, now_ms: int
    ) -> list[KeptNames]:
        """What this broker (`here`) remembers of a partition."""
        self._forget_until(now_ms)
        return [
            KeptNames(
                who.origin != here, *who[2:], kept.stay, kept.until_ms - now_ms,
                [*kept.parts.get(number, ())],
            )
            for who, kept in self._kept.items()
            if (who.topic, kept.topic_id) == (topic, topic_id)
        ]  # fmt: skip

    def _forget_until(self, now_ms: int) -> None:
        while self._kept:
            who, kept = next(iter(self._kept.items()))
            if kept.until_ms > now_ms:
                return
            self._drop(who)

    def _drop(self, who: Subscriber) -> None:
        self._names -= self._kept.pop(who).count


def restored(found: Iterable[KeptNames]) -> list[LiteSyncCommand]:
    """What subscribes clients again to what brokers remember, the ones that were heard of last at
    the end: of an exclusive group, they keep a lite topic."""
    of_clients: dict[tuple[str, str], list[KeptNames]] = {}
    for one in found:
        of_clients.setdefault((one.group_id, one.client), []).append(one)
    commands: list[LiteSyncCommand] = []
    for (group_id, client), told in of_clients.items():
        last = max(told, key=lambda one: one.left_ms)
        of_stay = [one for one in told if one.stay == last.stay]
        # Copies may be of a time when another broker had them: what was removed since is in them.
        known = [one for one in of_stay if not one.is_copy] or of_stay
        names = list(dict.fromkeys(name for one in known for name in one.names))
        if names:
            commands.append(LiteSyncCommand(group_id, client, ADD, names, last.left_ms, last.stay))
    return sorted(commands, key=lambda one: one.session_ms)
