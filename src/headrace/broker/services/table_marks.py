"""Which records are in tables: what the archives of tables have committed.

Invariants: knows no protocol, and no table: it repeats what an archive said with its last commit.
Loads no group: a broker that has just become the coordinator of a table's group may not know of it
yet. A mark that is of another topic of this name says nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.owner_calls import checked, split
from headrace.broker.services.search import DELAYED, HALF, LOG
from headrace.broker.services.trace import Trace, TraceEvent
from headrace.records.attributes import TIME_MS_MAX
from headrace.records.identifiers import kafka_uuid
from headrace.records.table_marks import TableMark, is_table_group

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.topics.topic import Topic

MARKS_MAX: Final = 1_000
"""Of one broker: if there are more, a trace shows so many and says so."""


class Marked(NamedTuple):
    """What the archive of a table has committed of a partition."""

    group: str
    number: int
    end: int
    mark: TableMark
    at_ms: int

    @property
    def named(self) -> dict[str, Any]:
        """The table, and the group of its archive."""
        names = "table", "table_uuid", "mode"
        return {"group": self.group, **{name: getattr(self.mark, name) for name in names}}


class TableMarks:
    """See the module."""

    def __init__(self, calls: OwnerCalls, groups: GroupCoordinator) -> None:
        self._calls = calls
        self._groups = groups
        calls.offer_of_broker("groups.table_marks", self._here)

    async def add_events(self, topic: Topic, trace: Trace) -> None:
        """Add in which tables the messages of a trace are that are in the log of `topic`. If none
        is, and none waits: which tables may have them, because they took what the log had."""
        places = {(one.partition, one.record.offset) for one in trace.messages if one.state == LOG}
        if not places:
            if not any(one.state in {DELAYED, HALF} for one in trace.messages):
                await self.add_tables(topic, range(len(topic.partitions)), 0, trace)
            return
        numbers = sorted({number for number, _ in places})
        for mark in await self._marks(topic, numbers, trace):
            details = mark.named | {
                "snapshot_or_earlier": str(mark.mark.snapshot_id),  # JavaScript rounds the number
                "committed_ms": mark.at_ms,
            }
            trace.events += [
                TraceEvent(TIME_MS_MAX, "in_table", topic.name, mark.number, offset, details)
                for partition, offset in sorted(places)
                if partition == mark.number and offset < mark.end
            ]

    async def add_tables(
        self, topic: Topic, numbers: Sequence[int], offset: int, trace: Trace
    ) -> None:
        """Add the tables whose archives are past this offset in one of these partitions."""
        marks = await self._marks(topic, numbers, trace)
        found = {one.mark.table_uuid: one.named for one in marks if one.end > offset}
        trace.tables = sorted(found.values(), key=lambda one: (one["table"], one["table_uuid"]))

    async def _marks(self, topic: Topic, numbers: Sequence[int], trace: Trace) -> list[Marked]:
        answers = await self._calls.ask_brokers("groups.table_marks", [topic.name, [*numbers]])
        found, failed = split(answers)
        for broker, rows in found.items():
            if len(rows) > MARKS_MAX:
                trace.unknown.append(
                    f"further tables: broker {broker} coordinates the groups of more than"
                    f" {MARKS_MAX:,} marks of these partitions"
                )
        for broker, error in failed.items():
            trace.unknown.append(f"tables whose group broker {broker} coordinates: {error}")
        rows = (row for part in found.values() for row in part[:MARKS_MAX])
        marks = ((row, TableMark.decode_or_none(row[3])) for row in rows)
        return [
            Marked(group, number, end, mark, at_ms)
            for (group, number, end, _, at_ms), mark in marks
            if mark is not None and mark.topic_id == kafka_uuid(topic.id)
        ]

    async def _here(self, asked: Any) -> Any:
        name, numbers = checked(asked, str, list)
        wanted = {*numbers}
        marks = (
            (group_id, one.partition, one.offset, one.metadata, one.timestamp_ms)
            for group_id, one in self._groups.loaded_offsets(is_table_group)
            if one.topic == name and one.partition in wanted
        )
        return [*islice(marks, MARKS_MAX + 1)]  # one more says that there are more
