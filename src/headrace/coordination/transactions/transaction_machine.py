"""The machine of one shard: all transactional ids of one partition of `__transaction_state`.

Invariants: `decide` finds the id and passes the command to its rule; `apply` is the only method
that changes state. The partitions that still await their marker are volatile: after a reload all of
them do, and writing a marker twice does no harm. Each prepared transaction has a token of this
machine, which its effect carries, so that a late response to an earlier effect cannot complete a
later transaction of the same epoch.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, NamedTuple, assert_never

from headrace.coordination.kit.deadlines import Deadlines
from headrace.coordination.kit.host_commands import DoneReply, LoadedCommand, TickCommand
from headrace.coordination.kit.machine import Decision, PlainJournal
from headrace.coordination.kit.pieces import keys_in_pieces
from headrace.coordination.transactions.commands import (
    AddPartitionsCommand,
    DescribeTransactionCommand,
    EndTransactionCommand,
    InitProducerIdCommand,
    ListTransactionsCommand,
    ListTransactionsReply,
    MarkersWrittenCommand,
    RemoveIdleCommand,
    TransactionCommand,
    TransactionDescription,
    TransactionListing,
    TransactionReply,
    WriteMarkers,
)
from headrace.coordination.transactions.rules import (
    PREPARING,
    completed,
    decide_add,
    decide_end,
    decide_init,
    fence_and_abort,
)
from headrace.coordination.transactions.state_records import (
    ONGOING,
    PREPARE_COMMIT,
    STATE_NAMES,
    DurableRecord,
    Partition,
    TransactionRemoved,
    TransactionStored,
    decode,
    encode,
)
from headrace.errors import TransactionalIdUnknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace.coordination.kit.machine import TransactionEnded
    from headrace.coordination.transactions.config import TransactionConfig

EXPIRE_AGAIN_MS = 1_000
"""Pause between two steps of a large expiry."""


class MarkersAcknowledged(NamedTuple):
    """Volatile: these partitions have their marker."""

    transactional_id: str
    partitions: frozenset[Partition]


class TransactionDeadlinesPassed(NamedTuple):
    """Volatile: every deadline up to `now_ms` has been handled."""

    now_ms: int


class ExpirationScheduled(NamedTuple):
    """Volatile: look for expired transactional ids again at `at_ms`."""

    at_ms: int


VolatileRecord = MarkersAcknowledged | TransactionDeadlinesPassed | ExpirationScheduled
TransactionRecord = DurableRecord | VolatileRecord
TransactionDecision = Decision[TransactionRecord, TransactionReply]

PART_RECORDS = 500
"""Per snapshot part: about 2 ms of work to encode and append."""


def is_idle(record: TransactionStored, until_ms: int) -> bool:
    """Whether an id is without a transaction, and was last used by then."""
    return record.updated_ms <= until_ms and record.state not in PREPARING | {ONGOING}


class TransactionMachine(PlainJournal[TransactionRecord]):
    """See the module and `Machine`."""

    def __init__(self, config: TransactionConfig) -> None:
        super().__init__(decode)
        self.transactions: dict[str, TransactionStored] = {}
        self._removals = 0
        self.awaiting: dict[str, tuple[int, frozenset[Partition]]] = {}
        """Per prepared transaction: its token, and the partitions without a marker."""
        self._config = config
        self._deadlines = Deadlines[str]()
        self._last_token = 0
        self._expiration_ms: int | None = None

    # --- deciding ----------------------------------------------------------------------------

    def decide(self, command: TransactionCommand, now_ms: int) -> TransactionDecision:
        """See Machine."""
        match command:
            case AddPartitionsCommand():
                return decide_add(self._record(command.transactional_id), command, now_ms)
            case EndTransactionCommand():
                decision = decide_end(self._record(command.transactional_id), command, now_ms)
                return self._with_effects(decision)
            case InitProducerIdCommand():
                record = self._record(command.transactional_id)
                return self._with_effects(decide_init(record, command, now_ms, self._config))
            case MarkersWrittenCommand():
                return self._decide_written(command, now_ms)
            case ListTransactionsCommand():
                return self._decide_list(command, now_ms)
            case DescribeTransactionCommand():
                return self._decide_describe(command)
            case RemoveIdleCommand(ids, until_ms):
                return Decision([*self._removed(map(self._record, ids), until_ms)], DoneReply())
            case TickCommand():
                return self._decide_tick(now_ms)
            case LoadedCommand():
                return self._decide_loaded(now_ms)
            case _:
                assert_never(command)

    def _record(self, transactional_id: str) -> TransactionStored | None:
        return self.transactions.get(transactional_id)

    def _with_effects(self, decision: TransactionDecision) -> TransactionDecision:
        """`decision`, and the markers of each transaction that it leaves prepared."""
        token = self._last_token
        for at, record in enumerate(decision.records):
            if isinstance(record, TransactionStored) and record.state in PREPARING:
                token += 1
                following = decision.records[at + 1 : at + 2]
                if not (
                    following
                    and isinstance(following[0], TransactionStored)
                    and following[0].transactional_id == record.transactional_id
                ):
                    decision.effects.append(_markers(record, token, record.partitions))
        return decision

    def _decide_written(self, command: MarkersWrittenCommand, now_ms: int) -> TransactionDecision:
        """The last marker completes the transaction."""
        awaiting = self.awaiting.get(command.transactional_id)
        if awaiting is None or awaiting[0] != command.token:
            return Decision([], DoneReply())
        if awaiting[1] <= command.partitions:
            record = self.transactions[command.transactional_id]
            return Decision([completed(record, now_ms)], DoneReply())
        acknowledged = MarkersAcknowledged(command.transactional_id, command.partitions)
        return Decision([acknowledged], DoneReply())

    def _decide_list(self, command: ListTransactionsCommand, now_ms: int) -> TransactionDecision:
        found: list[TransactionListing] = []
        for record in self.transactions.values():
            state = STATE_NAMES[record.state]
            if command.states and state not in command.states:
                continue
            if command.producer_ids and record.producer_id not in command.producer_ids:
                continue
            if command.running_longer_ms >= 0 and (
                record.state not in PREPARING | {ONGOING}
                or now_ms - record.started_ms <= command.running_longer_ms
            ):
                continue
            found.append(TransactionListing(record.transactional_id, record.producer_id, state))
        return Decision([], ListTransactionsReply(None, found))

    def _decide_describe(self, command: DescribeTransactionCommand) -> TransactionDecision:
        record = self._record(command.transactional_id)
        if record is None:
            error = TransactionalIdUnknown(
                f"transactional id {command.transactional_id!r} does not exist"
            )
            return Decision([], command.refused(error))
        awaiting = self.awaiting.get(record.transactional_id)
        partitions = record.partitions if awaiting is None else awaiting[1]
        description = TransactionDescription(
            record.transactional_id,
            None,
            STATE_NAMES[record.state],
            record.timeout_ms,
            record.started_ms if record.state in PREPARING | {ONGOING} else -1,
            record.producer_id,
            record.producer_epoch,
            sorted(partitions),
        )
        return Decision([], description)

    def _decide_tick(self, now_ms: int) -> TransactionDecision:
        """Abort timed-out transactions; remove ids that have been idle for too long."""
        durable: list[TransactionRecord] = []
        volatile: list[TransactionRecord] = []
        for transactional_id in self._deadlines.due(now_ms):
            record = self._record(transactional_id)
            if record is not None and record.state == ONGOING and _deadline_ms(record) <= now_ms:
                durable += fence_and_abort(record, now_ms)
        if self._expiration_ms is not None and self._expiration_ms <= now_ms:
            expired = self._expired(now_ms)
            is_whole = len(expired) < self._config.expired_per_tick_max
            pause_ms = self._config.expiration_check_interval_ms if is_whole else EXPIRE_AGAIN_MS
            durable += expired
            volatile.append(ExpirationScheduled(now_ms + pause_ms))
        volatile.append(TransactionDeadlinesPassed(now_ms))
        return self._with_effects(Decision(durable + volatile, DoneReply()))

    def _expired(self, now_ms: int) -> list[TransactionRecord]:
        """Tombstones of expired ids without a transaction."""
        removed = self._removed(self.transactions.values(), now_ms - self._config.id_expiration_ms)
        return list(islice(removed, self._config.expired_per_tick_max))

    @staticmethod
    def _removed(
        records: Iterable[TransactionStored | None], until_ms: int
    ) -> Iterator[TransactionRemoved]:
        """Removes what is idle. It fences nobody, and need not: the markers of all of the id's
        transactions are written, its former producers are unknown here, and a partition has the
        coordinator confirm a transaction before it accepts a record of it. The next InitProducerId
        gets another producer id."""
        for record in records:
            if record is not None and is_idle(record, until_ms):
                yield TransactionRemoved(record.transactional_id)

    def _decide_loaded(self, now_ms: int) -> TransactionDecision:
        """Resume prepared transactions: the coordinator may have stopped before any marker was
        written."""
        effects = [
            _markers(self.transactions[transactional_id], token, partitions)
            for transactional_id, (token, partitions) in self.awaiting.items()
        ]
        scheduled = ExpirationScheduled(now_ms + self._config.expiration_check_interval_ms)
        return Decision([scheduled], DoneReply(), effects=effects)

    def next_deadline_ms(self) -> int | None:
        """See Machine."""
        first_ms = self._deadlines.first_ms()
        expiration_ms = self._expiration_ms if self.transactions else None
        if first_ms is None or expiration_ms is None:
            return first_ms if expiration_ms is None else expiration_ms
        return min(first_ms, expiration_ms)

    # --- state changes -----------------------------------------------------------------------

    def apply(self, record: TransactionRecord) -> None:
        """See Machine."""
        match record:
            case TransactionStored():
                transactional_id = record.transactional_id
                self.transactions[transactional_id] = record
                if record.state in PREPARING:
                    self._last_token += 1
                    self.awaiting[transactional_id] = self._last_token, record.partitions
                else:
                    self.awaiting.pop(transactional_id, None)
                if record.state == ONGOING:
                    self._deadlines.arm(transactional_id, _deadline_ms(record))
            case TransactionRemoved(transactional_id):
                self._removals += 1
                self.transactions.pop(transactional_id, None)
                self.awaiting.pop(transactional_id, None)
            case MarkersAcknowledged(transactional_id, partitions):
                token, awaiting = self.awaiting[transactional_id]
                self.awaiting[transactional_id] = token, awaiting - partitions
            case TransactionDeadlinesPassed(now_ms):
                for transactional_id in self._deadlines.pass_until(now_ms):
                    stored = self._record(transactional_id)
                    if stored is not None and stored.state == ONGOING:
                        self._deadlines.arm(transactional_id, _deadline_ms(stored))
            case ExpirationScheduled(at_ms):
                self._expiration_ms = at_ms
            case _:
                assert_never(record)

    def validate(self) -> None:
        """See Machine."""
        prepared = {name for name, one in self.transactions.items() if one.state in PREPARING}
        assert prepared == self.awaiting.keys(), "prepared transactions await markers, no others do"
        tokens = [token for token, _partitions in self.awaiting.values()]
        assert len({*tokens}) == len(tokens), "a token names one transaction"
        for name, (_token, partitions) in self.awaiting.items():
            assert partitions <= self.transactions[name].partitions
        first_ms = self._deadlines.first_ms()
        for name, record in self.transactions.items():
            assert record.transactional_id == name
            if record.state == ONGOING:
                assert first_ms is not None, "an open transaction would never end"
                assert first_ms <= _deadline_ms(record)

    # --- encoding ----------------------------------------------------------------------------

    def encode(self, record: TransactionRecord) -> tuple[bytes, bytes | None] | None:
        """See Machine."""
        if isinstance(record, TransactionStored | TransactionRemoved):
            return encode(record)
        return None

    def ended(self, ended: TransactionEnded) -> TransactionRecord | None:
        """See Machine."""
        self.skipped_count += 1
        return None

    def state_records(self) -> list[TransactionRecord]:
        """See Machine."""
        return [record for part in self.state_parts() for record in part]

    def state_parts(self) -> Iterator[list[TransactionRecord]]:
        """See Machine."""
        part: list[TransactionRecord] = []
        for name in keys_in_pieces(self.transactions, lambda: self._removals):
            record = self.transactions.get(name)
            if record is None:
                continue
            part.append(record)
            if len(part) >= PART_RECORDS:
                yield part
                part = []
        yield part


def _deadline_ms(record: TransactionStored) -> int:
    return record.started_ms + record.timeout_ms


def _markers(
    record: TransactionStored, token: int, partitions: frozenset[Partition]
) -> WriteMarkers:
    return WriteMarkers(
        record.transactional_id,
        token,
        record.producer_id,
        record.producer_epoch,
        record.state == PREPARE_COMMIT,
        record.client_version,
        partitions,
    )
