"""Batches a shard's appends: one record batch for all decisions of one loop turn.

Invariants: batches reach the log in the order of their decisions. The records of one decision are
never split. A batch of several decisions stays within TURN_BYTES and TURN_RECORDS, and within the
log's limit. A decision that exceeds these by itself, a decision within a transaction and a marker
each get their own batch, after everything decided before. Knows no machine and no replies: `tail`
is done when everything added so far is durable, and `on_settled` is called with the outcome of each
batch before the waiters of `tail`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.broker.coordinators.shard_log import BATCH_OVERHEAD_BYTES, LogRecord, ShardLog
from headrace.errors import CoordinatorUnavailable, HeadraceError
from headrace.runtime.completion import Completion, failed

if TYPE_CHECKING:
    from collections.abc import Callable

TURN_BYTES, TURN_RECORDS = 64 * 1024, 500
"""Encoding takes at most about 2 ms. Beyond a hundred records per batch the saving is below 3 %."""


class _Turn:
    """The batch being collected."""

    __slots__ = ("completion", "handle", "records", "size_bytes")

    def __init__(self, handle: asyncio.Handle) -> None:
        self.handle = handle
        self.records: list[LogRecord] = []
        self.size_bytes = 0
        self.completion = Completion()

    def written(self, error: BaseException | None, _context: None) -> None:
        """The log has settled the batch."""
        if error is None:
            self.completion.succeed()
        else:
            self.completion.fail(error)


class ShardAppends:
    """See the module."""

    def __init__(
        self, shard_log: ShardLog, on_settled: Callable[[BaseException | None], None]
    ) -> None:
        self.tail: Completion | None = None
        """Done when everything added so far is durable; None if it already is."""
        self._log = shard_log
        self._on_settled = on_settled
        self._turn: _Turn | None = None
        self._handed: Completion | None = None
        """The newest batch passed to the log."""
        self._discards = 0

    @property
    def batch_bytes(self) -> int:
        """Records of this size (`size_of`) form a batch that the log always accepts."""
        # `size_of` is an estimate: the other half covers the overhead of each record.
        return (self._log.batch_bytes_max - BATCH_OVERHEAD_BYTES) // 2

    @property
    def is_collecting(self) -> bool:
        """Whether something was added in this turn of the loop that the log does not have yet."""
        return self._turn is not None

    def fits_turn(self, size_bytes: int, record_count: int) -> bool:
        """Whether records of this size (`size_of`) may share a batch with other decisions."""
        return size_bytes <= min(TURN_BYTES, self.batch_bytes) and record_count <= TURN_RECORDS

    def add(self, records: list[LogRecord], size_bytes: int) -> BaseException | None:
        """Append a decision's records, which fit into a turn, together with others of this turn.

        Returns the error if the batch before them was refused; they were not added then.
        """
        turn = self._turn
        if turn is not None and not self.fits_turn(
            turn.size_bytes + size_bytes, len(turn.records) + len(records)
        ):
            error = self.flush()
            if error is not None:
                return error
            turn = None
        if turn is None:
            turn = self._turn = _Turn(asyncio.get_running_loop().call_soon(self.flush))
            self._follow(turn.completion)
        turn.records += records
        turn.size_bytes += size_bytes
        return None

    def append(self, write: Callable[[], Completion]) -> BaseException | None:
        """Append a batch by `write` at once; the error if the log refuses it."""
        error = self.flush()
        if error is not None:
            return error
        try:
            completion = write()
        except HeadraceError as refusal:
            return refusal
        if completion.error is not None:
            return completion.error
        self._handed = completion
        self._follow(completion)
        return None

    def flush(self) -> BaseException | None:
        """Append the batch of this turn; the error if the log refuses it."""
        turn, self._turn = self._turn, None
        if turn is None:
            return None
        turn.handle.cancel()
        try:
            completion = self._log.append(turn.records)
        except Exception as error:  # noqa: BLE001  # replies wait for it, whatever it is
            completion = failed(error)
        self._handed = turn.completion
        completion.then(turn.written, None)
        return completion.error

    def discard(self) -> None:
        """Discard the batch of this turn, and report no outcome of batches in flight.

        `tail` is done when those in flight have settled.
        """
        self._discards += 1
        turn, self._turn = self._turn, None
        handed = self._handed
        self.tail = None if handed is None or handed.done else handed
        if turn is not None:
            turn.handle.cancel()
            turn.completion.fail(
                CoordinatorUnavailable("the coordinator discarded the batch: try again")
            )

    def _follow(self, completion: Completion) -> None:
        self.tail = completion
        completion.then(self._settled, (self._discards, completion))

    def _settled(self, error: BaseException | None, context: tuple[int, Completion]) -> None:
        discards, completion = context
        if self.tail is completion:
            self.tail = None
        if discards == self._discards:
            self._on_settled(error)
