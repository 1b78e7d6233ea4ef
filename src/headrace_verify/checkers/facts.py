"""Parses a history once into facts about each partition, group and transaction.

Invariants: pure; one pass, with constant work per event and per polled record. It records conflicts
without judging them. Every checker uses these facts.

How it works: the order of a partition is the values at its offsets, according to acknowledged sends
and polls (holes are allowed: markers). A value has a unique number above 0 in the whole history; 0
means that a record's bytes match no value.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_verify.checkers.node_faults import NodeFaults
from headrace_verify.history import (
    ACQUIRE,
    ASSIGN,
    BEGIN,
    COMMIT,
    COMMITTED,
    DEAD,
    DRAINED,
    FAIL,
    INIT,
    INVOKE,
    NOTE,
    OFFSETS,
    OK,
    POLL,
    REVOKE,
    SEND,
    SETTLE,
    TRANSACTION,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from headrace_verify.history import Event

OPEN = ""
"""The outcome of an operation that has not completed."""


class Anomaly(NamedTuple):
    """An event that must not occur in a history."""

    kind: str
    what: str
    """A description, with offsets and values."""
    at_ns: int
    """When it was observed."""
    topic: str = ""
    partition: int = -1


@dataclass(slots=True)
class Send:
    """One value that was sent."""

    value: int
    process: str
    invoked_ns: int
    number: int
    """The position in the producer's own order in this partition."""
    may_repeat: bool
    """A producer that retries without sequence numbers may write twice."""
    transaction: str | None
    source: tuple[str, int, int] | None = None
    """Topic, partition and offset of the record that was copied."""
    due_ns: int = 0
    """Must not be read before this time; 0: no delay."""
    may_expire: bool = False
    expires_ns: int = 0
    """Must not be delivered after this time; 0: unknown, or it does not expire."""
    is_superseded: bool = False
    """A later record of its key is in the same compacted topic: it may be missing."""
    outcome: str = OPEN
    ended_ns: int = 0
    offset: int = -1
    is_read: bool = False
    by: str = ""
    """The node that stored it, if known for certain."""


class Clash(NamedTuple):
    """Two contradictory reads, or one of a record that should not exist."""

    offset: int
    value: int
    other: int
    """The other value at the offset, or the other offset of the value."""
    at_ns: int


@dataclass(slots=True)
class Partition:
    """What is known about one partition."""

    sends: dict[int, Send] = field(default_factory=dict)
    acknowledged: dict[int, int] = field(default_factory=dict)
    """Offset -> the first value acknowledged at it."""
    values: dict[int, int] = field(default_factory=dict)
    """Offset -> the first value read at it."""
    places: dict[int, int] = field(default_factory=dict)
    """Value -> the first offset at which it was read."""
    read_end: int = 0
    """The end of the highest offset read."""
    read_end_ns: int = 0
    clashes: list[Clash] = field(default_factory=list)
    """Two values at one offset."""
    repeats: list[Clash] = field(default_factory=list)
    """One value at two offsets."""
    strangers: list[Clash] = field(default_factory=list)
    """Values that were not sent to this partition."""
    damaged: list[Clash] = field(default_factory=list)
    """Records whose bytes match no value."""
    final_end: int = -1
    """The end of the final read; -1 if there was none."""
    final_ns: int = 0
    marks: list[tuple[int, int, int, str]] = field(default_factory=list)
    """(since, until, minimum log end, source)."""
    ends: list[tuple[int, int, int]] = field(default_factory=list)
    """(since, until, high watermark) from ListOffsets."""
    starts: list[tuple[int, int, int]] = field(default_factory=list)
    """(since, until, log start offset) from ListOffsets."""
    epochs: dict[int, tuple[int, int, int]] = field(default_factory=dict)
    """Base offset of a batch -> (its end offset, leader epoch, when it was read)."""

    def acknowledge(self, offset: int, value: int, at_ns: int) -> None:
        """Record an acknowledgement of `value` at `offset`."""
        known = self.acknowledged.setdefault(offset, value)
        if known != value:
            self.clashes.append(Clash(offset, value, known, at_ns))

    def see(self, offset: int, value: int, at_ns: int) -> None:
        """Record a read of `value` at `offset`."""
        known = self.values.get(offset)
        if known == value:
            return
        if value <= 0:
            self.damaged.append(Clash(offset, value, known or 0, at_ns))
            return
        if known is not None:
            self.clashes.append(Clash(offset, value, known, at_ns))
        else:
            self.values[offset] = value
            if offset >= self.read_end:
                self.read_end, self.read_end_ns = offset + 1, at_ns
        place = self.places.setdefault(value, offset)
        if place != offset:
            self.repeats.append(Clash(offset, value, place, at_ns))
        send = self.sends.get(value)
        if send is None:
            self.strangers.append(Clash(offset, value, 0, at_ns))
        else:
            send.is_read = True


