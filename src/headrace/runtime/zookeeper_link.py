"""The link to ZooKeeper under `zookeeper`: its session, its calls and their deadlines.

Invariants: knows that calls are made and answered, not what they ask. kazoo's threads only
put what they have into a queue and wake the loop; everything else runs in the loop's thread.

How it works. A call waits until the session is connected and a place is free, is sent, and ends
with an answer or, at its deadline, with MetadataUnavailable. A read whose connection broke is sent
again; a change is not: it may have been done, and only its author can tell what that means. A
heartbeat proves the session's life (`session.is_safe`), as kazoo's own pings do, and finds servers
that are silent, which kazoo overlooks while it is busy.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Any

from kazoo import exceptions as kazoo_errors
from kazoo.client import KazooState

from headrace.errors import HeadraceError, MetadataUnavailable, RequestInvalid, VersionConflict
from headrace.runtime.session import Session, SessionState
from headrace.runtime.tasks import Tasks
from headrace.runtime.zookeeper_wire import KazooParts

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from headrace.runtime.clock import Clock

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 1_000
WAITING_MAX = 10_000
"""Calls that may wait for a place or for a connection; more are refused at once."""
_BEATS_PER_SESSION = 6
_CLOSE_PATIENCE_S = 2.0
_CLOSE_TIMEOUT_S = 5.0

_CONFLICTS: dict[type[BaseException], str] = {
    kazoo_errors.NoNodeError: "is not there",
    kazoo_errors.NodeExistsError: "is there already",
    kazoo_errors.BadVersionError: "has another version",
    kazoo_errors.NotEmptyError: "has nodes below it",
    kazoo_errors.NoChildrenForEphemeralsError: "lies below an ephemeral node",
}
CONFLICTS = tuple(_CONFLICTS)
_BROKEN = (
    kazoo_errors.ConnectionLoss,
    kazoo_errors.SessionExpiredError,  # ConnectionClosedError, too
    kazoo_errors.SessionMovedError,
)


class NodeConflict(VersionConflict):
    """A node was not as expected: fields `path`, `is_missing`, and its `index` in a multi."""


@dataclass(frozen=True)
class ZooKeeperOptions:
    """How to reach ZooKeeper, and how patient to be."""

    hosts: str
    """HOST:PORT[,HOST:PORT...]"""
    session_timeout_ms: int = 6_000
    """Asked for; the servers may agree to another (`session.timeout_ms`)."""
    call_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000
    root: str = ""
    """A path that is put before all others and made if it is not there; "" for none."""
    credential: str | None = field(default=None, repr=False)
    """`user:password` for digest authentication; what is made is then closed to others."""
    tls: ssl.SSLContext | None = None
    """How to speak to the secure port of the servers; None: in the clear."""


class ZooKeeperLink:
    """One session after another, and the calls that are made over them."""

    def __init__(self, options: ZooKeeperOptions, clock: Clock) -> None:
        """Nothing is opened yet. Raises RequestInvalid."""
        self.options = options
        self.clock = clock
        self.session = Session(options.session_timeout_ms, clock.now_ns())
        self.tasks = Tasks()
        self.on_break: Callable[[int], None] = lambda _zxid: None
        """Called when the connection broke, with the last transaction that was heard of."""
        self._loop = asyncio.get_running_loop()
        self._session_id = 0
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._is_woken = False
        self._is_closed = False
        try:
            self.parts = KazooParts(
                options.hosts, options.session_timeout_ms, options.credential, clock, options.tls
            )
        except ValueError as error:
            raise RequestInvalid(
                f"{options.hosts!r} names no ZooKeeper ({error}): write HOST:PORT[,HOST:PORT...]"
            ) from error
        self.parts.client.add_listener(self._note_state)
        self.parts.on_pong = lambda sent_ns: self.post(self._prove, sent_ns)

    async def open(self) -> None:
        """Open a session. Raises MetadataUnavailable."""
        self.parts.client.start_async()
        deadline_ns = self.clock.now_ns() + self.options.connect_timeout_ms * 1_000_000
        await self._take_place("no session was opened", deadline_ns)
        self._release_place()
        self.tasks.spawn(self._beat(), "ZooKeeper's heartbeat")

    async def close(self) -> None:
        """End the session, if a server can be told. Never hangs."""
        if self._is_closed:
            return
        self._is_closed = True
        await self.tasks.close()
        self._grant_places()
        stopped: asyncio.Future[None] = self._loop.create_future()
        # A thread of our own: the loop's executor would be waited for when the loop ends.
        Thread(
            target=self._stop, args=(stopped,), name="headrace-zookeeper-close", daemon=True
        ).start()
        done, _ = await asyncio.wait([stopped], timeout=_CLOSE_PATIENCE_S)
        if not done:
            self.parts.drop_connection()
            await asyncio.wait([stopped], timeout=_CLOSE_TIMEOUT_S)
        if self.session.state is not SessionState.LOST:
            self.session.lose(self.clock.now_ns())

    def _stop(self, stopped: asyncio.Future[None]) -> None:
        """A thread's work."""
        try:
            self.parts.client.stop()
            self.parts.client.close()
        except Exception as error:  # noqa: BLE001 - the thread's edge
            log.debug("kazoo did not stop cleanly: %s", error)
        self.post(lambda: None if stopped.done() else stopped.set_result(None))

    # --- from kazoo's threads to the loop ------------------------------------------------------

    def post(self, call: Callable[..., None], *arguments: Any) -> None:
        """Have the loop call it, from any thread, in order; one waking serves many."""
        self._inbox.append((call, arguments))
        if not self._is_woken:
            self._is_woken = True
            try:
                self._loop.call_soon_threadsafe(self._empty_inbox)
            except RuntimeError:
                pass  # the loop is gone, and with it all who could ask

    def _empty_inbox(self) -> None:
        self._is_woken = False
        while self._inbox:
            call, arguments = self._inbox.popleft()
            try:
                call(*arguments)
            except Exception:
                log.exception("a callback of ZooKeeper's failed")

    def _note_state(self, state: str) -> None:
        """kazoo's listener, in its thread: it must neither block nor ask."""
        parts = self.parts
        self.post(
            self._enter,
            state,
            parts.session_id,
            parts.session_timeout_ms,
            parts.connected_at_ns,
            self.clock.now_ns(),
        )
        if state == KazooState.SUSPENDED:
            self.post(self.on_break, parts.client.last_zxid)

    def _enter(
        self, state: str, session_id: int, timeout_ms: int, sent_ns: int, now_ns: int
    ) -> None:
        session, hosts = self.session, self.options.hosts
        if state == KazooState.CONNECTED:
            if session_id == self._session_id:
                session.resume(timeout_ms, sent_ns, now_ns)
                log.info("connected to ZooKeeper at %s again, in the same session", hosts)
            else:
                session.begin(timeout_ms, sent_ns, now_ns)
                self._session_id = session_id
                log.info("session %d with ZooKeeper at %s begins", session.number, hosts)
            self._grant_places()
        elif state == KazooState.SUSPENDED:
            session.suspend(now_ns)
            log.warning("the connection to ZooKeeper at %s broke: %s", hosts, self.parts.last_words)
        else:
            session.lose(now_ns)
            if not self._is_closed:
                log.warning("session %d with ZooKeeper at %s is over", session.number, hosts)

    def _prove(self, sent_ns: int) -> None:
        """kazoo's thread asks by itself, too, while the loop is held up: it lived all the while."""
        if self.session.state is SessionState.CONNECTED:
            self.session.confirm(sent_ns)

    async def _beat(self) -> None:
        """Ask for something small again and again; break a connection that stays silent."""
        is_suspect = False
        while True:
            silent_since_ns, number = self.session.proven_ns, self.session.changes
            await asyncio.sleep(self.session.timeout_ms / 1000 / _BEATS_PER_SESSION)
            if self.session.state is not SessionState.CONNECTED:
                continue
            silence_ms = (self.clock.now_ns() - (self.session.proven_ns or 0)) // 1_000_000
            is_silent = (self.session.proven_ns, self.session.changes) == (silent_since_ns, number)
            if is_silent and silence_ms > self.session.timeout_ms // 2:
                if is_suspect:  # twice, since our own loop may have been held up
                    log.warning("ZooKeeper is silent for %d ms: another connection", silence_ms)
                    self.parts.drop_connection()
                is_suspect = not is_suspect
                continue
            is_suspect = False
            if self._in_flight < IN_FLIGHT_MAX:
                self._in_flight += 1
                sent_ns, future = self.clock.now_ns(), self._loop.create_future()
                result = self.parts.client.exists_async("/")
                future.cancel()  # no caller waits: `_finish` notes the sign of life
                result.rawlink(lambda r, f=future, at=sent_ns: self.post(self._finish, f, r, at))

    # --- calls -------------------------------------------------------------------------------

    async def ask(self, what: str, start: Callable[[], Any], is_read: bool = False) -> Any:
        """Send, wait, translate errors; a read is sent again if the connection broke."""
        deadline_ns = self.clock.now_ns() + self.options.call_timeout_ms * 1_000_000
        while True:
            await self._take_place(what, deadline_ns)
            try:
                return await self._send(what, start, deadline_ns, is_read)
            except _BROKEN as error:
                if not is_read or self._is_closed:
                    raise self.translate(what, error, is_read=is_read) from error
            except kazoo_errors.KazooException as error:
                raise self.translate(what, error, is_read=is_read) from error

    async def _send(
        self, what: str, start: Callable[[], Any], deadline_ns: int, is_read: bool
    ) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        sent_ns = self.clock.now_ns()
        try:
            result = start()
        except BaseException:
            self._release_place()
            raise
        result.rawlink(lambda result: self.post(self._finish, future, result, sent_ns))
        timer = self._loop.call_later(
            max(deadline_ns - sent_ns, 0) / 1e9, self._expire, future, what, is_read
        )
        try:
            return await future
        finally:
            timer.cancel()

    def _finish(self, future: asyncio.Future[Any], result: Any, sent_ns: int) -> None:
        """An answer has come, or none will; its caller may have gone."""
        self._release_place()
        error = result.exception
        if not isinstance(error, _BROKEN):
            self.session.confirm(sent_ns)
        if future.done():
            return
        if error is None:
            future.set_result(result.value)
        else:
            future.set_exception(error)

    def _expire(self, future: asyncio.Future[Any], what: str, is_read: bool) -> None:
        if not future.done():
            future.set_exception(self._unavailable(what, "did not answer in time", is_read))

    async def _take_place(self, what: str, deadline_ns: int) -> None:
        """Wait until a call may be sent. Raises MetadataUnavailable: nothing was sent."""
        if self._can_send() and not self._waiting:
            self._in_flight += 1
            return
        if self._is_closed:
            raise MetadataUnavailable("the ZooKeeper client is closed: open it again")
        if len(self._waiting) >= WAITING_MAX:
            raise self._unavailable(what, f"has {WAITING_MAX} calls waiting for it", True)
        place: asyncio.Future[None] = self._loop.create_future()
        self._waiting.append(place)
        delay_s = max(deadline_ns - self.clock.now_ns(), 0) / 1e9
        timer = self._loop.call_later(delay_s, self._expire_place, place, what)
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled() and place.exception() is None:
                self._release_place()
            raise
        finally:
            timer.cancel()

    def _expire_place(self, place: asyncio.Future[None], what: str) -> None:
        if not place.done():
            cause = "is not connected" if not self._can_send() else "is too busy"
            place.set_exception(self._unavailable(what, cause, True))

    def _can_send(self) -> bool:
        return (
            self.session.state is SessionState.CONNECTED
            and self._in_flight < IN_FLIGHT_MAX
            and not self._is_closed
        )

    def _release_place(self) -> None:
        self._in_flight -= 1
        self._grant_places()

    def _grant_places(self) -> None:
        while self._waiting and (self._can_send() or self._is_closed):
            place = self._waiting.popleft()
            if place.done():
                continue
            if self._is_closed:
                place.set_exception(MetadataUnavailable("the ZooKeeper client was closed"))
                continue
            self._in_flight += 1
            place.set_result(None)

    # --- errors ------------------------------------------------------------------------------

    def _unavailable(self, what: str, cause: str, is_harmless: bool) -> MetadataUnavailable:
        state_s = (self.clock.now_ns() - self.session.since_ns) / 1e9
        words = self.parts.last_words
        effect = "nothing was changed" if is_harmless else "it is not known whether it was changed"
        return MetadataUnavailable(
            f"ZooKeeper at {self.options.hosts} {cause} ({self.session.state.value} for"
            f" {state_s:.1f} s{'; ' + words if words else ''}), so {what}: {effect}; check that a"
            " majority of its servers runs and can be reached, then try again",
            is_in_doubt=not is_harmless,
        )

    def translate(
        self, what: str, error: BaseException, *, is_read: bool = False, index: int = 0
    ) -> HeadraceError:
        """Our error for one of kazoo's; `what` it was about."""
        for kind, meaning in _CONFLICTS.items():
            if isinstance(error, kind):
                conflict = NodeConflict(
                    f"{what} {meaning}: read it again, then decide anew",
                    path=what,
                    index=index,
                    is_missing=kind is kazoo_errors.NoNodeError,
                )
                conflict.__cause__ = error
                return conflict
        if isinstance(error, _BROKEN):
            return self._unavailable(what, "broke the connection", is_read)
        if isinstance(error, kazoo_errors.NoAuthError):
            return RequestInvalid(
                f"{what} in ZooKeeper is closed to us: give the right credential", path=what
            )
        name = type(error).__name__
        return self._unavailable(what, f"refused the request ({name} {error})", is_read)
