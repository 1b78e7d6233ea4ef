"""Detects brokers with full disks, with DescribeLogDirs (KIP-827).

Invariants: reads only. A broker that does not report it counts as having space.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.cli.raw_request import ask

if TYPE_CHECKING:
    from headrace.cli.session import CliSession

# do not change: protocol.
DESCRIBE_LOG_DIRS, VERSION = 35, 4
_NO_TOPICS = b"\x01\x00"  # an empty array, no tags
_HEAD = struct.Struct(">ih")  # throttle time, error
_SPACE = struct.Struct(">qq")


class LogDir(NamedTuple):
    """One directory of a broker."""

    total_bytes: int
    usable_bytes: int


def full_disks(session: CliSession) -> list[str]:
    """Describe the brokers whose disks accept no more records."""
    full = []
    for broker in _brokers(session):
        address = f"{broker.host}:{broker.port}"
        for log_dir in _log_dirs(session, address):
            if log_dir.usable_bytes == 0:
                size = f"{log_dir.total_bytes >> 20} MiB"
                full.append(
                    f"broker {broker.id} at {address} ({size} in total, no space left for records)"
                )
    return full


def _brokers(session: CliSession) -> list[Any]:
    brokers: dict[int, Any] = session.cluster_metadata().brokers
    return [broker for _, broker in sorted(brokers.items())]


def _log_dirs(session: CliSession, address: str) -> list[LogDir]:
    try:
        answer = ask(session, address, (DESCRIBE_LOG_DIRS, VERSION), _NO_TOPICS, is_flexible=True)
        return read_log_dirs(answer)
    except (OSError, struct.error, IndexError):
        return []


def read_log_dirs(answer: bytes) -> list[LogDir]:
    """Parse the directories in a response without topics. Raises struct.error, IndexError."""
    at = _HEAD.size
    count, found = answer[at] - 1, []
    at += 1
    for _ in range(count):
        at += 2  # its error
        at += answer[at] + 1  # its name, and no topics
        found.append(LogDir(*_SPACE.unpack_from(answer, at)))
        at += _SPACE.size + 1
    return found
