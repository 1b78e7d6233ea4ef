"""The table of fuzz targets: every parser of bytes that others send.

Invariants: each target has seeds of its own kind; those of streams are recorded from real clients
(`traffic.jsonl`). Inputs in a corpus name their target by its place in the table: new ones go last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace_verify.fuzz import kafka_targets as kafka
from headrace_verify.fuzz import other_targets as other

if TYPE_CHECKING:
    from collections.abc import Callable


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    one.__name__: one
    for one in (
        kafka.requests, kafka.answers, kafka.batches, kafka.streams, kafka.groups, kafka.metrics,
        other.logins, other.answers_to_logins, other.credentials, other.http2,
        other.header_blocks, other.grpc_messages, other.http, other.bodies, other.expressions,
        other.zookeeper, other.bookkeeper, other.values,
    )
}  # fmt: skip


def target_of(data: bytes) -> str:
    """The name of the target of an input, which is not empty: the first byte chooses it."""
    return [*TARGETS][data[0] % len(TARGETS)]
