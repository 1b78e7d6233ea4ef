"""One partition: an ordered, durable run of record batches over a chain of ledgers.

Invariants: batches stay opaque; their header alone is read. Appends are synchronous and cheap; what
may wait (loading, new ledgers, rolling, sealing, trimming) is done by `upkeep`, a step at a time.
Readers see offsets below the high watermark, which moves when bytes are as safe as is asked.

How an append fails: storage forgets it (contract rule 2), and so do the offset index, the producer
states and the end offset here, together with all that was appended behind it; what was appended
before it may yet become safe. No offset is given twice to bytes that a reader could have seen. An
idempotent producer's later batches get a retriable error until the failed one has come (`Retries`).
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, Final

from headrace.errors import (
    Fenced,
    HeadraceError,
    LeaderEpochFenced,
    LeaderEpochUnknown,
    LedgerLost,
    NotOwner,
    TransactionUnverified,
)
from headrace.log.appended import Appended, Pending
from headrace.log.ledger_chain import LedgerChain
from headrace.log.producer_state import ProducerState, Retries
from headrace.log.reading import LogReader
from headrace.log.upkeep import Upkeep
from headrace.log.visibility import Visibility
from headrace.log.waiters import Waiters
from headrace.records.batch import (
    CONTROL,
    LOG_OVERHEAD,
    NO_PRODUCER_ID,
    PLACEMENT,
    TRANSACTIONAL,
    BatchHeader,
    Buffer,
    Fields,
    header_of,
    read_header,
)
from headrace.records.marker import Marker, encode_marker
from headrace.runtime.completion import Completion, completed

if TYPE_CHECKING:
    from collections.abc import Callable
    from uuid import UUID

    from headrace.log.environment import Environment
    from headrace.log.log_config import LogConfig
    from headrace.log.segment import Segment
    from headrace.metadata.facts import CompanionKind

log = logging.getLogger(__name__)

PREPARE_FRACTION: Final = 0.9
"""How full a ledger is when the next one is made."""


class PartitionLog:
    """The log of one partition; `ready` is None while appends and reads may go ahead."""

    __slots__ = (
        "_clock",
        "_flush_ms",
        "_last_completion",
        "_pending",
        "_store",
        "_verifying",
        "active",
        "config",
        "end_offset",
        "failure",
        "fetched_bytes",
        "indexes",
        "is_deleted",
        "is_loaded",
        "leader_epoch",
        "log_start_offset",
        "name",
        "on_lost",
        "producers",
        "reader",
        "ready",
        "retries",
        "segments",
        "upkeep",
        "visibility",
        "waiters",
    )

    def __init__(
        self,
        name: str,
        topic_id: UUID,
        partition: int,
        config: LogConfig,
        environment: Environment,
        leader_epoch: int | None = None,
    ) -> None:
        """`leader_epoch`: under which this broker owns the partition; None: no other ever does."""
        self.name = name
        self.config = config
        self.segments: list[Segment] = []
        self.producers = ProducerState()
        self.retries = Retries(are_due=bool(leader_epoch))  # somebody else had it before
        self.waiters = Waiters()
        self.log_start_offset = 0
        self.end_offset = 0
        self.visibility = Visibility()
        self.leader_epoch = leader_epoch or 0
        self.is_loaded = False
        self.is_deleted = False
        self.on_lost: Callable[[], None] | None = None
        """Called when the chain says that another broker owns the partition."""
        self.failure: HeadraceError | None = None
        """Why this partition cannot be served; None while all is well."""
        self.fetched_bytes = 0
        """Bytes that clients were sent, since this log is served here."""
        self.ready: Completion | None = Completion()
        self.indexes = environment.indexes
        self._store = environment.store
        self.reader = LogReader(self, environment.store)
        self._clock = environment.clock
        self.active: Segment | None = None
        """The ledger that is written to, None while there is none."""
        self._pending: deque[Pending] = deque()
        self._last_completion: Completion | None = None
        self._flush_ms = config.flush_ms
        self._verifying: set[int] | None = None
        self.upkeep = Upkeep(
            self,
            LedgerChain(environment.metadata, topic_id, partition, environment.evidence),
            environment,
            is_claimed=leader_epoch is not None,
        )

    # --- append ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Do what it takes for appends to go ahead: `ready` completes when they can be tried.
        Raises why the partition cannot be served."""
        self.check_failure()
        self.upkeep.require_active()

    def append(self, batch: Buffer, header: Fields) -> Appended | None:
        """Append one checked batch at the end.

        None: not now (the log is loading, or between two ledgers); wait for `ready`, then ask
        again. Raises what `RecordInvalid`, `BatchTooLarge`, producer checks and storage say; then
        nothing was appended.
        """
        active = self.active
        if self.ready is not None or active is None:
            self.prepare()
            return None
        config = self.config
        _, length, _, _, _, attributes, _, first_ms, max_ms, producer_id, _, _, _ = header
        size = length + LOG_OVERHEAD
        now_ms = self._clock.now_ms()
        if (
            size > config.max_message_bytes
            or attributes & (CONTROL | TRANSACTIONAL)
            or max_ms > now_ms + config.timestamp_after_max_ms
            or first_ms < now_ms - config.timestamp_before_max_ms
        ):
            config.check_content(header_of(header), now_ms)
        if producer_id != NO_PRODUCER_ID:
            header = header_of(header)
            duplicate = self.retries.check(self.producers, header, now_ms)
            if duplicate is not None:
                return Appended(duplicate.base_offset, self.safe_when(duplicate.base_offset))
        return self._append(batch, header, active, now_ms)

    def append_accepted(self, batch: Buffer, header: BatchHeader) -> Appended | None:
        """Append records that were accepted before, as delayed ones; None as for `append`.

        Limits of the topic may have changed since, and are not checked, nor is the sequence: the
        caller sends each once and in order. Raises what storage says.
        """
        active = self.active
        if self.ready is not None or active is None:
            self.prepare()
            return None
        return self._append(batch, header, active, self._clock.now_ms())

    def append_by_coordinator(self, batch: Buffer, header: BatchHeader) -> Appended | None:
        """Append what a coordinator writes into a producer's transaction, without a sequence; None
        as for `append`. Raises ProducerFenced, TransactionUnverified, and what storage says."""
        active = self.active
        if self.ready is not None or active is None:
            self.prepare()
            return None
        producer_id, epoch = header.producer_id, header.producer_epoch
        self.producers.check_epoch(producer_id, epoch)
        is_verified = self.end_verification(producer_id)
        if not is_verified and not self.producers.is_in_transaction(producer_id, epoch):
            raise TransactionUnverified(f"producer {producer_id}'s transaction may have ended")
        return self._append(batch, header, active, self._clock.now_ms())

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        coordinator_epoch: int,
        *,
        is_commit: bool,
        transaction_version: int = 1,
    ) -> Appended | None:
        """Append the marker that ends the producer's transaction here.

        None as for `append`. A marker that would change nothing, as one that was stored before and
        is sent again, is not appended: its offset is -1. Raises TransactionCoordinatorFenced,
        ProducerFenced (see `ProducerState.check_marker`), and what storage says.
        """
        active = self.active
        if self.ready is not None or active is None:
            self.prepare()
            return None
        self.end_verification(producer_id)
        if not self.producers.check_marker(
            producer_id, producer_epoch, coordinator_epoch, transaction_version
        ):
            return Appended(-1, self.safe_when(self.end_offset - 1))
        now_ms = self._clock.now_ms()
        marker = Marker(is_commit, coordinator_epoch)
        batch = encode_marker(producer_id, producer_epoch, marker, now_ms)
        appended = self._append(batch, read_header(batch), active, now_ms, marker)
        if active.is_aborted_index_full and active is self.active:
            self.upkeep.begin_roll(now_ms)
        return appended

    def begin_verification(self, producer_id: int) -> None:
        """The producer's coordinator is asked whether its transaction includes this partition."""
        self._verifying = {*(self._verifying or ()), producer_id}

    def end_verification(self, producer_id: int) -> bool:
        """Whether the answer counts: no marker of the producer has come since it was asked for."""
        if self._verifying is None or producer_id not in self._verifying:
            return False
        self._verifying.remove(producer_id)
        return True

    def _append(
        self,
        batch: Buffer,
        header: Fields,
        active: Segment,
        now_ms: int,
        marker: Marker | None = None,
    ) -> Appended:
        """Append a batch that was found good."""
        config = self.config
        _, length, _, _, _, attributes, last_delta, _, max_ms, producer_id, _, _, _ = header
        size = length + LOG_OVERHEAD
        base_offset = self.end_offset
        parts = (PLACEMENT.pack(base_offset, length, self.leader_epoch), memoryview(batch)[16:])
        if not self._pending:
            # Changed only here: what is synced and what is not must not overtake each other.
            self._flush_ms = config.flush_ms
        try:
            position, completion = self._store.append(active.ledger, parts, size, self._flush_ms)
        except (Fenced, LedgerLost):
            # Whether this broker still owns the partition, the chain will tell.
            self._leave(active)
            raise
        assert position == active.end_position, "storage and log agree on where a ledger ends"
        active.index.add(base_offset, position, max_ms)
        if active.max_timestamp_ms < max_ms:
            active.max_timestamp_ms = max_ms
        if active.first_append_ms < 0:
            active.first_append_ms = now_ms
        end_offset = self.end_offset = active.end_offset = base_offset + last_delta + 1
        end_position = active.end_position = position + size
        if active.proved_to == position:
            active.proved_to = end_position
        if attributes & TRANSACTIONAL:
            self._apply_transactional(header_of(header), base_offset, position, now_ms, marker)
        elif producer_id != NO_PRODUCER_ID:
            safe_offset = self.visibility.acknowledged.offset
            self.producers.apply(header_of(header), base_offset, now_ms, safe_offset)
        if completion is self._last_completion:
            pending = self._pending[-1]
            pending.end_offset, pending.end_position = end_offset, end_position
            pending.max_timestamp_ms = active.max_timestamp_ms
        else:
            self._last_completion = completion
            pending = Pending(end_offset, end_position, active.max_timestamp_ms)
            self._pending.append(pending)
            completion.then(self._stored, pending)
        if end_position >= active.note_at:
            self.upkeep.note()
        if end_position >= config.segment_bytes * PREPARE_FRACTION or (
            now_ms - active.first_append_ms >= config.segment_ms
        ):
            self.upkeep.begin_roll(now_ms)
        return Appended(base_offset, completion)

    def _apply_transactional(
        self,
        header: BatchHeader,
        base_offset: int,
        position: int,
        now_ms: int,
        marker: Marker | None,
    ) -> None:
        producers, visibility = self.producers, self.visibility
        safe_offset = visibility.high_watermark
        if marker is None:
            is_first = producers.open_transaction(header.producer_id) is None
            producers.apply(header, base_offset, now_ms, safe_offset)
            if is_first:
                visibility.begin(base_offset, position)
            return
        first_offset = producers.apply_marker(
            header, marker.coordinator_epoch, base_offset, now_ms, safe_offset
        )
        if first_offset is None:
            return
        visibility.end(first_offset, base_offset)
        if not marker.is_commit:
            active = self.segments[-1]
            stable_offset = producers.first_open(base_offset + 1)
            active.abort(header.producer_id, first_offset, base_offset, stable_offset)

    def safe_when(self, offset: int) -> Completion:
        """Done when all that was appended up to `offset` is durable, or has failed."""
        if offset < self.visibility.acknowledged.offset or self._last_completion is None:
            return completed()
        return self._last_completion

    def _stored(self, error: BaseException | None, pending: Pending) -> None:
        if pending.is_void:
            return
        if error is not None:
            self._forget_from(pending)
            return
        first = self._pending.popleft()
        assert first is pending, "appends of one ledger complete in order"
        if not self._pending:
            self._last_completion = None
        visibility = self.visibility
        stable_offset = visibility.committed.offset
        visibility.advance(pending.end_offset, pending.end_position)
        self.segments[-1].safe_max_timestamp_ms = pending.max_timestamp_ms
        if self.waiters:
            self.waiters.wake(has_committed=visibility.committed.offset > stable_offset)
        if self.upkeep.wants_roll:
            self.upkeep.settled()

    def _forget_from(self, failed: Pending) -> None:
        """Take back the append that failed and those after it.

        Those before it stay: their sync may still be under way when a segment takes no more.
        """
        segment = self.segments[-1]
        pending: Pending | None = None
        while pending is not failed:
            pending = self._pending.pop()
            pending.is_void = True
        self._last_completion = None
        acknowledged = self.visibility.acknowledged
        end_offset, end_position = acknowledged.offset, acknowledged.position
        max_timestamp_ms = segment.safe_max_timestamp_ms
        if self._pending:
            end_offset = self._pending[-1].end_offset
            end_position = self._pending[-1].end_position
            max_timestamp_ms = self._pending[-1].max_timestamp_ms
        self.end_offset = segment.end_offset = end_offset
        # At once, for readers: a boundary behind the true end would lead the next one astray.
        segment.end_position = end_position
        segment.max_timestamp_ms = max_timestamp_ms
        if segment.aborted is not None:
            segment.aborted.truncate(end_offset)
        self.producers.truncate(end_offset)
        self.visibility.truncate(end_offset)
        self._leave(segment)

    def _leave(self, segment: Segment) -> None:
        """Take no more appends until it is known how `segment` ends."""
        self.active, self.retries.are_due = None, True
        self.upkeep.resume(segment)

    def reopened(self) -> None:
        """Appends go ahead again: those that failed can come now."""
        self.retries.reopened(self._clock.now_ms())

    async def settled(self) -> None:
        """Wait until no append is under way."""
        while self._last_completion is not None:
            try:
                await self._last_completion.wait()
            except HeadraceError:
                pass

    @property
    def has_pending(self) -> bool:
        """Whether there are appends that are not safe yet."""
        return bool(self._pending)

    def check_leader_epoch(self, epoch: int) -> None:
        """Raises LeaderEpochFenced or LeaderEpochUnknown unless a client's epoch is this log's.

        -1 stands for a client that knows none (KIP-320).
        """
        if epoch >= 0 and epoch != self.leader_epoch:
            kind = LeaderEpochFenced if epoch < self.leader_epoch else LeaderEpochUnknown
            raise kind(f"epoch {epoch} is not the leader's, {self.leader_epoch}")

    def load(self) -> None:
        """Begin to read what is stored; `ready` completes when that is done."""
        self.upkeep.load()

    async def wait_loaded(self) -> None:
        """Wait until what is stored has been read. Raises why it cannot be."""
        self.check_failure()
        if not self.is_loaded:
            self.load()
            if self.ready is not None:
                await self.ready.wait()

    async def wait_settled(self) -> None:
        """Wait until it is known what is stored, also of an append in doubt. Raises why not."""
        await self.wait_loaded()
        if self.upkeep.to_resume is not None and self.ready is not None:
            self.upkeep.require_active()
            await self.ready.wait()

    async def roll_now(self) -> None:
        """Close the ledger that is written to, unless it is empty, and begin the next one."""
        await self.upkeep.roll_now()

    async def trim(self, log_start_offset: int) -> None:
        """Drop what lies before `log_start_offset`; see `Upkeep.trim`."""
        await self.upkeep.trim(log_start_offset)

    # --- ownership ---------------------------------------------------------------------------

    @property
    def topic_id(self) -> UUID:
        """The id of its topic."""
        return self.upkeep.chain.topic_id

    def expect_chain(self, *, is_expected: bool) -> None:
        """Say whether the chain was written before: if so, one that is missing is lost."""
        self.upkeep.chain.is_expected = is_expected

    def abandon(self, reason: NotOwner) -> None:
        """Answer `reason` from now on, and leave everything as it lies."""
        self.upkeep.abandon(reason)

    async def delete(self) -> None:
        """Remove all ledgers of a deleted topic. Raises what storage and metadata raise."""
        await self.upkeep.delete()

    def has_companion(self, kind: CompanionKind) -> bool:
        """Whether a log of this kind was begun beside it; once it is loaded."""
        return self.upkeep.chain.fact.has_companion(kind)

    async def note_companion(self, kind: CompanionKind) -> None:
        """Have the chain say that a log of this kind is begun. Raises as changes of a chain do."""
        note = self.upkeep.chain.add_companion(kind)
        await self.upkeep.do(note, f"note its {kind.name.lower()}")

    def check_failure(self) -> None:
        """Raises why this partition cannot be served, if it cannot."""
        if (failure := self.failure) is not None:
            # A copy: one instance that is raised for each request would gather tracebacks.
            raise type(failure)(str(failure), **failure.fields)

    # --- reading -----------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """The offset after the last acknowledged record: readers see what comes before it."""
        return self.visibility.acknowledged.offset

    @property
    def size_bytes(self) -> int:
        """Bytes in all ledgers."""
        return sum(segment.end_position for segment in self.segments)

    @property
    def closed(self) -> list[Segment]:
        """The ledgers that take no more appends, sealed or about to be."""
        last = self.segments[-1:]
        return self.segments[:-1] + [segment for segment in last if segment.is_sealed]
