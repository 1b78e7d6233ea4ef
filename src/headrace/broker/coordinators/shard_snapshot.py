"""Snapshots of a machine's state: when its log is replaced by one, and writing it.

Invariants: knows the size of the log and of the state, not commands or replies. At most one
snapshot of a shard is written at a time, and one whose machine was replaced or suspended meanwhile
is abandoned: the log before it stays. No part of a state of any size holds the loop for longer than
a few milliseconds. A batch is no larger than the log accepts, unless it is a single record.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinators.shard_log import LogRecord, ShardLog, size_of
from headrace.errors import HeadraceError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from headrace.broker.coordinators.shard_appends import ShardAppends
    from headrace.coordination.kit.machine import Machine
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

SNAPSHOT_BYTES_MIN = 2 * 1024 * 1024
"""About 15,000 single commits, which take 0.15 s to read on free cores, seconds on busy ones."""
SNAPSHOT_RATIO = 4
"""A snapshot pays off when the log is this many times as large as the state."""
SHRINK_BYTES_MIN = 8 * 1024
"""A longer log is compacted before a hand-over: 512 KiB of single commits take 0.3 s to read."""
SHRINK_RATIO = 1.5
SAMPLE, SAMPLED_MIN = 16, 256


class ShardSnapshots:
    """The snapshots of one shard."""

    def __init__(
        self,
        name: str,
        shard_log: ShardLog,
        appends: ShardAppends,
        append: Callable[[list[LogRecord]], HeadraceError | None],
        is_hosted: Callable[[Machine[Any, Any, Any]], bool],
        tasks: Tasks,
    ) -> None:
        """`append` appends a batch after all that the shard has decided, or returns an error.
        `is_hosted`: whether the shard still gives commands to a machine."""
        self.bytes_min = SNAPSHOT_BYTES_MIN
        """A shorter log is left as it is. Applies from the next load or snapshot on."""
        self.due_at_bytes = SNAPSHOT_BYTES_MIN
        """Once the log is longer, `begin`."""
        self.log_bytes = 0
        """Approximate size of the log since the last snapshot; the shard adds what it appends."""
        self._name = name
        self._log = shard_log
        self._appends = appends
        self._append = append
        self._is_hosted = is_hosted
        self._tasks = tasks
        self._is_writing = False

    def loaded(self, log_bytes: int) -> None:
        """A machine was made from a log of this size."""
        self.log_bytes = log_bytes
        self.due_at_bytes = self.bytes_min

    def begin(self, machine: Machine[Any, Any, Any]) -> None:
        """Write a snapshot in the background if that pays off, unless one is being written."""
        if not self._is_writing:
            self._is_writing = True
            snapshot = self._write(machine, self.bytes_min, SNAPSHOT_RATIO)
            self._tasks.spawn(snapshot, f"{self._name} snapshot")

    async def shrink(self, machine: Machine[Any, Any, Any], timeout_s: float) -> None:
        """See CoordinatorShard."""
        if self._is_writing or self.log_bytes < SHRINK_BYTES_MIN:
            return
        self._is_writing = True
        snapshot = self._write(machine, SHRINK_BYTES_MIN, SHRINK_RATIO)
        task = self._tasks.start(snapshot, f"{self._name} snapshot")
        task.add_done_callback(lambda _: snapshot.close())  # if cancelled before it started
        await asyncio.wait([task], timeout=timeout_s)

    async def _write(self, machine: Machine[Any, Any, Any], bytes_min: int, ratio: float) -> None:
        """Append the whole state, part by part, and trim the log before it, if the log has more
        than `bytes_min` bytes and is more than `ratio` times as large as the state.

        Commands continue meanwhile. A part is taken and appended in one turn of the loop; the next
        one waits until it is durable.
        """
        try:
            size_bytes = await state_size(machine)
            self.due_at_bytes = max(self.bytes_min, size_bytes * SNAPSHOT_RATIO)
            if not self._is_hosted(machine) or not size_bytes:
                return
            if self.log_bytes <= max(bytes_min, size_bytes * ratio):
                return
            needed_from = self._log.begin_snapshot()
            self.log_bytes = 0
            for part in machine.state_parts():
                for records in batches_of(machine, part, self._appends.batch_bytes):
                    error = self._append(records)
                    if error is not None:  # the machine may have been replaced by now
                        log.warning("%s: snapshot abandoned (%s)", self._name, error)
                        return
                if self._appends.tail is None:
                    await asyncio.sleep(0)
                else:
                    await self._appends.tail.wait()
                if not self._is_hosted(machine):
                    return
            await self._log.end_snapshot(needed_from)
        except HeadraceError as error:  # the failed append has dropped the machine
            log.info("%s: snapshot abandoned (%s)", self._name, error)
        finally:
            self._is_writing = False


async def state_size(machine: Machine[Any, Any, Any]) -> int:
    """Approximate size of the state in the log: if a part has many records, which are alike, every
    sixteenth is encoded."""
    size_bytes = 0
    for part in machine.state_parts():
        sample = part if len(part) < SAMPLED_MIN else part[::SAMPLE]
        if sample:
            size_bytes += size_of(_encoded(machine, sample)) * len(part) // len(sample)
        await asyncio.sleep(0)
    return size_bytes


def batches_of(
    machine: Machine[Any, Any, Any], part: list[Any], bytes_max: int
) -> Iterator[list[LogRecord]]:
    """A part of the state as record batches of at most `bytes_max`, or of one record."""
    pairs = _encoded(machine, part)
    if size_of(pairs) <= bytes_max:  # almost always
        if pairs:
            yield pairs
        return
    batch: list[LogRecord] = []
    batch_bytes = 0
    for pair in pairs:
        pair_bytes = size_of([pair])
        if batch and batch_bytes + pair_bytes > bytes_max:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(pair)
        batch_bytes += pair_bytes
    if batch:
        yield batch


def _encoded(machine: Machine[Any, Any, Any], records: list[Any]) -> list[LogRecord]:
    pairs = [machine.encode(record) for record in records]
    return [pair for pair in pairs if pair is not None]
