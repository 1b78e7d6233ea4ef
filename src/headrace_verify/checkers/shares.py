"""Checkers of share groups: who holds a message, in which order, and that each is settled.

Invariants: pure; linear in deliveries, except for a logarithm. Used by the simulation and by
black-box runs.

How it works: a member acquires messages and settles each: `accept`, `release` (redeliver), `reject`
or `dead` (never redeliver), `renew` (extend the lock). It certainly held a message from the
response that delivered it until its request for a settlement that was accepted: a lock may end at
any time (time-out, takeover, broken connection), and then the settlement is rejected. If the
message was delivered to another member, from request to response, between two such moments, it was
held twice. A settlement of a finished message is accepted from anyone, so nothing is certain of a
message that another member may just have finished. `share_ends` checks how each message ended.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, NamedTuple

from headrace_verify.checkers.facts import Anomaly, Facts
from headrace_verify.checkers.values import CALENDAR_NS
from headrace_verify.history import ACQUIRE, FAIL, INVOKE, OK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.history import Event

FINAL = ("accept", "reject", "dead")
RENEW = "renew"
GIVEN_UP_FROM = 10
"""Deliveries after which a message may have been given up without its members' knowledge: half of
the limit of the groups in a simulated run. Those of black-box runs have dead letters."""
Message = tuple[str, int, int]
"""Topic, partition, offset."""


class Delivery(NamedTuple):
    """A message was delivered to a member: between `since_ns` and `at_ns`."""

    since_ns: int
    at_ns: int
    member: str
    message: Message
    key: str | None
    is_loose: bool = False
    """A library may have received it long before it passed it to its application."""
    lock_ns: int = 0
    """How long the member holds it, regardless of connections; 0: unknown."""
    is_together: bool = False
    """Whether one response may deliver several messages of a key, in order."""


class _Hold(NamedTuple):
    """A time in which a member certainly held a message."""

    from_ns: int
    upto_ns: int
    delivery: Delivery


class _Release(NamedTuple):
    """A message was released for redelivery after a delay."""

    since_ns: int
    at_ns: int
    delay_ns: int
    acquired_ns: int


class ShareHistory:
    """What the members of one share group received, and how they settled it."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.settled: dict[Message, tuple[int, int, str]] = {}
        """Certainly finished -> (requested at, answered at, how)."""
        self.maybe_over: set[Message] = set()
        """Perhaps finished: no response arrived, it may have expired, or it may have been given
        up."""
        self.sure: set[Message] = set()
        """Accepted while its lock cannot have ended: this settlement finished it."""
        self._long_over: set[Message] = set()
        """Perhaps finished before the recorded settlement."""
        self._current: dict[tuple[Message, str], Delivery] = {}
        self._holds: dict[Message, list[_Hold]] = {}
        self._keyed: dict[tuple[str, int, str], list[_Hold]] = {}
        """Topic, partition, key -> holds, if the group preserves key order."""
        self._released: dict[Message, list[_Release]] = {}
        self._doubts: dict[Message, int] = {}
        """Pending final settlements."""
        self._asked: dict[tuple[Message, str], int] = {}
        """When a member requested the end of its delivery, and was not rejected."""
        self._locked: dict[Message, Delivery] = {}
        """The latest delivery whose lock has a known end."""
        self._lock_ends: dict[tuple[Message, str], int] = {}
        self._hasty: list[tuple[Delivery, Delivery, int]] = []
        """A delivery, the next one, and when the first one's lock would have ended."""

    # --- gathering ---------------------------------------------------------------------------

    def acquired(self, facts: Facts, event: Event) -> Iterator[Anomaly]:
        """Record messages that a member received."""
        keys: dict[tuple[int, str], int] = {}
        is_loose, lock_ns = bool(event.get("loose")), event.get("lock", 0) * 1_000_000
        member, since_ns, at_ns = event["member"], event["since"], event["t"]
        is_together = bool(event.get("together"))
        for number, offset, value, key, *deliveries in event["recs"]:
            send = facts.partition(event["topic"], number).sends.get(value)
            message = event["topic"], number, offset
            ordered_key = key if event.get("ordered") else None
            delivery = Delivery(
                *(since_ns, at_ns, member, message, ordered_key, is_loose, lock_ns),
                is_together=is_together,
            )
            self.deliveries.append(delivery)
            self._current[message, member] = delivery
            self._check_lock(delivery)
            may_expire = send is not None and send.may_expire
            if may_expire or (deliveries and deliveries[0] >= GIVEN_UP_FROM):
                self.maybe_over.add(message)
            if ordered_key is None or is_together:
                continue
            if keys.setdefault((number, ordered_key), offset) != offset:
                what = f"key {key} occurs twice in one response, at {offset} and before"
                yield Anomaly("key twice in flight", what, at_ns, event["topic"], number)

    def _check_lock(self, delivery: Delivery) -> None:
        message = delivery.message
        before = self._locked.pop(message, None)
        if before is not None and not delivery.is_loose:
            end_ns = self._lock_ends[message, before.member]
            has_asked = (message, before.member) in self._asked
            is_next = before.at_ns <= delivery.since_ns
            if is_next and not has_asked and delivery.at_ns + CALENDAR_NS < end_ns:
                self._hasty.append((before, delivery, end_ns))
        if delivery.lock_ns:
            self._locked[message] = delivery
            self._lock_ends[message, delivery.member] = delivery.since_ns + delivery.lock_ns

    def settled_by(self, event: Event) -> None:
        """Record a settlement's request or response."""
        since_ns, kind, how = event["since"], event["k"], event["how"]
        is_noted = "op" in event and kind != INVOKE
        for number, offset in event["recs"]:
            message = event["topic"], number, offset
            place = message, event["member"]
            if how == RENEW:
                self._renewed(place, event)
                continue
            if kind == FAIL:
                self._asked.pop(place, None)
            else:
                self._asked.setdefault(place, since_ns)
            if how in FINAL and kind == INVOKE:
                self._doubts[message] = self._doubts.get(message, 0) + 1
            elif how in FINAL and is_noted:
                self._doubts[message] = self._doubts.get(message, 1) - 1
            if kind == OK:
                self._ended(place, event)
            elif kind not in {FAIL, INVOKE} and how in FINAL:
                self.maybe_over.add(message)

    def _renewed(self, place: tuple[Message, str], event: Event) -> None:
        """Record a new lock end: later, or earlier if the renewal is shorter than the remaining
        time."""
        known = self._lock_ends.get(place)
        if known is None or event["k"] == FAIL:
            return
        end_ns = event["since"] + event.get("lock", 0) * 1_000_000
        self._lock_ends[place] = end_ns if event["k"] == OK else min(known, end_ns)

    def _ended(self, place: tuple[Message, str], event: Event) -> None:
        message, how = place[0], event["how"]
        since_ns, at_ns = event["since"], event["t"]
        delivery = self._current.pop(place, None)
        in_doubt = message in self.maybe_over or self._doubts.get(message, 0) > 0
        is_sure = message not in self.settled and not in_doubt
        if delivery is not None and is_sure and not delivery.is_loose:
            # For finished messages, any settlement is accepted.
            hold = _Hold(delivery.at_ns, since_ns, delivery)
            self._holds.setdefault(message, []).append(hold)
            if delivery.key is not None:
                keyed = message[0], message[1], delivery.key
                self._keyed.setdefault(keyed, []).append(hold)
            if how == "accept" and at_ns < self._lock_ends.get(place, 0):
                self.sure.add(message)
        if how in FINAL:
            if in_doubt:
                self._long_over.add(message)
            self.settled.setdefault(message, (since_ns, at_ns, how))
        elif delivery is not None and event.get("delay", 0) > 0:
            release = _Release(since_ns, at_ns, event["delay"] * 1_000_000, delivery.at_ns)
            self._released.setdefault(message, []).append(release)

    def finish(self) -> None:
        """End of the history: pending settlements stay in doubt."""
        self.maybe_over.update(message for message, count in self._doubts.items() if count > 0)

    # --- checks ------------------------------------------------------------------------------

    def held_twice(self, dead: set[Message]) -> Iterator[Anomaly]:
        """Held by two members at once; `dead`: given up by the broker, so nothing is certain."""
        for holds in (*self._holds.values(), *self._keyed.values()):
            holds[:] = [hold for hold in holds if hold.delivery.message not in dead]
            holds.sort(key=lambda hold: hold.from_ns)
        for delivery in self.deliveries:
            if delivery.is_loose:
                continue
            topic, number, offset = delivery.message
            hold = _held_during(self._holds.get(delivery.message, []), delivery)
            if hold is not None:
                what = f"offset {offset} was delivered to {delivery.member} while"
                what += f" {hold.delivery.member} held it"
                yield Anomaly("held twice", what, delivery.at_ns, topic, number)
            if delivery.key is None:
                continue
            hold = _held_during(self._keyed.get((topic, number, delivery.key), []), delivery)
            if hold is not None and hold.delivery.message != delivery.message:
                what = f"key {delivery.key} was delivered to {delivery.member} at {offset} while"
                what += f" {hold.delivery.member} held {hold.delivery.message[2]} of it"
                yield Anomaly("key twice in flight", what, delivery.at_ns, topic, number)

    def out_of_order(self, dead: set[Message]) -> Iterator[Anomaly]:
        """A message of a key that was delivered before an earlier one was finished. For those in
        `dead`, the time is unknown."""
        unknown = dead | self.maybe_over | self._long_over
        finished: dict[tuple[str, int, str], dict[int, int]] = {}
        for delivery in self.deliveries:
            is_known = delivery.message in self.settled and delivery.message not in unknown
            if delivery.key is not None and is_known:
                topic, number, offset = delivery.message
                asked_ns = self.settled[delivery.message][0]
                finished.setdefault((topic, number, delivery.key), {})[offset] = asked_ns
        latest: dict[tuple[str, int, str], tuple[list[int], list[int]]] = {}
        for place, ends in finished.items():
            offsets = sorted(ends)
            most, newest = [], 0
            for offset in offsets:
                newest = max(newest, ends[offset])
                most.append(newest)
            latest[place] = offsets, most
        for delivery in self.deliveries:
            if delivery.key is None:
                continue
            topic, number, offset = delivery.message
            offsets, most = latest.get((topic, number, delivery.key), ([], []))
            at = bisect_left(offsets, offset)
            if at and most[at - 1] > delivery.at_ns:
                if delivery.is_together and self._comes_with(delivery, finished, offsets[:at]):
                    continue
                what = (
                    f"offset {offset} of key {delivery.key} was delivered before an"
                    " earlier one was finished"
                )
                yield Anomaly("key out of order", what, delivery.at_ns, topic, number)

    def _comes_with(
        self,
        delivery: Delivery,
        finished: dict[tuple[str, int, str], dict[int, int]],
        earlier: list[int],
    ) -> bool:
        """Whether the earlier messages of its key that were not finished came in one response with
        this one."""
        topic, number, _offset = delivery.message
        ends = finished[topic, number, delivery.key or ""]
        siblings = {
            one.message[2]
            for one in self.deliveries
            if (one.member, one.at_ns) == (delivery.member, delivery.at_ns)
            and one.key == delivery.key
            and one.message[:2] == (topic, number)
        }
        return all(ends[one] <= delivery.at_ns or one in siblings for one in earlier)

    def after_the_end(self) -> Iterator[Anomaly]:
        """A delivery of a finished message. A settlement is durable when it is acknowledged: no
        takeover and no power loss may redeliver the message."""
        for delivery in self.deliveries:
            settled = self.settled.get(delivery.message)
            if settled is not None and not delivery.is_loose and delivery.since_ns > settled[1]:
                topic, number, offset = delivery.message
                what = f"offset {offset} was delivered again after: {settled[2]}"
                yield Anomaly("delivered after its end", what, delivery.at_ns, topic, number)

    def at_the_wrong_time(self, facts: Facts) -> Iterator[Anomaly]:
        """Delivered before it is due, before its back-off or lock has ended, or after it has
        expired.

        Not checked if wall clocks jump.
        """
        if facts.is_calendar_set:
            return
        for delivery in self.deliveries:
            topic, number, offset = delivery.message
            at = delivery.at_ns, topic, number
            for release in self._released.get(delivery.message, ()):
                due_ns = release.since_ns + release.delay_ns - CALENDAR_NS
                is_next = delivery.since_ns >= release.acquired_ns and not delivery.is_loose
                if is_next and release.at_ns < delivery.at_ns < due_ns:
                    early_ms = (due_ns - delivery.at_ns) // 1_000_000
                    what = f"offset {offset} was delivered again {early_ms} ms before its time"
                    yield Anomaly("redelivered early", what, *at)
            partition = facts.partition(topic, number)
            send = partition.sends.get(partition.values.get(offset, 0))
            if send is None:
                continue
            if delivery.at_ns + CALENDAR_NS <= send.due_ns:
                early_ms = (send.due_ns - delivery.at_ns) // 1_000_000
                what = f"offset {offset} was delivered {early_ms} ms before its time"
                yield Anomaly("delivered early", what, *at)
            late_ns = delivery.since_ns - send.expires_ns - CALENDAR_NS
            if send.expires_ns and late_ns > 0 and not delivery.is_loose:
                what = f"offset {offset} was requested {late_ns // 1_000_000} ms after it expired"
                yield Anomaly("delivered when expired", what, *at)
        yield from self._before_a_lock_has_ended(facts)

    def _before_a_lock_has_ended(self, facts: Facts) -> Iterator[Anomaly]:
        """Only within one tenure of one broker: locks are not stored, so a takeover ends them."""
        tenures: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for first, second, end_ns in self._hasty:
            topic, number, offset = first.message
            place = topic, number
            if place not in tenures:
                tenures[place] = list(_tenures(facts, *place))
            span = first.since_ns, second.at_ns
            is_one = any(low <= span[0] and span[1] <= high for low, high in tenures[place])
            if is_one and facts.node_faults.is_whole(*span):
                early_ms = (end_ns - second.at_ns) // 1_000_000
                what = (
                    f"offset {offset} was delivered to {second.member} {early_ms} ms"
                    " before the lock"
                )
                what += f" of {first.member} could end"
                yield Anomaly("lock ended early", what, second.at_ns, topic, number)


