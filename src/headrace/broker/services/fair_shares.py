"""How much of a tenant's requests a broker takes in at a time, so that no tenant waits for more of
another's than that, whether or not it has limits.

Invariants: knows sizes, no protocol. A tenant's *share* is what it may have accepted and not
answered: a request that does not fit waits with its connection, which is not read meanwhile, in the
order of arrival, and one request at a time: connections of a tenant take turns. A request alone may
be larger than the share. Each holds its charge at least until the end of the turn of the event loop
in which it was accepted: what is refused at once takes time, too. What is stored (records,
offsets, acknowledgements, changes) holds it until it is stored or refused, also when its client is
gone or wants no answer; every other request, and what is sent to clients, for one turn: it may wait
for what its tenant has yet to send (JoinGroup, a fetch). So what holds a share never waits for what
waits for it. Brokers and clients that have not logged in have no share: logins have bounds of their
own. Without tenants nobody has one. A tenant beside which no other has sent anything for ALONE_S
has several shares.

A connection keeps what waits in its socket. A request that waits in a task of its own (HTTP,
RocketMQ) is in memory, so how many may wait is bounded, and others are refused.

A write whose storage does not answer must not stop the tenant's writes elsewhere: while connections
wait, what is older than one to two times STALLED_S does not count any more.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING, Final, Protocol
from weakref import WeakValueDictionary

from headrace.broker.security.client_addresses import client_address
from headrace.broker.security.principal import ANONYMOUS
from headrace.broker.security.tenant_shares import NOBODY, Holder
from headrace.errors import QuotaExceeded
from headrace.records.tenant_names import DEFAULT

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.broker.security.sessions import ClientSession
    from headrace.broker.services.access_control import AccessControl
    from headrace.broker.services.authorizer import Authorizer
    from headrace.runtime.loop_turns import Path

REQUEST_BYTES: Final = 4096
"""Counted for each request beside its size: a request without any bytes takes the event loop as
long as the bytes of several pages take the disk."""
STALLED_S: Final = 1.0
ALONE_S: Final = 10.0
"""Clients that do nothing else send a heartbeat every few seconds."""
ALONE: Final = 8
"""Shares of a tenant alone: writes of many are synced together. The first request of another waits
for all that is accepted."""

WAITING_REQUEST_BYTES: Final = 64 * 1024
"""Counted for each request beside its size that waits in a task of its own, with what belongs to
it: a face has a few thousand of them at most, for all clients."""
TENANT_WAITING_BYTES_MAX: Final = 64 * 1024 * 1024
WAITING_BYTES_MAX: Final = 128 * 1024 * 1024
"""While requests of a tenant, or of all, that wait in tasks have as much, no other waits."""
RETRY_MS: Final = 1_000
"""When those that may not wait are to be sent again."""


class ShareLimit(Protocol):
    """A part of the broker's configuration, which may change."""

    tenant_request_bytes_max: int


class Waiter(Protocol):
    """A connection, or a request."""

    def accepted(self, charge: Charge) -> None:
        """The request that had to wait is accepted: it is handled in this call, or the charge is
        released."""
        ...


class Charge:
    """What one request holds of its tenant's share."""

    __slots__ = ("_round", "_share", "_size", "_turn")

    def __init__(self, share: TenantShare | None, size: int, held_round: int) -> None:
        self._share = share
        self._size = size
        self._round = held_round
        self._turn = 0 if share is None else share.turn

    def release(self) -> None:
        """The request is stored, refused, or has no effect; may be called again. One that was
        accepted in this turn of the event loop has taken a part of it."""
        share, size = self._share, self._size
        if size and share is not None:
            if self._turn == share.turn:
                self.pass_turn()
            else:
                self._size = 0
                share.release(size, self._round)

    def pass_turn(self) -> None:
        """Hold it for this turn of the event loop only."""
        size, self._size = self._size, 0
        if size and self._share is not None:
            self._share.release(size, self._round)
            self._share.pass_turn(size)


FREE: Final = Charge(None, 0, 0)
"""Of clients without a share."""


