"""One partition: an ordered, durable sequence of record batches over a chain of ledgers.

Invariants: batches are opaque; only their header is read. Appends are synchronous and cheap; slow
operations (load, new ledgers, roll, seal, trim) are steps of the lifecycle host. Readers see
offsets below the high watermark, which advances when bytes are as durable as requested.

When an append fails, storage discards it (contract rule 2), and so do the offset index, the
producer state and the end offset here, together with all later appends; earlier ones may still
become durable. No offset is assigned twice to bytes that a reader could have seen. Later batches of
an idempotent producer get a retriable error until the failed one is retried (`RetryGate`).
"""

from __future__ import annotations

import logging
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
from headrace.log.handover_preparation import HandoverPreparation
from headrace.log.ledger_chain import LedgerChain
from headrace.log.lifecycle_host import LifecycleHost
from headrace.log.log_state import LogState
from headrace.log.log_tenure import LogTenure
from headrace.log.reading import LogReader
from headrace.log.traffic import Traffic
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
    from collections.abc import Sequence
    from uuid import UUID

    from headrace.log.environment import Environment
    from headrace.log.log_config import LogConfig
    from headrace.log.segment import Segment
    from headrace.metadata.facts import CompanionKind
    from headrace.records.attributes import NamedSequence

log = logging.getLogger(__name__)

PREPARE_FRACTION: Final = 0.9
"""The fill level of a ledger at which the next one is created."""


