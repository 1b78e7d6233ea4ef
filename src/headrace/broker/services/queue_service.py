"""Queues of whole topics: receive messages, settle them, describe a group, park keys.

Invariants: knows no protocol. Any broker accepts requests and calls the owners of all partitions
(`QueueOwners`); the owner decides for its partition. Administration is idempotent: parking a parked
key and releasing one that is not parked change nothing.
"""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, TypeVar
from zlib import crc32

from headrace.broker.services.joined_settlements import JoinedSettlements
from headrace.broker.services.owner_calls import checked
from headrace.broker.services.queue_push import QueuePush
from headrace.broker.services.queue_receipts import settle_receipts
from headrace.broker.services.queue_receive import QueueReceive, ReceiveParts
from headrace.broker.shares.queue_peers import QueuePosition
from headrace.broker.shares.share_group_settings import share_terms
from headrace.broker.shares.share_reads import filters_of
from headrace.coordination.shares.commands import (
    NOT_PARKED,
    ListParkedCommand,
    ParkedKey,
    ReleaseKeyCommand,
)
from headrace.errors import GroupUnknown, HeadraceError, RecordStateInvalid
from headrace.runtime.loop_turns import gather_charged

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from headrace.broker.coordinators.groups_configured import ConfiguredGroups
    from headrace.broker.services.group_administration import GroupAdministration
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.services.queue_deliveries import Show
    from headrace.broker.services.queue_owners import QueueOwners
    from headrace.broker.services.queue_receipts import ReceiptSettlements
    from headrace.broker.services.queue_receive import Client
    from headrace.broker.shares.share_group_settings import ShareGroupSettings
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.shares.share_receive import ReceiveRequest
    from headrace.broker.topics.topic import Topic
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.tasks import Tasks

_M = TypeVar("_M")
KEYS_MAX: Final = 100
"""Per call that parks or releases keys."""
KEY_BYTES_MAX: Final = 16 * 1024
"""Per key: as many characters as HTTP accepts, in UTF-8."""


