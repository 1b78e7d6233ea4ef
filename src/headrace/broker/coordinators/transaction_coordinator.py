"""One broker's transaction coordinator: finds the shard of a transactional id.

Invariants: as the group coordinator: the rules of transactions are in `coordination/transactions`,
appending and waiting in `coordinator_shard`. Errors are part of the replies. The epoch of a
coordinator is the leader epoch of its partition of `__transaction_state`.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from headrace.broker.coordinators.coordinator_shards import CoordinatorShards
from headrace.broker.coordinators.topic_patterns import matching_names
from headrace.coordination.host_commands import LoadedCommand, TickCommand
from headrace.coordination.transactions.commands import (
    AddPartitionsCommand,
    AddPartitionsReply,
    DescribeTransactionCommand,
    EndTransactionCommand,
    InitProducerIdCommand,
    ListTransactionsCommand,
    ListTransactionsReply,
    ProducerReply,
    TransactionCommand,
    TransactionDescription,
    TransactionReply,
)
from headrace.coordination.transactions.config import TransactionConfig
from headrace.coordination.transactions.transaction_machine import (
    TransactionMachine,
    TransactionRecord,
)
from headrace.errors import (
    ConcurrentTransactions,
    HeadraceError,
    RegularExpressionInvalid,
    RequestInvalid,
)
from headrace.records.identifiers import TRANSACTIONS_TOPIC

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.coordinators.marker_sender import MarkerSender
    from headrace.broker.coordinators.producer_ids import ProducerIds
    from headrace.broker.coordinators.shard_log import ShardLog
    from headrace.coordination.transactions.commands import WriteMarkers
    from headrace.runtime.clock import Clock
    from headrace.runtime.tasks import Tasks

TRANSACTIONAL_ID_LENGTH_MAX = 8_000
"""Characters; 4 bytes each at most, so that the id fits the int16 length of a stored string."""

log = logging.getLogger(__name__)

COMPLETION_WAIT_S = 0.127
"""How long a request waits in all."""
COMPLETION_LOOK_S = 0.001
"""Without a report the request looks again after this time; then each time after twice as long."""
LOOK_S: Final = 1.0
"""Interval between checks for newly served partitions of the internal topic."""

TransactionShards = CoordinatorShards[TransactionCommand, TransactionRecord, TransactionReply]


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
    ) -> None:
        """`shard_log(partition)`: see CoordinatorShards."""
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

    def _perform(self, log: ShardLog, effect: WriteMarkers, report: Callable[[Any], None]) -> None:
        def written(command: Any) -> None:
            report(command)
            reported = self._reports.get(effect.transactional_id)
            if reported is not None:
                reported.set()

        self._sender.send(effect, log.leader_epoch, written)

    async def run(self) -> None:
        """Keep loading the partitions that this broker coordinates: the producer of an open
        transaction may be dead, and no other client would look up its coordinator."""
        while True:
            try:
                for shard in self.shards.owned():
                    shard.load()
            except HeadraceError as error:
                log.debug("cannot load transactions yet: %s", error)
            await asyncio.sleep(LOOK_S)

    async def init_producer_id(self, command: InitProducerIdCommand) -> ProducerReply:
        """InitProducerId of a transactional producer."""
        return await self._submit_with_id(command)

    async def end(self, command: EndTransactionCommand) -> ProducerReply:
        """EndTxn: answered when the decision is durable; the markers follow."""
        return await self._submit_with_id(command)

    async def add_partitions(self, command: AddPartitionsCommand) -> AddPartitionsReply:
        """AddPartitionsToTxn and AddOffsetsToTxn, adding or verifying.

        While the previous transaction is being completed, which usually takes a millisecond, the
        request waits: clients retry a ConcurrentTransactions only after 20 ms or more.
        """
        reply = cast("AddPartitionsReply", await self._submit(command))
        loop = asyncio.get_running_loop()
        deadline_s, look_s = loop.time() + COMPLETION_WAIT_S, COMPLETION_LOOK_S
        while isinstance(reply.error, ConcurrentTransactions) and loop.time() < deadline_s:
            await self._wait_report(command.transactional_id, min(look_s, deadline_s - loop.time()))
            look_s *= 2
            reply = cast("AddPartitionsReply", await self._submit(command))
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

    async def describe(self, transactional_id: str) -> TransactionDescription:
        """DescribeTransactions, of one id."""
        command = DescribeTransactionCommand(transactional_id)
        return cast("TransactionDescription", await self._submit(command))

    async def list_transactions(
        self, command: ListTransactionsCommand, pattern: str = ""
    ) -> ListTransactionsReply:
        """ListTransactions over the partitions that this broker owns, sorted by id.

        `pattern`: a regular expression (RE2) that the whole id matches (KIP-1152); empty: any id.
        """
        reply = ListTransactionsReply()
        for shard in self.shards.owned():
            part = cast("ListTransactionsReply", await shard.submit(command))
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

    async def _submit_with_id(
        self, command: InitProducerIdCommand | EndTransactionCommand
    ) -> ProducerReply:
        """Submit, and again with a new producer id if the machine needs one."""
        reply = cast("ProducerReply", await self._submit(command))
        while reply.wants_producer_id:
            try:
                command.fresh_producer_id = await self._producer_ids.take()
            except HeadraceError as error:
                return command.refused(error)
            reply = cast("ProducerReply", await self._submit(command))
        return reply

    async def _submit(
        self,
        command: InitProducerIdCommand
        | EndTransactionCommand
        | AddPartitionsCommand
        | DescribeTransactionCommand,
    ) -> object:
        transactional_id = command.transactional_id
        if not 0 < len(transactional_id) <= TRANSACTIONAL_ID_LENGTH_MAX:
            return command.refused(
                RequestInvalid(
                    "a transactional id must not be empty or longer than"
                    f" {TRANSACTIONAL_ID_LENGTH_MAX} characters",
                    limit=TRANSACTIONAL_ID_LENGTH_MAX,
                )
            )
        return await self.shards.submit(transactional_id, command)