class TenantShare:
    """The share of one tenant."""

    __slots__ = (
        "__weakref__",
        "_held",
        "_is_ending",
        "_is_serving",
        "_loop",
        "_older",
        "_passing",
        "_round",
        "_shares",
        "_stalls",
        "_waiting",
        "turn",
        "waiting_bytes",
    )

    def __init__(self, shares: FairShares, loop: asyncio.AbstractEventLoop) -> None:
        self._shares = shares
        self._loop = loop
        self._held = 0
        """In this round, `_older` in the one before it, `_passing` in this turn of the loop."""
        self._older = 0
        self._passing = 0
        self._round = 0
        self.turn = 0
        """Of the event loop, counted while requests come."""
        self._waiting: OrderedDict[Waiter, int] = OrderedDict()
        """Sizes, in order. The first of a dict is found past all that were deleted before it."""
        self.waiting_bytes = 0
        """Of requests that wait in tasks of their own."""
        self._is_ending = self._is_serving = False
        """Whether the end of this turn, and those that wait, have a callback to come."""
        self._stalls: asyncio.TimerHandle | None = None

    @property
    def held_bytes(self) -> int:
        """What counts now."""
        return self._held + self._older + self._passing

    @property
    def waiting_count(self) -> int:
        """How many connections wait."""
        return len(self._waiting)

    def take(self, waiter: Waiter, size: int) -> Charge | None:
        """Charge a request that is accepted; None: it has to wait until `Waiter.accepted`."""
        charge = self.take_now(size)
        if charge is None:
            self.wait(waiter, size)
        return charge

    def wait(self, waiter: Waiter, size: int) -> None:
        """Wait until `Waiter.accepted`, after `take_now`."""
        size += REQUEST_BYTES
        assert waiter not in self._waiting, "a connection waits with one request"
        self._waiting[waiter] = size
        self._shares.waits_total += 1
        if self._stalls is None:
            self._stalls = self._loop.call_later(STALLED_S, self._end_round)

    def take_now(self, size: int) -> Charge | None:
        """As `take`; what has no room does not wait."""
        size += REQUEST_BYTES
        self._shares.note(self, self._loop.time())
        if not self._waiting and self._has_room(size):
            return self._charge(size)
        return None

    def forget(self, waiter: Waiter) -> None:
        """A connection has ended, or is another tenant's: it does not wait."""
        if self._waiting.pop(waiter, None) is not None:
            self._serve_soon()

    def pass_turn(self, size: int) -> None:
        """Hold so many bytes in this turn of the loop."""
        self._passing += size
        self._end_turn_soon()

    def release(self, size: int, held_round: int) -> None:
        """See Charge."""
        if held_round == self._round:
            self._held -= size
        elif held_round == self._round - 1:
            self._older -= size
        assert self._held >= 0 <= self._older, "what is held is released once"
        self._serve_soon()

    def _charge(self, size: int) -> Charge:
        self._held += size
        self._end_turn_soon()
        return Charge(self, size, self._round)

    def _has_room(self, size: int) -> bool:
        held = self.held_bytes
        return not held or held + size <= self._shares.bytes_max(self._loop.time())

    def _end_turn_soon(self) -> None:
        if not self._is_ending:
            self._is_ending = True
            self._loop.call_soon(self._end_turn)

    def _end_turn(self) -> None:
        self._is_ending = False
        self._passing = 0
        self.turn += 1
        self._serve_soon()

    def _end_round(self) -> None:
        """What is older than the round that ends has stalled."""
        self._stalls = None
        self._older, self._held = self._held, 0
        self._round += 1
        self._serve_soon()
        if self._waiting:
            self._stalls = self._loop.call_later(STALLED_S, self._end_round)

    def _serve_soon(self) -> None:
        # Later: this may be called while another request is handled.
        if self._waiting and not self._is_serving:
            self._is_serving = True
            self._loop.call_soon(self._serve)

    def _serve(self) -> None:
        self._is_serving = False
        while self._waiting:
            waiter, size = next(iter(self._waiting.items()))
            if not self._has_room(size):
                return
            del self._waiting[waiter]
            waiter.accepted(self._charge(size))


