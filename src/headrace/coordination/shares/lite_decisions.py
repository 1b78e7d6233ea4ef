"""What one group decides about the lite topics of a partition.

Invariants: pure; changes nothing. The outcome of a settlement depends on what the member holds: a
record that it does not hold is refused, and the other settlements of the command stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.kit.machine import Decision
from headrace.coordination.shares.commands import (
    RENEW,
    Acquired,
    AcquireReply,
    DeadLetter,
    SettleReply,
    ShareReply,
)
from headrace.coordination.shares.config import EXCLUSIVE
from headrace.coordination.shares.lite_commands import (
    ADD,
    LEAVE,
    REMOVE,
    SET,
    AnyLiteReply,
    LiteSyncReply,
)
from headrace.coordination.shares.lite_group import BEGINNING
from headrace.coordination.shares.lite_progress import COPIED, LOCK_EXPIRED, Ended, LiteLine
from headrace.coordination.shares.lite_records import (
    Delivery,
    LiteDelivering,
    LiteLeft,
    LiteRecord,
    LiteSettled,
    LiteSubscribed,
)
from headrace.errors import (
    DeliveryFinished,
    DeliveryLost,
    DeliverySettled,
    HeadraceError,
    QuotaExceeded,
    RequestInvalid,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.coordination.shares.commands import (
        DeadLetteredCommand,
        RepeatCommand,
        SettleCommand,
    )
    from headrace.coordination.shares.lite_commands import LiteAcquireCommand, LiteSyncCommand
    from headrace.coordination.shares.lite_group import LiteGroup

SUBSCRIPTIONS_MAX: Final = 100_000
"""Of one group's clients on one partition, as of all clients of a broker in RocketMQ."""
LiteDecision = Decision[LiteRecord, AnyLiteReply]


def decide_sync(group: LiteGroup, command: LiteSyncCommand, now_ms: int) -> LiteDecision:
    """Change a client's subscriptions."""
    client_id, action = command.client, command.action
    client = group.clients.get(client_id)
    has = client.names if client is not None else {}
    wanted = dict.fromkeys(command.names)
    if action == LEAVE:
        return Decision([*_left(group, command)], LiteSyncReply())
    stay = command.stay
    added = [] if action == REMOVE else [name for name in wanted if has.get(name) != stay]
    new = [name for name in added if name not in has]
    removed = [name for name in has if name not in wanted] if action == SET else []
    if action == REMOVE:
        removed = [name for name in wanted if name in has]
    elif action not in {ADD, SET}:
        return Decision([], LiteSyncReply(RequestInvalid(f"there is no action {action}")))
    if len(new) > len(removed):
        count = sum(len(one.names) for one in group.clients.values()) + len(new) - len(removed)
        if count > SUBSCRIPTIONS_MAX:
            refusal = QuotaExceeded(
                f"the group would have {count} subscriptions to lite topics on one partition: it"
                f" can have {SUBSCRIPTIONS_MAX}"
            )
            return Decision([], LiteSyncReply(refusal))
    records: list[LiteRecord] = []
    reply = LiteSyncReply()
    if group.config.subscription == EXCLUSIVE:
        for name in new:
            for other in group.subscribers.get(name, ()):
                reply.displaced.append((other, name))
                until_ms = group.clients[other].until_ms
                records.append(LiteSubscribed(group.number, other, (), (name,), until_ms))
    until_ms = now_ms + command.session_ms
    records.append(LiteSubscribed(group.number, client_id, added, removed, until_ms, stay))
    return Decision(records, reply)


def _left(group: LiteGroup, command: LiteSyncCommand) -> Iterator[LiteRecord]:
    client, stay = group.clients.get(command.client), command.stay
    if client is None:
        return
    gone = [name for name, of in client.names.items() if not stay or of == stay]
    if len(gone) == len(client.names):
        yield LiteLeft(group.number, command.client)
    elif gone:
        yield LiteSubscribed(group.number, command.client, (), gone, client.until_ms)


