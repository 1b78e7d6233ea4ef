"""One broker's registration: created, restored, removed.

Invariants: knows one fact and its key. A key of the same id left by another incarnation has to
disappear first, with its session.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import BrokerIdInUse, MetadataUnavailable, VersionConflict
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import BrokerFact, broker_key
from headrace.metadata.store import ABSENT, ANY
from headrace.runtime.session import SessionState

if TYPE_CHECKING:
    from headrace.metadata.store import MetadataStore

log = logging.getLogger(__name__)

JOIN_POLL_S = 0.1
CONFLICT_LOG_INTERVAL_S = 5.0
"""How often a broker that waits for its id logs that it waits."""
LEAVE_TIMEOUT_S = 2.0
DISCONNECTED_LEAVE_TIMEOUT_S = 0.5
"""On a broken connection: it may come back soon; otherwise the key disappears with the session."""


class Membership:
    """The registration of one incarnation of a broker."""

    def __init__(self, fact: BrokerFact, metadata: MetadataStore, join_timeout_ms: int) -> None:
        self._fact = fact
        self._key = broker_key(fact.id)
        self._metadata = metadata
        self._join_timeout_ms = join_timeout_ms
        self._version = ABSENT

    async def join(self) -> None:
        """Register this broker. Raises BrokerIdInUse, MetadataUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._join_timeout_ms / 1000
        next_line = loop.time()
        while True:
            try:
                # ABSENT: every broker must have seen this broker's previous incarnation end.
                await self._register(ABSENT)
                return
            except VersionConflict:
                if loop.time() >= next_line:
                    next_line = loop.time() + CONFLICT_LOG_INTERVAL_S
                    await self._log_conflict(deadline - loop.time())
                if loop.time() > deadline:
                    raise BrokerIdInUse(
                        f"another live broker has id {self._fact.id}: stop it, or start this "
                        "broker with a different --broker-id",
                        broker_id=self._fact.id,
                    ) from None
                await asyncio.sleep(JOIN_POLL_S)

    async def _log_conflict(self, left_s: float) -> None:
        """Log whose registration is in the way. Raises MetadataUnavailable."""
        entry = await self._metadata.get(self._key)
        if entry is None:
            return
        other = decode_fact(BrokerFact, entry)
        log.warning(
            "broker id %d is registered by a broker at %s:%d: waiting up to %.0f s for "
            "its session to end; if that is a different broker and not a previous run of "
            "this one, start this broker with a different --broker-id",
            other.id,
            other.kafka_host,
            other.kafka_port,
            max(left_s, 0),
        )

    async def restore(self) -> bool:
        """Register again after another broker has presumed this one dead. False: not yet."""
        try:
            await self._register(ABSENT)
        except (VersionConflict, MetadataUnavailable) as error:
            log.info("cannot restore this broker's registration yet: %s", error)
            return False
        log.warning("this broker was presumed dead and has registered again")
        return True

    async def _register(self, version: int) -> None:
        value = self._fact.encode()
        self._version = await self._metadata.put(self._key, value, version, ephemeral=True)

    async def announce_leave(self) -> None:
        """Announce that this broker is stopping before it hands over its partitions: otherwise
        their new owners would hand them back to a live broker."""
        self._fact.is_leaving = 1
        try:
            await self._register(self._version)
        except (VersionConflict, MetadataUnavailable) as error:
            log.info("cannot announce that this broker is stopping: %s", error)

    async def leave(self) -> None:
        """Deregister now, or when the session ends if the store is unreachable."""
        is_connected = self._metadata.session.state is SessionState.CONNECTED
        try:
            async with asyncio.timeout(
                LEAVE_TIMEOUT_S if is_connected else DISCONNECTED_LEAVE_TIMEOUT_S
            ):
                await self._metadata.delete(self._key, ANY)
        except (MetadataUnavailable, TimeoutError) as error:
            why = str(error) or "the metadata store does not answer"
            log.info("this broker's registration stays until its session ends: %s", why)
