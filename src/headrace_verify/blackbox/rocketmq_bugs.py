"""Bugs of RocketMQ's protocol, planted like those of `bugs`: in its face alone, so that only its
clients can notice.

Invariants: as in `bugs`. The face is imported when a bug is planted: its libraries may be missing.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.broker.services.joined_settlements import JoinedSettlements
from headrace.broker.shares import share_reads
from headrace.records.attributes import DELIVER_AT

if TYPE_CHECKING:
    from headrace_verify.self_proof import Patch

SPOILED_OF = 3
"""One call in this many is spoiled."""


def answer_sends_of_rocketmq_without_storing(patch: Patch) -> None:
    from headrace.rocketmq.joined_sends import JoinedSends

    send, count = JoinedSends.send, 0
    last: list[Any] = []

    def forgetful(self: Any, topic: Any, records: Any, stored: Any) -> None:
        nonlocal count
        count += 1
        is_plain = all(not one.record.headers[1:] for one in records)

        def remember(found: Any) -> None:
            nonlocal last
            if is_plain and not isinstance(found, Exception) and len(found) == 1:
                last = found
            stored(found)

        if last and is_plain and not count % SPOILED_OF:
            stored(last)
        else:
            send(self, topic, records, remember)

    patch(JoinedSends, "send", forgetful)


def deliver_rocketmqs_delayed_messages_at_once(patch: Patch) -> None:
    from headrace.rocketmq import messages, sending

    record_of = messages.record_of

    def hasty(*arguments: Any) -> Any:
        parsed = record_of(*arguments)
        headers = [header for header in parsed.record.headers if header[0] != DELIVER_AT]
        return parsed._replace(record=replace(parsed.record, headers=headers))

    patch(sending, "record_of", hasty)


def commit_what_rocketmq_rolls_back(patch: Patch) -> None:
    from headrace.rocketmq import wire
    from headrace.rocketmq.sending import Sending

    end = Sending.end_transaction

    async def confused(self: Any, caller: Any, request: Any, response: Any) -> None:
        request.resolution = wire.COMMIT
        await end(self, caller, request, response)

    patch(Sending, "end_transaction", confused)


def overlook_message_groups(patch: Patch) -> None:
    patch(share_reads, "MESSAGE_GROUP", "headrace-no-message-group")


def acknowledge_to_rocketmq_without_settling(patch: Patch) -> None:
    settle, count = JoinedSettlements.settle, 0

    def forgetful(self: Any, topic: Any, group_id: Any, asked: Any, *more: Any) -> None:
        nonlocal count
        count += 1
        if count % SPOILED_OF:
            settle(self, topic, group_id, asked, *more)
        else:
            settled = more[-1]
            asyncio.get_running_loop().call_soon(settled, [None] * len(asked.receipts))

    patch(JoinedSettlements, "settle", forgetful)
