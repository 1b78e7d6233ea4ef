"""One broker's transaction coordinator: finds the shard of a transactional id.

Invariants: as the group coordinator: the rules of transactions are in `coordination/transactions`,
appending and waiting in `coordinator_shard`. Errors are part of the replies. The epoch of a
coordinator is the leader epoch of its partition of `__transaction_state`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import nullcontext, suppress
from itertools import groupby
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
from headrace.broker.coordinators.kept_state import Kept
from headrace.broker.coordinators.topic_patterns import matching_names
from headrace.broker.security.tenant_shares import NOBODY
from headrace.coordination.kit.host_commands import LoadedCommand, TickCommand
from headrace.coordination.kit.machine import Command, Reply_co
from headrace.coordination.transactions.commands import (
    AddPartitionsReply,
    EndTransactionCommand,
    InitProducerIdCommand,
    ListTransactionsCommand,
    ListTransactionsReply,
    ProducerReply,
    RemoveIdleCommand,
    TransactionCommand,
    TransactionReply,
)
from headrace.coordination.transactions.config import TransactionConfig
from headrace.coordination.transactions.transaction_machine import (
    TransactionMachine,
    TransactionRecord,
    is_idle,
)
from headrace.errors import (
    ConcurrentTransactions,
    HeadraceError,
    PolicyViolation,
    RegularExpressionInvalid,
    RequestInvalid,
)
from headrace.records.identifiers import TRANSACTIONS_TOPIC
from headrace.runtime.fair_locks import FairLock, Hold

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from contextlib import AbstractContextManager

    from headrace.broker.coordinators.marker_sender import MarkerSender
    from headrace.broker.coordinators.producer_ids import ProducerIds
    from headrace.broker.coordinators.shard_log import ShardLog
    from headrace.coordination.transactions.commands import WriteMarkers
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks

TRANSACTIONAL_ID_LENGTH_MAX = 8_000
"""Characters; 4 bytes each at most, so that the id fits the int16 length of a stored string."""

log = logging.getLogger(__name__)

IDLE_MS_MIN = 3_600_000
"""Clients that write a transaction now and then write one in this time."""
REMOVED_AT_ONCE = 1_000
SLICE = 2_000
"""Ids that are looked at without a pause, when all are: a millisecond."""
FUTILE_NS = 10_000_000_000
COMPLETION_WAIT_S = 0.127
"""How long a request waits in all."""
COMPLETION_LOOK_S = 0.001
"""Without a report the request looks again after this time; then each time after twice as long."""

Reply = TypeVar("Reply")
TransactionShards = CoordinatorShards[TransactionCommand, TransactionRecord, TransactionReply]


class CommandOfTransaction(Command[Reply_co], Protocol[Reply_co]):
    """A command on one transactional id."""

    transactional_id: str


class TransactionCoordinator:
    """All transactional ids that this broker coordinates."""

    def __init__(
        self,
        shard_log: Callable[[int], ShardLog],
        partition_count: int,
        producer_ids: ProducerIds,
        sender: MarkerSender,
        clock: Clock,
        tasks: Tasks,
        config: TransactionConfig | None = None,
        ids_max: Callable[[], int] | None = None,
    ) -> None:
        """`shard_log(partition)`: see CoordinatorShards. `ids_max`: the bound of ids that are kept
        at the time; None: there is none."""
        machine_config = config or TransactionConfig()
        self._producer_ids = producer_ids
        self._sender = sender
        self._reports: dict[str, asyncio.Event] = {}
        """By transactional id: requests that wait until the previous transaction is completed."""
        self.shards: TransactionShards = CoordinatorShards(
            TRANSACTIONS_TOPIC,
            partition_count,
            shard_log,
            lambda: TransactionMachine(machine_config),
            (LoadedCommand(), TickCommand()),
            clock,
            tasks,
            self._perform,
        )

        self._kept = (
            None
            if ids_max is None
            else Kept("transactional ids", ids_max, self._kept_ids, clock.now_ns)
        )
        self._clock = clock
        self._removing = FairLock(1, Hold.LONG)
        self._futile: dict[str, int] = {}
        """Users of whose ids none was idle, and until when it is not looked again."""

    def _machines(self) -> Iterator[TransactionMachine]:
        for machine in self.shards.machines():
            if isinstance(machine, TransactionMachine):
                yield machine

    def _kept_ids(self) -> Iterator[Collection[str]]:
        return (machine.transactions for machine in self._machines())

    def _making(self, transactional_id: str) -> AbstractContextManager[None]:
        return nullcontext() if self._kept is None else self._kept.making(transactional_id)

    async def _check_room(self, transactional_id: str, user: str) -> None:
        """Raise PolicyViolation for a new id if there is no room for it. A user that has its share
        loses ids that it has not used for long, as it would later."""
        kept = self._kept
        machine = self.shards.machine_of(transactional_id)
        if kept is None or (
            isinstance(machine, TransactionMachine) and transactional_id in machine.transactions
        ):
            return
        excess = await kept.take(transactional_id, user)
        if not excess:
            return
        async with self._removing:
            excess = await kept.take(transactional_id, user)  # another may have made room
            if excess and user and await self._remove_idle(kept, user):
                excess = await kept.take(transactional_id, user)
        if excess:
            raise PolicyViolation(
                f"{excess} (headrace.transactional.ids.max): nothing was changed; use one again,"
                " let some expire (transactional.id.expiration.ms; one that its user has not used"
                f" for {IDLE_MS_MIN // 60_000} minutes gives way), or raise the setting"
            )

    async def _remove_idle(self, kept: Kept, user: str) -> bool:
        """Remove the longest idle ids of a user; whether there were any."""
        now_ns, until_ms = self._clock.now_ns(), self._clock.now_ms() - IDLE_MS_MIN
        if now_ns < self._futile.get(user, now_ns):
            return False
        idle: list[tuple[int, str]] = []
        for machine in self._machines():
            stored = list(machine.transactions.values())
            for at in range(0, len(stored), SLICE):
                idle += (
                    (one.updated_ms, one.transactional_id)
                    for one in stored[at : at + SLICE]
                    if is_idle(one, until_ms) and kept.maker(one.transactional_id) == user
                )
                idle = sorted(idle)[:REMOVED_AT_ONCE]
                await asyncio.sleep(0)
        self._futile = {name: end for name, end in self._futile.items() if end > now_ns}
        if not idle:
            self._futile[user] = now_ns + FUTILE_NS
            return False
        ids = sorted((id_ for _, id_ in idle), key=self.shards.partition_for)
        for _, some in groupby(ids, self.shards.partition_for):
            removed = list(some)
            reply = await self.shards.submit(removed[0], RemoveIdleCommand(removed, until_ms))
            left = self.shards.machine_of(removed[0])
            if reply.error is None and isinstance(left, TransactionMachine):
                for id_ in removed:
                    if id_ not in left.transactions:  # not used meanwhile
                        kept.forget(id_)
        return True

    def _perform(self, log: ShardLog, effect: WriteMarkers, report: Callable[[Any], None]) -> None:
        def written(command: Any) -> None:
            report(command)
            reported = self._reports.get(effect.transactional_id)
            if reported is not None:
                reported.set()

        self._sender.send(effect, log.leader_epoch, written)

    def load(self) -> None:
        """Load the partitions that this broker coordinates: the producer of an open transaction may
        be dead, and no other client would look up its coordinator. For a broker that owns them from
        the start; others are loaded once their ownership begins (`CoordinatorShards.preload`)."""
        for shard in self.shards.owned():
            shard.load()

    async def submit(self, command: CommandOfTransaction[Reply], user: str = NOBODY) -> Reply:
        """The reply to a command on one transactional id, once what it decides is durable; the
        markers of EndTxn follow. A new id counts for `user`.

        While the previous transaction is being completed, which usually takes a millisecond,
        AddPartitionsToTxn waits: clients retry a ConcurrentTransactions only after 20 ms or more.
        """
        transactional_id = command.transactional_id
        if not 0 < len(transactional_id) <= TRANSACTIONAL_ID_LENGTH_MAX:
            return command.refused(
                RequestInvalid(
                    "a transactional id must not be empty or longer than"
                    f" {TRANSACTIONAL_ID_LENGTH_MAX} characters",
                    limit=TRANSACTIONAL_ID_LENGTH_MAX,
                )
            )
        now_s = asyncio.get_running_loop().time
        deadline_s, look_s = now_s() + COMPLETION_WAIT_S, COMPLETION_LOOK_S
        while True:
            reply = await self.shards.submit(transactional_id, command)
            if isinstance(reply, ProducerReply) and reply.wants_producer_id:
                assert isinstance(command, InitProducerIdCommand | EndTransactionCommand)
                with self._making(transactional_id):
                    try:
                        await self._check_room(transactional_id, user)
                        command.fresh_producer_id = await self._producer_ids.take()
                    except HeadraceError as error:
                        return command.refused(error)
                    return await self.shards.submit(transactional_id, command)
            elif (
                isinstance(reply, AddPartitionsReply)
                and isinstance(reply.error, ConcurrentTransactions)
                and now_s() < deadline_s
            ):
                await self._wait_report(transactional_id, min(look_s, deadline_s - now_s()))
                look_s *= 2
            else:
                return reply

    async def _wait_report(self, transactional_id: str, timeout_s: float) -> None:
        """Wait until markers of the id's previous transaction are reported as written. The report
        may have come before this call, hence the limit."""
        reported = self._reports.setdefault(transactional_id, asyncio.Event())
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await reported.wait()
        finally:
            if self._reports.get(transactional_id) is reported:
                del self._reports[transactional_id]

    async def list_transactions(
        self, command: ListTransactionsCommand, pattern: str = ""
    ) -> ListTransactionsReply:
        """ListTransactions over the partitions that this broker owns, sorted by id.

        `pattern`: a regular expression (RE2) that the whole id matches (KIP-1152); empty: any id.
        """
        reply = ListTransactionsReply()
        for shard in self.shards.owned():
            part = await shard.submit(command)
            reply.error = reply.error or part.error
            reply.transactions += part.transactions
        if pattern:
            try:
                ids = [item.transactional_id for item in reply.transactions]
                matching = await matching_names(pattern, ids)
            except RegularExpressionInvalid as error:
                return command.refused(error)
            reply.transactions = [t for t in reply.transactions if t.transactional_id in matching]
        reply.transactions.sort()
        return reply
