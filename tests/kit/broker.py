"""One broker of a test, over stores in memory unless the test gives it others."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from tests.clocks import AheadClock
from tests.kit.kafka_client import Client

from headrace.broker.broker_config import BrokerConfig
from headrace.broker.node import Node
from headrace.broker.services.storage_figures import counter_figures
from headrace.http.metrics import Metrics
from headrace.kafka.dispatch import KafkaFace
from headrace.kafka.face_figures import kafka_figures
from headrace.metadata.memory import MemoryMetadataStore
from headrace.runtime.randomness import SystemRandomness
from headrace.storage.files.wal_sync import Counters
from headrace.storage.memory import MemoryLedgerStore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from headrace.runtime.figures import Source

T = TypeVar("T")
Test = Callable[[T], Awaitable[None]]

ADDRESS = ("127.0.0.1", 9092)


class BrokerHarness:
    """A broker, and what it stands on, which outlives it."""

    node: Node
    face: KafkaFace

    def __init__(
        self,
        config: BrokerConfig | None = None,
        store: Any = None,
        metadata: Any = None,
        clock: Any = None,
        **of_node: Any,
    ) -> None:
        """`of_node`: see Node."""
        self.config = config or BrokerConfig(offsets_partition_count=2)
        self.store = MemoryLedgerStore() if store is None else store
        self.metadata = MemoryMetadataStore() if metadata is None else metadata
        self.clock = AheadClock() if clock is None else clock
        self.of_node = of_node

    async def start(self) -> Node:
        """Another process of the broker begins."""
        parts = self.store, self.metadata, self.clock, SystemRandomness()
        self.node = Node(self.config, *parts, **self.of_node)
        await self.node.open()
        self.node.cluster.kafka_address = ADDRESS
        self.face = KafkaFace(self.node)
        return self.node

    async def join(self, *, has_port: bool) -> None:
        """Join the brokers that share its metadata; they reach it if it has a port, and it reaches
        them if its `machine` has `peers`."""
        address = ADDRESS
        if has_port:
            address = await self.face.listen("127.0.0.1", 0)
        await self.node.register(address, ("127.0.0.1", 1))

    async def stop(self) -> None:
        await self._hang_up()
        await self.node.close()

    async def kill(self) -> None:
        """As kill -9 does it: what is under way ends, and nothing is handed over or finished."""
        await self.node.tasks.close()
        await self._hang_up()

    async def _hang_up(self) -> None:
        await self.face.close()
        await self.node.peers.close()

    async def restart(self) -> Node:
        await self.stop()
        return await self.start()

    @asynccontextmanager
    async def running(self) -> AsyncIterator[Node]:
        """The broker from its start to its end."""
        await self.start()
        try:
            yield self.node
        finally:
            await self.stop()

    def client(self) -> Client:
        return Client(self.face)


@asynccontextmanager
async def broker(
    config: BrokerConfig | None = None, store: Any = None, metadata: Any = None, **given: Any
) -> AsyncIterator[BrokerHarness]:
    """A broker that runs. `given`: see BrokerHarness."""
    rig = BrokerHarness(config, store, metadata, **given)
    async with rig.running():
        yield rig


def running(config: BrokerConfig | None = None, **given: Any) -> AbstractAsyncContextManager[Node]:
    """The same, where a test needs the node alone."""
    return BrokerHarness(config, **given).running()


def metrics_of(rig: BrokerHarness, *sources: Source) -> Metrics:
    """The metrics of a broker with files, as the server puts them together."""
    counted = partial(kafka_figures, rig.face), partial(counter_figures, Counters())
    return Metrics([*rig.node.figures, *counted, *sources])


def on_a_broker(make: Callable[[BrokerHarness], T]) -> Callable[[Test[T]], Callable[[], None]]:
    """Decorates a test that gets what `make` makes of a broker of its own."""

    def decorate(test: Test[T]) -> Callable[[], None]:
        def run() -> None:
            async def scenario() -> None:
                async with broker() as rig:
                    await test(make(rig))

            asyncio.run(scenario())

        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined]  # pytest would look for its parameters
        return run

    return decorate