class QueueService:
    """See the module. Results are by partition; an error applies to one partition."""

    def __init__(
        self,
        owners: QueueOwners,
        calls: OwnerCalls,
        shares: SharePartitions,
        groups: ConfiguredGroups,
        administration: GroupAdministration,
        clock: Clock,
        randomness: Randomness,
        tasks: Tasks,
    ) -> None:
        self._owners = owners
        self._shares = shares
        self._groups = groups
        self._administration = administration
        self.settle_soon = JoinedSettlements(owners, tasks).settle
        """As `settle`, together with others; see JoinedSettlements."""
        self._parts = ReceiveParts(owners, shares, clock, randomness, tasks)
        self._calls = calls
        calls.offer("queues.look_at_keys", self._look_here)

    # --- messages ----------------------------------------------------------------------------

    def new_member(self) -> str:
        """The name of a member for one receive: letters and digits."""
        return self._parts.randomness.uuid().hex[:16]

    @staticmethod
    def member_of_attempt(group_id: str, attempt_id: str) -> str:
        """The name of the member for a receive that a client may repeat under the same attempt id
        (`ReceiveRequest.attempt`); the client chooses ids that no other one uses."""
        return sha256(f"{group_id}\n{attempt_id}".encode()).hexdigest()[:32]

    async def receive(
        self,
        topic: Topic,
        asked: ReceiveRequest,
        show: Show[_M],
        client: Client,
        wait_s: float,
        ends: Mapping[int, int] | None = None,
    ) -> QueueReceive[_M]:
        """Acquire messages of all partitions; waits up to `wait_s` for the first one.

        `asked.selection` names the wanted ones by tags or SQL92 on their headers. A message that it
        does not match is skipped for the group (acknowledged, and counted as filtered), as by
        RocketMQ's subscriptions; with `leaves_others` it stays available for other receives.

        See QueueReceive. Raises GroupKindMismatch, ConfigInvalid for a wrong selection, and the
        error of a partition if there are no messages at all.

        With `asked.takes_followers`, several messages of one message group come together and lock
        it; with `asked.attempt`, a repetition gets the same messages while their locks last.
        """
        if asked.selection is not None:
            filters_of(asked.selection)
        await self._administration.check_is_free_for_shares(asked.group_id)
        receive = QueueReceive(self._parts, topic, asked, show, ends)
        await receive.receive(wait_s, client)
        return receive

    def subscribe(
        self, topic: Topic, asked: ReceiveRequest, member_id: Callable[[str], str]
    ) -> QueuePush:
        """A consumer that is sent messages up to a credit; see QueuePush."""
        return QueuePush(self, topic, asked, member_id, self._parts.tasks)

    async def settle(
        self,
        topic: Topic,
        group_id: str,
        asked: ReceiptSettlements,
        member_id: Callable[[str], str],
    ) -> list[HeadraceError | None]:
        """See `settle_receipts`."""
        return await settle_receipts(self._owners, topic, group_id, asked, member_id)

    def terms(self, group_id: str) -> ShareGroupSettings:
        """The group's settings. Raises MetadataUnavailable."""
        return share_terms(self._groups, group_id)

    # --- the whole topic ---------------------------------------------------------------------

    async def describe(
        self, topic: Topic, group_id: str
    ) -> Mapping[int, QueuePosition | HeadraceError | None]:
        """The group's positions; None: it has not begun on the partition."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.describe_here(topic, number, group_id),
            lambda peers, broker, part: peers.describe(broker, topic.id, group_id, part),
        )

    async def list_parked(
        self, topic: Topic, group_id: str, numbers: Sequence[int] | None = None
    ) -> Mapping[int, Sequence[ParkedKey] | HeadraceError]:
        """The group's parked keys, in byte order; `numbers`: of these partitions alone."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.list_parked_here(topic, number, group_id),
            lambda peers, broker, part: peers.list_parked(broker, topic.id, group_id, part),
            numbers,
        )

    async def park(
        self, topic: Topic, group_id: str, keys: Sequence[bytes]
    ) -> Mapping[int, HeadraceError | None]:
        """Park the records of the keys, on every partition, since a producer may use any
        partitioner."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.park_here(topic, number, group_id, keys),
            lambda peers, broker, part: peers.park(broker, topic.id, group_id, keys, part),
        )

    async def look_at_keys(
        self, topic: Topic, group_id: str, keys: Sequence[bytes]
    ) -> Mapping[int, Sequence[ParkedKey] | HeadraceError]:
        """A dry run of `park`: what each partition has of these keys."""
        asked = group_id, [*dict.fromkeys(keys)]
        answers = await self._calls.ask_partitions("queues.look_at_keys", topic, asked)
        return {
            number: found
            if isinstance(found, HeadraceError)
            else [ParkedKey(*one) for one in found]
            for number, found in answers.items()
        }

    async def unpark(
        self, topic: Topic, group_id: str, keys: Sequence[bytes]
    ) -> Mapping[int, Sequence[bytes] | HeadraceError]:
        """Release the records of the keys, from the first one on; returns the keys that were
        parked."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.unpark_here(topic, number, group_id, keys),
            lambda peers, broker, part: peers.unpark(broker, topic.id, group_id, keys, part),
        )

    # --- one partition of this broker --------------------------------------------------------

    async def describe_here(self, topic: Topic, number: int, group_id: str) -> QueuePosition | None:
        """Raises what `SharePartitions.describe` raises."""
        for found in await self._shares.describe(topic, number, [group_id]):
            high_watermark = topic.require_log(number).high_watermark
            return QueuePosition(
                found.start,
                found.end,
                found.acquired_records,
                found.archiving_records,
                high_watermark - found.start - found.finished_records,
            )
        return None

    async def list_parked_here(
        self, topic: Topic, number: int, group_id: str
    ) -> Sequence[ParkedKey]:
        """Raises what `SharePartitions.ask` raises, except GroupUnknown."""
        try:
            reply = await self._shares.ask(topic, number, ListParkedCommand(group_id))
        except GroupUnknown:
            return []
        return reply.keys

    async def park_here(
        self, topic: Topic, number: int, group_id: str, keys: Sequence[bytes]
    ) -> None:
        """Raises what `SharePartitions.begin` and `park` raise."""
        await self._check_parks(group_id)  # before the group begins on the topic
        await self._shares.begin(topic, number, group_id)
        await self._shares.park(topic, number, group_id, keys)

    async def _check_parks(self, group_id: str) -> None:
        try:
            self._shares.check_parks(group_id)
        except RecordStateInvalid:  # unless another broker has just changed the settings
            await self._groups.refresh(group_id)
            self._shares.check_parks(group_id)

    async def _look_here(self, topic: Topic, number: int, asked: Any) -> list[Any]:
        group_id, keys = checked(asked, str, list)
        keys = checked(keys[:KEYS_MAX], *[bytes] * min(len(keys), KEYS_MAX))
        await self._check_parks(group_id)
        hashed = [(key, crc32(key)) for key in keys]
        try:
            reply = await self._shares.ask(topic, number, ListParkedCommand(group_id, hashed))
        except GroupUnknown:
            return [(key, NOT_PARKED, 0) for key in keys]
        return [tuple(one) for one in reply.keys]

    async def unpark_here(
        self, topic: Topic, number: int, group_id: str, keys: Sequence[bytes]
    ) -> Sequence[bytes]:
        """Raises what `SharePartitions.ask` raises, except that a key is not parked."""

        async def is_released(key: bytes) -> bool:
            try:
                await self._shares.ask(topic, number, ReleaseKeyCommand(group_id, key))
            except (GroupUnknown, RecordStateInvalid):
                return False
            return True

        found = await gather_charged(map(is_released, keys))
        return [key for key, was_parked in zip(keys, found, strict=True) if was_parked]
