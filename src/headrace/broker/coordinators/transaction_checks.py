"""Asks a transaction's coordinator, on any broker, about partitions of the transaction.

Invariants: used by partition leaders, before the first write of a transaction, and by group
coordinators. Adds partitions (version 2) or verifies that they were added (version 1, KIP-890).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.coordination.transactions.commands import (
    TRANSACTION_VERSION_1,
    TRANSACTION_VERSION_2,
    AddPartitionsCommand,
    AddPartitionsReply,
)
from headrace.errors import (
    BrokerUnreachable,
    ConcurrentTransactions,
    CoordinatorLoading,
    CoordinatorUnavailable,
    HeadraceError,
    NotCoordinator,
    ProducerFenced,
    TransactionAbortable,
    TransactionalProducerFenced,
    TransactionUnverified,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.coordinators.peer_calls import PeerCalls
    from headrace.broker.coordinators.transaction_coordinator import TransactionCoordinator
    from headrace.coordination.transactions.state_records import Partition
    from headrace.metadata.facts import BrokerFact

_RETRIABLE = (
    BrokerUnreachable,
    CoordinatorLoading,
    CoordinatorUnavailable,
    NotCoordinator,
)


class TransactionChecks:
    """See the module."""

    def __init__(
        self,
        broker_id: int,
        transactions: TransactionCoordinator,
        coordinator_of: Callable[[str], BrokerFact],
        peers: PeerCalls | None,
    ) -> None:
        """`coordinator_of(transactional_id)` raises CoordinatorUnavailable."""
        self._peers = peers
        self._broker_id = broker_id
        self._transactions = transactions
        self._coordinator_of = coordinator_of

    async def check(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[Partition],
        *,
        is_adding: bool,
    ) -> HeadraceError | None:
        """Add `partitions` to the producer's transaction, or verify that they are in it.

        Returns None if they are, else the error for the producer: TransactionAbortable if the
        transaction does not have them, ProducerFenced if a newer epoch is active,
        TransactionUnverified if it cannot be determined now, ConcurrentTransactions (adding) while
        the previous transaction is being completed.
        """
        command = AddPartitionsCommand(
            transactional_id,
            *producer,
            partitions,
            not is_adding,
            TRANSACTION_VERSION_2 if is_adding else TRANSACTION_VERSION_1,
        )
        return _judged(await self._ask(command), is_adding=is_adding)

    async def _ask(self, command: AddPartitionsCommand) -> AddPartitionsReply:
        try:
            broker = self._coordinator_of(command.transactional_id)
            if broker.id == self._broker_id:
                return await self._transactions.submit(command)
            if self._peers is None:
                raise BrokerUnreachable(f"no client is configured to call broker {broker.id}")
            return await self._peers.add_partitions(broker, command)
        except HeadraceError as error:
            return AddPartitionsReply(error)


def _judged(reply: AddPartitionsReply, *, is_adding: bool) -> HeadraceError | None:
    error = reply.error
    if error is None:
        if not reply.absent:
            return None
        return TransactionAbortable(
            "the producer's transaction does not have this partition: abort it and begin again"
        )
    if isinstance(error, TransactionalProducerFenced):
        return ProducerFenced(str(error))
    if isinstance(error, _RETRIABLE) or (
        isinstance(error, ConcurrentTransactions) and not is_adding
    ):
        return TransactionUnverified(f"the transaction's coordinator did not answer: {error}")
    return error
