"""Puts a broker together: the only place that knows every implementation.

Rules of the room: choices only, no behaviour. An optional part is imported here, when it is asked
for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.broker.node import Node
from headrace.http.face import HttpFace
from headrace.kafka.dispatch import KafkaFace
from headrace.metadata.sqlite import POLL_MS, SqliteMetadataStore
from headrace.runtime.clock import SystemClock
from headrace.runtime.randomness import SystemRandomness
from headrace.server.lifecycle import Broker
from headrace.storage.files.store import FileLedgerStore

if TYPE_CHECKING:
    from headrace.server.settings import Settings

WORKERS_POLL_MS = 50
"""How soon a worker sees what another wrote to the metadata; a look costs some 10 us."""


async def start_embedded(settings: Settings) -> Broker:
    """A broker of one machine: files and SQLite. Raises what opening them raises, and OSError."""
    clock, randomness = SystemClock(), SystemRandomness()
    # The ledgers' folder is made (durably) and locked first: a second process touches nothing.
    store = await FileLedgerStore.open(settings.ledger_dir, clock)
    broker = Broker(store.close)
    try:
        slots = range(settings.worker_count) if settings.worker_count > 1 else ()
        metadata = await SqliteMetadataStore.open(
            settings.data_dir / "metadata.sqlite",
            clock,
            poll_ms=WORKERS_POLL_MS if slots else POLL_MS,
        )
        broker.on_stop(metadata.close)
        tier = None
        if settings.objects_url is not None:
            from headrace.server.objects import open_tier

            tier = await open_tier(settings, store, metadata, clock, randomness)
            broker.on_stop(tier.close)
        node = Node(
            settings.broker, tier or store, metadata, clock, randomness, slots=slots, tier=tier
        )
        await node.open()
        broker.on_stop(node.close)
        if settings.advertised is not None:
            node.kafka_address = settings.advertised
        kafka = KafkaFace(node)
        broker.kafka = await kafka.listen(*settings.kafka)
        broker.on_stop(kafka.close)
        http = HttpFace(node, kafka, store.counters)
        broker.http = await http.listen(*settings.http)
        broker.on_stop(http.close)
        await node.register(settings.advertised or broker.kafka, broker.http)
        broker.on_stop(node.leave)
        http.serve_ready()
    except BaseException:
        await broker.stop()
        raise
    return broker
