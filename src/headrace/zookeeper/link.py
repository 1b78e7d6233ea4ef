"""The link to ZooKeeper under `zookeeper`: servers, the session, calls and their deadlines.

Invariants: knows that calls are sent and answered, not what they request. Runs in the event
loop's thread.

One task keeps a connection open: it tries the servers in turn, each for a fraction of the session
timeout, and resumes the session or begins another. A call waits for a connected session and a free
slot, is sent, and ends with an answer or, at its deadline, with MetadataUnavailable. A read is
repeated if its connection broke; a change is not, because it may have been carried out, and only
the caller can tell what that means. Only heartbeats, which pass ZooKeeper's leader, extend the
time until which the session cannot expire (`session.is_safe`); they also detect unresponsive
servers. A server's own answers confirm nothing: it may be cut off from the leader, which expires
sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, MetadataUnavailable, RequestInvalid, VersionConflict
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.session import Session, SessionState
from headrace.runtime.tasks import Tasks
from headrace.zookeeper import wire
from headrace.zookeeper.connection import (
    ConnectionBroken,
    WatchRequest,
    ZooKeeperConnection,
)
from headrace.zookeeper.heartbeat_thread import HeartbeatThread
from headrace.zookeeper.session_ender import OpenSession
from headrace.zookeeper.wire import Refused

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.zookeeper.wire import ConnectResponse, Request, WatchEvent

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 1_000
WAITING_MAX = 10_000
"""Calls waiting for a slot or a connection; further calls are refused at once."""
DEFAULT_PORT: Final = 2181
BACKOFF_FIRST_MS: Final = 50
BACKOFF_MAX_MS: Final = 1_000
"""Delays between two rounds over all servers."""
_ROUNDS_PER_SESSION: Final = 20
"""While the session may survive, rounds are closer together: a broker stops serving before its
session ends, although ZooKeeper may have a leader again."""
_ROUND_PARTS: Final = 3
"""A server has a third of the session timeout to answer, which leaves time for two more."""
_BEATS_PER_SESSION: Final = 12
"""An answer confirms the heartbeat before, so this is twice the usual rate."""
_CLOSE_PATIENCE_S: Final = 2.0

_CONFLICTS: Final = {
    wire.NO_NODE: "does not exist",
    wire.NODE_EXISTS: "already exists",
    wire.BAD_VERSION: "has another version",
    wire.NOT_EMPTY: "has children",
    wire.EPHEMERAL_PARENT: "has an ephemeral parent",
}
_BREAKING: Final = frozenset({wire.CONNECTION_LOSS, wire.SESSION_EXPIRED, wire.SESSION_MOVED})
"""Errors with which the server closes the connection, or should."""


class NodeConflict(VersionConflict):
    """A node's state was not as expected: fields `path`, `is_missing`, and `index` in a multi."""


@dataclass(frozen=True)
class ZooKeeperOptions:
    """Connection settings."""

    hosts: str
    """HOST:PORT[,HOST:PORT...]"""
    session_timeout_ms: int = 6_000
    """Requested; the servers may negotiate another (`session.timeout_ms`)."""
    call_timeout_ms: int = 10_000
    connect_timeout_ms: int = 15_000
    root: str = ""
    """A path prefix for all nodes, created if it does not exist; "" for none."""
    credential: str | None = field(default=None, repr=False)
    """`user:password` for digest authentication; new nodes are then closed to other users."""
    tls: ssl.SSLContext | None = None
    """TLS context for the servers' secure port; None: plaintext."""
    has_heartbeat_thread: bool = True
    """Whether a thread sends heartbeats while the loop is blocked. The simulation has no
    threads."""
    on_session: Callable[[OpenSession | None], None] | None = None
    """Called for each session that begins or resumes; None: it was ended by `close`."""


def parse_hosts(hosts: str) -> list[tuple[str, int]]:
    """Names and ports of servers. Raises RequestInvalid."""
    found = []
    for part in hosts.split(","):
        name, colon, port = part.strip().rpartition(":")
        if not colon or part.strip().endswith("]"):
            name, port = part.strip(), str(DEFAULT_PORT)
        name = name.removeprefix("[").removesuffix("]")
        if not name or "/" in part or not port.isdecimal() or not 0 < int(port) < 65_536:
            raise RequestInvalid(
                f"{hosts!r} is not a list of ZooKeeper servers ({part.strip()!r}): write"
                " HOST:PORT[,HOST:PORT...]"
            )
        found.append((name, int(port)))
    return found


