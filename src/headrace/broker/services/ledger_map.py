"""The ledgers of a topic: where its records are stored, and whether copies are missing.

Invariants: knows no protocol; changes nothing and loads no log. The owner of a partition answers
from memory; where the machines of a ledger are asked for, from the store's metadata of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from itertools import islice
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.owner_calls import checked, split
from headrace.errors import HeadraceError
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.housekeeping.replication import Replication
    from headrace.broker.housekeeping.tiering import Tiering
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.log.segment import Segment
    from headrace.storage.ledger import LedgerId

LEDGERS_MAX: Final = 200
"""Of one partition, in one answer: the newest."""
LEDGERS_OF_TOPIC_MAX: Final = 5_000
"""Of all partitions of a topic, in one answer, but at least one of each."""
OBJECTS_MAX: Final = 1_000
"""Of one partition, in one answer."""
LACKING_MAX: Final = 1_000
"""Ledgers with missing copies that one broker names."""
LOOKUPS_MAX: Final = 64
"""Ledgers whose metadata is read from the store at the same time."""


NO_TABLES: Final = "the broker was started without --tables"


class Ledger(NamedTuple):
    """One ledger of a partition."""

    ledger: int
    base_offset: int
    end_offset: int
    size_bytes: int
    newest_ms: int
    """The time of its newest record; -1: it has none."""
    is_open: bool
    is_local: bool
    """Whether it is in the ledger store, rather than in object storage alone."""
    is_offloaded: bool
    """Whether it is in object storage."""
    copies_missing: int
    machines: Sequence[str]
    """Where it is stored; empty if it was not asked for, or the store has one machine."""
    is_tabled: bool
    """Whether its records are in the topic's table alone."""
    object_kept_because: str | None
    """Why it keeps its object; None unless the topic's table replaces objects."""


class LedgersOfPartition(NamedTuple):
    """The ledgers of one partition, from oldest to newest."""

    is_loaded: bool
    """False: the partition was not used since its broker's start, and no ledger is known."""
    ledger_count: int
    ledgers: Sequence[Ledger]


class StoredLedger(NamedTuple):
    """A sealed ledger in object storage, and what a reader of it verifies."""

    ledger: int
    base_offset: int
    end_offset: int
    leader_epoch: int
    size_bytes: int
    is_tabled: bool


class ObjectsOfPartition(NamedTuple):
    """Ledgers of one partition that are in object storage, in the order of their offsets."""

    prefix: str | None
    """What the names of their objects begin with; None: the owner has no object storage."""
    objects: Sequence[StoredLedger]
    next_offset: int | None
    """From which to ask for more."""


class LackingLedger(NamedTuple):
    """A ledger of which copies are missing."""

    topic: str
    partition: int
    ledger: int
    copies_missing: int


