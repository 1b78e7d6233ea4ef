"""What members do with what they hold: settle, give back, reject, renew.

Invariants: decides and changes nothing. A settlement of what the member does not hold is refused,
with the reason as exactly as it is known.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.shares.commands import (
    ACCEPT,
    FAILED_BY_CONSUMER,
    GAP,
    KINDS,
    REJECT,
    RELEASE,
    RENEW,
    UNDELIVERED,
    DeadLetter,
    SettleCommand,
    Settlement,
)
from headrace.coordination.shares.config import LOCK_MS_MAX, ShareConfig
from headrace.coordination.shares.ended import LOCK_EXPIRED
from headrace.coordination.shares.state_records import StoredRun
from headrace.coordination.shares.volatile_records import Ended, Locked
from headrace.coordination.shares.window import (
    ACKNOWLEDGED,
    ACQUIRED,
    ARCHIVED,
    ARCHIVING,
    AVAILABLE,
    OffsetRun,
)
from headrace.errors import (
    DeliveryExpired,
    DeliveryFinished,
    DeliveryLost,
    DeliverySettled,
    DeliveryTaken,
    DeliveryUnknown,
    HeadraceError,
    RecordStateInvalid,
    RequestInvalid,
)

if TYPE_CHECKING:
    from headrace.coordination.shares.share_group import ShareGroup

DELAY_MS_MAX: Final = 365 * 24 * 3_600_000


def decide_settle(
    group: ShareGroup, command: SettleCommand, now_ms: int
) -> tuple[list[HeadraceError | None], list[StoredRun], list[Locked | Ended], list[DeadLetter]]:
    """(an error for each settlement, runs to store, locks to renew and deliveries that have
    ended, dead letters)."""
    errors: list[HeadraceError | None] = []
    runs: list[StoredRun] = []
    locks: list[Locked | Ended] = []
    letters: list[DeadLetter] = []
    reached = -1
    for settlement in command.settlements:
        error = _check(group, settlement, command, now_ms)
        if error is None and settlement.first <= reached:
            error = RequestInvalid(
                f"offset {settlement.first} is settled twice in one request, or ranges do not "
                "ascend: settle each record once"
            )
        errors.append(error)
        reached = max(reached, settlement.last)
        if error is not None:
            continue
        pieces = group.window.between(settlement.first, settlement.last)
        for first, last, run in pieces:
            if settlement.kind == RENEW:
                until_ms = now_ms + _lock_ms(settlement, group.config)
                locks.append(Locked(group.number, first, last, run.count, run.owner, until_ms))
            else:
                runs.append(_settled(group, first, last, run, settlement, now_ms, letters))
                ended = run.owner, first, last, settlement.kind, run.at_ms, now_ms
                locks.append(Ended(group.number, *ended))
    if command.is_atomic and any(error is not None for error in errors):
        first_error = next(error for error in errors if error is not None)
        return [first_error] * len(errors), [], [], []
    return errors, runs, locks, letters


def _check(
    group: ShareGroup, settlement: Settlement, command: SettleCommand, now_ms: int
) -> HeadraceError | None:
    first, last, kind, delay_ms, _reason = settlement
    window = group.window
    if first > last or first < 0 or kind not in KINDS or delay_ms > DELAY_MS_MAX:
        return RequestInvalid(f"settlement type {kind} of {first} to {last} is not valid")
    if kind == RENEW and not group.config.can_renew:
        return RecordStateInvalid(
            "locks of this group cannot be renewed (share.renew.acknowledge.enable=false)"
        )
    if first < window.start and not command.is_atomic:
        return _ended_before(group, settlement, command, now_ms) or DeliveryFinished(
            f"record {first} is finished in this group already: it was settled before, by this "
            "delivery or another one, or deleted; nothing was changed"
        )
    if last < window.start:
        return None  # Kafka ignores it: a repeated acknowledgement, or deleted records
    if last >= window.end:
        return DeliveryUnknown(f"offset {last} was never delivered: the group is at {window.end}")
    for low, high, run in window.between(first, last):
        if run.state != ACQUIRED or run.owner != command.member_id or run.at_ms <= now_ms:
            return _ended_before(group, settlement, command, now_ms) or _not_held(
                low, high, run, command.member_id
            )
    return None


def _ended_before(
    group: ShareGroup, settlement: Settlement, command: SettleCommand, now_ms: int
) -> HeadraceError | None:
    """How this member's delivery ended, if that is known and says more than the record's
    state."""
    first, last, kind, *_ = settlement
    how = group.ended.how(command.member_id, first, last, now_ms)
    if how == kind:
        state = "given back" if kind in {RELEASE, UNDELIVERED} else "finished"
        return DeliverySettled(
            f"records {first} to {last} are {state} already: this delivery was settled in this way "
            "before; nothing was changed"
        )
    return _expired(first, last) if how == LOCK_EXPIRED else None


def _settled(
    group: ShareGroup,
    first: int,
    last: int,
    run: OffsetRun,
    settlement: Settlement,
    now_ms: int,
    letters: list[DeadLetter],
) -> StoredRun:
    if settlement.kind == ACCEPT:
        return StoredRun(first, last, ACKNOWLEDGED, run.count)
    if settlement.kind == GAP:
        return StoredRun(first, last, ARCHIVED, run.count)
    if settlement.kind == UNDELIVERED:
        return StoredRun(first, last, AVAILABLE, run.count - 1)
    if settlement.kind == REJECT:
        reason = settlement.reason or FAILED_BY_CONSUMER
        return group.given_up(first, last, run.count, now_ms, reason, letters)
    return group.released(
        *(first, last, run.count, now_ms, letters), settlement.delay_ms, settlement.reason
    )


def _lock_ms(settlement: Settlement, config: ShareConfig) -> int:
    lock_ms = settlement.delay_ms if settlement.delay_ms > 0 else config.lock_ms
    return min(lock_ms, LOCK_MS_MAX)


def _not_held(first: int, last: int, run: OffsetRun, member_id: str) -> RecordStateInvalid:
    """Why the member does not hold these records of a run."""
    kind: type[RecordStateInvalid] = DeliveryLost
    if run.state in {ACKNOWLEDGED, ARCHIVING, ARCHIVED}:
        kind = DeliveryFinished
    elif run.state == ACQUIRED:
        if run.owner == member_id:
            return _expired(first, last)
        kind = DeliveryTaken
    return kind(
        f"this member does not hold records {first} to {last}, because its lock has expired or "
        "they were already settled: unsettled records are redelivered"
    )


def _expired(first: int, last: int) -> DeliveryExpired:
    return DeliveryExpired(
        f"the lock on records {first} to {last} has expired: they are redelivered; extend locks in "
        "time, or use longer ones"
    )
