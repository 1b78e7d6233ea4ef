"""Suspends a partition's log while it is uncertain whether this broker owns the partition.

Invariants: a suspended log refuses every request, and no append begins. Appends and lifecycle steps
in progress continue: storage and the chain reject those of a former owner.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.errors import NotOwner
from headrace.log.lifecycle import Effect, State

if TYPE_CHECKING:
    from headrace.log.partition_log import PartitionLog


class Suspended(NotOwner):
    """The failure of a suspended log."""


def suspend(log: PartitionLog, why: str) -> bool:
    """Refuse requests until `reinstate`; False if the log refuses them already."""
    if log.failure is not None:
        return False
    text = f"{log.name} is not served here: {why}; refresh the metadata"
    log.failure = Suspended(text)
    log.lifecycle_host.perform(Effect.HOLD_APPENDS)
    log.lifecycle_host.perform(Effect.FAIL_WAITERS, NotOwner(text))
    log.waiters.wake()
    return True


def reinstate(log: PartitionLog) -> bool:
    """Serve requests again; False if the log has failed meanwhile or was being handed over."""
    state, is_suspended = log.lifecycle_host.state, isinstance(log.failure, Suspended)
    if not is_suspended or state in {State.DRAINING, State.FAILED, State.DELETED}:
        return False
    log.failure = None
    if state in {State.OPEN, State.EMPTY}:  # in other states, appends wait for a step
        log.lifecycle_host.perform(Effect.RELEASE_APPENDS)
    return True