@dataclass(slots=True)
class Poll:
    """One poll's records of one topic."""

    process: str
    since_ns: int
    at_ns: int
    topic: str
    records: list[list[int]]
    """[partition, offset, value] in delivery order."""
    group: str | None
    transaction: str | None
    is_final: bool
    watermarks: dict[str, int] | None
    """High watermark by partition, if the response had it."""


@dataclass(slots=True)
class Ownership:
    """A member's partitions were assigned or revoked."""

    at_ns: int
    process: str
    group: str | None
    member: str
    generation: int
    partitions: list[tuple[str, int]]
    is_assigned: bool


@dataclass(slots=True)
class Commit:
    """A request to commit a group's offset."""

    invoked_ns: int
    process: str
    group: str
    member: str
    generation: int
    offsets: list[tuple[str, int, int]]
    outcome: str = OPEN
    ended_ns: int = 0
    transaction: str | None = None


@dataclass(slots=True)
class CommittedRead:
    """A read of a group's committed offset."""

    since_ns: int
    at_ns: int
    group: str
    offsets: list[tuple[str, int, int]]


@dataclass(slots=True)
class Transaction:
    """One transaction: its sends and reads."""

    name: str
    sends: list[tuple[str, int, Send]] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    outcome: str = OPEN
    """`commit`, `abort`, or open: unknown."""
    asked_ns: int = 0
    """When a commit was first requested; 0: never, or not recorded."""
    begun_ns: int = 0
    """0: not recorded; else commit requests are recorded, too."""
    instance: str = ""
    """The producer's instance: see `Init`."""


class Init(NamedTuple):
    """A producer instance got its epoch, which fences the other instances of its id."""

    since_ns: int
    at_ns: int
    id: str
    instance: str


class DeadLetter(NamedTuple):
    """A copy in a dead letter topic."""

    value: int
    place: tuple[int, int]
    """Its own partition and offset."""
    reason: str
    at_ns: int
    """When it was read."""


@dataclass(slots=True)
class Facts:
    """A whole history."""

    partitions: dict[tuple[str, int], Partition] = field(default_factory=dict)
    polls: list[Poll] = field(default_factory=list)
    ownerships: list[Ownership] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed: list[CommittedRead] = field(default_factory=list)
    transactions: dict[str, Transaction] = field(default_factory=dict)
    inits: dict[str, Init] = field(default_factory=dict)
    """Instance -> its Init events, in order of time."""
    deliveries: list[Event] = field(default_factory=list)
    """Share groups: acquisitions and settlements, in order of time."""
    copiers: set[str] = field(default_factory=set)
    """Groups that commit their offsets in the transactions that write the copies."""
    drained: dict[str, int] = field(default_factory=dict)
    """Group -> when it was found to have read everything."""
    drained_upto: dict[str, list[tuple[str, int, int]]] = field(default_factory=dict)
    """Share group -> topic, partition and end of what it has finished."""
    dead: dict[tuple[str, str, int, int], dict[tuple[int, int], DeadLetter]] = field(
        default_factory=dict
    )
    """Share group, topic, partition and offset of the origin -> copies by their own position."""
    with_dead_letters: set[str] = field(default_factory=set)
    """Share groups whose dead letter topics were read."""
    node_faults: NodeFaults = field(default_factory=NodeFaults)
    is_calendar_set: bool = False
    """Whether wall clocks jump in this run: then early deliveries are not judged."""
    clients: dict[str, str] = field(default_factory=dict)
    """Process -> its kind of client."""
    counts: dict[str, int] = field(default_factory=dict)
    """Operation and kind -> count."""

    def partition(self, topic: str, number: int) -> Partition:
        """Return the facts of one partition."""
        found = self.partitions.get((topic, number))
        if found is None:
            found = self.partitions[topic, number] = Partition()
        return found


