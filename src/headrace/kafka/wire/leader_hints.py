"""The leader of a partition, sent with the error that this broker does not serve it (KIP-951).

Invariants: encodes two tagged fields. A client that gets them continues at the right broker at
once, instead of requesting metadata first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.kafka.wire.primitives import INT32, compact_string, write_uvarint

if TYPE_CHECKING:
    from collections.abc import Iterable

ENDPOINTS_TAG = 0


class LeaderHint(NamedTuple):
    """The leader of a partition, its epoch, and its address."""

    broker_id: int
    leader_epoch: int
    host: str
    port: int
    rack: str | None


def leader_field(tag: int, hint: LeaderHint) -> bytes:
    """The tags of a partition: CurrentLeader only."""
    body = INT32.pack(hint.broker_id) + INT32.pack(hint.leader_epoch) + b"\x00"
    return b"\x01" + write_uvarint(tag) + write_uvarint(len(body)) + body


def endpoints_field(hints: Iterable[LeaderHint]) -> bytes:
    """The tags of a response: NodeEndpoints of all brokers that it names, or no tags."""
    by_id = {hint.broker_id: hint for hint in hints}
    if not by_id:
        return b"\x00"
    body = write_uvarint(len(by_id) + 1)
    for hint in by_id.values():
        body += INT32.pack(hint.broker_id) + compact_string(hint.host.encode())
        body += INT32.pack(hint.port)
        body += b"\x00" if hint.rack is None else compact_string(hint.rack.encode())
        body += b"\x00"
    return b"\x01" + write_uvarint(ENDPOINTS_TAG) + write_uvarint(len(body)) + body
