"""Checkers of what is stored: each value once, at its offset, as it was sent, and for good.

Invariants: pure and linear. Definitions after Jepsen's Kafka workload, and our own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace_verify.checkers.facts import Anomaly, Facts, Partition, Poll
from headrace_verify.history import FAIL, OK

if TYPE_CHECKING:
    from collections.abc import Iterator


CALENDAR_NS = 1_000_000
"""A broker's calendar counts whole milliseconds."""
LATE_NS = 10_000_000_000
"""How late a delayed message may be, in a cluster that has just been healed."""


def inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    """Two values seen at one offset, by readers or by acknowledgements."""
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
    """One value at two offsets; not of a producer that may try again without a sequence."""
    for (topic, number), partition in facts.partitions.items():
        for clash in partition.repeats:
            send = partition.sends.get(clash.value)
            if send is None or not send.may_repeat:
                what = f"value {clash.value} is at offset {clash.other} and at {clash.offset}"
                yield Anomaly("duplicate", what, clash.at_ns, topic, number)


def misplaced(facts: Facts) -> Iterator[Anomaly]:
    """A value that is stored, but not at the offset that was acknowledged."""
    for (topic, number), partition in facts.partitions.items():
        for send in partition.sends.values():
            if send.outcome != OK or not send.is_read or send.offset < 0:
                continue
            place = partition.places[send.value]
            if place != send.offset and partition.values.get(send.offset) != send.value:
                what = (
                    f"value {send.value} was acknowledged at offset {send.offset},"
                    f" and is at {place}"
                )
                yield Anomaly("misplaced", what, send.ended_ns, topic, number)


def lost_writes(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged, at or below the highest offset read by anybody, read by nobody."""
    yield from _unread(facts, "lost write", is_below=True)


def unseen(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged, behind all that was read when everything was read at the end."""
    yield from _unread(facts, "unseen", is_below=False)


def _unread(facts: Facts, kind: str, *, is_below: bool) -> Iterator[Anomaly]:
    for (topic, number), partition in facts.partitions.items():
        if not is_below and partition.final_end < 0:
            continue  # nobody has read to the end: there is always something under way
        for send in partition.sends.values():
            if send.outcome != OK or send.is_read:
                continue
            if send.transaction is not None and not _is_committed(facts, send.transaction):
                continue
            if send.offset < 0:  # nobody has said where, or it was to come later: somewhere
                ready_ns = send.ended_ns
                if send.due_ns:
                    if facts.is_calendar_set:
                        continue  # it may be due much later
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
    """A group that has read everything has polled each offset that was there at its beginning."""
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
                what = f"group {group} has passed over offset {offset}"
                yield Anomaly("unseen by group", what, until_ns, topic, number)


def vanished(facts: Facts) -> Iterator[Anomaly]:
    """Read by somebody, and behind the end when everything was read: it was shown too early."""
    for (topic, number), partition in facts.partitions.items():
        end, since_ns = partition.final_end, partition.final_ns
        if 0 <= end < partition.read_end and partition.read_end_ns <= since_ns:
            last = partition.read_end - 1
            what = f"offset {last} was read, and at the end the log ends at {end}"
            yield Anomaly("vanished", what, partition.read_end_ns, topic, number)


def strangers(facts: Facts) -> Iterator[Anomaly]:
    """A value that nobody had sent to this partition of this topic."""
    for (topic, number), partition in facts.partitions.items():
        for clash in partition.strangers:
            what = f"offset {clash.offset} holds value {clash.value}, which nobody sent there"
            yield Anomaly("stranger", what, clash.at_ns, topic, number)


def early(facts: Facts) -> Iterator[Anomaly]:
    """A delayed value that was read before its time."""
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
    """A record whose bytes are not those that were sent."""
    for (topic, number), partition in facts.partitions.items():
        for clash in partition.damaged:
            what = f"the bytes at offset {clash.offset} are those of no value"
            yield Anomaly("changed bytes", what, clash.at_ns, topic, number)


def aborted_reads(facts: Facts) -> Iterator[Anomaly]:
    """A read of a value whose writer is known to have failed."""
    for (topic, number), partition in facts.partitions.items():
        for send in partition.sends.values():
            if send.is_read and (send.outcome == FAIL or _is_aborted(facts, send.transaction)):
                what = f"value {send.value} was read, and its sending had failed"
                yield Anomaly("aborted read", what, send.ended_ns, topic, number)


def _is_aborted(facts: Facts, name: str | None) -> bool:
    return name is not None and facts.transactions[name].outcome == "abort"


def _is_committed(facts: Facts, name: str) -> bool:
    return facts.transactions[name].outcome == "commit"


def non_monotonic_sends(facts: Facts) -> Iterator[Anomaly]:
    """Acknowledged sends of one producer to one partition, in its order, going back."""
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
    """All offsets that a reader should meet, in order: not those of transactions that failed."""
    offsets = set(partition.values)
    for offset, value in partition.acknowledged.items():
        name = partition.sends[value].transaction
        if name is None or _is_committed(facts, name):
            offsets.add(offset)
    return sorted(offsets)


def above_the_high_watermark(facts: Facts) -> Iterator[Anomaly]:
    """A poll that brought what lies at or behind the high watermark of the same answer."""
    for poll in facts.polls:
        if poll.watermarks is not None:
            yield from _above(poll, poll.watermarks)


def _above(poll: Poll, watermarks: dict[str, int]) -> Iterator[Anomaly]:
    for number, offset, _ in poll.records:
        end = watermarks.get(str(number), -1)
        if 0 <= end <= offset:
            what = f"offset {offset} was served with high watermark {end}"
            yield Anomaly("above high watermark", what, poll.at_ns, poll.topic, number)
