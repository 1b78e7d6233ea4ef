"""What a shard appends: one record batch for all that is decided in one turn of the loop.

Invariants: batches reach the log in the order of their decisions. The records of one decision are
never divided. A batch of several decisions stays within TURN_BYTES and TURN_RECORDS, and within
what the log takes. A decision that is larger than that by itself, one that belongs to a transaction
and a marker have a batch of their own, after all that was decided before. Knows no machine and no
replies: `tail` is done when everything that was added by then is durable, and `on_settled` is
called with the outcome of each batch before what waits for `tail`.
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
"""At most some 2 ms to encode. Beyond a hundred records a batch the saving is below 3 %."""


class _Turn:
    """The batch that is being gathered."""

    __slots__ = ("completion", "handle", "records", "size_bytes")

    def __init__(self, handle: asyncio.Handle) -> None:
        self.handle = handle
        self.records: list[LogRecord] = []
        self.size_bytes = 0
        self.completion = Completion()

    def written(self, error: BaseException | None, _context: None) -> None:
        """The log is done with the batch."""
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
        """Done when all that was added is durable; None while all of it is."""
        self._log = shard_log
        self._on_settled = on_settled
        self._turn: _Turn | None = None
        self._handed: Completion | None = None
        """The newest batch that the log was given."""
        self._discards = 0

    @property
    def batch_bytes(self) -> int:
        """Records of this size (`size_of`) make a batch that the log takes for certain."""
        # `size_of` is an estimate: the half leaves room for what each record takes beyond it.
        return (self._log.batch_bytes_max - BATCH_OVERHEAD_BYTES) // 2

    def fits_turn(self, size_bytes: int, record_count: int) -> bool:
        """Whether records of this size (`size_of`) may share a batch with other decisions."""
        return size_bytes <= min(TURN_BYTES, self.batch_bytes) and record_count <= TURN_RECORDS

    def add(self, records: list[LogRecord], size_bytes: int) -> BaseException | None:
        """Append a decision's records, which fit into a turn, with those of the same turn.

        An error says that the batch before them was refused, and that they were not taken.
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
        """Append a batch by `write` at once; why it was not appended, if the log refuses it."""
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
        """Hand over what this turn has gathered; why the log refuses it, if it does."""
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
        """Forget what this turn has gathered, and report no outcome of what the log was given.

        `tail` is done when the latter is settled.
        """
        self._discards += 1
        turn, self._turn = self._turn, None
        handed = self._handed
        self.tail = None if handed is None or handed.done else handed
        if turn is not None:
            turn.handle.cancel()
            turn.completion.fail(CoordinatorUnavailable("the batch was given up"))

    def _follow(self, completion: Completion) -> None:
        self.tail = completion
        completion.then(self._settled, (self._discards, completion))

    def _settled(self, error: BaseException | None, context: tuple[int, Completion]) -> None:
        discards, completion = context
        if self.tail is completion:
            self.tail = None
        if discards == self._discards:
            self._on_settled(error)
