"""Writes transaction markers to the partitions that this broker serves.

Invariants: a marker for an internal topic goes through the shard that reads the partition's log, so
that the coordinator learns of it in the same turn. All markers of one call that can be appended
immediately are appended in one turn of the loop and share a group commit.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, StorageUnavailable, TopicUnknown
from headrace.records.identifiers import OFFSETS_TOPIC
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from headrace.broker.coordinators.group_coordinator import GroupCoordinator
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.kit.machine import EndsTransaction
    from headrace.coordination.transactions.state_records import Partition
    from headrace.log.appended import Appended
    from headrace.log.partition_log import PartitionLog
    from headrace.runtime.completion import Completion

READY_ATTEMPTS_MAX = 8
READY_WAIT_S = 2.0
"""How long a marker waits for a log that is not ready before the sender gets a retriable error."""


class MarkerWriter:
    """See the module."""

    def __init__(self, topics: Topics, groups: GroupCoordinator) -> None:
        self._topics = topics
        self._groups = groups
        self.markers_total = 0

    async def write(
        self, marker: EndsTransaction, partitions: Sequence[Partition]
    ) -> dict[Partition, HeadraceError | None]:
        """Write `marker` to each of `partitions`; None if it is durable, else the error."""
        outcomes: dict[Partition, HeadraceError | None] = {}
        under_way: list[tuple[Partition, Completion]] = []
        slow: list[tuple[Partition, Coroutine[None, None, HeadraceError | None]]] = []
        for place in partitions:
            name, number = place
            if name == OFFSETS_TOPIC:
                slow.append((place, self._groups.write_marker(number, marker)))
                continue
            try:
                partition = self._topics.get(name).require_log(number)
                appended = _append(partition, marker)
            except HeadraceError as error:
                outcomes[place] = error
                continue
            if appended is None:
                slow.append((place, self._write_when_ready(partition, marker)))
            else:
                under_way.append((place, appended.completion))
        if slow:
            found = await gather_charged(coroutine for _, coroutine in slow)
            outcomes.update(zip((place for place, _ in slow), found, strict=True))
        for place, completion in under_way:
            outcomes[place] = await _outcome(completion)
        self.markers_total += sum(error is None for error in outcomes.values())
        return outcomes

    async def _write_when_ready(
        self, partition: PartitionLog, marker: EndsTransaction
    ) -> HeadraceError | None:
        try:
            for _ in range(READY_ATTEMPTS_MAX):
                if partition.is_deleted:
                    return TopicUnknown("the topic was deleted")
                if partition.ready is not None:
                    async with asyncio.timeout(READY_WAIT_S):
                        await partition.ready.wait()
                appended = _append(partition, marker)
                if appended is not None:
                    return await _outcome(appended.completion)
        except HeadraceError as error:
            return error
        except TimeoutError:
            pass
        return StorageUnavailable(
            f"{partition.name} does not accept writes at the moment: try again"
        )


def _append(partition: PartitionLog, marker: EndsTransaction) -> Appended | None:
    return partition.append_marker(
        marker.producer_id,
        marker.producer_epoch,
        marker.coordinator_epoch,
        is_commit=marker.is_commit,
        transaction_version=marker.transaction_version,
    )


async def _outcome(completion: Completion) -> HeadraceError | None:
    try:
        await completion.wait()
    except HeadraceError as error:
        return error
    return None
