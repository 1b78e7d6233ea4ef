"""What a log has at hand when its turn comes, while another broker still owns the partition.

Invariants: nothing is fenced and no chain is changed; one ledger is created, which no chain names
yet. All of this saves time alone: what was not seen in time is read when the turn has come.

How it works: the former owner seals its ledger, then begins the next tenure in the chain, in one
transaction with the name of the next owner. Both are watched, and read as soon as they are there,
beside the news of that name.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.log.sealing import release
from headrace.log.segment import Segment
from headrace.storage.ledger import FollowsSeals, LedgerId

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.log.ledger_chain import LedgerChain
    from headrace.metadata.facts import PartitionFact
    from headrace.storage.ledger import LedgerStore

log = logging.getLogger(__name__)


class NextTurn:
    """Of one log, under one epoch."""

    __slots__ = ("_chain", "_following", "_former", "_store", "ahead")

    def __init__(self, chain: LedgerChain, store: LedgerStore) -> None:
        self._chain = chain
        self._store = store
        self.ahead: Segment | None = None
        """A ledger that was created before this broker's turn; in no chain yet."""
        self._former: LedgerId | None = None
        """The ledger that the former owner writes to, until it is open here."""
        self._following: asyncio.Task[None] | None = None

    async def prepare(
        self,
        leader_epoch: int,
        create: Callable[[], Awaitable[LedgerId]],
        is_waiting: Callable[[], bool],
    ) -> None:
        """Read the chain, open the newest sealed ledger, whose readers come first, and create the
        ledger of this broker's turn. The log's state is in the footer with which the open ledger
        will be sealed. Raises what loading does.
        """
        fact = await self._chain.load()
        if fact.ledgers and fact.end_offset_or_none is None:  # it is written to
            ahead = Segment(await create(), 0, leader_epoch)
            if is_waiting():
                self.ahead, self._former = ahead, LedgerId(fact.ledgers[-1].ledger)
            else:
                release([ahead], self._store)
        sealed = [link for link in fact.ledgers if link.is_sealed and link.local_deleted_ms is None]
        if sealed:
            await self._store.read(LedgerId(sealed[-1].ledger), 0, 1)

    async def follow(self, leader_epoch: int) -> None:
        """Watch what the former owner leaves, until it is read. Raises what reading raises;
        cancelled once `begin` has read the rest, or by `end`.
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
        """Claim the chain, as LedgerChain.claim, and open the former owner's ledger beside that."""
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
        """Watch no longer."""
        if self._following is not None:
            self._following.cancel()
            self._following = None

    async def _open_if_sealed(self, ledger: LedgerId | None) -> None:
        """Open what its writer has probably sealed; without a fence, so nothing if not."""
        if ledger is not None:
            try:
                await self._store.read(ledger, 0, 1)
            except HeadraceError as error:
                log.debug("ledger %s is not sealed: %s", ledger, error)
