"""Checkers of share groups: who holds a message, in which order, and that each comes to an end.

Invariants: pure; linear in deliveries, but for a logarithm.
How it works: a member acquires messages and settles each: `accept`, `release` (again, please) or
`reject`. That it held a message is certain from the answer that brought it until it asked for a
settlement that was accepted: a lock may end at any time (its time, a takeover, a
connection that breaks), and then the settlement is refused. What another member was given between
two such moments, from its question to its answer, was given twice.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.checkers.facts import Anomaly, Facts
from headrace_verify.checkers.values import CALENDAR_NS
from headrace_verify.history import ACQUIRE, FAIL, OK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.history import Event

FINAL = ("accept", "reject", "dead")
GIVEN_UP_FROM = 10
"""Deliveries after which a message may have been given up without its members' knowledge: half of
the limit that the groups of a run have."""
_Message = tuple[str, int, int]


class _Delivery(NamedTuple):
    """A message came to a member: between `since_ns` and `at_ns`."""

    since_ns: int
    at_ns: int
    member: str
    message: _Message
    key: str | None


class _Hold(NamedTuple):
    """A member held a message for certain."""

    from_ns: int
    upto_ns: int
    delivery: _Delivery


class _Release(NamedTuple):
    """A message was given back, to come again after a while."""

    since_ns: int
    at_ns: int
    delay_ns: int
    acquired_ns: int


class _Group:
    def __init__(self) -> None:
        self.deliveries: list[_Delivery] = []
        self.current: dict[tuple[_Message, str], _Delivery] = {}
        self.holds: dict[_Message, list[_Hold]] = {}
        self.keyed: dict[tuple[str, int, str], list[_Hold]] = {}
        """Topic, partition, key -> holds, if the group keeps the order of keys."""
        self.settled: dict[_Message, tuple[int, int, str]] = {}
        """Finished for certain -> (asked at, answered at, how)."""
        self.released: dict[_Message, list[_Release]] = {}
        self.maybe_over: set[_Message] = set()
        """Perhaps finished: no answer came, it may have expired, or it may have been given up."""


def share_deliveries(facts: Facts) -> Iterator[Anomaly]:
    """Held twice, keys twice in flight or out of order, redelivered early or after the end, lost.

    Events: `acquire` with group, member, `ordered`, topic and `recs` of [partition, offset, value,
    key, deliveries]; `settle` with group, member, how, topic and `recs` of [partition, offset], and
    `delay` (ms) where a release waits. Both have `since`. `drained` has `upto`, the ends of logs.
    """
    groups: dict[str, _Group] = {}
    for event in facts.deliveries:
        group = groups.setdefault(event["group"], _Group())
        if event["f"] == ACQUIRE:
            yield from _acquired(facts, group, event)
        else:
            _settled(group, event)
    for name, group in groups.items():
        yield from _held_twice(group)
        yield from _out_of_order(group)
        yield from _at_the_wrong_time(group, is_calendar_true=not facts.is_calendar_set)
        yield from _never_settled(facts, name, group)


def _acquired(facts: Facts, group: _Group, event: Event) -> Iterator[Anomaly]:
    keys: dict[tuple[int, str], int] = {}
    for number, offset, value, key, *deliveries in event["recs"]:
        send = facts.partition(event["topic"], number).sends.get(value)
        message = event["topic"], number, offset
        ordered_key = key if event.get("ordered") else None
        delivery = _Delivery(event["since"], event["t"], event["member"], message, ordered_key)
        group.deliveries.append(delivery)
        group.current[message, event["member"]] = delivery
        may_expire = send is not None and send.may_expire
        if may_expire or (deliveries and deliveries[0] >= GIVEN_UP_FROM):
            group.maybe_over.add(message)
        if ordered_key is not None and keys.setdefault((number, ordered_key), offset) != offset:
            what = f"key {key} came twice in one answer, at {offset} and before"
            yield Anomaly("key twice in flight", what, event["t"], event["topic"], number)


def _settled(group: _Group, event: Event) -> None:
    if event["k"] == FAIL:
        return
    since_ns, at_ns, how = event["since"], event["t"], event["how"]
    for number, offset in event["recs"]:
        message = event["topic"], number, offset
        if event["k"] != OK:
            group.maybe_over.add(message)
            continue
        delivery = group.current.pop((message, event["member"]), None)
        is_sure = message not in group.settled and message not in group.maybe_over
        if delivery is not None and is_sure:  # of what is over, any settlement is accepted
            hold = _Hold(delivery.at_ns, since_ns, delivery)
            group.holds.setdefault(message, []).append(hold)
            if delivery.key is not None:
                place = message[0], number, delivery.key
                group.keyed.setdefault(place, []).append(hold)
        if how in FINAL:
            group.settled.setdefault(message, (since_ns, at_ns, how))
        elif delivery is not None and event.get("delay", 0) > 0:
            release = _Release(since_ns, at_ns, event["delay"] * 1_000_000, delivery.at_ns)
            group.released.setdefault(message, []).append(release)


def _held_during(holds: list[_Hold], delivery: _Delivery) -> _Hold | None:
    """The hold in which a delivery was, from its question to its answer. `holds` are sorted."""
    place = bisect_right(holds, delivery.since_ns, key=lambda hold: hold.from_ns)
    hold = holds[place - 1] if place else None
    is_in = hold is not None and delivery.at_ns <= hold.upto_ns and hold.delivery != delivery
    return hold if is_in else None


def _held_twice(group: _Group) -> Iterator[Anomaly]:
    for holds in (*group.holds.values(), *group.keyed.values()):
        holds.sort(key=lambda hold: hold.from_ns)
    for delivery in group.deliveries:
        topic, number, offset = delivery.message
        hold = _held_during(group.holds.get(delivery.message, []), delivery)
        if hold is not None:
            what = f"offset {offset} was given to {delivery.member} while {hold.delivery.member}"
            yield Anomaly("held twice", f"{what} held it", delivery.at_ns, topic, number)
        if delivery.key is None:
            continue
        hold = _held_during(group.keyed.get((topic, number, delivery.key), []), delivery)
        if hold is not None and hold.delivery.message != delivery.message:
            what = f"key {delivery.key} was given to {delivery.member} at {offset} while"
            what += f" {hold.delivery.member} held {hold.delivery.message[2]} of it"
            yield Anomaly("key twice in flight", what, delivery.at_ns, topic, number)


def _out_of_order(group: _Group) -> Iterator[Anomaly]:
    """A message of a key that came before an earlier one of it was finished."""
    finished: dict[tuple[str, int, str], dict[int, int]] = {}
    for delivery in group.deliveries:
        if delivery.key is not None and delivery.message in group.settled:
            topic, number, offset = delivery.message
            asked_ns = group.settled[delivery.message][0]
            finished.setdefault((topic, number, delivery.key), {})[offset] = asked_ns
    latest: dict[tuple[str, int, str], tuple[list[int], list[int]]] = {}
    for place, ends in finished.items():
        offsets = sorted(ends)
        most, newest = [], 0
        for offset in offsets:
            newest = max(newest, ends[offset])
            most.append(newest)
        latest[place] = offsets, most
    for delivery in group.deliveries:
        if delivery.key is None:
            continue
        topic, number, offset = delivery.message
        offsets, most = latest.get((topic, number, delivery.key), ([], []))
        at = bisect_left(offsets, offset)
        if at and most[at - 1] > delivery.at_ns:
            what = f"offset {offset} of key {delivery.key} came before an earlier one was finished"
            yield Anomaly("key out of order", what, delivery.at_ns, topic, number)


def _at_the_wrong_time(group: _Group, *, is_calendar_true: bool) -> Iterator[Anomaly]:
    for delivery in group.deliveries:
        topic, number, offset = delivery.message
        settled = group.settled.get(delivery.message)
        if settled is not None and delivery.since_ns > settled[1]:
            what = f"offset {offset} was delivered again after: {settled[2]}"
            yield Anomaly("delivered after its end", what, delivery.at_ns, topic, number)
        if not is_calendar_true:
            continue
        for release in group.released.get(delivery.message, ()):
            due_ns = release.since_ns + release.delay_ns - CALENDAR_NS
            if delivery.since_ns >= release.acquired_ns and release.at_ns < delivery.at_ns < due_ns:
                early_ms = (due_ns - delivery.at_ns) // 1_000_000
                what = f"offset {offset} was delivered again {early_ms} ms before its time"
                yield Anomaly("redelivered early", what, delivery.at_ns, topic, number)


def _never_settled(facts: Facts, name: str, group: _Group) -> Iterator[Anomaly]:
    """Sent = acknowledged + rejected + given up + expired, once nothing is left.

    With calendars that jump, what was given back may be due much later.
    """
    if facts.is_calendar_set:
        return
    for topic, number, end in facts.drained_upto.get(name, ()):
        partition = facts.partition(topic, number)
        for offset, value in partition.values.items():
            message = topic, number, offset
            send = partition.sends.get(value)
            is_over = message in group.settled or message in group.maybe_over
            if offset >= end or is_over or (send is not None and send.may_expire):
                continue
            what = f"group {name}: offset {offset} was neither acknowledged nor given up"
            yield Anomaly("never settled", what, facts.drained[name], topic, number)
