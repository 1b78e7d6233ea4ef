"""Checkers of share groups: who holds a message, in which order, and that each comes to an end.

Invariants: pure; linear in deliveries. Ready for a broker with share groups; the known-fault
histories have them already.
How it works: a member acquires messages until a time (`until`, the lock deadline) and settles each:
`accept`, `release` (again, please), `reject` or `dead` (dead-lettered). A lock whose deadline has
passed holds nobody back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.checkers.facts import Anomaly, Facts
from headrace_verify.history import ACQUIRE, OK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.history import Event

FINAL = ("accept", "reject", "dead")


class _Lock(NamedTuple):
    member: str
    until_ns: int
    message: tuple[str, int, int]
    key: str | None


class _Group:
    def __init__(self) -> None:
        self.held: dict[tuple[str, int, int], _Lock] = {}
        self.keys: dict[str, _Lock] = {}
        self.settled: dict[tuple[str, int, int], str] = {}
        self.seen: dict[tuple[str, int, int], int] = {}


def share_deliveries(facts: Facts) -> Iterator[Anomaly]:
    """Held twice, a key twice in flight in ordered mode, delivered after its end, never settled.

    Events: `acquire` with group, member, `ordered`, `until`, topic and `recs` of [partition,
    offset, value, key]; `settle` with group, member, how, topic and `recs` of [partition, offset].
    """
    groups: dict[str, _Group] = {}
    for event in facts.deliveries:
        if event["k"] != OK:
            continue
        group = groups.setdefault(event["group"], _Group())
        if event["f"] == ACQUIRE:
            yield from _acquired(group, event)
        else:
            _settled(group, event)
    for name, group in groups.items():
        if name not in facts.drained:
            continue
        for message, at_ns in group.seen.items():
            if message not in group.settled:
                topic, number, offset = message
                what = f"group {name}: offset {offset} was neither acknowledged nor dead-lettered"
                yield Anomaly("never settled", what, at_ns, topic, number)


def _acquired(group: _Group, event: Event) -> Iterator[Anomaly]:
    at_ns, member, topic = event["t"], event["member"], event["topic"]
    for number, offset, _value, key in event["recs"]:
        message = topic, number, offset
        group.seen[message] = at_ns
        if message in group.settled:
            what = f"offset {offset} was delivered again after: {group.settled[message]}"
            yield Anomaly("delivered after its end", what, at_ns, topic, number)
        held = group.held.get(message)
        if held is not None and held.until_ns > at_ns:
            what = f"offset {offset} was given to {member} while {held.member} held it"
            yield Anomaly("held twice", what, at_ns, topic, number)
        ordered_key = key if event.get("ordered") else None
        lock = group.held[message] = _Lock(member, event["until"], message, ordered_key)
        if ordered_key is None:
            continue
        other = group.keys.get(ordered_key)
        if other is not None and other.message != message and other.until_ns > at_ns:
            what = f"key {key} was given to {member} while {other.member} held one of it"
            yield Anomaly("key twice in flight", what, at_ns, topic, number)
        group.keys[ordered_key] = lock


def _settled(group: _Group, event: Event) -> None:
    for number, offset in event["recs"]:
        message = event["topic"], number, offset
        lock = group.held.pop(message, None)
        if event["how"] in FINAL:
            group.settled[message] = event["how"]
        if lock is not None and lock.key is not None and group.keys.get(lock.key) is lock:
            del group.keys[lock.key]
