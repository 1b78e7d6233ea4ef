"""Transactional producers over the log of `log_rig`."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.records.batch import check_batch
from headrace.records.codec import Record, encode_batch

if TYPE_CHECKING:
    from tests.unit.log.log_rig import LogHarness

    from headrace.log.appended import Appended

TRIES = 1_000


class Producer:
    """A producer of one partition, which counts its sequences."""

    def __init__(self, bench: LogHarness, producer_id: int = 7, epoch: int = 0) -> None:
        self.bench = bench
        self.id = producer_id
        self.epoch = epoch
        self.sequence = 0

    def batch(
        self,
        count: int = 1,
        *,
        is_transactional: bool = True,
        is_control: bool = False,
        size: int = 0,
    ) -> bytes:
        """Its next batch."""
        value = b"%d.%d" % (self.id, self.sequence)
        records = [Record(0, self.bench.clock.ms, None, value.ljust(size, b"."))] * count
        return encode_batch(
            records,
            producer_id=self.id,
            producer_epoch=self.epoch,
            base_sequence=self.sequence,
            is_transactional=is_transactional,
            is_control=is_control,
        )

    def begin_send(
        self, count: int = 1, *, is_transactional: bool = True, size: int = 0
    ) -> Appended | None:
        batch = self.batch(count, is_transactional=is_transactional, size=size)
        appended = self.bench.log.append(batch, check_batch(batch))
        if appended is not None:
            self.sequence += count
        return appended

    async def send(self, count: int = 1, *, is_transactional: bool = True, size: int = 0) -> int:
        """Append and wait; the base offset. Raises what the log raises."""
        for _ in range(TRIES):
            appended = self.begin_send(count, is_transactional=is_transactional, size=size)
            if appended is not None:
                await appended.completion.wait()
                return appended.base_offset
            await self._wait_ready()
        raise AssertionError("the log never became ready")

    async def _wait_ready(self) -> None:
        """The log is opening a ledger: on files that takes as long as the disk does."""
        ready = self.bench.log.ready
        await (asyncio.sleep(0) if ready is None else asyncio.wait_for(ready.wait(), 60))

    def begin_end(
        self, *, is_commit: bool = True, coordinator_epoch: int = 0, version: int = 1
    ) -> Appended | None:
        epoch = self.epoch + (version >= 2)
        appended = self.bench.log.append_marker(
            self.id, epoch, coordinator_epoch, is_commit=is_commit, transaction_version=version
        )
        if appended is not None and version >= 2:
            self.epoch, self.sequence = epoch, 0
        return appended

    async def end(
        self, *, is_commit: bool = True, coordinator_epoch: int = 0, version: int = 1
    ) -> int:
        """Write the marker and wait; its offset, -1 if it changes nothing."""
        for _ in range(TRIES):
            appended = self.begin_end(
                is_commit=is_commit, coordinator_epoch=coordinator_epoch, version=version
            )
            if appended is not None:
                await appended.completion.wait()
                return appended.base_offset
            await self._wait_ready()
        raise AssertionError("the log never became ready")