class _Call:
    """A request that waits in a task of its own."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.acceptance: asyncio.Future[Charge] = loop.create_future()

    def accepted(self, charge: Charge) -> None:
        """See Waiter."""
        if self.acceptance.done():  # it was cancelled
            charge.release()
        else:
            self.acceptance.set_result(charge)


def path_of(session: ClientSession, share: TenantShare | None) -> Path:
    """To whom a client's requests belong: tenants have turns (`loop_turns`), users of a tenant, and
    addresses of those that are not authenticated."""
    principal = session.principal
    is_known = principal is not None and principal is not ANONYMOUS and principal != ANONYMOUS
    return share, principal if is_known else client_address(session.client_host)


def user_of(session: ClientSession) -> str:
    """For whom a client's things count: its user, or the address of one that is not
    authenticated."""
    principal = session.principal
    if principal is None or principal == ANONYMOUS:
        return client_address(session.client_host)
    return NOBODY if principal.is_broker else str(principal)


def holder_of(session: ClientSession, authorizer: Authorizer | None) -> Holder:
    """As `user_of`, with the tenant; `authorizer` None: there are no tenants."""
    return Holder(DEFAULT if authorizer is None else authorizer.tenant(session), user_of(session))


class FairShares:
    """See the module."""

    def __init__(self, access: AccessControl | None, limit: ShareLimit) -> None:
        """`access` None: there are no tenants."""
        self._access = access
        self._limit = limit
        self._shares: WeakValueDictionary[str, TenantShare] = WeakValueDictionary()
        """Of tenants that have connections or requests."""
        self._latest: TenantShare | None = None
        self._alone_from_s = 0.0
        self.waits_total = 0
        self.waiting_bytes = 0
        """Of all tenants' requests that wait in tasks of their own."""

    def note(self, share: TenantShare, now_s: float) -> None:
        """A tenant has sent a request."""
        if self._latest is not share:
            if self._latest is not None:
                self._alone_from_s = now_s + ALONE_S
            self._latest = share

    def bytes_max(self, now_s: float) -> int:
        """What each tenant may have now."""
        share = self._limit.tenant_request_bytes_max
        return share if now_s < self._alone_from_s else ALONE * share

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` when sessions may have another share."""
        if self._access is not None:
            self._access.tenants.on_change(listener)

    def of(self, session: ClientSession) -> TenantShare | None:
        """The share of a client's tenant; the cluster's own clients have one, too. None: without
        bounds."""
        access, principal = self._access, session.principal
        if access is None or not access.has_tenants or principal is None or principal.is_broker:
            return None
        tenant = access.tenant(session)
        share = self._shares.get(tenant)
        if share is None:
            share = TenantShare(self, asyncio.get_running_loop())
            self._shares[tenant] = share
        return share

    def take_now(self, session: ClientSession, size: int) -> Charge | None:
        """Accept a request; None: it has to `enter`. The caller releases the charge."""
        share = self.of(session)
        return FREE if share is None else share.take_now(size)

    async def enter(self, session: ClientSession, size: int) -> Charge:
        """Accept a request once its tenant's share has room. The caller releases the charge.

        Raises QuotaExceeded if too much waits: it is kept in memory.
        """
        share = self.of(session)
        if share is None:
            return FREE
        charge = share.take_now(size)
        if charge is not None:
            return charge
        waiting_bytes = size + WAITING_REQUEST_BYTES
        self._check_waiting(share, waiting_bytes)
        call = _Call(asyncio.get_running_loop())
        share.wait(call, size)
        self._count_waiting(share, waiting_bytes)
        try:
            return await call.acceptance
        except asyncio.CancelledError:
            share.forget(call)
            if not call.acceptance.cancelled():
                call.acceptance.result().release()
            raise
        finally:
            self._count_waiting(share, -waiting_bytes)

    def _check_waiting(self, share: TenantShare, size: int) -> None:
        is_one = share.waiting_bytes + size > TENANT_WAITING_BYTES_MAX
        if is_one or self.waiting_bytes + size > WAITING_BYTES_MAX:
            raise QuotaExceeded(
                "the request does not fit into the share of its tenant beside those in progress,"
                f" and too many requests {'of the tenant' if is_one else 'of all tenants'} wait"
                " already: it was not executed, wait for answers before you send more",
                throttle_ms=RETRY_MS,
            )

    def _count_waiting(self, share: TenantShare, size: int) -> None:
        share.waiting_bytes += size
        self.waiting_bytes += size
