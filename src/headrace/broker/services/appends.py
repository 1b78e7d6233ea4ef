"""Admission of appends: the path by which every face appends a batch to a partition's log.

Invariants: knows batches and logs, no protocol. A batch is appended in the loop turn in which it
arrives, in order and without a task, unless it has to wait: for its log to be ready, for its
transaction to be verified, to be opened or made without duplicates in a thread (`admission`), or
for its delayed records to be durable. Later batches of the same partition keep their order and wait
with it; other partitions do not wait. A batch of a topic without queue attributes that is stored as
received is never opened.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

from headrace.broker.coordinators.delays import Delays, NoDelays
from headrace.broker.coordinators.transaction_verification import TransactionalWrite, for_produce
from headrace.broker.security.tenant_shares import (
    PLACES_PARTS,
    Held,
    Holder,
    TenantShares,
    user_in,
)
from headrace.broker.services import admission
from headrace.broker.services.admission import AdmittedBatch, BatchAdmission, is_kept
from headrace.errors import (
    HeadraceError,
    OutOfOrderSequence,
    RecordInvalid,
    Retriable,
    StorageUnavailable,
    TransactionalIdRefused,
    TransactionUnverified,
)
from headrace.log.appended import NO_OFFSET, BatchPlace
from headrace.records.batch import (
    NO_PRODUCER_ID,
    NO_TIMESTAMP,
    TRANSACTIONAL,
    BatchHeader,
    Fields,
    check_batch,
    read_header,
)
from headrace.records.tenant_names import tenant_of
from headrace.records.validation import validate_small
from headrace.runtime.loop_turns import USER, paced_here

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Hashable, Mapping, Sequence

    from headrace.broker.coordinators.transaction_verification import Verifications
    from headrace.broker.services.admission import Duplicates, Named
    from headrace.broker.shares.lite_partitions import LitePartitions
    from headrace.log.appended import Appended, RecordPlace
    from headrace.log.partition_log import PartitionLog
    from headrace.records.attributes import NamedSequence
    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)
Error = TypeVar("Error", bound=BaseException)

ATTEMPTS_MAX: Final = 8
"""How often a batch waits for its log to be ready; each time until it is signalled."""
WAITING_BYTES_MAX: Final = 128 * 1024 * 1024
"""For all batches that wait in order, as received; further ones get a retriable error."""
WAITING: Final = TenantShares(
    "bytes of batches that wait to be opened", WAITING_BYTES_MAX, "this broker", PLACES_PARTS
)


class Transaction(NamedTuple):
    """The transaction that a batch belongs to, as a face passes it."""

    transactional_id: str | None
    is_added: bool
    """Whether the write adds its partition to the transaction (transaction version 2)."""
    has_abortable: bool
    """Whether the client knows the error TransactionAbortable."""


class _Write:
    """A batch on its way into a log."""

    __slots__ = (
        "admitted",
        "attempts",
        "delays_done",
        "distinct",
        "has_waited",
        "header",
        "named",
        "partition",
        "records",
        "then",
        "timers",
        "transaction",
        "user",
    )

    def __init__(
        self,
        partition: PartitionLog,
        records: memoryview,
        header: BatchHeader,
        then: Callable[[BatchPlace | BaseException], None],
        transaction: Transaction | None,
        named: Named = (),
        user: Hashable = None,
    ) -> None:
        self.partition = partition
        self.records = records
        self.header = header
        self.then = then
        self.transaction = transaction
        self.named = named
        """Set for a batch of the broker's own; for a client's, found during admission."""
        self.user = user
        """Who has turns in which its batches are opened, and a share of what may wait."""
        self.has_waited = False
        """Whether there was room for it among those that wait: then it is refused no more."""
        self.attempts = ATTEMPTS_MAX
        self.admitted: AdmittedBatch | None = None
        self.distinct: tuple[Duplicates, AdmittedBatch] | None = None
        """What is left without these duplicates."""
        self.delays_done = False
        """Whether its delayed records are durable."""
        self.timers: Sequence[int] = ()
        """The numbers under which these are kept."""

    def keep_distinct(self, found: Duplicates, made: AdmittedBatch) -> None:
        """It was made in the thread. What are duplicates may change meanwhile: an earlier append
        may fail."""
        self.distinct = found, made


class _Waiting:
    """How many bytes of batches wait, by whose partitions and users they are."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.shares = WAITING
        self.held = Held()

    def enter(self, write: _Write) -> None:
        """Count a batch, until `leave`. Raises StorageUnavailable if too much waits in all, or of
        its tenant or user; a tenant's only one may be as large as a share or larger."""
        holder, size = _holder(write), len(write.records)
        excess = "" if write.has_waited else self.shares.excess_of(holder, self.held, size)
        others, room = self.held.by_tenant, self.shares.count_max - size
        if excess and (holder.tenant in others or 0 < others.total() > room):
            error = StorageUnavailable(f"{excess}: the batch was not stored, send it again")
            raise _expect_again(write.partition, write.header.producer_id, error, self._clock)
        write.has_waited = True
        self.held.add(holder, size)

    def leave(self, write: _Write) -> None:
        """It goes on."""
        self.held.add(_holder(write), -len(write.records))