class _Gatherer:
    def __init__(self) -> None:
        self.facts = Facts()
        self._commits: dict[tuple[str, int], Commit] = {}
        self._order: dict[tuple[str, str, int], int] = {}
        self.actions = {
            SEND: self._send,
            POLL: self._poll,
            ASSIGN: self._own,
            REVOKE: self._own,
            COMMIT: self._commit,
            COMMITTED: self._read_committed,
            OFFSETS: self._list,
            TRANSACTION: self._transact,
            BEGIN: self._begin,
            INIT: self._init,
            ACQUIRE: self.facts.deliveries.append,
            SETTLE: self.facts.deliveries.append,
            DRAINED: self._drain,
            DEAD: self._die,
            NOTE: self._note,
        }

    def _send(self, event: Event) -> None:
        topic, number, value = event["topic"], event["part"], event["value"]
        partition = self.facts.partition(topic, number)
        kind, at_ns = event["k"], event["t"]
        if kind == INVOKE:
            place = (event["p"], topic, number)
            order = self._order[place] = self._order.get(place, 0) + 1
            name = event.get("txn")
            source = tuple(event["of"]) if "of" in event else None
            again, due_ns = bool(event.get("again")), event.get("due", 0)
            expires = bool(event.get("expires"))
            send = Send(value, event["p"], at_ns, order, again, name, source, due_ns, expires)
            send.expires_ns = event.get("until", 0)
            send.is_superseded = bool(event.get("superseded"))
            partition.sends[value] = send
            if name is not None:
                self._transaction(name).sends.append((topic, number, send))
            return
        found = partition.sends.get(value)
        if found is None:
            return  # the beginning of the history is missing
        found.outcome, found.ended_ns = kind, at_ns
        if kind == OK and event["offset"] >= 0:
            offset = found.offset = event["offset"]
            found.by = event.get("by", "")
            partition.acknowledge(offset, value, at_ns)
            partition.marks.append((found.invoked_ns, at_ns, offset + 1, "acknowledged"))

    def _poll(self, event: Event) -> None:
        topic, at_ns, records = event["topic"], event["t"], event["recs"]
        poll = Poll(
            event["p"],
            event["since"],
            at_ns,
            topic,
            records,
            event.get("group"),
            event.get("txn"),
            bool(event.get("final")),
            event.get("hw"),
        )
        self.facts.polls.append(poll)
        if poll.transaction is not None:
            self._transaction(poll.transaction).polls.append(poll)
        ends: dict[int, int] = {}
        partition, last = None, -1
        for number, offset, value in records:
            if partition is None or number != last:
                partition, last = self.facts.partition(topic, number), number
            partition.see(offset, value, at_ns)
            if offset >= ends.get(number, 0):
                ends[number] = offset + 1
        for number, end in ends.items():
            self.facts.partition(topic, number).marks.append((poll.since_ns, at_ns, end, "read"))
        for number, first, end, epoch in event.get("epochs") or ():
            self.facts.partition(topic, number).epochs[first] = end, epoch, at_ns
        for key, end in (event.get("upto") or {}).items():
            partition = self.facts.partition(topic, int(key))
            if at_ns >= partition.final_ns:
                partition.final_end, partition.final_ns = end, at_ns

    def _own(self, event: Event) -> None:
        self.facts.ownerships.append(
            Ownership(
                event["t"],
                event["p"],
                event.get("group"),
                event.get("member", ""),
                event.get("gen", -1),
                [(topic, number) for topic, number in event["parts"]],
                event["f"] == ASSIGN,
            )
        )

    def _commit(self, event: Event) -> None:
        key = event["p"], event["op"]
        if event["k"] == INVOKE:
            commit = Commit(
                event["t"],
                event["p"],
                event["group"],
                event.get("member", ""),
                event.get("gen", -1),
                [(topic, number, offset) for topic, number, offset in event["offs"]],
            )
            if event.get("txn") is not None:
                self.facts.copiers.add(commit.group)
                commit.transaction = event["txn"]
            self._commits[key] = commit
            self.facts.commits.append(commit)
            return
        found = self._commits.pop(key, None)
        if found is not None:
            found.outcome, found.ended_ns = event["k"], event["t"]

    def _read_committed(self, event: Event) -> None:
        offsets = [(topic, number, offset) for topic, number, offset in event["offs"]]
        read = CommittedRead(event["since"], event["t"], event["group"], offsets)
        self.facts.committed.append(read)

    def _list(self, event: Event) -> None:
        partition = self.facts.partition(event["topic"], event["part"])
        partition.ends.append((event["since"], event["t"], event["end"]))
        partition.starts.append((event["since"], event["t"], event["start"]))

    def _transaction(self, name: str) -> Transaction:
        found = self.facts.transactions.get(name)
        if found is None:
            found = self.facts.transactions[name] = Transaction(name)
        return found

    def _begin(self, event: Event) -> None:
        found = self._transaction(event["txn"])
        found.begun_ns, found.instance = event["t"], event["instance"]

    def _init(self, event: Event) -> None:
        init = Init(event["since"], event["t"], event["id"], event["instance"])
        self.facts.inits[init.instance] = init

    def _transact(self, event: Event) -> None:
        found = self._transaction(event["txn"])
        if event["k"] == INVOKE:
            if event["end"] == "commit":
                found.asked_ns = found.asked_ns or event["t"]
        elif event["k"] == OK:
            found.outcome = event["end"]
        elif event["k"] == FAIL:
            found.outcome = "abort"

    def _note(self, event: Event) -> None:
        if event.get("what") == "started":
            self.facts.clients[event["p"]] = event.get("kind", "")
        elif event.get("what") == "calendars are set":
            self.facts.is_calendar_set = True
        elif event.get("what") in {"fault", "healed"}:
            self.facts.node_faults.note(event)
            self.facts.is_calendar_set |= event["fault"] == "clock"

    def _die(self, event: Event) -> None:
        origin = event["group"], event["topic"], event["part"], event["offset"]
        place = event["at"][0], event["at"][1]
        copy = DeadLetter(event["value"], place, event.get("reason", ""), event["t"])
        self.facts.dead.setdefault(origin, {}).setdefault(place, copy)

    def _drain(self, event: Event) -> None:
        self.facts.drained[event["group"]] = event["t"]
        if event.get("dead"):
            self.facts.with_dead_letters.add(event["group"])
        if "upto" in event:
            upto = [(topic, number, end) for topic, number, end in event["upto"]]
            self.facts.drained_upto[event["group"]] = upto


def gather(events: Iterable[Event]) -> Facts:
    """Parse a history. Events are in order of their times."""
    gatherer = _Gatherer()
    actions: dict[str, Any] = gatherer.actions
    counts = gatherer.facts.counts
    for event in events:
        name = event["f"]
        action = actions.get(name)
        if action is not None:
            action(event)
        key = f"{name} {event['k']}"
        counts[key] = counts.get(key, 0) + 1
    return gatherer.facts