def decide_acquire(group: LiteGroup, command: LiteAcquireCommand, now_ms: int) -> LiteDecision:
    """Deliver what was read."""
    client = group.clients.get(command.client)
    if client is None:
        return Decision([], AcquireReply())
    until_ms = now_ms + (group.config.lock_ms if command.lock_ms < 0 else command.lock_ms)
    records: list[LiteRecord] = []
    acquired: list[Acquired] = []
    read = frozenset(command.offsets)
    for name, offsets in group.next_of(client, command.records_max, read).items():
        counts = dict(group.progress.get(name, BEGINNING).counts)
        deliveries = {
            offset: Delivery(
                command.member_id, until_ms, counts.get(offset, 0) + 1, command.is_attempt
            )
            for offset in offsets
        }
        records.append(LiteDelivering(group.number, name, deliveries))
        acquired += [Acquired(at, at, one.deliveries) for at, one in deliveries.items()]
    return Decision(records, AcquireReply(None, sorted(acquired)))


def decide_repeat(group: LiteGroup, command: RepeatCommand, now_ms: int) -> LiteDecision:
    """Deliver again what the member holds of an attempt."""
    until_ms = now_ms + (group.config.lock_ms if command.lock_ms < 0 else command.lock_ms)
    records: list[LiteRecord] = []
    acquired: list[Acquired] = []
    for name in dict.fromkeys(group.held.get(command.member_id, {}).values()):
        deliveries = dict(group.delivering[name])
        for offset, one in deliveries.items():
            if one.member == command.member_id and one.is_attempt:
                deliveries[offset] = one._replace(until_ms=until_ms)
                acquired.append(Acquired(offset, offset, one.deliveries))
        records.append(LiteDelivering(group.number, name, deliveries))
    return Decision(records, AcquireReply(None, sorted(acquired)))


def decide_settle(group: LiteGroup, command: SettleCommand, now_ms: int) -> LiteDecision:
    """Settle what the member holds: each record by itself, or all of them or none."""
    member = command.member_id
    held = group.held.get(member, {})
    errors: list[HeadraceError | None] = []
    ended: list[tuple[str, Ended]] = []
    for first, last, kind, delay_ms, reason in command.settlements:
        error = next(
            (
                _not_held(group, member, offset, kind)
                for offset in range(first, min(last, first + len(held)) + 1)
                if offset not in held
            ),
            None,
        )
        errors.append(error)
        if error is None:
            ended += [
                (held[at], Ended(at, kind, delay_ms, reason)) for at in range(first, last + 1)
            ]
    if command.is_atomic and any(errors):
        return Decision([], SettleReply(None, errors))
    records, effects = end_all(group, ended, now_ms)
    for _name, one in ended:
        if one.kind != RENEW:
            records.append(LiteSettled(group.number, member, one.offset, one.kind))
    return Decision(records, SettleReply(None, errors), effects=[*effects])


def _not_held(group: LiteGroup, member: str, offset: int, kind: int) -> HeadraceError:
    former = group.settled.get((member, offset))
    if former == kind:
        return DeliverySettled(f"the record at offset {offset} was settled so before")
    if former is not None:
        return DeliveryFinished(f"the record at offset {offset} was settled in another way before")
    return DeliveryLost(
        f"this member does not hold the record at offset {offset}, because its lock has expired or"
        " the broker has changed: unsettled records are redelivered"
    )


def end_all(
    group: LiteGroup, ended: Iterable[tuple[str, Ended]], now_ms: int
) -> tuple[list[LiteRecord], list[DeadLetter]]:
    """The records and effects of deliveries that end, each with the name of its lite topic."""
    lines: dict[str, LiteLine] = {}
    for name, one in ended:
        line = lines.get(name)
        if line is None:
            line = lines[name] = LiteLine(group, name, now_ms)
        line.end(one)
    records: list[LiteRecord] = []
    effects: list[DeadLetter] = []
    for line in lines.values():
        records += line.records()
        effects += line.effects
    return records, effects


def decide_released(group: LiteGroup, member: str, now_ms: int) -> LiteDecision:
    """The member's session has ended: the deliveries count."""
    held = group.held.get(member, {})
    ended = [(name, Ended(offset, LOCK_EXPIRED)) for offset, name in held.items()]
    records, effects = end_all(group, ended, now_ms)
    return Decision(records, ShareReply(), effects=[*effects])


def decide_copied(group: LiteGroup, command: DeadLetteredCommand, now_ms: int) -> LiteDecision:
    """Records that were given up are in the dead letter topic."""
    waiting = group.held.get("", {})
    ended = [
        (waiting[offset], Ended(offset, COPIED))
        for offset in range(command.first, command.last + 1)
        if offset in waiting
    ]
    records, _effects = end_all(group, ended, now_ms)
    return Decision(records, ShareReply())
