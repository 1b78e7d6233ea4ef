"""Companion logs of a partition: the journal of its share groups, its timers.

Invariants: a companion belongs to the broker that owns its partition, under the same leader epoch;
a broker that takes over the partition fences the companion by loading it. It has a chain of ledgers
like any log, under the partition's number with its kind in the high bits, so it is found,
garbage-collected and deleted with the topic. Its existence is recorded in the partition's own chain
before its first record, so that a companion whose chain is missing later is known to be lost. A
companion is created on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.log.log_config import MIB, LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.metadata.facts import CompanionKind, companion_number

if TYPE_CHECKING:
    from headrace.broker.topics.topic import Topic
    from headrace.log.environment import Environment

COMPANION_SEGMENT_BYTES = 16 * MIB
COMPANION_BATCH_BYTES = 64 * MIB
"""Snapshots are split into pieces far below this."""


async def open_companion(
    environment: Environment, topic: Topic, number: int, kind: CompanionKind, *, is_owned: bool
) -> PartitionLog:
    """The companion log of a partition that this broker serves, not yet loaded.

    `is_owned`: other brokers may own the partition at other times, so the log is fenced. Raises
    what loading the partition raises, and MetadataUnavailable, NotOwner.
    """
    data = topic.require_log(number)
    await data.wait_loaded()
    if not data.has_companion(kind):
        await data.note_companion(kind)
    companion = PartitionLog(
        f"{topic.name}-{companion_number(number, kind)}",
        topic.id,
        companion_number(number, kind),
        LogConfig(segment_bytes=COMPANION_SEGMENT_BYTES, max_message_bytes=COMPANION_BATCH_BYTES),
        environment,
        data.leader_epoch if is_owned else None,
    )
    companion.expect_chain(is_expected=True)
    return companion
