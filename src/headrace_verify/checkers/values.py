"""Checkers of stored values: each once, at its offset, unchanged, and durable.

Invariants: pure and linear. Definitions follow Jepsen's Kafka workload, with additions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts, Partition, Poll
from headrace_verify.history import FAIL, OK

if TYPE_CHECKING:
    from collections.abc import Iterator


CALENDAR_NS = 1_000_000
"""A broker's wall clock has millisecond resolution."""
LATE_NS = 10_000_000_000
"""How late a delayed message may be in a cluster that has just been healed."""


def inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    """Two values at one offset, according to reads or acknowledgements."""
    for (topic, number), partition in facts.partitions.items():
        for clash in partition.clashes:
            what = f"offset {clash.offset} holds value {clash.value} and value {clash.other}"
            yield Anomaly("inconsistent offset", what, clash.at_ns, topic, number)
        values = partition.values
        for offset, value in partition.acknowledged.items():
            found = values.get(offset, value)
            if found != value:
                at_ns = partition.sends[value].ended_ns
                what = f"value {value} was acknowledged at offset {offset}, which holds {found}"
                yield Anomaly("inconsistent offset", what, at_ns, topic, number)


def duplicates(facts: Facts) -> Iterator[Anomaly]:
    """One value at two offsets; not for producers that may retry without sequence numbers."""
    for (topic, number), partition in facts.partitions.items():
        for clash in partition.repeats:
            send = partition.sends.get(clash.value)
            if send is None or not send.may_repeat:
                what = f"value {clash.value} is at offset {clash.other} and at {clash.offset}"
                yield Anomaly("duplicate", what, clash.at_ns, topic, number)


def misplaced(facts: Facts) -> Iterator[Anomaly]:
    """A value that is stored, but not at the acknowledged offset."""
    for (topic, number), partition in facts.partitions.items():
        for send in partition.sends.values():
            if send.outcome != OK or not send.is_read or send.offset < 0:
                continue
            place = partition.places[send.value]
            if place != send.offset and partition.values.get(send.offset) != send.value:
                what = (
                    f"value {send.value} was acknowledged at offset {send.offset}, but is at"
                    f" {place}"
                )
                yield Anomaly("misplaced", what, send.ended_ns, topic, number)


