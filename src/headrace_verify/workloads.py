"""The clients' workloads of a run: one table for the simulation and the black-box runs.

Invariants: plain values. A workload names its topics and their settings, and its clients: roles in
the simulation, kinds of clients in black-box runs. Those in `always` take part in every run, so
that the history is worth checking; a seed draws some of the others.
"""

from __future__ import annotations

from typing import Final, NamedTuple

LOG: Final = "log"
TRANSACTIONS: Final = "transactions"
QUEUES: Final = "queues"
COMPACTED: Final = "compacted"
LITE: Final = "lite"
_GROUP: Final = {
    "share.auto.offset.reset": "earliest",
    "share.record.lock.duration.ms": "3000",
    "share.delivery.count.limit": "20",
    "headrace.share.retry.backoff.ms": "500,2000",
}
QUEUE_GROUPS: Final = {
    "shared": _GROUP,
    "ordered": _GROUP | {"headrace.share.key.order": "true"},
}
"""Share groups and their settings. Each reads all topics of its workload."""
_QUEUE: Final = {
    "headrace.message.attributes": "true",
    "headrace.half.check.first.ms": "2000",
    "headrace.half.check.interval.ms": "2000",
    "headrace.half.check.max": "3",
}


class Workload(NamedTuple):
    """See the module."""

    name: str
    topics: dict[str, int]
    """Name -> partitions."""
    always: tuple[str, ...]
    """Roles of every simulated run."""
    sometimes: tuple[str, ...]
    """Roles that a seed may add."""
    isolation: int = 0
    """The isolation level of readers, also in the final reads; 1: read_committed."""
    configs: dict[str, dict[str, str]] = {}  # noqa: RUF012 - a default that is never mutated
    """Topic -> its own settings."""
    clients: tuple[str, ...] = ()
    """Additional black-box clients."""


WORKLOADS: Final = {
    one.name: one
    for one in (
        Workload(
            LOG,
            {"t0": 2, "t1": 1},
            ("idempotent", "reader"),
            ("plain", "reader", "observer", "member", "member", "churn", "idempotent", "asker"),
        ),
        Workload(
            TRANSACTIONS,
            {"t0": 2, "t1": 1, "copies": 2},
            ("transactional", "transactional", "copier", "reader"),
            ("transactional", "copier", "copier", "reader", "observer", "member", "idempotent"),
            isolation=1,
        ),
        Workload(
            QUEUES,
            {"q0": 2, "q1": 1},
            ("queue-sender", "queue-sender", "share-member", "ordered-member", "ordered-member"),
            ("queue-sender", "share-member", "share-member", "ordered-member", "reader", "reader"),
            configs={"q0": _QUEUE, "q1": _QUEUE},
        ),
    )
}
