"""Detects that another broker's process has died before its session ends.

Invariants: a failure detector that only acts on certainty. Each broker keeps one idle connection to
every other broker. When a process dies, its machine closes the connection at once and refuses the
next one; only then is the dead broker's registration removed, so that all brokers learn of it at
the same time. A broker that is slow, paused or partitioned looks different and is left to its
session. A false positive would cost a needless move but no records: storage fences a broker whose
partitions are taken over, and a broker that finds its registration removed restores it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.metadata.facts import BrokerFact, broker_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.metadata.store import MetadataStore
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 2.0
RETRY_S = 5.0
"""Until an unreachable peer is tried again."""
HELD_S = 1.0
"""A connection that lasted this long was accepted for good."""
PROBES = 2
PROBE_GAP_S = 0.02


class Peers:
    """Watches the other brokers of a cluster."""

    def __init__(self, me: int, metadata: MetadataStore, tasks: Tasks) -> None:
        self._me = me
        self._metadata = metadata
        self._tasks = tasks
        self._watched: dict[str, asyncio.Task[None]] = {}

    def follow(self, brokers: Mapping[int, BrokerFact]) -> None:
        """Watch these brokers, and no others."""
        wanted = {
            fact.incarnation: fact
            for fact in brokers.values()
            if fact.id != self._me and fact.incarnation is not None
        }
        for incarnation in [known for known in self._watched if known not in wanted]:
            self._watched.pop(incarnation).cancel()
        for incarnation, fact in wanted.items():
            if incarnation not in self._watched:
                task = self._tasks.start(self._watch(fact), f"peer {fact.id}")
                self._watched[incarnation] = task

    async def _watch(self, fact: BrokerFact) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            if not await self._hold(fact):
                await asyncio.sleep(RETRY_S)
            elif await self._is_refused(fact):
                await self._witness(fact)
                await asyncio.sleep(RETRY_S)
            elif loop.time() - began < HELD_S:
                await asyncio.sleep(RETRY_S)  # it accepts connections and drops them

    async def _hold(self, fact: BrokerFact) -> bool:
        """Connect and wait for the connection to end; False if it could not be opened."""
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                reader, writer = await asyncio.open_connection(fact.kafka_host, fact.kafka_port)
        except (OSError, TimeoutError):
            return False
        try:
            await reader.read(1)  # nothing is ever requested, so only the end can arrive
        except OSError:
            pass
        finally:
            writer.transport.abort()
        return True

    async def _is_refused(self, fact: BrokerFact) -> bool:
        """Whether the broker's address refuses connections."""
        for _ in range(PROBES):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    _, writer = await asyncio.open_connection(fact.kafka_host, fact.kafka_port)
            except ConnectionRefusedError:
                await asyncio.sleep(PROBE_GAP_S)
            except (OSError, TimeoutError):
                return False
            else:
                writer.transport.abort()
                return False
        return True

    async def _witness(self, fact: BrokerFact) -> None:
        key = broker_key(fact.id)
        try:
            entry = await self._metadata.get(key)
            if entry is None or BrokerFact.decode(entry.value).incarnation != fact.incarnation:
                return
            await self._metadata.delete(key, entry.version)
            log.warning("broker %d has died: its address refuses connections", fact.id)
        except HeadraceError as error:
            log.info("broker %d seems dead; waiting for its session to end: %s", fact.id, error)
