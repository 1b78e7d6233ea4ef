"""A broker that shares its partitions with others, and whose process can be frozen."""

from __future__ import annotations

from tests.clocks import AheadClock
from tests.kit.broker import BrokerHarness

from headrace.broker.broker_config import BrokerConfig
from headrace.metadata.memory import MemoryMetadataStore
from headrace.runtime.session import Session
from headrace.storage.memory import MemoryLedgerStore

SESSION_MS = 60_000  # of real time, too: longer than a busy machine needs for a test


class JumpingClock(AheadClock):
    """Time goes on while the process stands still."""

    __slots__ = ("readings_left",)

    def __init__(self) -> None:
        super().__init__()
        self.readings_left = -1
        """Until it freezes by itself, just before the clock is read; -1: it does not."""

    def now_ms(self) -> int:
        self._note_reading()
        return super().now_ms()

    def now_ns(self) -> int:
        self._note_reading()
        return super().now_ns()

    def _note_reading(self) -> None:
        if self.readings_left == 0:
            self.freeze()
        self.readings_left = max(self.readings_left - 1, -1)

    def freeze(self) -> None:
        self.ahead_ms += 2 * SESSION_MS


class SharedBrokerHarness(BrokerHarness):
    """A broker that shares its partitions with others, at the moment with none."""

    def __init__(self) -> None:
        store, metadata = MemoryLedgerStore(), MemoryMetadataStore()
        config = BrokerConfig(offsets_partition_count=1)
        super().__init__(config, store, metadata, JumpingClock(), shared_ledgers=store)
        self.session = metadata.session = Session(SESSION_MS, 0)
        self.renew()

    def renew(self) -> None:
        """Another session begins."""
        now_ns = self.clock.now_ns()
        self.session.begin(SESSION_MS, now_ns, now_ns)