class ZooKeeperLink:
    """The session and its successors, and the calls made over them."""

    def __init__(
        self, options: ZooKeeperOptions, clock: Clock, randomness: Randomness | None = None
    ) -> None:
        """Opens nothing yet. Raises RequestInvalid."""
        self.options = options
        self.clock = clock
        self.session = Session(options.session_timeout_ms, clock.now_ns())
        self.session_id = 0
        """The session id, as ephemeral nodes name their owner; 0 without a session."""
        self.tasks = Tasks()
        self.on_break: Callable[[int], None] = lambda _zxid: None
        """Called when the connection broke, with the last transaction id received."""
        self.on_event: Callable[[WatchEvent], None] = lambda _event: None
        self._servers = parse_hosts(options.hosts)
        _shuffle(self._servers, randomness or SystemRandomness())
        self._loop = asyncio.get_running_loop()
        self._connection: ZooKeeperConnection | None = None
        self._password = b""
        self._last_zxid = 0
        self._cause = ""
        """Why there is no connection, or why the last one ended."""
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self._heartbeat_thread = HeartbeatThread(self.session)

    async def open(self) -> None:
        """Open a session. Raises MetadataUnavailable."""
        self.tasks.spawn(self._stay_connected(), "ZooKeeper's connection")
        deadline_ns = self.clock.now_ns() + self.options.connect_timeout_ms * 1_000_000
        await self._take_place("no session was opened", deadline_ns)
        self._release_place()
        self.tasks.spawn(self._beat(), "ZooKeeper's heartbeat")
        if self.options.has_heartbeat_thread:
            self._heartbeat_thread.begin()

    async def close(self) -> None:
        """End the session, if a server is reachable. Never hangs."""
        if self._is_closed:
            return
        self._is_closed = True
        self._heartbeat_thread.end()
        await self.tasks.close()
        self._grant_places()
        connection, self._connection = self._connection, None
        if connection is not None:
            told: asyncio.Future[Any] = self._loop.create_future()
            connection.send(wire.close_session(), lambda answer: _set(told, answer))
            await asyncio.wait([told], timeout=_CLOSE_PATIENCE_S)
            is_ended = told.done() and not isinstance(told.result(), Exception)
            if is_ended and self.options.on_session is not None:
                self.options.on_session(None)
            connection.end("the ZooKeeper client was closed")
        self.session_id = 0
        if self.session.state is not SessionState.LOST:
            self.session.lose(self.clock.now_ns())

    # --- the connection ------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        backoff_ms = BACKOFF_FIRST_MS
        while True:
            for _ in range(len(self._servers)):
                self._servers.append(self._servers.pop(0))  # the one that broke is tried last
                if await self._connect(*self._servers[-1]):
                    backoff_ms = BACKOFF_FIRST_MS
                    if self._connection is not None:
                        await self._connection.wait_ended()
            await asyncio.sleep(backoff_ms / 1000)
            most_ms = BACKOFF_MAX_MS
            if self.session_id:
                most_ms = min(self.session.timeout_ms // _ROUNDS_PER_SESSION, most_ms)
            backoff_ms = min(backoff_ms * 2, most_ms)

    async def _connect(self, host: str, port: int) -> bool:
        """Try one server; whether it opened or resumed a session."""
        connection = ZooKeeperConnection(self.clock, self)
        parts = max(_ROUND_PARTS, len(self._servers))
        try:
            async with asyncio.timeout(self.session.timeout_ms / parts / 1000):
                opened, sent_ns = await self._open(connection, host, port)
        except TimeoutError:
            self._cause = f"{host}:{port} did not answer"
        except Refused as error:
            self._cause = f"{host}:{port} rejected the credential: {error}"
        except (OSError, UnicodeError, ConnectionBroken) as error:
            self._cause = f"{host}:{port}: {_text_of(error)}"
        else:
            return self._enter(connection, opened, sent_ns)
        finally:
            if connection is not self._connection:
                connection.end(self._cause)
        return False

    async def _open(
        self, connection: ZooKeeperConnection, host: str, port: int
    ) -> tuple[ConnectResponse, int]:
        """The server's answer, and when the request was sent."""
        tls: dict[str, Any] = {}
        if self.options.tls is not None:
            tls = {"ssl": self.options.tls, "server_hostname": host}
        await self._loop.create_connection(lambda: connection, host, port, **tls)
        sent_ns = self.clock.now_ns()
        opened = await connection.open(
            self._last_zxid,
            self.options.session_timeout_ms,
            self.session_id,
            self._password,
            self.options.credential,
        )
        return opened, sent_ns

    def _enter(
        self, connection: ZooKeeperConnection, opened: ConnectResponse, sent_ns: int
    ) -> bool:
        session, now_ns, hosts = self.session, self.clock.now_ns(), self.options.hosts
        if opened.timeout_ms <= 0:
            self._cause = "the session has expired"
            self._lose(now_ns)
            # The same server opens the next session.
            self._servers.insert(0, self._servers.pop())
            return False
        self._connection, self._password = connection, opened.password
        if opened.session_id == self.session_id:
            session.resume(opened.timeout_ms, sent_ns, now_ns)
            log.info("reconnected to ZooKeeper at %s, in the same session", hosts)
        else:
            self._lose(now_ns)
            self.session_id = opened.session_id
            session.begin(opened.timeout_ms, sent_ns, now_ns)
            shown = f"{self.session_id & 2**64 - 1:#x}"  # as ZooKeeper's own log has it
            log.info("session %d (%s) with ZooKeeper at %s started", session.number, shown, hosts)
        self._heartbeat_thread.connection = connection
        if self.options.on_session is not None:
            servers = [self._servers[-1], *self._servers[:-1]]  # this one first
            parts = self.session_id, opened.password, opened.timeout_ms, servers
            self.options.on_session(OpenSession(*parts, self.options.credential))
        self._grant_places()
        return True

    def _lose(self, now_ns: int) -> None:
        if self.session_id:
            self.session_id, self._password = 0, b""
            self.session.lose(now_ns)
            log.warning(
                "session %d with ZooKeeper at %s expired", self.session.number, self.options.hosts
            )

    def drop_connection(self, cause: str) -> None:
        """Abort the connection; another one is opened."""
        if self._connection is not None:
            self._connection.end(cause)

    async def _beat(self) -> None:
        """Send heartbeats periodically; abort a connection that does not answer them."""
        is_suspect = False
        while True:
            self._heartbeat_thread.beats += 1
            silent_since_ns, number = self.session.confirmed_ns, self.session.changes
            await asyncio.sleep(self.session.timeout_ms / 1000 / _BEATS_PER_SESSION)
            connection = self._connection
            if connection is None:
                continue
            silence_ms = (self.clock.now_ns() - (self.session.confirmed_ns or 0)) // 1_000_000
            is_silent = (self.session.confirmed_ns, self.session.changes) == (
                silent_since_ns,
                number,
            )
            if is_silent and silence_ms > self.session.timeout_ms // 2:
                if is_suspect:  # seen twice, since our own loop may have been blocked
                    log.warning("no answer from ZooKeeper for %d ms: reconnecting", silence_ms)
                    self.drop_connection(f"no answer for {silence_ms} ms")
                is_suspect = not is_suspect
                continue
            is_suspect = False
            connection.beat()

    # --- ConnectionListener ---------------------------------------------------------------------

    def confirm(self, at_ns: int) -> None:
        """See ConnectionListener."""
        if self.session.state is SessionState.CONNECTED:
            self.session.confirm(at_ns)

    def notify(self, event: WatchEvent) -> None:
        """See ConnectionListener."""
        self.on_event(event)

    def note_zxid(self, zxid: int) -> None:
        """See ConnectionListener."""
        self._last_zxid = zxid

    def note_end(self, connection: ZooKeeperConnection) -> None:
        """See ConnectionListener."""
        if connection is not self._connection:
            return
        self._connection = self._heartbeat_thread.connection = None
        self._cause = connection.cause
        self.session.suspend(self.clock.now_ns())
        log.warning("the connection to ZooKeeper at %s broke: %s", self.options.hosts, self._cause)
        self.on_break(self._last_zxid)

    # --- calls -------------------------------------------------------------------------------

    async def ask(
        self,
        what: str,
        request: Request,
        *,
        is_read: bool = False,
        watch: WatchRequest | None = None,
    ) -> Any:
        """Send and await the answer, translating errors; reads are repeated on a new connection."""
        deadline_ns = self.clock.now_ns() + self.options.call_timeout_ms * 1_000_000
        while True:
            await self._take_place(what, deadline_ns)
            try:
                return await self._send(what, request, deadline_ns, is_read, watch)
            except (ConnectionBroken, Refused) as error:
                if not is_read or self._is_closed or not _is_broken(error):
                    raise self.translate(what, error, is_read=is_read) from error

    async def _send(
        self,
        what: str,
        request: Request,
        deadline_ns: int,
        is_read: bool,
        watch: WatchRequest | None,
    ) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        connection = self._connection
        assert connection is not None, "a slot is only granted while connected"

        def finish(answer: Any) -> None:
            self._release_place()
            if future.done():
                return  # the caller has timed out or was cancelled
            if isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        connection.send(request, finish, watch)
        delay_s = max(deadline_ns - self.clock.now_ns(), 0) / 1e9
        timer = self._loop.call_later(delay_s, self._expire, future, what, is_read)
        try:
            return await future
        finally:
            timer.cancel()

    def _expire(self, future: asyncio.Future[Any], what: str, is_read: bool) -> None:
        if not future.done():
            future.set_exception(self._unavailable(what, "did not answer in time", is_read))

    async def _take_place(self, what: str, deadline_ns: int) -> None:
        """Wait until a call may be sent. Raises MetadataUnavailable: nothing was sent."""
        while True:
            if self._can_send() and not self._waiting:
                self._in_flight += 1
                return
            await self._wait_for_place(what, deadline_ns)
            if self._connection is not None and not self._is_closed:
                return
            self._in_flight -= 1  # the connection broke after the slot was granted

    async def _wait_for_place(self, what: str, deadline_ns: int) -> None:
        if self._is_closed:
            raise MetadataUnavailable("the ZooKeeper client is closed: open a new one")
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
            cause = "is not connected" if self._connection is None else "is too busy"
            place.set_exception(self._unavailable(what, cause, True))

    def _can_send(self) -> bool:
        is_connected = self._connection is not None and not self._is_closed
        return is_connected and self._in_flight < IN_FLIGHT_MAX

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
        effect = "nothing was changed" if is_harmless else "the change may have been made"
        return MetadataUnavailable(
            f"ZooKeeper at {self.options.hosts} {cause} ({self.session.state.value} for"
            f" {state_s:.1f} s{'; ' + self._cause if self._cause else ''}), so {what}: {effect};"
            " check that a majority of its servers is running and reachable, then try again",
            is_in_doubt=not is_harmless,
        )

    def translate(
        self, what: str, error: Exception, *, is_read: bool = False, index: int = 0
    ) -> HeadraceError:
        """Translate a server's error into one of Headrace's; `what` the call was about."""
        if not isinstance(error, Refused) or _is_broken(error):
            return self._unavailable(what, "broke the connection", is_read)
        meaning = _CONFLICTS.get(error.code)
        if meaning is not None:
            conflict = NodeConflict(
                f"{what} {meaning}: read it again before you retry",
                path=what,
                index=index,
                is_missing=error.code == wire.NO_NODE,
            )
            conflict.__cause__ = error
            return conflict
        if error.code == wire.NO_AUTH:
            return RequestInvalid(
                f"access to {what} in ZooKeeper is denied: give the right credential", path=what
            )
        return self._unavailable(what, f"refused the request ({error})", is_read)


def is_conflict(error: object) -> bool:
    """Whether a server's error says that a node's state was not as expected."""
    return isinstance(error, Refused) and error.code in _CONFLICTS


def _is_broken(answer: object) -> bool:
    return isinstance(answer, ConnectionBroken) or (
        isinstance(answer, Refused) and answer.code in _BREAKING
    )


def _set(future: asyncio.Future[Any], answer: Any) -> None:
    if not future.done():
        future.set_result(answer)


def _shuffle(servers: list[tuple[str, int]], randomness: Randomness) -> None:
    """So that not all brokers of a cluster use the same server."""
    for index in range(len(servers) - 1, 0, -1):
        other = randomness.below(index + 1)
        servers[index], servers[other] = servers[other], servers[index]


def _text_of(error: Exception) -> str:
    """The error's text without the address, which our own message contains."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return str(error)
