"""Which records are in tables: what the archives of tables have committed.

Invariants: knows no protocol, and no table: it repeats what an archive said with its last commit.
Loads no group: a broker that has just become the coordinator of a table's group may not know of it
yet. A mark that is of another topic of this name says nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from headrace.broker.services.owner_calls import checked, split
from headrace.broker.services.search import LOG
from headrace.broker.services.trace import Trace, TraceEvent
from headrace.records.attributes import TIME_MS_MAX
from headrace.records.identifiers import kafka_uuid
from headrace.records.table_marks import TableMark, is_table_group

if TYPE_CHECKING:
    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.topics.topic import Topic

MARKS_MAX: Final = 1_000
"""Of one broker: if there are more, a trace shows so many and says so."""


class TableMarks:
    """See the module."""

    def __init__(self, calls: OwnerCalls, groups: GroupCoordinator) -> None:
        self._calls = calls
        self._groups = groups
        calls.offer_of_broker("groups.table_marks", self._here)

    async def add_events(self, topic: Topic, trace: Trace) -> None:
        """Add in which tables the messages of a trace are that are in the log of `topic`."""
        places = {(one.partition, one.record.offset) for one in trace.messages if one.state == LOG}
        if not places:
            return
        numbers = sorted({number for number, _ in places})
        answers = await self._calls.ask_brokers("groups.table_marks", [topic.name, numbers])
        found, failed = split(answers)
        for broker, rows in found.items():
            if len(rows) > MARKS_MAX:
                trace.unknown.append(
                    f"further tables: broker {broker} coordinates the groups of more than"
                    f" {MARKS_MAX:,} marks of these partitions"
                )
        marks = (row for rows in found.values() for row in rows[:MARKS_MAX])
        for group, number, end, metadata, at_ms in marks:
            mark = TableMark.decode_or_none(metadata)
            if mark is None or mark.topic_id != kafka_uuid(topic.id):
                continue
            details = {
                "group": group,
                "table": mark.table,
                "table_uuid": mark.table_uuid,
                "mode": mark.mode,
                "snapshot_or_earlier": str(mark.snapshot_id),  # JavaScript rounds the number
                "committed_ms": at_ms,
            }
            trace.events += [
                TraceEvent(TIME_MS_MAX, "in_table", topic.name, number, offset, details)
                for partition, offset in sorted(places)
                if partition == number and offset < end
            ]
        for broker, error in failed.items():
            trace.unknown.append(f"tables whose group broker {broker} coordinates: {error}")

    async def _here(self, asked: Any) -> Any:
        name, numbers = checked(asked, str, list)
        wanted = {*numbers}
        marks = (
            (group_id, one.partition, one.offset, one.metadata, one.timestamp_ms)
            for group_id, one in self._groups.loaded_offsets(is_table_group)
            if one.topic == name and one.partition in wanted
        )
        return [*islice(marks, MARKS_MAX + 1)]  # one more says that there are more
