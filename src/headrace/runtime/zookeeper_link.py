"""The link to ZooKeeper under `zookeeper`: servers, the session, calls and their deadlines.

Invariants: knows that calls are made and answered, not what they ask. Everything runs in the
loop's thread.

How it works. One task keeps a connection: it tries the servers in turn, each for a part of the
session's time, and resumes the session or begins another. A call waits until the session is
connected and a place is free, is sent, and ends with an answer or, at its deadline, with
MetadataUnavailable. A read whose connection broke is sent again; a change is not: it may have been
done, and only its author can tell what that means. Beats, which pass ZooKeeper's leader, are all
that proves the session's life (`session.is_safe`), and find servers that are silent: what a server
answers by itself proves nothing, since it may be cut off from the leader that ends sessions.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import HeadraceError, MetadataUnavailable, RequestInvalid, VersionConflict
from headrace.runtime import zookeeper_wire as wire
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.session import Session, SessionState
from headrace.runtime.tasks import Tasks
from headrace.runtime.zookeeper_connection import Connection, ConnectionBroken, Watch
from headrace.runtime.zookeeper_watchman import Watchman
from headrace.runtime.zookeeper_wire import Refused

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.zookeeper_wire import Event, Opened, Request

log = logging.getLogger(__name__)

IN_FLIGHT_MAX = 1_000
WAITING_MAX = 10_000
"""Calls that may wait for a place or for a connection; more are refused at once."""
DEFAULT_PORT: Final = 2181
BACKOFF_FIRST_MS: Final = 50
BACKOFF_MAX_MS: Final = 1_000
"""Between two rounds over all servers."""
_ROUND_PARTS: Final = 3
"""A server has a third of the session's time to answer: two more can be tried within it."""
_BEATS_PER_SESSION: Final = 12
"""An answer proves the beat before: twice as many as otherwise would do."""
_CLOSE_PATIENCE_S: Final = 2.0

_CONFLICTS: Final = {
    wire.NO_NODE: "is not there",
    wire.NODE_EXISTS: "is there already",
    wire.BAD_VERSION: "has another version",
    wire.NOT_EMPTY: "has nodes below it",
    wire.EPHEMERAL_PARENT: "lies below an ephemeral node",
}
_BREAKING: Final = frozenset({wire.CONNECTION_LOSS, wire.SESSION_EXPIRED, wire.SESSION_MOVED})
"""Answers after which the server ends the connection, or should have."""


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
    has_watchman: bool = True
    """Whether a thread beats while the loop is held up. A simulation has no threads."""


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
                f"{hosts!r} names no ZooKeeper ({part.strip()!r}): write HOST:PORT[,HOST:PORT...]"
            )
        found.append((name, int(port)))
    return found