class LedgerMap:
    """See the module."""

    def __init__(
        self,
        calls: OwnerCalls,
        topics: Topics,
        replication: Replication | None,
        tiering: Tiering | None,
    ) -> None:
        """`replication`: None if ledgers are not replicated; `tiering`: without object storage."""
        self._calls = calls
        self._topics = topics
        self._replication = replication
        self._tiering = tiering
        self._tabling = None if tiering is None else tiering.tabling
        calls.offer("ledgers.of_partition", self._here)
        calls.offer("ledgers.objects", self._objects_here)
        calls.offer_of_broker("ledgers.lacking", self._lacking_here)

    async def lacking(
        self, is_shown: Callable[[str], bool]
    ) -> tuple[list[LackingLedger], int, dict[int, HeadraceError]]:
        """(the ledgers of topics that are shown of which copies are missing, LACKING_MAX of each
        broker, how many there are, the brokers whose part is missing)."""
        answers = await self._calls.ask_brokers("ledgers.lacking", [None])
        topics = {topic for counts, _part in split(answers)[0].values() for topic in counts}
        if hidden := {topic for topic in topics if not is_shown(topic)}:
            answers = await self._calls.ask_brokers("ledgers.lacking", [sorted(topics - hidden)])
        found, failed = split(answers)
        ledgers = {LackingLedger(*one) for _counts, part in found.values() for one in part}
        return sorted(ledgers), sum(sum(one.values()) for one, _part in found.values()), failed

    async def _lacking_here(self, asked: Any) -> Any:
        """How many ledgers lack copies by topic, and the first of them; of all topics if `asked`
        names none."""
        (listed,) = checked(asked, list | None)
        names = None if listed is None else frozenset(listed)
        missing = {} if self._replication is None else self._replication.lacking
        if not missing:
            return {}, []
        found = [
            (topic.name, number, one.ledger, missing[one.ledger])
            for topic in list(self._topics.by_name.values())
            if names is None or topic.name in names
            for number, log in topic.logs
            if self._topics.ownership.is_mine(topic, number)
            for one in log.segments
            if one.ledger in missing
        ]
        return dict(Counter(topic for topic, *_rest in found)), found[:LACKING_MAX]

    async def of_topic(self, topic: Topic) -> dict[int, LedgersOfPartition | HeadraceError]:
        """The newest ledgers of each partition, without their machines, or why they are not
        known."""
        count = max(1, min(LEDGERS_MAX, LEDGERS_OF_TOPIC_MAX // max(1, len(topic.partitions))))
        answers = await self._calls.ask_partitions("ledgers.of_partition", topic, [False, count])
        return {
            number: one if isinstance(one, HeadraceError) else _decoded(one)
            for number, one in answers.items()
        }

    async def of_partition(self, topic: Topic, number: int) -> LedgersOfPartition:
        """The ledgers of one partition with their machines. Raises HeadraceError."""
        asked = [True, LEDGERS_MAX]
        return _decoded(
            await self._calls.ask_partition("ledgers.of_partition", topic, number, asked)
        )

    async def objects_of(
        self, topic: Topic, number: int, offset: int, count: int = OBJECTS_MAX
    ) -> ObjectsOfPartition:
        """The first `count` sealed ledgers with records from `offset` on that are in object
        storage. Raises HeadraceError."""
        asked = [offset, count]
        answer = await self._calls.ask_partition("ledgers.objects", topic, number, asked)
        prefix, objects, next_offset = answer
        return ObjectsOfPartition(prefix, [StoredLedger(*one) for one in objects], next_offset)

    async def _objects_here(self, topic: Topic, number: int, asked: Any) -> Any:
        offset, count = checked(asked, int, int)
        log = topic.require_log(number)
        if self._tiering is None or not log.is_loaded:
            return None, [], None
        offset = max(offset, log.log_start_offset)
        first = bisect_right(log.segments, offset, key=attrgetter("end_offset"))
        found = [
            StoredLedger(
                one.ledger,
                one.base_offset,
                one.end_offset,
                one.leader_epoch,
                one.end_position,
                one.is_tabled,
            )
            for one in islice(log.segments, first, None)
            if one.is_sealed and one.is_offloaded
        ]
        count = max(1, min(count, OBJECTS_MAX))
        next_offset = found[count].base_offset if len(found) > count else None
        return self._tiering.objects_prefix, found[:count], next_offset

    async def place(self, log: PartitionLog, offset: int) -> dict[str, Any]:
        """The ledger of a record on this broker, and the machines one of whose copies it is on."""
        segment = next((one for one in reversed(log.segments) if one.base_offset <= offset), None)
        if segment is None:
            return {}
        found: dict[str, Any] = {"ledger": segment.ledger}
        if self._replication is not None and segment.is_local:
            machines = await self._replication.ledgers.machines(
                segment.ledger, segment.index.position_before(offset)
            )
            found["bookies"] = [*machines]
        return found

    async def _here(self, topic: Topic, number: int, asked: Any) -> Any:
        with_machines, count = checked(asked, bool, int)
        log = topic.require_log(number)
        if not log.is_loaded:
            return False, 0, []
        missing = {} if self._replication is None else self._replication.lacking
        shown = log.segments[-max(1, min(count, LEDGERS_MAX)) :]
        local = [one.ledger for one in shown if one.is_local]
        machines = await self._machines(local) if with_machines else {}
        ledgers = [
            Ledger(
                one.ledger,
                one.base_offset,
                one.end_offset,
                one.end_position,
                one.newest_ms,
                one is log.active,
                one.is_local,
                one.is_offloaded,
                missing.get(one.ledger, 0),
                machines.get(one.ledger, []),
                one.is_tabled,
                self._why_kept(log, one),
            )
            for one in shown
        ]
        return True, len(log.segments), ledgers

    def _why_kept(self, log: PartitionLog, one: Segment) -> str | None:
        if not log.config.is_table_replacing or not one.is_offloaded or one.is_tabled:
            return None
        return NO_TABLES if self._tabling is None else self._tabling.why_kept(one)

    async def _machines(self, ledgers: Sequence[LedgerId]) -> dict[LedgerId, list[str]]:
        """Where each of the ledgers is stored. Raises StorageUnavailable."""
        found: dict[LedgerId, list[str]] = {}
        if self._replication is not None:
            for first in range(0, len(ledgers), LOOKUPS_MAX):
                part = ledgers[first : first + LOOKUPS_MAX]
                names = await gather_charged(map(self._replication.ledgers.machines, part))
                found |= {one: [*some] for one, some in zip(part, names, strict=True)}
        return found


def _decoded(answer: Any) -> LedgersOfPartition:
    is_loaded, count, ledgers = answer
    return LedgersOfPartition(is_loaded, count, [Ledger(*one) for one in ledgers])