class Appends:
    """The appends of one broker."""

    def __init__(
        self,
        clock: Clock,
        verifications: Verifications,
        delays: Delays | None = None,
        refused_tenants: Mapping[str, Callable[[], HeadraceError]] | None = None,
        lite: LitePartitions | None = None,
    ) -> None:
        """`delays`: stores delayed records. `refused_tenants`: whose clients may write nothing now,
        and why. `lite`: knows how many lite topics each partition has."""
        self.clock = clock
        self._verifications = verifications
        self._admission = BatchAdmission(clock)
        self.delays: Delays = NoDelays() if delays is None else delays
        self._lite = lite
        self._queues: dict[PartitionLog, deque[_Write]] = {}
        """Partitions with a waiting batch, and the batches after it."""
        self._waiting = _Waiting(clock)
        self._refused_tenants: Mapping[str, Callable[[], HeadraceError]] = (
            {} if refused_tenants is None else refused_tenants
        )
        self.records_total = 0
        self.bytes_total = 0
        self.batches_total = 0
        self.delayed_total = 0
        """Records passed to `delays`."""
        self.duplicates_total = 0
        """Records dropped because their named sequences already have them."""
        self.unread_attributes_total = 0
        """Opened batches with queue attributes on topics that ignore them."""

    def append_now(
        self, partition: PartitionLog, records: memoryview, header: Fields
    ) -> Appended | None:
        """Append a checked batch that is stored as received; None if `append` must be used.

        Raises HeadraceError.
        """
        if self._refused_tenants:
            self._check_tenant(partition, header[9])
        config = partition.config
        if not config.is_opaque or header[5] & TRANSACTIONAL or partition in self._queues:
            return None
        oldest_ms = header[7]
        if config.is_validated:
            facts = validate_small(records, header)
            if facts is None or facts.newest_ms != header[8]:
                return None
            if facts.has_reserved and config.refuses_attributes:
                return None
            oldest_ms = facts.oldest_ms
        elif header[12] > header[1]:  # `is_kept`, without the call
            return None
        if config.has_age_limit:
            config.check_oldest(oldest_ms, self.clock.now_ms())
        appended = partition.append(records, header)
        if appended is not None:
            self.records_total += header[12]
            self.bytes_total += header[1]
            self.batches_total += 1
        return appended

    def append(
        self,
        partition: PartitionLog,
        records: memoryview,
        header: BatchHeader,
        then: Callable[[BatchPlace | BaseException], None],
        transaction: Transaction | None = None,
        user: Hashable = None,
    ) -> None:
        """Append a checked batch of a user; `then` gets its position once it is durable, or the
        error.

        If it is refused at once, raises HeadraceError and does not call `then`.
        """
        if self._refused_tenants:
            self._check_tenant(partition, header.producer_id)
        write = _Write(partition, records, header, then, transaction, (), user)
        if header.attributes & TRANSACTIONAL and self._is_held(write):
            return
        self._enqueue(write)

    def _check_tenant(self, partition: PartitionLog, producer_id: int) -> None:
        refusal = self._refused_tenants.get(tenant_of(partition.name))
        if refusal is None:
            return
        raise _expect_again(partition, producer_id, refusal(), self.clock)

    async def append_own(
        self, partition: PartitionLog, batch: bytes, named: Sequence[NamedSequence] = ()
    ) -> BatchPlace:
        """Append a batch that the broker created; returns once it is durable.

        Its attributes are ignored. `named`: a sequence for each of its records, which carry the
        same in their headers; duplicates are dropped, on every topic. Raises HeadraceError.
        """
        await partition.wait_loaded()
        stored: asyncio.Future[BatchPlace] = asyncio.get_running_loop().create_future()
        header, then = read_header(batch), _setter(stored)
        write = _Write(partition, memoryview(batch), header, then, None, list(enumerate(named)))
        self._enqueue(write)
        return await stored

    async def append_and_wait(self, partition: PartitionLog, batch: bytes) -> BatchPlace:
        """As `append`; returns once the batch is durable. Raises HeadraceError."""
        await partition.wait_loaded()
        stored: asyncio.Future[BatchPlace] = asyncio.get_running_loop().create_future()
        view = memoryview(batch)
        paced = paced_here()
        user = None if paced is None else paced.path[USER]
        self.append(partition, view, check_batch(view), _setter(stored), None, user)
        return await stored

    def close(self) -> None:
        """Drop the batches that wait to be opened."""
        self._admission.close()

    # --- transactions ------------------------------------------------------------------------

    def _is_held(self, write: _Write) -> bool:
        """Whether the batch waits until its transaction is verified. Raises HeadraceError."""
        transaction, header = write.transaction, write.header
        if transaction is None or transaction.transactional_id is None:
            raise TransactionalIdRefused(
                "the request has a transactional batch but no transactional id: the batch is "
                "not stored"
            )
        if not self._verifications.is_due(write.partition, header):
            return False
        topic, _, number = write.partition.name.rpartition("-")
        asked = TransactionalWrite(
            transaction.transactional_id,
            header.producer_id,
            header.producer_epoch,
            topic,
            int(number),
            transaction.is_added,
        )

        def then(error: HeadraceError | None) -> None:
            if error is not None:
                has_abortable, is_added = transaction.has_abortable, transaction.is_added
                write.then(for_produce(error, has_abortable=has_abortable, is_added=is_added))
                return
            try:
                self._enqueue(write)
            except HeadraceError as refusal:
                write.then(refusal)

        self._verifications.hold(write.partition, asked, then)
        return True

    def _check_transactional(self, write: _Write, header: BatchHeader) -> None:
        """Raise the error that forbids appending a transactional batch now."""
        partition, transaction = write.partition, write.transaction
        if write.attempts < ATTEMPTS_MAX and self._verifications.is_due(partition, header):
            # It was verified, but a marker may have arrived while it waited for the log.
            raise TransactionUnverified(f"{partition.name} was not ready: send the batch again")
        if (
            transaction is not None
            and transaction.is_added
            and header.base_sequence > 0
            and partition.is_loaded
            and header.producer_id not in partition.producers
            and not partition.retries.is_waiting(header.producer_id, self.clock.now_ms())
        ):
            raise OutOfOrderSequence(
                f"producer {header.producer_id} is unknown to {partition.name} and begins "
                f"with sequence {header.base_sequence} instead of 0"
            )

    # --- ordering ----------------------------------------------------------------------------

    def _enqueue(self, write: _Write) -> None:
        """Process a batch, now or after those of its partition that wait. Raises HeadraceError."""
        queue = self._queues.get(write.partition)
        if queue is not None:
            self._waiting.enter(write)
            queue.append(write)
        elif not self._begin_or_refuse(write):
            self._queues[write.partition] = deque()

    def _advance(self, partition: PartitionLog) -> None:
        """The batch that blocked its partition is settled: process the next ones."""
        queue = self._queues[partition]
        while queue:
            write = queue.popleft()
            self._waiting.leave(write)
            try:
                if not self._begin_or_refuse(write):
                    return
            except HeadraceError as error:
                write.then(error)
        del self._queues[partition]

    def _begin_or_refuse(self, write: _Write) -> bool:
        """As `_begin`. Turns every other exception into a HeadraceError: a batch without an answer
        would block all later ones of its partition."""
        try:
            return self._begin(write)
        except Exception as fault:
            raise _refusal(write, fault, self.clock) from fault

    def _begin(self, write: _Write) -> bool:
        """Open the batch if necessary and append it; False if that takes until `_advance`.

        Raises HeadraceError.
        """
        partition, header = write.partition, write.header
        if write.admitted is None:
            parts = write.records, header, partition.config, write.named
            admitted: AdmittedBatch | None = AdmittedBatch(write.records, header)
            if write.named or not is_kept(header, partition.config):
                admitted = self._admission.now(*parts)
            if admitted is None:
                self._work(write, self._admission.opening(*parts), partial(self._opened, write))
                return False
            self._opened(write, admitted)
        return self._store(write)

    def _work(
        self,
        write: _Write,
        work: Callable[[], AdmittedBatch | BaseException],
        take: Callable[[AdmittedBatch], None],
    ) -> None:
        """Do what takes long for a batch, and then store it."""
        self._waiting.enter(write)

        def then(outcome: AdmittedBatch | BaseException) -> None:
            self._waiting.leave(write)
            if isinstance(outcome, MemoryError):
                outcome = _refusal(write, outcome, self.clock)
            if isinstance(outcome, BaseException):
                write.then(outcome)
            else:
                take(outcome)
                if not self._store_or_fail(write):
                    return
            self._advance(write.partition)

        path = tenant_of(write.partition.name), write.user
        self._admission.run(path, work, then)

    def _opened(self, write: _Write, admitted: AdmittedBatch) -> None:
        write.admitted = admitted
        self.unread_attributes_total += admitted.has_unread_attributes

    # --- append ------------------------------------------------------------------------------

    def _store_or_fail(self, write: _Write) -> bool:
        try:
            return self._store(write)
        except Exception as fault:  # noqa: BLE001 - as in `_begin_or_refuse`
            write.then(_refusal(write, fault, self.clock))
            return True

    def _store(self, write: _Write) -> bool:
        """Append an admitted batch; False if it has to wait for its log or its delayed records.

        Raises HeadraceError.
        """
        admitted, partition = write.admitted, write.partition
        assert admitted is not None, "a batch is opened before it is stored"
        if admitted.lite and self._lite is not None:
            self._lite.check(partition, admitted.lite, user_in(write.user))
        if (admitted.delayed is not None and not write.delays_done) or admitted.named:
            if partition.ready is not None or partition.active is None:
                partition.prepare()
                self._wait_ready(write)
                return False
            if admitted.delayed is not None and not self._store_delayed(write, admitted):
                return False
        header, duplicate_offset = admitted.header, NO_OFFSET
        named: Sequence[NamedSequence] = ()
        duplicates: Collection[int] = ()
        batch = admitted.batch
        if admitted.named:
            found = admission.duplicates_in(admitted, partition.producers.named)
            rest = self._distinct(write, admitted, found)
            if rest is None:
                return False
            batch, header = rest.batch, rest.header
            named, duplicate_offset, duplicates = found
            self.duplicates_total += len(duplicates)
        if header is None:
            self._count(write, admitted)
            gone = admission.places_of(write.header, admitted, duplicates, NO_OFFSET, write.timers)
            placed = BatchPlace(duplicate_offset, NO_TIMESTAMP, partition.log_start_offset, gone)
            partition.durable_completion(duplicate_offset).then(_stored, (write, placed))
            return True
        if header.attributes & TRANSACTIONAL:
            self._check_transactional(write, header)
        if named:
            appended = partition.append_named(batch, header, named)
        else:
            appended = partition.append(batch, header)
        if appended is None:
            self._wait_ready(write)
            return False
        self._count(write, admitted)
        config = partition.config
        time_ms = header.max_timestamp_ms if config.is_log_append_time else NO_TIMESTAMP
        base_offset = appended.base_offset
        places: Sequence[RecordPlace] | None = None
        if duplicates or admitted.delayed is not None:
            places = admission.places_of(
                write.header, admitted, duplicates, base_offset, write.timers
            )
            if write.header.producer_id == NO_PRODUCER_ID:
                base_offset = NO_OFFSET  # a client would count from it
        placed = BatchPlace(base_offset, time_ms, partition.log_start_offset, places)
        appended.completion.then(_stored, (write, placed))
        return True

    def _distinct(
        self, write: _Write, admitted: AdmittedBatch, found: Duplicates
    ) -> AdmittedBatch | None:
        """A batch without its duplicates; None: it is stored when that is made."""
        if write.distinct is not None and write.distinct[0] == found:
            return write.distinct[1]
        rest = admission.distinct_now(admitted, found)
        if rest is None:
            work = partial(admission.distinct, admitted, found)
            self._work(write, work, partial(write.keep_distinct, found))
        return rest

    def _count(self, write: _Write, admitted: AdmittedBatch) -> None:
        self.records_total += write.header.record_count
        self.bytes_total += write.header.length
        self.batches_total += 1
        if admitted.lite and self._lite is not None:
            self._lite.note(write.partition, admitted.lite, user_in(write.user))
        if admitted.delayed is not None:
            self.delayed_total += len(admitted.delayed.records)

    def _wait_ready(self, write: _Write) -> None:
        """Retry when the log is ready. Raises StorageUnavailable after too many attempts."""
        partition = write.partition
        if partition.ready is None or write.attempts <= 0 or partition.is_deleted:
            partition.retries.has_failures = True
            raise StorageUnavailable("the log is not ready: send the batch again")
        write.attempts -= 1
        partition.ready.then(self._is_ready, write)

    def _is_ready(self, error: BaseException | None, write: _Write) -> None:
        partition = write.partition
        if error is not None:
            # Those after it have waited for the same; separate waits would add up.
            others = self._queues.pop(partition)
            for waiting in others:
                self._waiting.leave(waiting)
            for waiting in (write, *others):
                waiting.then(error)
            return
        for waiting in self._queues[partition]:
            waiting.attempts -= 1
        if self._store_or_fail(write):
            self._advance(partition)

    # --- delayed records ---------------------------------------------------------------------

    def _store_delayed(self, write: _Write, admitted: AdmittedBatch) -> bool:
        """Store the delayed records; False while they are not durable. Raises HeadraceError."""
        partition, header = write.partition, write.header
        assert admitted.delayed is not None
        if header.producer_id != NO_PRODUCER_ID:
            now_ms = self.clock.now_ms()
            if partition.retries.check(partition.producers, header, now_ms) is not None:
                write.delays_done = True  # the batch is stored, and so are its delayed records
                return True
        if admitted.header is not None:  # a refused batch must not have its delayed records stored
            partition.config.check_content(admitted.header, self.clock.now_ms())
        user = user_in(write.user)
        try:
            completion, write.timers = self.delays.add(partition, admitted.delayed, user)
            if completion.done and completion.error is not None:
                raise completion.error
        except HeadraceError as error:
            _expect_again(partition, header.producer_id, error, self.clock)
            raise
        if completion.done:
            write.delays_done = True
            return True
        completion.then(self._delays_stored, write)
        return False

    def _delays_stored(self, error: BaseException | None, write: _Write) -> None:
        if error is not None:
            producer_id = write.header.producer_id
            write.then(_expect_again(write.partition, producer_id, error, self.clock))
        else:
            write.delays_done = True
            if not self._store_or_fail(write):
                return
        self._advance(write.partition)


