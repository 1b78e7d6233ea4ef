"""DescribeLogDirs and AlterReplicaLogDirs: the disk of the ledgers, and each partition's size.

Invariants: a broker has one directory of ledgers; its path is not revealed to clients. "Usable" is
the space for records: free bytes without the reserve (KIP-827). Partitions can only be "moved" to
the one directory, in which they are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.broker.services.topic_service import DiskSpace
from headrace.errors import HeadraceError, NotOwner
from headrace.kafka import apis
from headrace.kafka.error_codes import LOG_DIR_NOT_FOUND, NONE, REPLICA_NOT_AVAILABLE, code_of

if TYPE_CHECKING:
    from headrace.broker.node import Node
    from headrace.kafka.handlers.context import Context, Handler
    from headrace.kafka.wire.schema import Answer

LOG_DIR = "ledgers"


async def describe_log_dirs(node: Node, request: Any, _context: Context) -> Answer:
    """DescribeLogDirs of this broker."""
    topics = node.services.topics
    space, error = DiskSpace(-1, -1), None
    try:
        space = topics.space() or space
    except HeadraceError as refused:
        error = refused
    wanted: dict[str, set[int]] | None = None
    if request.topics is not None:
        wanted = {}
        for item in request.topics:
            wanted.setdefault(item.topic, set()).update(item.partitions)
    result = {
        "error_code": code_of(error),
        "log_dir": LOG_DIR,
        "topics": [
            {
                "name": name,
                "partitions": [
                    {
                        "partition_index": number,
                        "partition_size": size_bytes,
                        "offset_lag": 0,
                        "is_future_key": False,
                    }
                    for number, size_bytes in sizes.items()
                ],
            }
            for name, sizes in (await topics.sizes(wanted)).items()
        ],
        "total_bytes": space.total_bytes,
        "usable_bytes": space.usable_bytes,
        "is_cordoned": False,
    }
    return {"error_code": 0, "results": [result]}


def _moved(node: Node, path: str, name: str, number: int) -> int:
    """The error code of moving a partition to a directory."""
    try:
        node.services.topics.get(name).require_log(number)
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