def _held_during(holds: list[_Hold], delivery: Delivery) -> _Hold | None:
    """The hold that covers a delivery, from its request to its response. `holds` are sorted."""
    place = bisect_right(holds, delivery.since_ns, key=lambda hold: hold.from_ns)
    hold = holds[place - 1] if place else None
    is_in = hold is not None and delivery.at_ns <= hold.upto_ns and hold.delivery != delivery
    return hold if is_in else None


def _tenures(facts: Facts, topic: str, number: int) -> Iterator[tuple[int, int]]:
    """Time spans in which one broker certainly served a partition under one leader epoch: from the
    first acknowledgement to the last invocation of writes under it."""
    partition = facts.partition(topic, number)
    spans: dict[int, tuple[int, int]] = {}
    for first, (end, epoch, _) in partition.epochs.items():
        for offset in range(first, end):
            send = partition.sends.get(partition.values.get(offset, 0))
            if send is None or send.outcome != OK or send.offset < 0:
                continue
            low, high = spans.get(epoch, (send.ended_ns, send.invoked_ns))
            spans[epoch] = min(low, send.ended_ns), max(high, send.invoked_ns)
    yield from spans.values()


def gather_shares(facts: Facts) -> tuple[dict[str, ShareHistory], list[Anomaly]]:
    """Build the histories of all share groups, and the clashes within one response."""
    groups: dict[str, ShareHistory] = {}
    clashes: list[Anomaly] = []
    for event in facts.deliveries:
        group = groups.setdefault(event["group"], ShareHistory())
        if event["f"] == ACQUIRE:
            clashes += group.acquired(facts, event)
        else:
            group.settled_by(event)
    for group in groups.values():
        group.finish()
    return groups, clashes


def share_deliveries(facts: Facts) -> Iterator[Anomaly]:
    """Held twice, keys twice in flight or out of order, at the wrong time, after the end.

    Events: `acquire` with group, member, `ordered`, topic and `recs` of [partition, offset, value,
    key, deliveries]; `together` if it may hold several messages of a key; `lock` (ms) if the member
    holds the messages that long; `loose` if the member's library may have received them earlier.
    `settle` with group, member, how, topic, `recs` of [partition, offset], `delay` (ms) of a
    delayed release, `lock` (ms) of a renewal; `op` if the request is recorded, too. Both have
    `since`.
    """
    groups, clashes = gather_shares(facts)
    yield from clashes
    for name, group in groups.items():
        dead = {(topic, part, offset) for one, topic, part, offset in facts.dead if one == name}
        yield from group.held_twice(dead)
        yield from group.out_of_order(dead)
        yield from group.after_the_end()
        yield from group.at_the_wrong_time(facts)
