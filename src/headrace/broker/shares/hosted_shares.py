"""The machine of one partition's share groups, or lite topics, in this broker's tenure.

Invariants: holds the machine's shard, its journal and the partition's log, and wakes waiters for
records; decides nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.broker.coordinators.coordinator_shard import CoordinatorShard
from headrace.broker.security.tenant_shares import NOBODY, Held, Holder, TenantShares, user_here
from headrace.coordination.shares.commands import AnyShareReply, ShareCommand
from headrace.coordination.shares.lite_commands import AnyLiteReply, LiteCommand
from headrace.coordination.shares.lite_records import LiteRecord
from headrace.coordination.shares.share_machine import ShareRecord
from headrace.errors import GroupFull, NotCoordinator, NotOwner
from headrace.log.visibility import READ_UNCOMMITTED
from headrace.log.waiters import Waiters
from headrace.records.tenant_names import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Collection

    from headrace.broker.shares.lite_waits import LiteWaits
    from headrace.broker.shares.share_reads import BatchesRead
    from headrace.coordination.kit.machine import Answer, Command
    from headrace.errors import HeadraceError
    from headrace.log.partition_log import PartitionLog

READ_BYTES_MIN: Final = 16 * 1024
RECORD_BYTES_GUESS: Final = 256
REMOVED_MAX: Final = 100
"""Groups that are gone, and of which it is still known who made them."""
WAKE_NEVER: Final = -1
LITE: Final = 2
"""In place of an isolation level of a pause: of a receive of lite topics. `readable_end` is the
client's number, `settled` says when it was woken last (`lite_waits`). Do not change: on the wire
between versions."""
ShareShard = CoordinatorShard[ShareCommand, ShareRecord, AnyShareReply]
LiteShard = CoordinatorShard[LiteCommand, LiteRecord, AnyLiteReply]


class Pause(NamedTuple):
    """The state seen by a receive that found nothing: until it changes, another one finds
    nothing."""

    isolation: int
    readable_end: int
    settled: int
    """The count of settlements, which may make records available."""
    wait_ms: int = WAKE_NEVER
    """When records may become available by time alone; WAKE_NEVER: they do not."""


class Hosted:
    """The machine of one partition, for one tenure."""

    __slots__ = (
        "_makers",
        "data",
        "journal",
        "lite",
        "record_bytes",
        "settled",
        "shard",
        "waiters",
    )

    def __init__(
        self,
        data: PartitionLog,
        journal: PartitionLog,
        shard: ShareShard | LiteShard,
        lite: LiteWaits | None = None,
    ) -> None:
        self.data = data
        self.journal = journal
        self.shard = shard
        self.record_bytes = RECORD_BYTES_GUESS
        """Average size per record in the batches read last."""
        self.settled = 0
        self.waiters = Waiters()
        self._makers: dict[str, str] = {}
        """Who began which group on the partition in this tenure."""
        self.lite = lite
        """Whom the arrival of records wakes, where they are looked up by lite topics."""

    @property
    def is_open(self) -> bool:
        """See Tenure."""
        return True

    def serves(self, data: PartitionLog) -> bool:
        """See Tenure."""
        return self.data is data and not self.shard.is_closed

    def stop(self, error: HeadraceError) -> None:
        """See Tenure."""
        self.shard.close(error)
        if self.lite is not None:
            self.lite.close()

    def close(self, error: HeadraceError) -> None:
        """See Tenure."""
        self.stop(error)
        self.journal.abandon(NotOwner(str(error)))

    async def ask(self, command: Command[Answer]) -> Answer:
        """The reply to a command. Raises its error, in terms of partitions."""
        reply = await self.shard.submit(command)
        if isinstance(reply.error, NotCoordinator):  # its journal's term has ended
            raise NotOwner("the partition is moving to another broker: refresh the metadata")
        if reply.error is not None:
            raise reply.error
        return reply

    def begin_group(self, group_id: str, groups: Collection[str], most: int) -> None:
        """A group that is not among `groups`, those of the partition, is about to begin on it: it
        counts for the user whose request this is. Raises GroupFull if that has its share of so many
        as there may be."""
        user, makers = user_here(), self._makers
        if len(makers) > 2 * len(groups) + REMOVED_MAX:
            self._makers = makers = {one: makers[one] for one in groups if one in makers}
        if 3 * len(groups) >= 2 * most:  # else no user can have so much
            held = Held()
            held.by_tenant[DEFAULT] = len(groups)  # at once: 10,000 one by one take 10 ms
            held.by_user.update(makers.get(one, NOBODY) for one in groups)
            shares = TenantShares("groups of messages", most, "the partition")
            if excess := shares.excess_of(Holder(user=user), held):
                raise GroupFull(f"{excess}: delete some")
        if user:
            makers[group_id] = user

    def wake(self) -> None:
        """Records may be available again, or the next ones of their keys."""
        self.settled += 1
        self.waiters.wake()

    def size_of(self, records: int) -> int:
        """Approximate bytes to read for this many records: anything read beyond is dropped."""
        return READ_BYTES_MIN + records * self.record_bytes * 5 // 4

    def note_sizes(self, found: BatchesRead) -> None:
        """Update the average record size."""
        records = sum(last - first + 1 for first, last in found.within)
        if records:
            self.record_bytes = max(found.size // records, 1)

    def has_changed(self, pause: Pause) -> bool:
        """Whether there may be more records than the receive that returned `pause` saw."""
        if self.lite is not None:
            return self.lite.woken(pause.readable_end) != pause.settled
        end = self.data.visibility.bound(pause.isolation).offset
        return (end, self.settled) != (pause.readable_end, pause.settled)

    def sources(self, pause: Pause) -> list[tuple[Waiters, int]]:
        """The sources that notify of a change, each with the isolation level to wait at."""
        if self.lite is not None:
            self.lite.learn()  # what has arrived since the receive
            return [(self.lite.waiters(pause.readable_end), READ_UNCOMMITTED)]
        return [(self.waiters, READ_UNCOMMITTED), (self.data.waiters, pause.isolation)]
