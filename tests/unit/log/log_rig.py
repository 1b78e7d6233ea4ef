"""One log over a store in memory whose appends become durable, or fail, when the test says so."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from tests.clocks import HandClock

from headrace.errors import LedgerLost, StorageUnavailable
from headrace.log.environment import Environment
from headrace.log.log_config import LogConfig
from headrace.log.partition_log import PartitionLog
from headrace.log.producer_state import EXPIRY_GRACE_NS, ProducerState
from headrace.metadata.memory import MemoryMetadataStore
from headrace.records.batch import check_batch, iterate_headers
from headrace.records.codec import Record, encode_batch
from headrace.runtime.completion import Completion
from headrace.runtime.tasks import Tasks
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from headrace.log.appended import Appended
    from headrace.storage.ledger import LedgerId, LedgerInfo

TOPIC_ID = UUID(int=7)
NOW_MS = 1_700_000_000_000


def forget_before(producers: ProducerState, before_ms: int) -> None:
    """As if they had been silent for long, by any clock."""
    for now_ns in (0, EXPIRY_GRACE_NS):
        for _ in producers.expire(before_ms, now_ns):
            pass


class HeldStore(MemoryLedgerStore):
    """Groups wait while `is_held`; `refuse_appends` fails those to come at once, as an outage."""

    def __init__(self) -> None:
        super().__init__()
        self.is_held = False
        self.refuse_appends = False
        self.refuse_seals = False
        self._is_doubt_stored: bool | None = None
        self.recover_errors: list[Exception] = []
        self.held: list = []

    def append(self, ledger, parts, size, flush_ms):
        if self.refuse_appends:
            refused = Completion()
            refused.fail(StorageUnavailable("an outage"))
            return self._find(ledger).end, refused
        if self._is_doubt_stored is not None:
            if self._is_doubt_stored:
                self._put(ledger, parts)
            lost = Completion()
            asyncio.get_running_loop().call_soon(lost.fail, LedgerLost("no answer"))
            return self._find(ledger).end, lost
        return super().append(ledger, parts, size, flush_ms)

    @contextmanager
    def in_doubt(self, *, is_stored: bool) -> Iterator[None]:
        """As over storage that a cluster shares: it stays unknown whether an append was stored."""
        self._is_doubt_stored = is_stored
        try:
            yield
        finally:
            self._is_doubt_stored = None

    def _put(self, ledger: LedgerId, parts) -> None:
        found = self._find(ledger)
        found.data += b"".join(parts)
        found.readable = len(found.data)

    async def seal(self, ledger: LedgerId, footer: bytes) -> None:
        if self.refuse_seals:
            raise StorageUnavailable("an outage")
        await super().seal(ledger, footer)

    async def recover(self, ledger: LedgerId) -> LedgerInfo:
        if self.recover_errors:
            raise self.recover_errors.pop(0)
        return await super().recover(ledger)

    def _commit(self) -> None:
        group, self._group = self._group, None
        pending, self._pending = self._pending, []
        self.held.append((group, pending))
        if not self.is_held:
            self.complete_all()

    def complete_all(self) -> None:
        """All that is held becomes durable."""
        self.is_held = False
        while self.held:
            self._group, self._pending = self.held.pop(0)
            super()._commit()

    def lose_answers(self) -> None:
        """What is held is stored, but its completions fail."""
        (_group, pending), *_ = self.held
        self.held.clear()
        for ledger, parts, completion in pending:
            self._put(ledger, parts)
            completion.fail(LedgerLost("in doubt"))
        self.is_held = False

    def fail_newest(self) -> None:
        """The newest group that is held fails, while those before it are still under way."""
        group, pending = self.held.pop()
        for ledger, parts, _completion in reversed(pending):
            self._find(ledger).end -= sum(map(len, parts))
        group.fail(StorageUnavailable("a segment takes no more"))


class LogHarness:
    """A log and what it stands on."""

    def __init__(
        self,
        config: LogConfig | None = None,
        leader_epoch: int | None = None,
        store: MemoryLedgerStore | None = None,
    ) -> None:
        self.store: Any = HeldStore() if store is None else store
        self.metadata = MemoryMetadataStore()
        self.clock = HandClock(NOW_MS)
        self.tasks = Tasks()
        self.config = config or LogConfig()
        self.leader_epoch = leader_epoch
        self.store._is_shared = leader_epoch is not None
        self.log = self.open()

    def open(self) -> PartitionLog:
        environment = Environment(
            self.store, self.metadata, self.clock, self.tasks, self.leader_epoch is not None
        )
        return PartitionLog("t-0", TOPIC_ID, 0, self.config, environment, self.leader_epoch)

    def rival(self, leader_epoch: int) -> LogHarness:
        """The same partition as the broker sees it that takes it over."""
        other = LogHarness(self.config, leader_epoch)
        other.store._ledgers, other.store._ids = self.store._ledgers, self.store._ids
        other.metadata = self.metadata
        other.log = other.open()
        return other

    async def reload(self) -> None:
        """As a new process would find it."""
        await settle()
        self.log = self.open()
        await self.ready()

    async def ready(self) -> None:
        self.log.load()
        if self.log.ready is not None:
            await self.log.ready.wait()

    def begin(self, value: bytes, *, size: int = 0) -> Appended | None:
        batch = encode_batch([Record(0, self.clock.ms, None, value.ljust(size, b"."), [])])
        return self.log.append(batch, check_batch(batch))

    async def append(self, value: bytes, *, size: int = 0) -> int:
        """Append and wait; the offset. Raises what the log raises."""
        for _ in range(20):
            appended = self.begin(value, size=size)
            if appended is not None:
                await appended.completion.wait()
                return appended.base_offset
            assert self.log.ready is not None
            await asyncio.wait_for(self.log.ready.wait(), 2)
        raise AssertionError("the log never became ready")

    async def offsets(self) -> list[int]:
        """The base offsets of all batches, as a reader finds them."""
        found: list[int] = []
        offset = self.log.log_start_offset
        while offset < self.log.high_watermark:
            data = await self.log.reader.read(offset, 1)
            for _at, header in iterate_headers(data):
                found.append(header.base_offset)
                offset = header.last_offset + 1
        return found


async def settle() -> None:
    """Let everything that can go on go on."""
    for _ in range(30):
        await asyncio.sleep(0)


@asynccontextmanager
async def rig(
    config: LogConfig | None = None, leader_epoch: int | None = None
) -> AsyncIterator[LogHarness]:
    made = LogHarness(config, leader_epoch)
    try:
        await made.ready()
        yield made
    finally:
        made.store.complete_all()
        await made.tasks.close()
