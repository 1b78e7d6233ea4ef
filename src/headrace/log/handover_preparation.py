"""Prepares a log for its handover while another broker still owns the partition.

Invariants: fences nothing and changes no chain; creates one ledger, which no chain names yet. This
only saves time: anything not read in time is read after the handover.

The former owner seals its ledger, then starts the next tenure in the chain, in one transaction with
the name of the next owner. Both are watched, and read as soon as they exist, concurrently with the
notification of ownership.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.log.sealing import release_open
from headrace.log.segment import Segment
from headrace.storage.ledger import FollowsSeals, LedgerId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.log.ledger_chain import LedgerChain
    from headrace.metadata.facts import PartitionFact
    from headrace.storage.ledger import LedgerStore

log = logging.getLogger(__name__)


class HandoverPreparation:
    """The preparation of one log, for one leader epoch."""

    __slots__ = ("_chain", "_following", "_former", "_store", "ahead")

    def __init__(self, chain: LedgerChain, store: LedgerStore) -> None:
        self._chain = chain
        self._store = store
        self.ahead: Segment | None = None
        """The ledger created before this broker's tenure; not in a chain yet."""
        self._former: LedgerId | None = None
        """The ledger that the former owner writes to, until it is open here."""
        self._following: asyncio.Task[None] | None = None

    async def prepare(
        self,
        leader_epoch: int,
        create: Callable[[], Awaitable[LedgerId]],
        is_waiting: Callable[[], bool],
    ) -> None:
        """Read the chain, open the newest sealed ledger, which readers need first, and create the
        ledger of this broker's tenure. The log's state will be in the footer of the open ledger.
        Raises what loading raises.
        """
        fact = await self._chain.load()
        if fact.ledgers and fact.end_offset_or_none is None:  # the last ledger is open
            ahead = Segment(await create(), 0, leader_epoch)
            if is_waiting():
                self.ahead, self._former = ahead, LedgerId(fact.ledgers[-1].ledger)
            else:
                release_open([ahead], self._store)
        sealed = [link for link in fact.ledgers if link.is_sealed and link.local_deleted_ms is None]
        if sealed:
            await self._store.read(LedgerId(sealed[-1].ledger), 0, 1)

    async def follow(self, leader_epoch: int) -> None:
        """Read what the former owner writes at the handover, as soon as it exists. Raises what
        reading raises; cancelled when `begin` has read the rest, or by `end`.
        """
        self._following = asyncio.current_task()
        for error in await asyncio.gather(
            self._chain.foresee(leader_epoch), self._follow_former(), return_exceptions=True
        ):
            if error is not None:
                raise error

    async def _follow_former(self) -> None:
        former, store = self._former, self._store
        if former is not None and isinstance(store, FollowsSeals):
            await store.open_when_sealed(former)
            self._former = None

    async def begin(self, leader_epoch: int) -> PartitionFact:
        """Claim the chain, as LedgerChain.claim, and open the former owner's ledger meanwhile."""
        ahead = None if self.ahead is None else self.ahead.ledger
        try:
            fact, _ = await asyncio.gather(
                self._chain.claim(leader_epoch, ahead), self._open_if_sealed(self._former)
            )
        finally:
            self.end()
        self._former = None
        return fact

    def end(self) -> None:
        """Stop watching."""
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _open_if_sealed(self, ledger: LedgerId | None) -> None:
        """Open a ledger that is probably sealed; does not fence, so nothing happens if not."""
        if ledger is not None:
            try:
                await self._store.read(ledger, 0, 1)
            except HeadraceError as error:
                log.debug("ledger %s is not sealed: %s", ledger, error)
