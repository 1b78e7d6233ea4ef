"""Administering a queue as a whole: where a group stands on a topic, and the keys that it parks.

Invariants: knows no protocol. Any broker is asked and asks the owners of all partitions
(`QueueOwners`); what concerns one partition is decided by its owner. Every call can be made twice:
parking a parked key and releasing one that is not parked change nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast
from zlib import crc32

from headrace.broker.shares.queue_peers import QueuePosition
from headrace.coordination.shares.commands import (
    ListParkedCommand,
    ParkKeyCommand,
    ReleaseKeyCommand,
)
from headrace.errors import GroupUnknown, RecordStateInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.broker.services.queue_owners import QueueOwners
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.topic import Topic
    from headrace.coordination.shares.commands import ParkedKey, ParkedReply
    from headrace.errors import HeadraceError

KEYS_MAX: Final = 100
"""Of one call that parks or releases."""
KEY_BYTES_MAX: Final = 16 * 1024
"""Of one of them: as many characters as HTTP takes, in UTF-8."""


class QueueAdministration:
    """See the module. Answers are by partition; an error stands for one partition."""

    def __init__(self, owners: QueueOwners, shares: SharePartitions) -> None:
        self._owners = owners
        self._shares = shares

    # --- the whole topic ---------------------------------------------------------------------

    async def describe(
        self, topic: Topic, group_id: str
    ) -> Mapping[int, QueuePosition | HeadraceError | None]:
        """Where the group stands; None: it has not begun on the partition."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.describe_here(topic, number, group_id),
            lambda peers, broker, part: peers.describe(broker, topic.id, group_id, part),
        )

    async def list_parked(
        self, topic: Topic, group_id: str
    ) -> Mapping[int, Sequence[ParkedKey] | HeadraceError]:
        """The keys whose records the group sets aside."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.list_parked_here(topic, number, group_id),
            lambda peers, broker, part: peers.list_parked(broker, topic.id, group_id, part),
        )

    async def park(
        self, topic: Topic, group_id: str, keys: Sequence[bytes]
    ) -> Mapping[int, HeadraceError | None]:
        """Set the records of the keys aside: on every partition, since a producer may choose its
        partition in a way of its own."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.park_here(topic, number, group_id, keys),
            lambda peers, broker, part: peers.park(broker, topic.id, group_id, keys, part),
        )

    async def unpark(
        self, topic: Topic, group_id: str, keys: Sequence[bytes]
    ) -> Mapping[int, Sequence[bytes] | HeadraceError]:
        """Deliver the records of the keys again, from the first on: the keys that were parked."""
        return await self._owners.ask_all(
            topic,
            lambda number: self.unpark_here(topic, number, group_id, keys),
            lambda peers, broker, part: peers.unpark(broker, topic.id, group_id, keys, part),
        )

    # --- one partition of this broker --------------------------------------------------------

    async def describe_here(self, topic: Topic, number: int, group_id: str) -> QueuePosition | None:
        """Raises what `SharePartitions.describe` does."""
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
        """Raises what `SharePartitions.ask_of_keys` does, but for GroupUnknown."""
        try:
            reply = await self._shares.ask_of_keys(topic, number, ListParkedCommand(group_id))
        except GroupUnknown:
            return []
        return cast("ParkedReply", reply).keys

    async def park_here(
        self, topic: Topic, number: int, group_id: str, keys: Sequence[bytes]
    ) -> None:
        """Raises what `SharePartitions.begin` and `ask_of_keys` do."""
        self._shares.check_parks(group_id)  # before the group begins on the topic
        await self._shares.begin(topic, number, group_id)
        for key in keys:
            command = ParkKeyCommand(group_id, key, crc32(key))
            await self._shares.ask_of_keys(topic, number, command)

    async def unpark_here(
        self, topic: Topic, number: int, group_id: str, keys: Sequence[bytes]
    ) -> Sequence[bytes]:
        """Raises what `SharePartitions.ask_of_keys` does, but for what says that a key is not
        parked."""
        released: list[bytes] = []
        for key in keys:
            try:
                await self._shares.ask_of_keys(topic, number, ReleaseKeyCommand(group_id, key))
            except (GroupUnknown, RecordStateInvalid):
                continue
            released.append(key)
        return released
