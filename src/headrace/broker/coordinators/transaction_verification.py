"""Holds back a producer's first transactional write to a partition until it is verified (KIP-890).

Invariants: knows logs and a verifier, no protocol. A batch that arrives after its transaction has
ended must not open another one that no coordinator would ever end. So while no transaction is open
here, the coordinator is asked whether the transaction includes the partition. Batches of the same
producer wait for the answer in order; those of other producers pass. A marker that is appended
meanwhile invalidates the answer.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.errors import (
    ConcurrentTransactions,
    HeadraceError,
    Retriable,
    TransactionAbortable,
    TransactionStateInvalid,
    TransactionUnverified,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.log.partition_log import PartitionLog
    from headrace.records.batch import BatchHeader
    from headrace.runtime.tasks import Tasks

    Then = Callable[[HeadraceError | None], None]
    _Key = tuple[PartitionLog, int, int]

log = logging.getLogger(__name__)

READY_ATTEMPTS_MAX: Final = 8
HELD_MAX: Final = 100
"""Batches of one producer that wait for one partition; Java clients have at most 5 in flight."""


class TransactionalWrite(NamedTuple):
    """A producer's first batch of a transaction in a partition."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    topic: str
    partition: int
    is_added: bool
    """Whether the write itself adds the partition to the transaction (transaction version 2)."""


class TransactionVerifier(Protocol):
    """Asks the coordinator of a transaction, on this broker or another."""

    async def check(
        self,
        transactional_id: str,
        producer: tuple[int, int],
        partitions: frozenset[tuple[str, int]],
        *,
        is_adding: bool,
    ) -> HeadraceError | None:
        """None if the transaction is in progress and includes the partitions, else the error.

        `producer`: (id, epoch). `is_adding`: add the partitions first. Returns within seconds.
        """
        ...


class Verifications:
    """The writes that wait for an answer."""

    def __init__(self, tasks: Tasks, verifier: TransactionVerifier | None = None) -> None:
        self._tasks = tasks
        self.verifier = verifier
        """None: every write counts as verified."""
        self._held: dict[_Key, list[Then]] = {}

    def is_due(self, partition: PartitionLog, header: BatchHeader) -> bool:
        """Whether a transactional batch must be verified, or wait for one that is."""
        return self.verifier is not None and (
            (partition, header.producer_id, header.producer_epoch) in self._held
            or not partition.producers.is_in_transaction(header.producer_id, header.producer_epoch)
        )

    def hold(self, partition: PartitionLog, write: TransactionalWrite, then: Then) -> None:
        """Call `then` in order, with the error if the batch is not verified, or None.

        Raises TransactionUnverified if too many batches wait.
        """
        key = (partition, write.producer_id, write.producer_epoch)
        held = self._held.get(key)
        if held is None:
            self._held[key] = [then]
            self._tasks.spawn(self._verify(partition, write), f"verification at {partition.name}")
        elif len(held) < HELD_MAX:
            held.append(then)
        else:
            raise TransactionUnverified(
                f"{len(held)} batches of producer {write.producer_id} already wait for its "
                "transaction to be verified: the batch was not stored, send it again"
            )

    async def _verify(self, partition: PartitionLog, write: TransactionalWrite) -> None:
        outcome: HeadraceError | None = TransactionUnverified(
            "the broker is stopping: send the batch again"
        )
        try:
            assert self.verifier is not None
            await _ready(partition)
            partition.begin_verification(write.producer_id)
            outcome = await self.verifier.check(
                write.transactional_id,
                (write.producer_id, write.producer_epoch),
                frozenset({(write.topic, write.partition)}),
                is_adding=write.is_added,
            )
        except HeadraceError as error:
            outcome = error
        except Exception:
            # Whatever the error: an unanswered request blocks all later ones.
            log.exception("internal error while verifying a transaction")
            outcome = TransactionUnverified(
                "internal error: send the batch again, and see the broker's log"
            )
        finally:
            held = self._held.pop((partition, write.producer_id, write.producer_epoch))
            if not partition.end_verification(write.producer_id) and outcome is None:
                outcome = TransactionStateInvalid(
                    f"the transaction of producer {write.producer_id} ended while its batch for "
                    f"{partition.name} was being verified: the batch is not stored"
                )
            for then in held:
                then(outcome)


async def _ready(partition: PartitionLog) -> None:
    """Wait until appends can proceed, so that nothing waits between the answer and its append."""
    for _ in range(READY_ATTEMPTS_MAX):
        partition.check_failure()
        if partition.ready is None and partition.active is not None:
            return
        partition.prepare()
        if partition.ready is not None:
            await partition.ready.wait()


def for_produce(error: HeadraceError, *, has_abortable: bool, is_added: bool) -> HeadraceError:
    """The error for a producer whose version may not know all errors.

    `has_abortable`: it knows TransactionAbortable. Retriable errors become one that every producer
    retries.
    """
    if isinstance(error, TransactionAbortable) and not has_abortable:
        return TransactionStateInvalid(str(error))
    if isinstance(error, ConcurrentTransactions) and is_added:
        return error
    if isinstance(error, Retriable) and not isinstance(error, TransactionUnverified):
        return TransactionUnverified(str(error))
    return error
