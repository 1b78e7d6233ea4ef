"""One connection's place among those of its tenant, and the request that waits there.

Invariants: knows sizes of requests, not their contents. A connection without tenants has none. What
a request is charged ends with it: kept by its reply until that is known, passed at the end of this
turn if nothing keeps it, or released if the request fails. See `broker/services/fair_shares.py`.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.services.fair_shares import Charge, TenantShare


class TenantLine:
    """See the module. Implements `fair_shares.Waiter`."""

    __slots__ = ("_charge", "_handled", "_resume", "is_waiting", "parked", "share")

    def __init__(self, resume: Callable[[], None], share: TenantShare) -> None:
        """`resume`: has the connection's requests handled, unless they must wait."""
        self._resume = resume
        self.share: TenantShare | None = share
        """None: the client is of a tenant no more."""
        self.parked: memoryview | None = None
        """The request that waits, or has waited and is the next one."""
        self.is_waiting = False
        self._charge: Charge | None = None
        """What the request that is being handled holds, until something keeps it."""
        self._handled: Charge | None = None
        """The same, also if something keeps it."""

    def admits(self, frame: memoryview) -> bool:
        """Whether a request may be handled; if not, it waits, and so does its connection."""
        if self._charge is None and self.share is not None:
            self._charge = self.share.take(self, len(frame))
            if self._charge is None:
                self.parked, self.is_waiting = frame, True
                return False
        self.parked, self._handled = None, self._charge
        return True

    def accepted(self, charge: Charge) -> None:
        """See fair_shares.Waiter."""
        self.is_waiting = False
        self._charge = charge
        self._resume()
        if self._charge is charge:  # the connection must wait for something else: it asks again
            charge.release()
            self._charge = None

    def keep(self) -> Charge | None:
        """The charge of the request that is being handled, which the caller releases."""
        charge, self._charge = self._charge, None
        return charge

    def pass_turn(self) -> None:
        """The request that is being handled may take long, and does not write; or nothing is left
        to be done for it."""
        if self._charge is not None:
            self._charge.pass_turn()
            self._charge = None

    def fail(self) -> None:
        """The request that is being handled may never have a response."""
        if self._handled is not None:
            self._handled.release()
        self._charge = self._handled = None

    def end(self) -> None:
        """The request has been handled."""
        self.pass_turn()
        self._handled = None

    def move(self, share: TenantShare | None) -> None:
        """The client is of this tenant now."""
        if share is self.share:
            return
        if self.is_waiting:
            self.leave()
            asyncio.get_running_loop().call_soon(self._resume)
        self.share = share

    def leave(self) -> None:
        """Wait no more."""
        if self.is_waiting and self.share is not None:
            self.share.forget(self)
        self.is_waiting = False

    def close(self) -> None:
        """The connection has ended."""
        self.leave()
        self.parked = None
