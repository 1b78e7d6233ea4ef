"""What follows when a topic's fact is gone: nobody serves its partitions, their ledgers go.

Rules of the room: over what is left of the topic; `Topics` has forgotten it. Brokers hear of a
deletion one after another. One that has not yet heard could take records for the next topic of that
name, acknowledge them, and lose them a moment later; and it could show the old ones. So a deletion
is answered when that is over: over shared storage the logs are taken from whoever serves them, for
writers, and whoever serves them is waited for, for readers' sake; where each worker has ledgers of
its own, there is only the waiting.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, StorageUnavailable
from headrace.log.fencing import shut_out
from headrace.metadata.store import ANY

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.ownership import Ownership
    from headrace.broker.topic import Topic
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

SHUT_OUT_WAIT_S = 10.0
HEARD_WAIT_S = 3.0
PARTITIONS_AT_ONCE = 64
TRIES_MAX = 60
RETRY_S = 1.0


async def clear(
    environment: Environment, partitions: Sequence[PartitionLog], keys: Sequence[str]
) -> None:
    """Delete the ledgers of partitions whose topic is gone, then what says which these are."""
    for partition in partitions:
        await partition.upkeep.delete()
    for key in keys:
        if await environment.metadata.get(key) is not None:
            await environment.metadata.delete(key, ANY)


async def await_end(environment: Environment, ownership: Ownership, topic: Topic) -> None:
    """Wait until no broker serves the deleted `topic`.

    Raises StorageUnavailable if one might still take records.
    """
    if environment.is_shared:
        await _shut_out_all(environment, topic)
    if not await ownership.wait_ended(topic, HEARD_WAIT_S):
        if not environment.is_shared:
            raise _in_doubt(topic, "a worker has not answered")
        log.warning("a broker may still show records of topic %s, which is deleted", topic.name)


async def _shut_out_all(environment: Environment, topic: Topic) -> None:
    """Let nobody write to the topic; goes on with it when it has said that it takes too long."""
    numbers = range(topic.fact.partition_count)
    at_once = asyncio.Semaphore(PARTITIONS_AT_ONCE)
    failed: dict[int, HeadraceError | None] = dict.fromkeys(numbers)

    async def persist(number: int) -> None:
        for _ in range(TRIES_MAX):
            try:
                async with at_once:
                    await shut_out(environment, topic.id, number)
            except HeadraceError as error:
                failed[number] = error
                await asyncio.sleep(RETRY_S)
            else:
                del failed[number]
                return
        log.warning("deleted %s-%d may still be written to: %s", topic.name, number, failed[number])

    async def shut_out_all() -> None:
        await asyncio.gather(*(persist(number) for number in numbers))

    task = environment.tasks.start(shut_out_all(), f"shut writers out of {topic.name}")
    await asyncio.wait({task}, timeout=SHUT_OUT_WAIT_S)
    if failed:
        why = next((error for error in failed.values() if error is not None), "it takes long")
        raise _in_doubt(topic, why)


def _in_doubt(topic: Topic, why: object) -> StorageUnavailable:
    return StorageUnavailable(
        f"topic {topic.name!r} is deleted, but a broker that has not heard of it may take records"
        f" that go with it ({why}): wait a minute before another topic is made under this name"
    )