class ZooKeeperLink:
    """One session after another, and the calls that are made over them."""

    def __init__(
        self, options: ZooKeeperOptions, clock: Clock, randomness: Randomness | None = None
    ) -> None:
        """Nothing is opened yet. Raises RequestInvalid."""
        self.options = options
        self.clock = clock
        self.session = Session(options.session_timeout_ms, clock.now_ns())
        self.session_id = 0
        """The session's id, as nodes name it that belong to it; 0 while there is none."""
        self.tasks = Tasks()
        self.on_break: Callable[[int], None] = lambda _zxid: None
        """Called when the connection broke, with the last transaction that was heard of."""
        self.on_event: Callable[[Event], None] = lambda _event: None
        self._servers = parse_hosts(options.hosts)
        _shuffle(self._servers, randomness or SystemRandomness())
        self._loop = asyncio.get_running_loop()
        self._connection: Connection | None = None
        self._password = b""
        self._heard_zxid = 0
        self._cause = ""
        """Why there is no connection, or why there was none."""
        self._in_flight = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._is_closed = False
        self._watchman = Watchman(self.session)

    async def open(self) -> None:
        """Open a session. Raises MetadataUnavailable."""
        self.tasks.spawn(self._stay_connected(), "ZooKeeper's connection")
        deadline_ns = self.clock.now_ns() + self.options.connect_timeout_ms * 1_000_000
        await self._take_place("no session was opened", deadline_ns)
        self._release_place()
        self.tasks.spawn(self._beat(), "ZooKeeper's heartbeat")
        if self.options.has_watchman:
            self._watchman.begin()

    async def close(self) -> None:
        """End the session, if a server can be told. Never hangs."""
        if self._is_closed:
            return
        self._is_closed = True
        self._watchman.end()
        await self.tasks.close()
        self._grant_places()
        connection, self._connection = self._connection, None
        if connection is not None:
            told: asyncio.Future[None] = self._loop.create_future()
            connection.send(wire.close_session(), lambda _answer: _set(told))
            await asyncio.wait([told], timeout=_CLOSE_PATIENCE_S)
            connection.end("the ZooKeeper client was closed")
        self.session_id = 0
        if self.session.state is not SessionState.LOST:
            self.session.lose(self.clock.now_ns())

    # --- the connection ------------------------------------------------------------------------

    async def _stay_connected(self) -> None:
        backoff_ms = BACKOFF_FIRST_MS
        while True:
            for _ in range(len(self._servers)):
                self._servers.append(self._servers.pop(0))  # the one that broke comes last
                if await self._connect(*self._servers[-1]):
                    backoff_ms = BACKOFF_FIRST_MS
                    if self._connection is not None:
                        await self._connection.wait_ended()
            await asyncio.sleep(backoff_ms / 1000)
            backoff_ms = min(backoff_ms * 2, BACKOFF_MAX_MS)

    async def _connect(self, host: str, port: int) -> bool:
        """Whether the server has opened or resumed a session."""
        connection = Connection(self.clock, self)
        parts = max(_ROUND_PARTS, len(self._servers))
        try:
            async with asyncio.timeout(self.session.timeout_ms / parts / 1000):
                opened, sent_ns = await self._open(connection, host, port)
        except TimeoutError:
            self._cause = f"{host}:{port} does not answer"
        except Refused as error:
            self._cause = f"{host}:{port} refuses the credential: {error}"
        except (OSError, UnicodeError, ConnectionBroken) as error:
            self._cause = f"{host}:{port}: {_text_of(error)}"
        else:
            return self._enter(connection, opened, sent_ns)
        finally:
            if connection is not self._connection:
                connection.end(self._cause)
        return False

    async def _open(self, connection: Connection, host: str, port: int) -> tuple[Opened, int]:
        """The server's answer, and when it was asked."""
        tls: dict[str, Any] = {}
        if self.options.tls is not None:
            tls = {"ssl": self.options.tls, "server_hostname": host}
        await self._loop.create_connection(lambda: connection, host, port, **tls)
        sent_ns = self.clock.now_ns()
        opened = await connection.open(
            self._heard_zxid,
            self.options.session_timeout_ms,
            self.session_id,
            self._password,
            self.options.credential,
        )
        return opened, sent_ns

    def _enter(self, connection: Connection, opened: Opened, sent_ns: int) -> bool:
        session, now_ns, hosts = self.session, self.clock.now_ns(), self.options.hosts
        if opened.timeout_ms <= 0:
            self._cause = "the session is over"
            self._lose(now_ns)
            # The same server opens the next one.
            self._servers.insert(0, self._servers.pop())
            return False
        self._connection, self._password = connection, opened.password
        if opened.session_id == self.session_id:
            session.resume(opened.timeout_ms, sent_ns, now_ns)
            log.info("connected to ZooKeeper at %s again, in the same session", hosts)
        else:
            self._lose(now_ns)
            self.session_id = opened.session_id
            session.begin(opened.timeout_ms, sent_ns, now_ns)
            log.info("session %d with ZooKeeper at %s begins", session.number, hosts)
        self._watchman.connection = connection
        self._grant_places()
        return True

    def _lose(self, now_ns: int) -> None:
        if self.session_id:
            self.session_id, self._password = 0, b""
            self.session.lose(now_ns)
            log.warning(
                "session %d with ZooKeeper at %s is over", self.session.number, self.options.hosts
            )

    def drop_connection(self, cause: str) -> None:
        """Break the connection; another one is opened."""
        if self._connection is not None:
            self._connection.end(cause)

    async def _beat(self) -> None:
        """Beat again and again; break a connection that stays silent."""
        is_suspect = False
        while True:
            self._watchman.beats += 1
            silent_since_ns, number = self.session.proven_ns, self.session.changes
            await asyncio.sleep(self.session.timeout_ms / 1000 / _BEATS_PER_SESSION)
            connection = self._connection
            if connection is None:
                continue
            silence_ms = (self.clock.now_ns() - (self.session.proven_ns or 0)) // 1_000_000
            is_silent = (self.session.proven_ns, self.session.changes) == (silent_since_ns, number)
            if is_silent and silence_ms > self.session.timeout_ms // 2:
                if is_suspect:  # twice, since our own loop may have been held up
                    log.warning("ZooKeeper is silent for %d ms: another connection", silence_ms)
                    self.drop_connection(f"it was silent for {silence_ms} ms")
                is_suspect = not is_suspect
                continue
            is_suspect = False
            connection.beat()

    # --- what a connection tells: Listener -----------------------------------------------------

    def confirm(self, at_ns: int) -> None:
        """See Listener."""
        if self.session.state is SessionState.CONNECTED:
            self.session.confirm(at_ns)

    def tell(self, event: Event) -> None:
        """See Listener."""
        self.on_event(event)

    def hold(self, zxid: int) -> None:
        """See Listener."""
        self._heard_zxid = zxid

    def note_end(self, connection: Connection) -> None:
        """See Listener."""
        if connection is not self._connection:
            return
        self._connection = self._watchman.connection = None
        self._cause = connection.cause
        self.session.suspend(self.clock.now_ns())
        log.warning("the connection to ZooKeeper at %s broke: %s", self.options.hosts, self._cause)
        self.on_break(self._heard_zxid)

    # --- calls -------------------------------------------------------------------------------

    async def ask(
        self, what: str, request: Request, *, is_read: bool = False, watch: Watch | None = None
    ) -> Any:
        """Send, wait, translate errors; a read is sent again if the connection broke."""
        deadline_ns = self.clock.now_ns() + self.options.call_timeout_ms * 1_000_000
        while True:
            await self._take_place(what, deadline_ns)
            try:
                return await self._send(what, request, deadline_ns, is_read, watch)
            except (ConnectionBroken, Refused) as error:
                if not is_read or self._is_closed or not _is_broken(error):
                    raise self.translate(what, error, is_read=is_read) from error

    async def _send(
        self, what: str, request: Request, deadline_ns: int, is_read: bool, watch: Watch | None
    ) -> Any:
        future: asyncio.Future[Any] = self._loop.create_future()
        connection = self._connection
        assert connection is not None, "a place is given while there is a connection"

        def finish(answer: Any) -> None:
            self._release_place()
            if future.done():
                return  # the caller has gone
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
            self._in_flight -= 1  # the connection broke since the place was given

    async def _wait_for_place(self, what: str, deadline_ns: int) -> None:
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
        effect = "nothing was changed" if is_harmless else "it is not known whether it was changed"
        return MetadataUnavailable(
            f"ZooKeeper at {self.options.hosts} {cause} ({self.session.state.value} for"
            f" {state_s:.1f} s{'; ' + self._cause if self._cause else ''}), so {what}: {effect};"
            " check that a majority of its servers runs and can be reached, then try again",
            is_in_doubt=not is_harmless,
        )

    def translate(
        self, what: str, error: Exception, *, is_read: bool = False, index: int = 0
    ) -> HeadraceError:
        """Our error for one of a server's; `what` it was about."""
        if not isinstance(error, Refused) or _is_broken(error):
            return self._unavailable(what, "broke the connection", is_read)
        meaning = _CONFLICTS.get(error.code)
        if meaning is not None:
            conflict = NodeConflict(
                f"{what} {meaning}: read it again, then decide anew",
                path=what,
                index=index,
                is_missing=error.code == wire.NO_NODE,
            )
            conflict.__cause__ = error
            return conflict
        if error.code == wire.NO_AUTH:
            return RequestInvalid(
                f"{what} in ZooKeeper is closed to us: give the right credential", path=what
            )
        return self._unavailable(what, f"refused the request ({error})", is_read)


def is_conflict(error: object) -> bool:
    """Whether a server's error says that a node is not as it was expected."""
    return isinstance(error, Refused) and error.code in _CONFLICTS


def _is_broken(answer: object) -> bool:
    return isinstance(answer, ConnectionBroken) or (
        isinstance(answer, Refused) and answer.code in _BREAKING
    )


def _set(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def _shuffle(servers: list[tuple[str, int]], randomness: Randomness) -> None:
    """So that not all brokers of a cluster ask the same server."""
    for index in range(len(servers) - 1, 0, -1):
        other = randomness.below(index + 1)
        servers[index], servers[other] = servers[other], servers[index]


def _text_of(error: Exception) -> str:
    """What the system says, without the address, which our own text names."""
    if isinstance(error, ConnectionError) and error.errno:
        return os.strerror(error.errno)
    return str(error)