def lost_writes(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged, below the highest offset read, but never read."""
    yield from _unread(facts, "lost write", is_below=True)


def unseen(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged, but after the end of the final read."""
    yield from _unread(facts, "unseen", is_below=False)


def _unread(facts: Facts, kind: str, *, is_below: bool) -> Iterator[Anomaly]:
    for (topic, number), partition in facts.partitions.items():
        if not is_below and partition.final_end < 0:
            continue  # no final read: later records may still be unread
        for send in partition.sends.values():
            if send.outcome != OK or send.is_read or send.is_superseded:
                continue
            if send.transaction is not None and not _is_committed(facts, send.transaction):
                continue
            if send.offset < 0:  # unknown offset, or a delayed message: it may be at any offset
                ready_ns = send.ended_ns
                if send.due_ns:
                    if facts.is_calendar_set:
                        continue  # it may become due much later
                    asked_ns = 0
                    if send.transaction is not None:
                        asked_ns = facts.transactions[send.transaction].asked_ns
                    ready_ns = max(ready_ns, send.due_ns, asked_ns) + LATE_NS
                if is_below and ready_ns < partition.final_ns:
                    what = f"value {send.value}, acknowledged, was never read"
                    yield Anomaly(kind, what, send.ended_ns, topic, number)
            elif (send.offset < partition.read_end) is is_below:
                what = f"value {send.value}, acknowledged at offset {send.offset}, was never read"
                yield Anomaly(kind, what, send.ended_ns, topic, number)


def unseen_by_group(facts: Facts) -> Iterator[Anomaly]:
    """A group that has read everything has polled each offset that existed at its start."""
    if not facts.drained:
        return
    seen: dict[tuple[str, str, int], set[int]] = {}
    for poll in facts.polls:
        if poll.group in facts.drained:
            for number, offset, _ in poll.records:
                seen.setdefault((poll.group, poll.topic, number), set()).add(offset)
    for (group, topic, number), offsets in seen.items():
        partition = facts.partitions[topic, number]
        until_ns = facts.drained[group]
        for offset, value in partition.acknowledged.items():
            send = partition.sends[value]
            if offset not in offsets and send.ended_ns < until_ns and send.is_read:
                what = f"group {group} skipped offset {offset}"
                yield Anomaly("unseen by group", what, until_ns, topic, number)


def vanished(facts: Facts) -> Iterator[Anomaly]:
    """A record that was read, but is after the end of the final read: it was visible too early."""
    for (topic, number), partition in facts.partitions.items():
        end, since_ns = partition.final_end, partition.final_ns
        if 0 <= end < partition.read_end and partition.read_end_ns <= since_ns:
            last = partition.read_end - 1
            what = f"offset {last} was read, but finally the log ends at {end}"
            yield Anomaly("vanished", what, partition.read_end_ns, topic, number)


def strangers(facts: Facts) -> Iterator[Anomaly]:
    """A value that was not sent to this partition of this topic."""
    for (topic, number), partition in facts.partitions.items():
        for clash in partition.strangers:
            what = f"offset {clash.offset} holds value {clash.value}, which was not sent there"
            yield Anomaly("stranger", what, clash.at_ns, topic, number)


def early(facts: Facts) -> Iterator[Anomaly]:
    """A delayed value that was read before its delivery time."""
    if facts.is_calendar_set:
        return
    for poll in facts.polls:
        for number, offset, value in poll.records:
            send = facts.partitions[poll.topic, number].sends.get(value)
            if send is not None and poll.at_ns + CALENDAR_NS <= send.due_ns:
                early_ms = (send.due_ns - poll.at_ns) // 1_000_000
                what = f"value {value} was read at offset {offset}, {early_ms} ms before its time"
                yield Anomaly("delivered early", what, poll.at_ns, poll.topic, number)


def changed_bytes(facts: Facts) -> Iterator[Anomaly]:
    """A record whose bytes differ from those sent."""
    for (topic, number), partition in facts.partitions.items():
        for clash in partition.damaged:
            what = f"the bytes at offset {clash.offset} match no value"
            yield Anomaly("changed bytes", what, clash.at_ns, topic, number)


def aborted_reads(facts: Facts) -> Iterator[Anomaly]:
    """A read of a value whose send has certainly failed."""
    for (topic, number), partition in facts.partitions.items():
        for send in partition.sends.values():
            if send.is_read and (send.outcome == FAIL or _is_aborted(facts, send.transaction)):
                what = f"value {send.value} was read, although its send failed"
                yield Anomaly("aborted read", what, send.ended_ns, topic, number)


def _is_aborted(facts: Facts, name: str | None) -> bool:
    return name is not None and facts.transactions[name].outcome == "abort"


def _is_committed(facts: Facts, name: str) -> bool:
    return facts.transactions[name].outcome == "commit"


def non_monotonic_sends(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged sends of one producer to one partition whose offsets decrease."""
    for (topic, number), partition in facts.partitions.items():
        last: dict[str, int] = {}
        for send in partition.sends.values():  # in the order of invocation
            if send.outcome != OK or send.may_repeat or send.offset < 0:
                continue
            before = last.get(send.process, -1)
            if send.offset <= before:
                what = f"{send.process} sent value {send.value} to {send.offset} after {before}"
                yield Anomaly("non-monotonic send", what, send.ended_ns, topic, number)
            else:
                last[send.process] = send.offset


def known_offsets(facts: Facts, partition: Partition) -> list[int]:
    """All offsets that a reader should see, in order: without those of failed transactions."""
    sends = partition.sends
    offsets = {
        offset
        for offset, value in partition.values.items()
        if value not in sends or not sends[value].is_superseded
    }
    for offset, value in partition.acknowledged.items():
        send = sends[value]
        name = send.transaction
        if not send.is_superseded and (name is None or _is_committed(facts, name)):
            offsets.add(offset)
    return sorted(offsets)


def above_the_high_watermark(facts: Facts) -> Iterator[Anomaly]:
    """A poll that returned records at or after the high watermark of the same response."""
    for poll in facts.polls:
        if poll.watermarks is not None:
            yield from _above(poll, poll.watermarks)


def _above(poll: Poll, watermarks: dict[str, int]) -> Iterator[Anomaly]:
    for number, offset, _ in poll.records:
        end = watermarks.get(str(number), -1)
        if 0 <= end <= offset:
            what = f"offset {offset} was served with high watermark {end}"
            yield Anomaly("above high watermark", what, poll.at_ns, poll.topic, number)
