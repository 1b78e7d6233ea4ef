"""What is wrong on a broker: one verdict for readiness, metrics, and commands about the cluster.

Invariants: reads state that exists anyway; loads no log and asks nobody. Each problem names what is
affected, in the words of its users, and its reason, which ends with the next step.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import CopiesDamaged, DataCorrupt, HeadraceError, Retriable
from headrace.metadata.health_facts import PROBLEMS_MAX, HealthFact, Problem, health_key
from headrace.metadata.store import ANY
from headrace.metadata.titles import log_title

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.topics.ownership import Ownership
    from headrace.broker.topics.topics import Topics
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.store import MetadataStore

log = logging.getLogger(__name__)

PUBLISH_S = 2.0
REPEAT_S = 20.0
"""Published again after this time: the key is lost with the broker's session."""


class OpenedCounts(NamedTuple):
    """The partitions that a broker has opened, or tried to."""

    served: int
    refused: int


class Health:
    """The verdict of one broker."""

    def __init__(
        self,
        topics: Topics,
        ownership: Ownership,
        metadata: MetadataStore,
        *losses: Mapping[str, str],
    ) -> None:
        """`losses`: what was lost while this broker knew it, with the reason."""
        self._metadata = metadata
        self._topics = topics
        self._ownership = ownership
        self._losses = losses

    @property
    def damaged_facts(self) -> dict[str, str]:
        """The keys of facts that cannot be decoded, with the reason."""
        return {**self._topics.damaged_facts, **self._ownership.damaged_facts}

    def problems(self) -> list[Problem]:
        """Everything that this broker knows to be wrong, sorted."""
        known = (self.damaged_facts, *self._losses)
        found = [Problem(what, reason) for each in known for what, reason in each.items()]
        for partition in self._logs():
            reason = _refusal(partition)
            if reason is not None:
                what = log_title(partition.name)
                found.append(Problem(what, str(reason), not _is_damage(reason)))
        return sorted(found)

    def opened(self) -> OpenedCounts:
        """How many of this broker's partitions are served, and how many refuse."""
        served = refused = 0
        for partition in self._logs():
            served += partition.is_loaded
            refused += _refusal(partition) is not None
        return OpenedCounts(served, refused)

    def damaged_partitions(self) -> list[str]:
        """The partitions and companion logs that stay closed until they are repaired."""
        return [
            log_title(partition.name)
            for partition in self._logs()
            if _is_damage(_refusal(partition))
        ]

    def _logs(self) -> Iterator[PartitionLog]:
        topics = self._topics
        for topic in topics.by_name.values():
            for _, partition in topic.logs:
                yield partition
        for key, companion in list(topics.logs.companions.items()):
            is_over = companion.failure is not None and not isinstance(
                companion.failure, DataCorrupt
            )
            if is_over or key[0] not in topics.by_id:
                del topics.logs.companions[key]  # its host opens another when it needs one
            else:
                yield companion

    async def publish(self, broker_id: int) -> None:
        """Store the problems, for `cluster status` and `cluster verify`, until cancelled."""
        shown: list[Problem] = []
        at_s, loop = 0.0, asyncio.get_running_loop()
        key = health_key(broker_id)
        while True:
            await asyncio.sleep(PUBLISH_S)
            found = self.problems()[:PROBLEMS_MAX]
            if found == shown and (not found or loop.time() - at_s < REPEAT_S):
                continue
            try:
                if found:
                    await self._metadata.put(key, HealthFact(found).encode(), ANY, ephemeral=True)
                else:
                    await self._metadata.delete(key, ANY)
            except HeadraceError as error:
                log.debug("cannot publish what is wrong here yet: %s", error)
            else:
                shown, at_s = found, loop.time()


def _is_damage(reason: HeadraceError | None) -> bool:
    """Whether waiting does not help: an operator has to repair something."""
    return isinstance(reason, CopiesDamaged) or not isinstance(reason, Retriable | None)


def _refusal(partition: PartitionLog) -> HeadraceError | None:
    """Why the partition is not served, if that is not because of its owner."""
    if isinstance(partition.failure, DataCorrupt):
        return partition.failure
    return partition.trouble if partition.failure is None else None
