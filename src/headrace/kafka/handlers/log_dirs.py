"""DescribeLogDirs and AlterReplicaLogDirs: the disk of the ledgers, and each partition's size.

Invariants: a broker has one directory of ledgers; its path is not revealed to clients. "Usable" is
the space for records: free bytes without the reserve (KIP-827). Partitions can only be "moved" to
the one directory, in which they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError, NotOwner, StorageUnavailable
from headrace.kafka import apis
from headrace.kafka.error_codes import LOG_DIR_NOT_FOUND, NONE, REPLICA_NOT_AVAILABLE, code_of

if TYPE_CHECKING:
    from collections.abc import Container

    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

LOG_DIR = "ledgers"


def _space(node: Node) -> tuple[int, int, HeadraceError | None]:
    """(total bytes, usable bytes, error); -1 if the ledgers are not on this machine."""
    if node.space is None:
        return -1, -1, None
    try:
        space = node.space.space()
    except OSError as error:
        return -1, -1, StorageUnavailable(f"cannot read the free space of the disk: {error}")
    usable = 0 if space.is_full else max(space.free_bytes - space.reserve_bytes, 0)
    return space.total_bytes, usable, None


async def _topic(node: Node, name: str, wanted: Container[int]) -> dict[str, Any] | None:
    topic = node.topics.by_name.get(name)
    if topic is None:
        return None
    partitions = []
    for number, partition in topic.logs:
        if number not in wanted:
            continue
        try:
            await node.partition_ready(partition)
        except HeadraceError:
            continue  # another broker's, or damaged: its size is not known here
        partitions.append(
            {
                "partition_index": number,
                "partition_size": partition.size_bytes,
                "offset_lag": 0,
                "is_future_key": False,
            }
        )
    return {"name": name, "partitions": partitions} if partitions else None


async def describe_log_dirs(node: Node, request: Any, _context: Context) -> Answer:
    """DescribeLogDirs of this broker."""
    total_bytes, usable_bytes, error = _space(node)
    wanted: dict[str, set[int]] = {}
    if request.topics is None:
        for topic in node.topics.by_name.values():
            wanted[topic.name] = set(range(len(topic.partitions)))
    else:
        for item in request.topics:
            wanted.setdefault(item.topic, set()).update(item.partitions)
    topics = [await _topic(node, name, numbers) for name, numbers in wanted.items()]
    result = {
        "error_code": code_of(error),
        "log_dir": LOG_DIR,
        "topics": [topic for topic in topics if topic is not None],
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
        "is_cordoned": False,
    }
    return {"error_code": 0, "results": [result]}


def _moved(node: Node, path: str, name: str, number: int) -> int:
    """The error code of moving a partition to a directory."""
    try:
        node.topics.get(name).require_log(number)
    except NotOwner:
        return REPLICA_NOT_AVAILABLE
    except HeadraceError as error:
        return code_of(error)
    return NONE if path == LOG_DIR else LOG_DIR_NOT_FOUND


async def alter_replica_log_dirs(node: Node, request: Any, _context: Context) -> Answer:
    """AlterReplicaLogDirs (KIP-113)."""
    codes: dict[str, dict[int, int]] = {}
    for folder in request.dirs:
        for topic in folder.topics:
            results = codes.setdefault(topic.name, {})
            for number in topic.partitions:
                results[number] = _moved(node, folder.path, topic.name, number)
    return {
        "results": [
            {
                "topic_name": name,
                "partitions": [
                    {"partition_index": number, "error_code": code}
                    for number, code in results.items()
                ],
            }
            for name, results in codes.items()
        ]
    }


HANDLERS: dict[int, Handler] = {
    apis.DESCRIBE_LOG_DIRS: describe_log_dirs,
    apis.ALTER_REPLICA_LOG_DIRS: alter_replica_log_dirs,
}