def _expect_again(partition: PartitionLog, producer_id: int, error: Error, clock: Clock) -> Error:
    """The error for which a batch is refused: what its producer has already sent after it must not
    overtake it if it is sent again."""
    if producer_id != NO_PRODUCER_ID and isinstance(error, Retriable):
        partition.retries.refused(producer_id, clock.now_ms())
    return error


def _holder(write: _Write) -> Holder:
    """For whom a batch counts while it waits."""
    return Holder(tenant_of(write.partition.name), user_in(write.user))


def _refusal(write: _Write, fault: Exception, clock: Clock) -> HeadraceError:
    """The error for the producer of a batch that could not be admitted."""
    if isinstance(fault, HeadraceError):
        return fault
    log.error("%s: cannot admit a batch", write.partition.name, exc_info=fault)
    if isinstance(fault, MemoryError):
        error = StorageUnavailable("not enough memory to open the batch: send it again later")
        return _expect_again(write.partition, write.header.producer_id, error, clock)
    return RecordInvalid("the batch could not be opened and is not stored: see the broker's log")


def _setter(stored: asyncio.Future[BatchPlace]) -> Callable[[BatchPlace | BaseException], None]:
    """Sets the outcome of an append, unless its caller was cancelled."""

    def then(outcome: BatchPlace | BaseException) -> None:
        if stored.done():
            return
        if isinstance(outcome, BaseException):
            stored.set_exception(outcome)
        else:
            stored.set_result(outcome)

    return then


def _stored(error: BaseException | None, context: tuple[_Write, BatchPlace]) -> None:
    write, placed = context
    write.then(placed if error is None else error)