class PartitionLog(LogState):
    """The log of one partition: its state, and appends to it."""

    __slots__ = (
        "_clock",
        "_flush_ms",
        "_store",
        "_verifying",
        "lifecycle_host",
        "reader",
        "tenure",
        "traffic",
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
        """`leader_epoch`: of this broker's ownership; None: there are no other owners."""
        super().__init__(name, topic_id, config, environment.indexes, leader_epoch)
        self.traffic = Traffic()
        self._store = environment.store
        self.reader = LogReader(self, environment.store)
        self._clock = environment.clock
        self._flush_ms = config.flush_ms
        self._verifying: set[int] | None = None
        store, metadata = environment.store, environment.metadata
        chain = LedgerChain(metadata, topic_id, partition, environment.evidence)
        handover = HandoverPreparation(chain, store)
        is_claimed = leader_epoch is not None
        host = LifecycleHost(self, chain, handover, environment, is_claimed=is_claimed)
        self.lifecycle_host = host
        self.tenure = LogTenure(self, chain, handover, host, store)
        """What the broker's ownership asks and changes."""

    # --- append ------------------------------------------------------------------------------

    def prepare(self) -> None:
        """Start whatever is needed to accept appends; `ready` completes when they can be retried.
        Raises why the partition cannot be served."""
        self.check_failure()
        self.lifecycle_host.require_active()

    def append(self, batch: Buffer, header: Fields) -> Appended | None:
        """Append one validated batch at the end.

        None: not ready (the log is loading, or between two ledgers); wait for `ready` and retry.
        Raises RecordInvalid, BatchTooLarge, and what producer checks and storage raise; then
        nothing was appended.
        """
        active = self.active
        if self.ready is not None or active is None:
            self.prepare()
            return None
        config = self.config
        _, length, _, _, _, attributes, _, _, max_ms, producer_id, _, _, _ = header
        size = length + LOG_OVERHEAD
        now_ms = self._clock.now_ms()
        if (
            size > config.max_message_bytes
            or attributes & (CONTROL | TRANSACTIONAL)
            or max_ms > now_ms + config.timestamp_after_max_ms
        ):
            config.check_content(header_of(header), now_ms)
        if producer_id != NO_PRODUCER_ID:
            header = header_of(header)
            duplicate = self.retries.check(self.producers, header, now_ms)
            if duplicate is not None:
                return Appended(
                    duplicate.base_offset, self.durable_completion(duplicate.base_offset)
                )
        return self._append(batch, header, active, now_ms)

    def append_named(
        self, batch: Buffer, header: BatchHeader, named: Sequence[NamedSequence]
    ) -> Appended | None:
        """`append` of a batch with the flag NAMED, whose records are not duplicates."""
        sequences, base_offset = self.producers.named, self.end_offset
        # Before the append: once the batch is appended, a footer may be written at any time.
        sequences.apply(named, base_offset, self.high_watermark)
        try:
            return self.append(batch, header)
        finally:
            if self.end_offset == base_offset:  # not ready, rejected, or an idempotent retry
                sequences.truncate(base_offset)

    def append_accepted(self, batch: Buffer, header: BatchHeader) -> Appended | None:
        """Append records that were accepted before, such as delayed ones; None as for `append`.

        The topic's limits, which may have changed since, and the sequence are not checked: the
        caller sends each once and in order. Raises what storage raises.
        """
        active = self.active
        if self.ready is not None or active is None:
            self.prepare()
            return None
        return self._append(batch, header, active, self._clock.now_ms())

    def append_by_coordinator(self, batch: Buffer, header: BatchHeader) -> Appended | None:
        """Append a coordinator's batch to a producer's transaction, without a sequence; None as
        for `append`. Raises ProducerFenced, TransactionUnverified, and what storage raises."""
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
        """Append the marker that ends the producer's transaction.

        None as for `append`. A marker without effect, such as a repeated one, is not appended: its
        offset is -1. Raises TransactionCoordinatorFenced, ProducerFenced (see
        `ProducerState.check_marker`), and what storage raises.
        """
        active = self.active
        if self.ready is not None or active is None:
            self.prepare()
            return None
        self.end_verification(producer_id)
        if not self.producers.check_marker(
            producer_id, producer_epoch, coordinator_epoch, transaction_version
        ):
            return Appended(-1, self.durable_completion(self.end_offset - 1))
        now_ms = self._clock.now_ms()
        marker = Marker(is_commit, coordinator_epoch)
        batch = encode_marker(producer_id, producer_epoch, marker, now_ms)
        appended = self._append(batch, read_header(batch), active, now_ms, marker)
        if active.is_aborted_index_full and active is self.active:
            self.lifecycle_host.begin_roll(now_ms)
        return appended

    def begin_verification(self, producer_id: int) -> None:
        """The coordinator is being asked whether the transaction includes this partition."""
        self._verifying = {*(self._verifying or ()), producer_id}

    def end_verification(self, producer_id: int) -> bool:
        """Whether the answer is valid: no marker of the producer was appended since the request."""
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
        """Append a batch that has passed all checks."""
        config = self.config
        _, length, _, _, _, attributes, last_delta, _, max_ms, producer_id, _, _, _ = header
        size = length + LOG_OVERHEAD
        base_offset = self.end_offset
        parts = (PLACEMENT.pack(base_offset, length, self.leader_epoch), memoryview(batch)[16:])
        if not self.pending:
            # Changed only here: synced and unsynced appends must not overtake each other.
            self._flush_ms = config.flush_ms
        try:
            position, completion = self._store.append(active.ledger, parts, size, self._flush_ms)
        except (Fenced, LedgerLost):
            # The chain shows whether this broker still owns the partition.
            self._leave(active)
            raise
        assert position == active.end_position, "storage and log agree on the ledger's end"
        assert last_delta >= 0, "a batch has offsets"
        active.index.add(base_offset, position, max_ms)
        if active.max_timestamp_ms < max_ms:
            active.max_timestamp_ms = max_ms
        if active.first_append_ms < 0:
            active.first_append_ms = now_ms
        active.last_append_ms = now_ms
        end_offset = self.end_offset = active.end_offset = base_offset + last_delta + 1
        end_position = active.end_position = position + size
        if active.verified_to == position:
            active.verified_to = end_position
        if attributes & TRANSACTIONAL:
            self._apply_transactional(header_of(header), base_offset, position, now_ms, marker)
        elif producer_id != NO_PRODUCER_ID:
            safe_offset = self.visibility.acknowledged.offset
            self.producers.apply(header_of(header), base_offset, now_ms, safe_offset)
        if completion is self.last_completion:
            pending = self.pending[-1]
            pending.end_offset, pending.end_position = end_offset, end_position
            pending.max_timestamp_ms = active.max_timestamp_ms
        else:
            self.last_completion = completion
            pending = Pending(end_offset, end_position, active.max_timestamp_ms)
            self.pending.append(pending)
            completion.then(self._stored, pending)
        self.traffic.came(last_delta + 1, size)
        if end_position >= active.checkpoint_at:
            self.lifecycle_host.note()
        if end_position >= config.segment_bytes * PREPARE_FRACTION or (
            now_ms - active.first_append_ms >= config.segment_ms
        ):
            self.lifecycle_host.begin_roll(now_ms)
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
        assert header.attributes & CONTROL, "only a control batch ends a transaction"
        assert header.last_offset_delta == 0, "a marker is one record"
        first_offset = producers.apply_marker(
            header, marker.coordinator_epoch, base_offset, now_ms, safe_offset
        )
        assert producers.open_transaction(header.producer_id) is None, "a marker ends it"
        if first_offset is None:
            return
        assert first_offset < base_offset, "a transaction begins before its marker"
        visibility.end(first_offset, base_offset)
        if not marker.is_commit:
            active = self.segments[-1]
            stable_offset = producers.first_open(base_offset + 1)
            active.abort(header.producer_id, first_offset, base_offset, stable_offset)

    def durable_completion(self, offset: int) -> Completion:
        """Completes when all appends up to `offset` are durable or have failed."""
        if offset < self.visibility.acknowledged.offset or self.last_completion is None:
            return completed()
        return self.last_completion

    def _stored(self, error: BaseException | None, pending: Pending) -> None:
        if pending.is_void:
            return
        if error is not None:
            self._forget_from(pending)
            return
        first = self.pending.popleft()
        assert first is pending, "appends of one ledger complete in order"
        assert pending.end_offset <= self.end_offset, "what is durable was appended"
        if not self.pending:
            self.last_completion = None
        visibility = self.visibility
        stable_offset = visibility.committed.offset
        visibility.advance(pending.end_offset, pending.end_position)
        self.segments[-1].safe_max_timestamp_ms = pending.max_timestamp_ms
        if self.waiters:
            self.waiters.wake(has_committed=visibility.committed.offset > stable_offset)
        if self.lifecycle_host.wants_roll:
            self.lifecycle_host.settled()

    def _forget_from(self, failed: Pending) -> None:
        """Undo the failed append and all later ones.

        Earlier ones stay: their sync may still be in progress when a segment write fails.
        """
        segment = self.segments[-1]
        pending: Pending | None = None
        while pending is not failed:
            pending = self.pending.pop()
            pending.is_void = True
        self.last_completion = None
        acknowledged = self.visibility.acknowledged
        end_offset, end_position = acknowledged.offset, acknowledged.position
        max_timestamp_ms = segment.safe_max_timestamp_ms
        if self.pending:
            end_offset = self.pending[-1].end_offset
            end_position = self.pending[-1].end_position
            max_timestamp_ms = self.pending[-1].max_timestamp_ms
        self.end_offset = segment.end_offset = end_offset
        # At once, for readers: a boundary after the actual end would mislead the next one.
        segment.end_position = end_position
        segment.max_timestamp_ms = max_timestamp_ms
        if segment.aborted is not None:
            segment.aborted.truncate(end_offset)
        self.producers.truncate(end_offset)
        self.visibility.truncate(end_offset)
        self._leave(segment)

    def _leave(self, segment: Segment) -> None:
        """Refuse appends until the end of `segment` is known."""
        self.active, self.retries.has_failures = None, True
        self.lifecycle_host.resume(segment)

    def check_leader_epoch(self, epoch: int) -> None:
        """Raises LeaderEpochFenced or LeaderEpochUnknown unless the client's epoch is current.

        -1 stands for a client without an epoch (KIP-320).
        """
        if epoch >= 0 and epoch != self.leader_epoch:
            kind = LeaderEpochFenced if epoch < self.leader_epoch else LeaderEpochUnknown
            raise kind(f"leader epoch {epoch} is not the current one, {self.leader_epoch}")

    def load(self) -> None:
        """Start loading the log; `ready` completes when it is loaded."""
        self.lifecycle_host.load()

    async def wait_loaded(self) -> None:
        """Wait until the log is loaded. Raises why it cannot be."""
        self.check_failure()
        if not self.lifecycle.is_loaded:
            self.load()
            if self.ready is not None:
                await self.ready.wait()

    async def wait_settled(self) -> None:
        """Wait until the log is loaded and its end known after a failed append. Raises why not."""
        await self.wait_loaded()
        if self.lifecycle_host.to_resume is not None and self.ready is not None:
            self.lifecycle_host.require_active()
            await self.ready.wait()

    async def roll_now(self) -> None:
        """Close the open ledger, unless it is empty, and start the next one."""
        await self.lifecycle_host.roll_now()

    async def trim(self, log_start_offset: int) -> None:
        """Delete records before `log_start_offset`; see `LifecycleHost.trim`."""
        await self.lifecycle_host.trim(log_start_offset)

    # --- ownership ---------------------------------------------------------------------------

    def expect_chain(self, *, is_expected: bool) -> None:
        """State whether the chain must exist: if so, a missing one was lost."""
        self.lifecycle_host.chain.is_expected = is_expected

    def abandon(self, reason: NotOwner) -> None:
        """Refuse requests with `reason` from now on, and leave everything as it is."""
        self.tenure.abandon(reason)

    @property
    def trouble(self) -> HeadraceError | None:
        """Why it could not be opened or continued; None if it could."""
        return self.lifecycle_host.trouble

    async def delete(self) -> None:
        """Delete all ledgers of a deleted topic. Raises what storage and metadata raise."""
        await self.lifecycle_host.delete()

    def has_companion(self, kind: CompanionKind) -> bool:
        """Whether a companion log of this kind was created; valid once loaded."""
        return self.lifecycle_host.chain.fact.has_companion(kind)

    async def note_companion(self, kind: CompanionKind) -> None:
        """Record in the chain that a companion log exists. Raises as changes of a chain do."""
        host = self.lifecycle_host
        await host.do(host.chain.add_companion(kind), f"note its {kind.name.lower()}")
