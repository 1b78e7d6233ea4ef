"""The outcome of each message of a share group: sent = acknowledged + pending + delayed + dead +
expired, with a copy in the dead letter topic for each dead message.

Invariants: pure and linear. Messages that the broker gave up by itself are identified by their
copies.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts
from headrace_verify.checkers.shares import gather_shares
from headrace_verify.history import FAIL, OK

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace_verify.checkers.facts import Send
    from headrace_verify.checkers.shares import Message, ShareHistory

ACKNOWLEDGED, DEAD, EXPIRED, PENDING, DELAYED = (
    "acknowledged", "dead", "expired", "pending", "delayed",
)  # fmt: skip
IN_DOUBT = "in doubt"
"""A settlement without a response: acknowledged or dead."""
STATES = (ACKNOWLEDGED, DEAD, EXPIRED, PENDING, DELAYED, IN_DOUBT)


def _state(
    facts: Facts, name: str, group: ShareHistory, message: Message, send: Send | None
) -> str:
    """The outcome of a message in the log."""
    if (name, *message) in facts.dead:
        return DEAD
    settled = group.settled.get(message)
    if settled is not None:
        return ACKNOWLEDGED if settled[2] == "accept" else DEAD
    if send is not None and send.may_expire:
        is_over = not send.expires_ns or facts.drained.get(name, 0) > send.expires_ns
        return EXPIRED if is_over else PENDING
    return IN_DOUBT if message in group.maybe_over else PENDING


def count_messages(facts: Facts) -> dict[str, dict[str, int]]:
    """Share group -> `sent`, and how many of these are in each state.

    Sent: acknowledged to its producer, or in the log without an acknowledgement; not cancelled
    messages. Counts the topics that the group was drained of.
    """
    groups, _ = gather_shares(facts)
    found = {}
    for name, group in groups.items():
        counts = found[name] = dict.fromkeys(("sent", *STATES), 0)
        for topic, number, _ in facts.drained_upto.get(name, ()):
            partition = facts.partition(topic, number)
            for send in partition.sends.values():
                offset = partition.places.get(send.value)
                if send.outcome == FAIL or (offset is None and send.outcome != OK):
                    continue
                if send.is_superseded:
                    continue
                counts["sent"] += 1
                if offset is None:
                    counts[DELAYED if send.due_ns else PENDING] += 1
                else:
                    counts[_state(facts, name, group, (topic, number, offset), send)] += 1
    return found


def share_ends(facts: Facts) -> Iterator[Anomaly]:
    """Messages without an outcome, and dead letters that are lost, duplicated or wrong.

    Events: `drained` with group and `upto`, the log ends up to which nothing is left, and `dead` if
    the group has dead letters that were read; `dead` with group, topic, part, offset and value of
    the origin, `at`: [partition, offset] of the copy, `reason`.
    """
    groups, _ = gather_shares(facts)
    for name, group in groups.items():
        yield from _never_settled(facts, name, group)
        if name in facts.with_dead_letters:
            yield from _lost_dead_letters(facts, name, group)
    yield from _wrong_dead_letters(facts, groups)


def _never_settled(facts: Facts, name: str, group: ShareHistory) -> Iterator[Anomaly]:
    """With jumping wall clocks, returned messages may become due much later."""
    if facts.is_calendar_set:
        return
    for topic, number, end in facts.drained_upto.get(name, ()):
        partition = facts.partition(topic, number)
        for offset, value in partition.values.items():
            send = partition.sends.get(value)
            if offset >= end or (send is not None and (send.may_expire or send.is_superseded)):
                continue
            if _state(facts, name, group, (topic, number, offset), send) == PENDING:
                what = f"group {name}: offset {offset} was neither acknowledged nor given up"
                yield Anomaly("never settled", what, facts.drained[name], topic, number)


def _lost_dead_letters(facts: Facts, name: str, group: ShareHistory) -> Iterator[Anomaly]:
    for message, (_, at_ns, how) in group.settled.items():
        topic, number, offset = message
        if how == "accept" or message in group.maybe_over or (name, *message) in facts.dead:
            continue
        partition = facts.partition(topic, number)
        send = partition.sends.get(partition.acknowledged.get(offset, 0))
        if send is not None and send.is_superseded:
            continue  # compaction may have removed it before it was copied
        what = f"group {name}: offset {offset} was given up ({how}), but has no copy"
        yield Anomaly("dead letter lost", what, at_ns, topic, number)


def _wrong_dead_letters(facts: Facts, groups: dict[str, ShareHistory]) -> Iterator[Anomaly]:
    for (name, topic, number, offset), copies in facts.dead.items():
        partition = facts.partition(topic, number)
        first = next(iter(copies.values()))
        what = f"group {name}: offset {offset}"
        at = first.at_ns, topic, number
        if len(copies) > 1:
            listed = ", ".join(f"{part}-{at_offset}" for part, at_offset in sorted(copies))
            yield Anomaly("dead letter twice", f"{what} has copies at {listed}", *at)
        value = partition.values.get(offset)
        if value is not None and any(copy.value != value for copy in copies.values()):
            yield Anomaly("dead letter changed", f"{what} differs from its copy", *at)
        group = groups.get(name)
        if group is not None and (topic, number, offset) in group.sure:
            detail = f"{what} was acknowledged, but has a copy: {first.reason}"
            yield Anomaly("dead letter of an acknowledged message", detail, *at)
