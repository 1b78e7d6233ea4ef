"""The commands and replies of a transaction coordinator: one pair per API.

Invariants: plain slotted dataclasses without behaviour except `refused`, which creates the reply
that carries one error. Times are int milliseconds. An error is a HeadraceError or None. A reply
with `wants_producer_id` changed nothing: the host allocates a new producer id, sets it in the
command, and sends the command again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from headrace.coordination.kit.host_commands import DoneReply, LoadedCommand, TickCommand
from headrace.coordination.transactions.state_records import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    Partition,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.errors import HeadraceError

TRANSACTION_VERSION_1 = 1
"""The epoch changes at InitProducerId only; the client adds partitions."""
TRANSACTION_VERSION_2 = 2
"""KIP-890: each EndTxn bumps the epoch, and the first write to a partition adds it."""


@dataclass(slots=True)
class ProducerReply:
    """Answers InitProducerId and EndTxn: the producer id and epoch to continue with."""

    error: HeadraceError | None = None
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    wants_producer_id: bool = False


@dataclass(slots=True)
class InitProducerIdCommand:
    """InitProducerId of a transactional producer, with its id and epoch if it has them
    (KIP-360)."""

    transactional_id: str
    timeout_ms: int
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    fresh_producer_id: int = NO_PRODUCER_ID

    def refused(self, error: HeadraceError) -> ProducerReply:
        """The reply that carries `error`."""
        return ProducerReply(error)


@dataclass(slots=True)
class AddPartitionsReply:
    """Answers an AddPartitionsCommand. `absent`: partitions that a verification did not find."""

    error: HeadraceError | None = None
    absent: frozenset[Partition] = frozenset()


@dataclass(slots=True)
class AddPartitionsCommand:
    """AddPartitionsToTxn and AddOffsetsToTxn; `is_verify_only` adds nothing (KIP-890)."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: frozenset[Partition]
    is_verify_only: bool = False
    client_version: int = TRANSACTION_VERSION_1

    def refused(self, error: HeadraceError) -> AddPartitionsReply:
        """The reply that carries `error`."""
        return AddPartitionsReply(error)


@dataclass(slots=True)
class EndTransactionCommand:
    """EndTxn."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    is_commit: bool
    client_version: int = TRANSACTION_VERSION_1
    fresh_producer_id: int = NO_PRODUCER_ID

    def refused(self, error: HeadraceError) -> ProducerReply:
        """The reply that carries `error`."""
        return ProducerReply(error)


@dataclass(slots=True)
class MarkersWrittenCommand:
    """From the host: these partitions have their marker of the effect with this token.

    A partition whose topic was deleted counts as written.
    """

    transactional_id: str
    token: int
    partitions: frozenset[Partition]

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)


class TransactionListing(NamedTuple):
    """One listed transaction, with the state in Kafka's terms."""

    transactional_id: str
    producer_id: int
    state: str


@dataclass(slots=True)
class ListTransactionsReply:
    """Answers a ListTransactionsCommand."""

    error: HeadraceError | None = None
    transactions: list[TransactionListing] = field(default_factory=list)


@dataclass(slots=True)
class ListTransactionsCommand:
    """ListTransactions. Empty filters match everything; `running_longer_ms` -1: any."""

    states: frozenset[str] = frozenset()
    producer_ids: frozenset[int] = frozenset()
    running_longer_ms: int = -1

    def refused(self, error: HeadraceError) -> ListTransactionsReply:
        """The reply that carries `error`."""
        return ListTransactionsReply(error)


@dataclass(slots=True)
class TransactionDescription:
    """One described transactional id; `partitions` are those that still await a marker."""

    transactional_id: str
    error: HeadraceError | None = None
    state: str = ""
    timeout_ms: int = 0
    started_ms: int = -1
    producer_id: int = NO_PRODUCER_ID
    producer_epoch: int = NO_PRODUCER_EPOCH
    partitions: list[Partition] = field(default_factory=list)


@dataclass(slots=True)
class DescribeTransactionCommand:
    """DescribeTransactions, of one id."""

    transactional_id: str

    def refused(self, error: HeadraceError) -> TransactionDescription:
        """The reply that carries `error`."""
        return TransactionDescription(self.transactional_id, error)


class WriteMarkers(NamedTuple):
    """An effect: write the transaction's markers to these partitions, until each has one."""

    transactional_id: str
    token: int
    producer_id: int
    producer_epoch: int
    is_commit: bool
    transaction_version: int
    partitions: frozenset[Partition]


@dataclass(slots=True)
class RemoveIdleCommand:
    """From the host: remove those of these ids that are without a transaction and were last used
    by `until_ms`, as if they had expired."""

    transactional_ids: Sequence[str]
    until_ms: int

    def refused(self, error: HeadraceError) -> DoneReply:
        """The reply that carries `error`."""
        return DoneReply(error)


TransactionCommand = (
    InitProducerIdCommand
    | AddPartitionsCommand
    | EndTransactionCommand
    | MarkersWrittenCommand
    | ListTransactionsCommand
    | DescribeTransactionCommand
    | RemoveIdleCommand
    | TickCommand
    | LoadedCommand
)
TransactionReply = (
    ProducerReply | AddPartitionsReply | ListTransactionsReply | TransactionDescription | DoneReply
)
