"""A subscription to a queue: a consumer that is sent messages up to a credit.

Invariants: knows no protocol; built on receives, each of which is a member of its own, so receipts
are those of any receive. Never more messages are delivered than were granted; of bytes, at most
one message more. What is delivered and not settled is bounded, its locks are extended while the
subscription lives, and it is given back when it ends. A receive that is under way then delivers
nothing.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.services.batch_search import record_bytes
from headrace.broker.services.queue_receipts import ReceiptSettlements, receipt_text
from headrace.coordination.shares.commands import RELEASE, RENEW
from headrace.errors import HeadraceError, Rejected, RequestInvalid, Retriable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.broker.services.queue_service import QueueService
    from headrace.broker.shares.share_receive import ReceiveRequest
    from headrace.broker.topics.topic import Topic
    from headrace.records.codec import Record
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

MESSAGES_MAX: Final = 10_000
"""Of the credit, and of what one subscription has not settled."""
AT_ONCE: Final = 500
"""Messages of one receive."""
WAIT_S: Final = 30.0
"""Of one receive; the next one follows it."""
RETRY_S: Final = 1.0
"""After a receive that failed because owners change, say."""
BYTES_MAX: Final = 16 * 1024 * 1024
"""Of one receive."""


class PushedMessage(NamedTuple):
    """A message that was delivered."""

    receipt: str
    partition: int
    deliveries: int
    record: Record


class QueuePush:
    """See the module. One task at a time calls `next`."""

    def __init__(
        self,
        queues: QueueService,
        topic: Topic,
        asked: ReceiveRequest,
        member_id: Callable[[str], str],
        tasks: Tasks,
    ) -> None:
        """`asked`: its group, owner, lock time, selection and takes_followers count.
        `member_id(member)`: the group's member of a receive, as for settlements."""
        self._queues = queues
        self._topic = topic
        self._asked = asked
        self._member_id = member_id
        self._tasks = tasks
        self._messages = 0
        self._bytes: int | None = 0
        self._held: dict[str, None] = {}
        """Receipts of what is delivered and not settled."""
        self._changed = asyncio.Event()
        self._ended = asyncio.Event()
        self._renewing: asyncio.Task[None] | None = None

    @property
    def credit(self) -> tuple[int, int | None]:
        """(messages, bytes) that may still be delivered; bytes None: any number."""
        return self._messages, self._bytes

    @property
    def unsettled(self) -> int:
        """Messages that are delivered and not settled."""
        return len(self._held)

    def grant(self, messages: int, size_bytes: int | None = None) -> None:
        """Allow so many more messages and bytes; None: any number of bytes from now on.

        Raises RequestInvalid if the credit were more than MESSAGES_MAX.
        """
        if messages < 0 or (size_bytes or 0) < 0 or self._messages + messages > MESSAGES_MAX:
            raise RequestInvalid(f"the credit of a consumer is 0 to {MESSAGES_MAX} messages")
        self._messages += messages
        if size_bytes is None or self._bytes is None:
            self._bytes = None
        else:
            self._bytes += size_bytes
        self._changed.set()

    async def next(self) -> list[PushedMessage]:
        """The next messages, once there are credit and messages; none: the subscription has ended.

        Raises what `QueueService.receive` raises, unless it may pass.
        """
        while not self._ended.is_set():
            count = min(self._messages, MESSAGES_MAX - len(self._held), AT_ONCE)
            if count <= 0 or (self._bytes is not None and self._bytes <= 0):
                self._changed.clear()
                await self._changed.wait()
                continue
            found = await self._receive(count)
            if found:
                self._messages -= len(found)
                if self._bytes is not None:
                    self._bytes -= sum(record_bytes(one.record) for one in found)
                self._held.update(dict.fromkeys(one.receipt for one in found))
                if self._renewing is None:
                    self._renewing = self._tasks.start(self._renew_always(), "renew locks")
                return found
        return []

    async def _receive(self, count: int) -> list[PushedMessage]:
        member = self._queues.new_member()
        bytes_max = BYTES_MAX if self._bytes is None else min(self._bytes, BYTES_MAX)
        asked = replace(
            self._asked,
            member_id=self._member_id(member),
            records_max=count,
            bytes_max=bytes_max,
            is_strict=True,
        )

        def show(partition: int, deliveries: int, records: Sequence[Record]) -> list[PushedMessage]:
            return [
                PushedMessage(
                    receipt_text(partition, one.offset, member), partition, deliveries, one
                )
                for one in records
            ]

        try:
            received = await self._queues.receive(self._topic, asked, show, self, WAIT_S)
        except Retriable as error:
            log.info("%s: a subscription waits: %s", self._topic.name, error)
            with suppress(TimeoutError):
                async with asyncio.timeout(RETRY_S):
                    await self._ended.wait()
            return []
        return received.messages

    async def settle(self, asked: ReceiptSettlements) -> list[HeadraceError | None]:
        """See `QueueService.settle`. Gives no credit: the caller grants it."""
        errors = await self._queues.settle(
            self._topic, self._asked.group_id, asked, self._member_id
        )
        for items in asked.deliveries.values():
            for item in items:
                error = errors[item.place]
                is_over = item.kind != RENEW if error is None else isinstance(error, Rejected)
                if is_over and self._held.pop(asked.receipts[item.place], 0) is None:
                    self._changed.set()
        return errors

    async def cancel(self, kind: int = RELEASE) -> None:
        """End the subscription: what is not settled is given back, by RELEASE (the deliveries
        count) or UNDELIVERED (they do not). What cannot be given back now is redelivered when its
        lock ends."""
        self._ended.set()
        self._changed.set()
        if self._renewing is not None:
            self._renewing.cancel()
        await self._settle_all(kind, 0 if kind == RELEASE else -1)

    async def _settle_all(self, kind: int, delay_ms: int) -> None:
        asked = ReceiptSettlements()
        for receipt in self._held:
            asked.add(receipt, kind, delay_ms)
        asked.finish()
        for error in await self.settle(asked):
            if error is not None:
                log.info("%s: of a subscription: %s", self._topic.name, error)
                break

    async def _renew_always(self) -> None:
        lock_ms = self._asked.lock_ms
        while not self._ended.is_set():
            lasts_ms = lock_ms
            try:
                if lasts_ms <= 0:
                    lasts_ms = self._queues.terms(self._asked.group_id).config.lock_ms
            except HeadraceError:
                lasts_ms = 1_000
            await asyncio.sleep(lasts_ms / 3_000)
            try:
                await self._settle_all(RENEW, lock_ms)
            except HeadraceError as error:
                log.info("%s: locks of a subscription: %s", self._topic.name, error)

    # --- the client of the receives ----------------------------------------------------------

    def has_gone(self) -> bool:
        """See queue_receive.Client."""
        return self._ended.is_set()

    async def wait_gone(self) -> None:
        """See queue_receive.Client."""
        await self._ended.wait()
