"""The effect of each command on one transactional id.

Invariants: each function decides one command from the id's record and changes nothing. The state
table below lists every transition. Sources: Kafka's TransactionCoordinator, KIP-98, KIP-360 (a
producer continues after an error), KIP-588 (timeouts), KIP-890 (version 2: every transaction bumps
the epoch).

Kafka has two more states in memory. PrepareEpochFence lies between Ongoing and PrepareAbort: here
the bump and the abort are one record, so nothing can come between them. A pending transition is a
record that is not yet durable: here the record is applied at once, and its reply is held until it
is durable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.coordination.kit.machine import Decision
from headrace.coordination.transactions.commands import (
    TRANSACTION_VERSION_2,
    AddPartitionsCommand,
    AddPartitionsReply,
    EndTransactionCommand,
    InitProducerIdCommand,
    ProducerReply,
)
from headrace.coordination.transactions.state_records import (
    COMPLETE_ABORT,
    COMPLETE_COMMIT,
    EMPTY,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    ONGOING,
    PREPARE_ABORT,
    PREPARE_COMMIT,
    STATE_NAMES,
    TransactionStored,
)
from headrace.errors import (
    ConcurrentTransactions,
    HeadraceError,
    ProducerIdMappingInvalid,
    RequestInvalid,
    TransactionalProducerFenced,
    TransactionStateInvalid,
    TransactionTimeoutInvalid,
)

if TYPE_CHECKING:
    from headrace.coordination.transactions.config import TransactionConfig

TRANSITIONS: dict[tuple[int, int], str] = {
    (EMPTY, EMPTY): "the producer is initialised again",
    (COMPLETE_COMMIT, EMPTY): "the producer is initialised again",
    (COMPLETE_ABORT, EMPTY): "the producer is initialised again",
    (EMPTY, ONGOING): "a first partition is added",
    (COMPLETE_COMMIT, ONGOING): "a first partition is added",
    (COMPLETE_ABORT, ONGOING): "a first partition is added",
    (ONGOING, ONGOING): "another partition is added",
    (ONGOING, PREPARE_COMMIT): "the producer commits",
    (ONGOING, PREPARE_ABORT): "the producer aborts, is fenced, or times out",
    (EMPTY, PREPARE_ABORT): "version 2: an abort without partitions bumps the epoch",
    (COMPLETE_COMMIT, PREPARE_ABORT): "version 2: an abort without partitions bumps the epoch",
    (COMPLETE_ABORT, PREPARE_ABORT): "version 2: an abort without partitions bumps the epoch",
    (PREPARE_COMMIT, COMPLETE_COMMIT): "every partition has its marker",
    (PREPARE_ABORT, COMPLETE_ABORT): "every partition has its marker",
}
"""Every state transition and its cause. The diagram in docs/TRANSACTIONS.md is generated from
it."""

EPOCH_MAX = 2**15 - 1
"""Used by markers only: producers get at most one below (`EPOCH_LAST`)."""
EPOCH_LAST = EPOCH_MAX - 1
"""A producer with this epoch gets a new producer id instead of the next epoch."""

PREPARING = frozenset({PREPARE_COMMIT, PREPARE_ABORT})
COMPLETE = frozenset({COMPLETE_COMMIT, COMPLETE_ABORT})

Records = list[TransactionStored]
RuleDecision = Decision[Any, Any]


def moved(record: TransactionStored, state: int, now_ms: int, **changes: Any) -> TransactionStored:
    """`record` after a state transition."""
    assert (record.state, state) in TRANSITIONS, (
        f"{STATE_NAMES[record.state]} to {STATE_NAMES[state]}"
    )
    return record._replace(
        state=state, updated_ms=now_ms, previous_producer_id=record.producer_id, **changes
    )


def refused(command: Any, error: HeadraceError) -> RuleDecision:
    """Change nothing and answer with `error`."""
    return Decision([], command.refused(error))


# --- InitProducerId ------------------------------------------------------------------------------


def decide_init(
    record: TransactionStored | None,
    command: InitProducerIdCommand,
    now_ms: int,
    config: TransactionConfig,
) -> RuleDecision:
    """A producer starts: it gets an epoch that fences every earlier one."""
    if not command.transactional_id:
        return refused(command, RequestInvalid("a transactional id must not be empty"))
    if not 0 < command.timeout_ms <= config.timeout_ms_max:
        error = TransactionTimeoutInvalid(
            f"a transaction timeout of {command.timeout_ms} ms is not between 1 and"
            f" transaction.max.timeout.ms={config.timeout_ms_max}: lower transaction.timeout.ms",
            limit=config.timeout_ms_max,
        )
        return refused(command, error)
    if record is None:
        if command.fresh_producer_id < 0:
            return Decision([], ProducerReply(wants_producer_id=True))
        first = TransactionStored(
            command.transactional_id,
            command.fresh_producer_id,
            0,
            command.timeout_ms,
            EMPTY,
            frozenset(),
            now_ms,
        )
        return Decision([first], ProducerReply(None, first.producer_id, 0))
    if not _may_go_on(record, command) and not _is_next(record, command):
        return refused(command, _fenced(record))
    if record.state in PREPARING:
        return refused(command, _unfinished())
    if record.state == ONGOING:
        aborted = fence_and_abort(record, now_ms)
        return Decision(aborted, command.refused(_unfinished()))
    return _begin(record, command, now_ms)


def _may_go_on(record: TransactionStored, command: InitProducerIdCommand) -> bool:
    """Whether a producer that sends its id is, or was a moment ago, the current one of this id."""
    known = command.producer_id
    return known in (NO_PRODUCER_ID, record.producer_id) or (
        known == record.previous_producer_id and command.producer_epoch >= EPOCH_LAST
    )


def _begin(record: TransactionStored, command: InitProducerIdCommand, now_ms: int) -> RuleDecision:
    """The next epoch, or the first one of a new id; a retry gets the response that it missed."""
    is_known = command.producer_id != NO_PRODUCER_ID
    expected = command.producer_epoch
    if is_known and expected != record.producer_epoch:
        if expected != record.last_producer_epoch or expected == NO_PRODUCER_EPOCH:
            return refused(command, _fenced(record))
        # Its first call succeeded, and no other producer has started since: that would have set the
        # last epoch to -1.
        return Decision([], ProducerReply(None, record.producer_id, record.producer_epoch))
    changes: dict[str, Any] = {"timeout_ms": command.timeout_ms, "partitions": frozenset()}
    changes["last_producer_epoch"] = record.producer_epoch if is_known else NO_PRODUCER_EPOCH
    changes["started_ms"] = -1
    if record.producer_epoch >= EPOCH_LAST:
        if command.fresh_producer_id < 0:
            return Decision([], ProducerReply(wants_producer_id=True))
        changes["producer_id"], changes["producer_epoch"] = command.fresh_producer_id, 0
    else:
        changes["producer_epoch"] = record.producer_epoch + 1
    begun = moved(record, EMPTY, now_ms, **changes)
    return Decision([begun], ProducerReply(None, begun.producer_id, begun.producer_epoch))


# --- AddPartitionsToTxn, AddOffsetsToTxn ---------------------------------------------------------


def decide_add(
    record: TransactionStored | None, command: AddPartitionsCommand, now_ms: int
) -> RuleDecision:
    """Add partitions to the transaction before the first write to them, or verify them."""
    if not command.transactional_id:
        return refused(command, RequestInvalid("a transactional id must not be empty"))
    if record is not None and _is_next(record, command):
        return refused(command, _unfinished())
    if record is None or record.producer_id != command.producer_id:
        return refused(command, _mapping(command.producer_id))
    if record.producer_epoch != command.producer_epoch:
        return refused(command, _fenced(record))
    if record.state in PREPARING:
        return refused(command, _unfinished())
    if command.is_verify_only:
        held = record.partitions if record.state == ONGOING else frozenset()
        return Decision([], AddPartitionsReply(None, command.partitions - held))
    if not command.partitions:
        return Decision([], AddPartitionsReply())
    if record.state == ONGOING:
        if command.partitions <= record.partitions:
            return Decision([], AddPartitionsReply())
        partitions, started_ms = record.partitions | command.partitions, record.started_ms
    else:
        partitions, started_ms = command.partitions, now_ms
    added = moved(
        record,
        ONGOING,
        now_ms,
        partitions=partitions,
        started_ms=started_ms,
        client_version=command.client_version,
    )
    return Decision([added], AddPartitionsReply())


# --- EndTxn --------------------------------------------------------------------------------------


def decide_end(
    record: TransactionStored | None, command: EndTransactionCommand, now_ms: int
) -> RuleDecision:
    """Commit or abort; a retry is answered as the first call was."""
    if not command.transactional_id:
        return refused(command, RequestInvalid("a transactional id must not be empty"))
    if record is None:
        return refused(command, _mapping(command.producer_id))
    if command.client_version >= TRANSACTION_VERSION_2:
        return _end_v2(record, command, now_ms)
    if record.producer_id != command.producer_id:
        return refused(command, _mapping(command.producer_id))
    if record.producer_epoch != command.producer_epoch:
        return refused(command, _fenced(record))
    if record.state == ONGOING:
        return _prepare(record, command, now_ms)
    return _end_again(record, command, is_repeat=True)


def _end_v2(record: TransactionStored, command: EndTransactionCommand, now_ms: int) -> RuleDecision:
    epoch = command.producer_epoch
    is_id = record.producer_id == command.producer_id
    # The first call bumped the epoch or, at the last epoch, switched to the next producer id.
    is_repeat = (is_id and record.producer_epoch == epoch + 1 <= EPOCH_MAX) or (
        record.previous_producer_id == command.producer_id
        and epoch == EPOCH_LAST
        and record.producer_epoch == 0
        and record.state in COMPLETE
    )
    if _is_next(record, command):
        return refused(command, _unfinished())
    if not is_id and not is_repeat:
        return refused(command, _mapping(command.producer_id))
    if is_repeat and record.state in PREPARING | COMPLETE:
        # A timeout or another producer's start bumps the epoch as well, and clears the last epoch.
        # An abort then already has the desired outcome, unless no epoch is left to continue with.
        is_own = record.last_producer_epoch == epoch
        is_aborting = not command.is_commit and record.producer_epoch < EPOCH_MAX
        if is_own or is_aborting:
            return _end_again(record, command, is_repeat=True)
        return refused(command, _fenced(record))
    if not is_id or record.producer_epoch != epoch or record.state in PREPARING:
        return refused(command, _fenced(record))
    if record.state == ONGOING or not command.is_commit:
        return _prepare(record, command, now_ms)
    return _end_again(record, command, is_repeat=False)


def _end_again(
    record: TransactionStored, command: EndTransactionCommand, *, is_repeat: bool
) -> RuleDecision:
    """EndTxn without an ongoing transaction."""
    prepared, complete = (
        (PREPARE_COMMIT, COMPLETE_COMMIT) if command.is_commit else (PREPARE_ABORT, COMPLETE_ABORT)
    )
    if is_repeat and record.state == complete:
        return Decision([], ProducerReply(None, record.producer_id, record.producer_epoch))
    if is_repeat and record.state == prepared:
        return refused(command, _unfinished())
    wanted = "commit" if command.is_commit else "abort"
    error = TransactionStateInvalid(
        f"cannot {wanted} a transaction in state {STATE_NAMES[record.state]}: begin a transaction"
        " first",
        state=STATE_NAMES[record.state],
    )
    return refused(command, error)


def _prepare(
    record: TransactionStored, command: EndTransactionCommand, now_ms: int
) -> RuleDecision:
    is_ongoing = record.state == ONGOING
    changes: dict[str, Any] = {"client_version": command.client_version}
    next_id, next_epoch = record.producer_id, record.producer_epoch
    if command.client_version >= TRANSACTION_VERSION_2:
        next_epoch += 1
        if record.producer_epoch >= EPOCH_LAST:
            if command.fresh_producer_id < 0:
                return Decision([], ProducerReply(wants_producer_id=True))
            next_id, next_epoch = command.fresh_producer_id, 0
            changes["next_producer_id"] = next_id
        changes["producer_epoch"] = record.producer_epoch + 1
        changes["last_producer_epoch"] = record.producer_epoch
    if not is_ongoing:
        changes["started_ms"] = now_ms
        changes["partitions"] = frozenset()
    state = PREPARE_COMMIT if command.is_commit else PREPARE_ABORT
    prepared = moved(record, state, now_ms, **changes)
    return Decision(and_complete(prepared, now_ms), ProducerReply(None, next_id, next_epoch))


def fence_and_abort(record: TransactionStored, now_ms: int) -> Records:
    """Abort an ongoing transaction under an epoch that its producer does not have."""
    assert record.producer_epoch <= EPOCH_LAST, "no producer has received the last epoch"
    prepared = moved(
        record,
        PREPARE_ABORT,
        now_ms,
        producer_epoch=record.producer_epoch + 1,
        last_producer_epoch=NO_PRODUCER_EPOCH,
    )
    return and_complete(prepared, now_ms)


def and_complete(prepared: TransactionStored, now_ms: int) -> Records:
    """The prepared transaction, completed at once if no partition needs a marker."""
    if prepared.partitions:
        return [prepared]
    return [prepared, completed(prepared, now_ms)]


def completed(record: TransactionStored, now_ms: int) -> TransactionStored:
    """The record of a prepared transaction whose partitions all have their marker."""
    state = COMPLETE_COMMIT if record.state == PREPARE_COMMIT else COMPLETE_ABORT
    changes: dict[str, Any] = {"partitions": frozenset(), "next_producer_id": NO_PRODUCER_ID}
    if record.next_producer_id != NO_PRODUCER_ID:
        changes["producer_id"], changes["producer_epoch"] = record.next_producer_id, 0
    return moved(record, state, now_ms, **changes)


def _is_next(
    record: TransactionStored,
    command: InitProducerIdCommand | AddPartitionsCommand | EndTransactionCommand,
) -> bool:
    """Whether the producer already continues with the epoch that ending its last transaction
    returned, while that one's markers are still being written."""
    if record.state not in PREPARING:
        return False
    if record.next_producer_id != NO_PRODUCER_ID:
        return (command.producer_id, command.producer_epoch) == (record.next_producer_id, 0)
    return (command.producer_id, command.producer_epoch) == (
        record.producer_id,
        record.producer_epoch,
    )


def _fenced(record: TransactionStored) -> HeadraceError:
    return TransactionalProducerFenced(
        f"transactional id {record.transactional_id!r} has a newer epoch, because "
        "another producer uses it or the transaction timed out: close this producer",
        epoch=record.producer_epoch,
    )


def _mapping(producer_id: int) -> HeadraceError:
    return ProducerIdMappingInvalid(
        f"producer id {producer_id} is no longer the producer id of its transactional "
        "id: initialise the producer again",
        producer_id=producer_id,
    )


def _unfinished() -> HeadraceError:
    return ConcurrentTransactions("the previous transaction is still being completed: try again")
