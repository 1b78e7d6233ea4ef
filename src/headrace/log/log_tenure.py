"""One tenure of a partition's log, as the broker's ownership drives it.

Invariants: ownership asks and changes a log through this alone. It knows the log's lifecycle and
chain, not brokers or owners: who owns the partition is decided above.

A suspended log refuses every request, and no append begins, while it is uncertain whether this
broker owns the partition. Appends and steps in progress continue: storage and the chain reject
those of a former owner.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from headrace.log.lifecycle import Event, State, Suspended
from headrace.log.sealing import release_open
from headrace.storage.ledger import LedgerId

if TYPE_CHECKING:
    from headrace.errors import NotOwner
    from headrace.log.handover_preparation import HandoverPreparation
    from headrace.log.ledger_chain import Acknowledged, LedgerChain
    from headrace.log.lifecycle_host import LifecycleHost
    from headrace.log.log_state import LogState
    from headrace.log.segment import Segment
    from headrace.metadata.facts import PartitionFact
    from headrace.metadata.store import MultiOperation
    from headrace.storage.ledger import LedgerStore


class LogTenure:
    """See the module."""

    __slots__ = ("_chain", "_handover", "_host", "_log", "_store", "_unrecorded")

    def __init__(
        self,
        log: LogState,
        chain: LedgerChain,
        handover: HandoverPreparation,
        host: LifecycleHost,
        store: LedgerStore,
    ) -> None:
        self._log = log
        self._chain = chain
        self._handover = handover
        self._host = host
        self._store = store
        self._unrecorded: Segment | None = None
        """The ledger that was sealed for a handover, until the chain records it."""

    # --- what the chain says -----------------------------------------------------------------

    @property
    def fact(self) -> PartitionFact:
        """The chain as last read or written."""
        return self._chain.fact

    @property
    def version(self) -> int:
        """The version of the stored chain when last read or written."""
        return self._chain.version

    @property
    def acknowledged(self) -> Acknowledged:
        """What this broker has acknowledged in earlier tenures."""
        return self._chain.acknowledged

    @acknowledged.setter
    def acknowledged(self, acknowledged: Acknowledged) -> None:
        self._chain.acknowledged = acknowledged

    def chain_missing(self, why: str) -> None:
        """The stored chain is not the one of this tenure: stop serving the partition."""
        self._host.fail(self._chain.lost(f"{why} while the partition was served"))

    # --- before it ---------------------------------------------------------------------------

    def expect_handover(self) -> None:
        """Do not load until `take_over`: requests wait for `ready`."""
        self._host.on(Event.HANDOVER_EXPECTED)

    async def read_ahead(self) -> None:
        """Prepare while another broker owns the partition: see HandoverPreparation.prepare."""
        await self._handover.prepare(
            self._log.leader_epoch,
            lambda: self._host.create(is_ahead=True),
            lambda: self._host.state is State.WAITING,
        )

    async def follow_former(self) -> None:
        """Follow the former owner's handover: see HandoverPreparation.follow."""
        await self._handover.follow(self._log.leader_epoch)

    @property
    def ledger_ahead(self) -> LedgerId | None:
        """The ledger that `read_ahead` created for this broker's tenure."""
        return None if self._handover.ahead is None else self._handover.ahead.ledger

    def take_over(self) -> None:
        """This broker owns the partition from now on."""
        self._host.on(Event.OWNERSHIP_TAKEN)

    # --- its interruption --------------------------------------------------------------------

    def suspend(self, why: str) -> bool:
        """Refuse requests until `reinstate`; False if the log refuses them already."""
        target = self._log
        if target.failure is not None:
            return False
        text = f"{target.name} is not served here: {why}; refresh the metadata"
        self._host.on(Event.SUSPENDED, Suspended(text))
        target.waiters.wake()
        return True

    def reinstate(self) -> bool:
        """Serve requests again; False if the log has failed meanwhile or was being handed over."""
        if not self._log.lifecycle.is_suspended:
            return False
        self._host.on(Event.REINSTATED)
        return self._log.failure is None

    def topic_deleted(self) -> None:
        """The topic was deleted; `PartitionLog.delete` deletes the ledgers."""
        self._host.on(Event.DELETION_BEGUN)

    # --- its end -----------------------------------------------------------------------------

    def abandon(self, reason: NotOwner) -> None:
        """Refuse requests with `reason` from now on, and leave everything as it is."""
        target = self._log
        target.active = None
        self._chain.retire()
        self._handover.end()
        extra = [self._host.take_prepared(), self._handover.ahead]
        self._handover.ahead = None
        release_open([*target.segments, *(one for one in extra if one is not None)], self._store)
        self._host.on(Event.ABANDONED, reason)
        if target.on_lost is not None:
            target.on_lost()

    async def settle_and_seal(self, moved: NotOwner | None = None) -> None:
        """The first half of a handover: wait for pending appends, and seal the ledger if possible.
        Requests are refused with `moved`, or wait until `abandon` if that is None; so do reads,
        since the next owner may already be ahead."""
        target = self._log
        self._host.on(Event.DRAIN, moved)
        if moved is not None:
            target.waiters.wake()
        await target.settled()
        await self._host.steps.idle()
        active, target.active = target.active, None
        if active is not None and active.end_position:
            await asyncio.wait([self._host.steps.begin(self._host.seal_ledger(active), "seal")])
            self._unrecorded = active if active.is_sealed else None
        self._host.on(Event.DRAINED)

    def next_chain(self, leader_epoch: int, ahead: int) -> MultiOperation | None:
        """The change of the chain that starts the next owner's tenure, to be written together with
        its name; None if the next owner must determine the end of the log."""
        if not self._host.steps.is_idle:
            return None
        return self._chain.next_tenure(self._unrecorded, leader_epoch, LedgerId(ahead))

    def record_seal(self) -> None:
        """Record the seal in the chain, once and in the background. If that fails, the next owner
        determines the end of the ledger."""
        segment, self._unrecorded = self._unrecorded, None
        if segment is not None:
            _ = self._host.steps.begin(self._chain.sealed(segment), "note of the seal")
