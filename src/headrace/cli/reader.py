"""Reads records from partitions: by offset ranges, or as a member of a group.

Invariants: writes bytes to stdout in blocks; knows where to stop; never skips a record silently. An
error of one partition ends the command with a message.
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.cli.client import kafka
from headrace.cli.failures import from_kafka
from headrace.cli.positions import Partition
from headrace.cli.stalls import Stalls
from headrace.runtime.access import Right

if TYPE_CHECKING:
    from headrace.cli.client import Client, KafkaError, Message
    from headrace.cli.progress import Meter
    from headrace.cli.records_out import Writer
    from headrace.cli.session import CliSession

MESSAGES_MAX = 1000  # messages taken from the client at once: amortises the call, bounds the delay
POLL_S = 0.2
COMMIT_EVERY_NS = 1_000_000_000
# Reported by the client, not shown to the user: it recovers by itself.
_PASSING = {"_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"}


class Span(NamedTuple):
    """Offsets `begin` to `end` (exclusive; None: no end)."""

    begin: int
    end: int | None


@dataclass(slots=True)
class ReadState:
    """The state shared by all ways of reading."""

    session: CliSession
    write: Writer
    meter: Meter
    count_max: int | None = None
    read_uncommitted: bool = False
    flush_each: bool = False
    _passing_since_ns: int = field(default=0)

    def consumer(self, **more: Any) -> Client:
        """Create a consumer that leaves no state on the broker unless configured to."""
        isolation = "read_uncommitted" if self.read_uncommitted else "read_committed"
        return self.session.consumer(
            {
                "group.id": "headrace-cli",
                "enable.auto.commit": False,
                "enable.auto.offset.store": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
                "fetch.message.max.bytes": 4_194_304,
                "queued.max.messages.kbytes": 65_536,
                "auto.offset.reset": "error",
                **more,
            }
        )

    def full(self) -> bool:
        """Whether the requested number of records was written."""
        return self.count_max is not None and self.meter.records >= self.count_max

    def put(self, messages: list[Message]) -> None:
        """Write records to stdout."""
        write = self.write
        stdout = sys.stdout.buffer
        stdout.write(b"".join([write(message) for message in messages]))
        if self.flush_each:
            stdout.flush()
        meter = self.meter
        meter.records += len(messages)
        meter.done += len(messages)
        meter.size_bytes += sum([len(message.value() or b"") for message in messages])
        if messages:
            self._passing_since_ns = 0
        meter.tick()

    def check(self, error: KafkaError, topic: str) -> None:
        """Raise on permanent errors of a read; on transient ones, after the time-out."""
        now_ns = time.monotonic_ns()
        if error.name() in _PASSING:
            self._passing_since_ns = self._passing_since_ns or now_ns
            if now_ns - self._passing_since_ns < self.session.timeout_s * 1e9:
                return
        rights = [Right("read", "topic", topic)] if topic else []
        raise self.session.failure(error, "read", *rights)


def read_spans(reader: ReadState, spans: dict[Partition, Span]) -> None:
    """Read each partition from its begin to its end, without a group."""
    topic_partition = kafka().TopicPartition
    ends = {p: s.end for p, s in spans.items() if s.end is None or s.begin < s.end}
    if not ends:
        return
    positions = {p: spans[p].begin for p in ends}
    stalls = Stalls(reader.session, read_uncommitted=reader.read_uncommitted)
    consumer = reader.consumer()
    consumer.assign([topic_partition(p.topic, p.number, spans[p].begin) for p in ends])
    try:
        while ends and not reader.full():
            messages = consumer.consume(_wanted(reader), POLL_S)
            if not messages:
                reader.meter.tick()
                stalls.check(lambda: positions)
                continue
            kept, finished = _sort_out(reader, messages, ends)
            reader.put(kept)
            for message in kept:
                positions[Partition(message.topic(), message.partition())] = message.offset() + 1
            if kept:
                stalls.moved()
            for partition in finished:
                del ends[partition], positions[partition]
            if finished and ends:
                consumer.incremental_unassign(
                    [topic_partition(p.topic, p.number) for p in finished]
                )
    finally:
        consumer.close()


def _wanted(reader: ReadState) -> int:
    if reader.count_max is None:
        return MESSAGES_MAX
    return min(MESSAGES_MAX, reader.count_max - reader.meter.records)


def _sort_out(
    reader: ReadState, messages: list[Message], ends: dict[Partition, int | None]
) -> tuple[list[Message], list[Partition]]:
    """Return the messages inside their ranges, and the completed partitions."""
    kept: list[Message] = []
    finished: list[Partition] = []
    for message in messages:
        partition = Partition(message.topic(), message.partition())
        if partition not in ends or partition in finished:
            continue
        end = ends[partition]
        error = message.error()
        if error is not None:
            if error.name() != "_PARTITION_EOF":
                reader.check(error, message.topic())
            elif end is not None and message.offset() >= 0 and _at_end(message.offset(), end):
                finished.append(partition)
            continue
        offset = message.offset()
        if end is None or offset < end:
            kept.append(message)
        if end is not None and offset >= end - 1:
            finished.append(partition)
    return kept, finished


def _at_end(offset: int, end: int) -> bool:
    # Holes at the end (markers, compaction) give no messages: only the end-of-partition event.
    return offset >= end


def read_group(
    reader: ReadState, topics: list[str], group: str, reset: str, *, follow: bool
) -> None:
    """Read as a member of `group`, which subscribes to topics, and to regular expressions if they
    begin with ^; without `follow`, until every assigned partition is at its end.

    Commits what was written, every second and at the end.
    """
    settings = {"group.id": group, "auto.offset.reset": reset, "topic.blacklist": "^__.*"}
    consumer = reader.consumer(**settings)
    state = _Membership()
    consumer.subscribe(topics, on_assign=state.assigned, on_revoke=state.revoked)
    next_commit_ns = time.monotonic_ns() + COMMIT_EVERY_NS
    stalls = Stalls(reader.session, read_uncommitted=reader.read_uncommitted)
    try:
        while not reader.full() and (follow or not state.is_done()):
            messages = consumer.consume(_wanted(reader), POLL_S)
            good = []
            for message in messages:
                error = message.error()
                if error is None:
                    good.append(message)
                    state.at_end.discard((message.topic(), message.partition()))
                elif error.name() == "_PARTITION_EOF":
                    state.at_end.add((message.topic(), message.partition()))
                else:
                    reader.check(error, message.topic())
            reader.put(good)
            if good:
                stalls.moved()
            else:
                stalls.check(lambda: state.positions(consumer, reader.session.timeout_s))
            for message in good:
                state.next_offsets[message.topic(), message.partition()] = message.offset() + 1
            if time.monotonic_ns() >= next_commit_ns:
                sys.stdout.flush()
                state.commit(consumer, wait=False)
                next_commit_ns = time.monotonic_ns() + COMMIT_EVERY_NS
    finally:
        try:
            sys.stdout.flush()
            state.commit(consumer, wait=True)
        finally:
            consumer.close()


class _Membership:
    """This member's partitions, the offsets written, and the partitions at their ends."""

    def __init__(self) -> None:
        self.held: set[tuple[str, int]] | None = None
        self.at_end: set[tuple[str, int]] = set()
        self.next_offsets: dict[tuple[str, int], int] = {}

    def assigned(self, _consumer: Client, partitions: list[Any]) -> None:
        """Called by the client in a rebalance."""
        self.held = {(p.topic, p.partition) for p in partitions}
        self.at_end = set()

    def revoked(self, consumer: Client, partitions: list[Any]) -> None:
        """Called by the client in a rebalance: commit before the partitions move."""
        self.commit(consumer, wait=True)
        for p in partitions:
            self.next_offsets.pop((p.topic, p.partition), None)
        self.held = None
        self.at_end = set()

    def positions(self, consumer: Client, timeout_s: float) -> dict[Partition, int]:
        """The next offsets of this member's partitions."""
        found: dict[Partition, int] = {}
        for p in consumer.position([kafka().TopicPartition(t, n) for t, n in self.held or ()]):
            offset = p.offset
            if offset < 0:  # nothing was read yet
                (committed,) = consumer.committed([p], timeout=timeout_s)
                offset = committed.offset
            found[Partition(p.topic, p.partition)] = max(offset, 0)  # or the client resets it
        return found

    def is_done(self) -> bool:
        """Whether there is an assignment, and it is completely read."""
        return self.held is not None and self.held <= self.at_end

    def commit(self, consumer: Client, *, wait: bool) -> None:
        """Commit what was written since the last commit."""
        offsets = [kafka().TopicPartition(t, p, o) for (t, p), o in self.next_offsets.items()]
        if not offsets:
            return
        try:
            consumer.commit(offsets=offsets, asynchronous=not wait)
        except kafka().KafkaException as error:
            raise from_kafka(error.args[0], "commit the group's progress") from None
        self.next_offsets.clear()
