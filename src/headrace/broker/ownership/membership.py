"""A broker's own key among the living: put there, put back, taken away.

Invariants: knows one fact and its key. A key of the same id that another life left behind
has to go first, with its session.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import BrokerIdInUse, MetadataUnavailable, VersionConflict
from headrace.metadata.facts import BrokerFact, broker_key
from headrace.metadata.store import ABSENT, ANY
from headrace.runtime.session import SessionState

if TYPE_CHECKING:
    from headrace.metadata.store import MetadataStore

log = logging.getLogger(__name__)

JOIN_POLL_S = 0.1
SAY_EVERY_S = 5.0
"""So often a broker that waits for its id says so."""
LEAVE_PATIENCE_S = 2.0
SILENT_PATIENCE_S = 0.5
"""Where the connection is broken: it may be back soon, and else the key goes with the session."""


class Membership:
    """Of one life of a broker."""

    def __init__(self, fact: BrokerFact, metadata: MetadataStore, join_timeout_ms: int) -> None:
        self._fact = fact
        self._key = broker_key(fact.id)
        self._metadata = metadata
        self._join_timeout_ms = join_timeout_ms
        self._version = ABSENT

    async def join(self) -> None:
        """Become one of the living. Raises BrokerIdInUse, MetadataUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._join_timeout_ms / 1000
        next_line = loop.time()
        while True:
            try:
                # ABSENT: the former life of this broker must have ended for all to see.
                await self._register(ABSENT)
                return
            except VersionConflict:
                if loop.time() >= next_line:
                    next_line = loop.time() + SAY_EVERY_S
                    await self._say_taken(deadline - loop.time())
                if loop.time() > deadline:
                    raise BrokerIdInUse(
                        f"another broker with the id {self._fact.id} is alive: stop it, or give"
                        " this one another --broker-id",
                        broker_id=self._fact.id,
                    ) from None
                await asyncio.sleep(JOIN_POLL_S)

    async def _say_taken(self, left_s: float) -> None:
        """Log whose registration is in the way. Raises MetadataUnavailable."""
        entry = await self._metadata.get(self._key)
        if entry is None:
            return
        other = BrokerFact.decode(entry.value)
        log.warning(
            "the id %d is taken by a broker at %s:%d: waiting up to %.0f s for its session to end;"
            " if that is another broker, and not this one's former life, give this one another"
            " --broker-id",
            other.id,
            other.kafka_host,
            other.kafka_port,
            max(left_s, 0),
        )

    async def restore(self) -> bool:
        """Put the key back: another broker has held this one for dead. False: not yet."""
        try:
            await self._register(ABSENT)
        except (VersionConflict, MetadataUnavailable) as error:
            log.info("the cluster does not know this broker at the moment: %s", error)
            return False
        log.warning("this broker was held for dead, and tells the cluster that it is not")
        return True

    async def _register(self, version: int) -> None:
        value = self._fact.encode()
        self._version = await self._metadata.put(self._key, value, version, ephemeral=True)

    async def announce_leave(self) -> None:
        """Say that this broker stops, before it hands over: else those who get its partitions would
        give them back, since it lives."""
        self._fact.is_leaving = 1
        try:
            await self._register(self._version)
        except (VersionConflict, MetadataUnavailable) as error:
            log.info("the cluster does not know that this broker stops: %s", error)

    async def leave(self) -> None:
        """Leave the cluster: now, or when the session ends if the store cannot be reached."""
        is_connected = self._metadata.session.state is SessionState.CONNECTED
        try:
            async with asyncio.timeout(LEAVE_PATIENCE_S if is_connected else SILENT_PATIENCE_S):
                await self._metadata.delete(self._key, ANY)
        except (MetadataUnavailable, TimeoutError) as error:
            why = str(error) or "the metadata store is silent"
            log.info("the cluster will miss this broker when its session ends: %s", why)
