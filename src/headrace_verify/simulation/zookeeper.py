"""Simulated ZooKeeper servers, which speak its protocol to the production client.

Invariants: each server is a host with lives, which may be stopped, killed or partitioned; they
serve one `Ensemble`, or a copy while partitioned. They implement what `zookeeper/wire`
sends; any other request closes the connection. A session belongs to one connection at a time;
requests of a previous connection are not executed. Events are sent before the responses to requests
that came after them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.zookeeper import wire
from headrace.zookeeper.client import ZooKeeper
from headrace.zookeeper.link import ZooKeeperOptions
from headrace.zookeeper.wire import BrokenAnswer, FrameReader, NodeState, Stat, WatchEvent
from headrace_verify.rng import seeded
from headrace_verify.simulation.clock import SimulatedRandomness
from headrace_verify.simulation.ensemble import Change, Conflict
from headrace_verify.simulation.loop import Host, context_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.runtime.clock import Clock
    from headrace.zookeeper.session_ender import OpenSession
    from headrace_verify.simulation.ensemble import Ensemble, Tree
    from headrace_verify.simulation.network import Transport
    from headrace_verify.simulation.world import World

PORT: Final = 2181
SERVERS: Final = 3
PLACES: Final = tuple(f"z{number}" for number in range(1, SERVERS + 1))
HALF_TICK_S: Final = 1.0
"""How often a server reports its clients' activity to the leader."""
PING: Final = 11
"""A request that our client does not send."""
_READS: Final = (wire.GET, wire.EXISTS, wire.CHILDREN, wire.READ_MANY)
_PASSWORD: Final = b"simulated".ljust(16)


async def connect(
    world: World,
    clock: Clock,
    timeout_ms: int,
    whose: str,
    root: str = "",
    on_session: Callable[[OpenSession | None], None] | None = None,
) -> ZooKeeper:
    """The production client, on the calling host; `whose` seeds its random numbers."""
    options = ZooKeeperOptions(
        ",".join(f"{place}:{PORT}" for place in PLACES),
        timeout_ms,
        root=root,
        has_heartbeat_thread=False,
        on_session=on_session,
    )
    randomness = SimulatedRandomness(seeded(f"{world.seed} {whose} servers"))
    return await ZooKeeper.connect(options, clock, randomness)


class SimulatedServer:
    """One server and its lives."""

    def __init__(self, name: str, world: World) -> None:
        self.name = name
        self.life = 0
        self.host: Host | None = None
        self.copy: Tree | None = None
        """What it serves while it is partitioned from the other servers."""
        self.clients: dict[_Client, None] = {}
        self._world = world

    def start(self) -> None:
        """Start a life."""
        world = self._world
        if self.host is not None:
            return
        self.life += 1
        host = self.host = Host(self.name, self.life)
        world.hosts.append(host)
        world.network.power_on(self.name)

        def begin() -> None:
            _ = world.loop.create_task(self._listen(host), name=f"{self.name} runs")

        world.loop.call_soon(begin, context=host.context)

    async def _listen(self, host: Host) -> None:
        world = self._world
        await world.loop.create_server(lambda: _Client(world, self, host), self.name, PORT)

    def end(self, *, is_notified: bool) -> None:
        """Kill it; the others continue to serve its state."""
        host, self.host = self.host, None
        if host is None:
            return
        host.is_alive = False
        self._world.network.end(host, is_notified=is_notified)
        if not is_notified:
            self._world.network.power_off(self.name)

    def leave(self, unreported_s: float) -> None:
        """Partition it from the other servers, but not from clients; client activity of the last
        `unreported_s` has not reached the leader."""
        ensemble = self._world.ensemble
        self.copy = ensemble.copied()
        sessions = [client.session for client in self.clients]
        ensemble.forget_since(sessions, self._world.loop.now_s - unreported_s)

    def rejoin(self) -> None:
        """Disconnect all clients, and serve the shared state again."""
        self.copy = None
        for client in list(self.clients):
            client.cut()


class _Client(asyncio.Protocol):
    """A server's side of one connection."""

    def __init__(self, world: World, server: SimulatedServer, host: Host) -> None:
        self._loop = world.loop
        self._ensemble: Ensemble = world.ensemble
        self._server = server
        self._host = host
        self._transport: Transport | None = None
        self._received = b""
        self.session = 0
        self._is_held_up = False
        """Whether a request waits for the leader, and the later ones with it."""
        self._events: list[WatchEvent] = []
        """Events to send before anything else."""

    # --- asyncio.Protocol --------------------------------------------------------------------

    def connection_made(self, transport: Any) -> None:
        """See asyncio."""
        self._transport = transport
        self._server.clients[self] = None

    def connection_lost(self, exc: Exception | None) -> None:
        """See asyncio."""
        self._transport = None
        self._forget()

    def data_received(self, data: bytes) -> None:
        """See asyncio."""
        self._received += data
        while self._transport is not None and len(self._received) >= wire.INT.size:
            end = wire.INT.size + wire.INT.unpack_from(self._received)[0]
            if len(self._received) < end:
                return
            frame, self._received = self._received[wire.INT.size : end], self._received[end:]
            try:
                self._take(FrameReader(frame))
            except BrokenAnswer:
                self._end()

    # --- a watcher of the ensemble -----------------------------------------------------------

    @property
    def is_gone(self) -> bool:
        """See Watcher."""
        return not self._host.is_alive

    def tell(self, event: WatchEvent) -> None:
        """See Watcher."""
        if self._server.copy is not None:
            return  # its server has not learned of it yet
        self._events.append(event)
        # A stopped server sends it when it resumes.
        self._loop.call_soon(self._flush, context=context_of(self._host))

    def cut(self) -> None:
        """See Watcher."""
        if self._server.copy is not None:
            return
        self._loop.call_soon(self._end, context=context_of(self._host))

    def _flush(self) -> None:
        events, self._events = self._events, []
        for event in events:
            if self._transport is not None:
                self._transport.pipe.hold_up("watch late")
                body = wire.INT.pack(event.kind) + wire.INT.pack(3) + wire.text(event.path)
                self._write(wire.HEADER.pack(wire.EVENT_XID, -1, 0) + body)

    def _write(self, frame: bytes) -> None:
        if self._transport is not None:
            self._transport.write(wire.INT.pack(len(frame)) + frame)

    def _end(self) -> None:
        if self._transport is not None:
            self._transport.abort()
            self._transport = None
            self._forget()

    def _forget(self) -> None:
        self._server.clients.pop(self, None)
        self._ensemble.forget(self)

    # --- requests ----------------------------------------------------------------------------

    def _take(self, request: FrameReader) -> None:
        copy = self._server.copy
        if copy is not None:
            self._take_partitioned(copy, request)
            return
        if not self.session:
            self._open(request)
            return
        xid, kind = request.number(), request.number()
        if not self._ensemble.speaks_for(self.session, self):
            self._end()
            return
        code, body = 0, b""
        try:
            body = self._answer(kind, request)
        except Conflict as conflict:
            code = conflict.code
        if (
            xid != wire.BEAT_XID
            and kind != wire.CLOSE
            and self._loop.fault_points.does("answer of metadata lost")
        ):
            self._end()
            return
        self._flush()
        self._write(wire.HEADER.pack(xid, self._ensemble.zxid, code) + body)
        if kind == wire.CLOSE:
            self._ensemble.expire(self.session)

    def _take_partitioned(self, copy: Tree, request: FrameReader) -> None:
        """Reads are answered; other requests wait for a leader, and later ones with them."""
        if not self.session or self._is_held_up:
            return
        xid, kind = request.number(), request.number()
        code, body = 0, b""
        try:
            if kind in _READS:
                body = self._read_request(copy, kind, request)
            elif kind not in {PING, wire.ADD_WATCH}:
                self._is_held_up = True
                return
        except Conflict as conflict:
            code = conflict.code
        self._write(wire.HEADER.pack(xid, copy.zxid, code) + body)

    def _open(self, request: FrameReader) -> None:
        request.number()
        (zxid,) = request.take(wire.LONG)
        timeout_ms = request.number()
        (session,) = request.take(wire.LONG)
        ensemble = self._ensemble
        is_refused = self._loop.fault_points.does("metadata server refuses")
        if is_refused or zxid > ensemble.zxid:  # it is behind the state that the client has seen
            self._end()
            return
        if session and not ensemble.is_alive(session):
            self._write(wire.INT.pack(0) * 2 + wire.LONG.pack(0) + wire.data(bytes(16)))
            self._end_soon()
            return
        self.session = session or ensemble.begin(timeout_ms)
        ensemble.attach(self.session, self)
        head = wire.INT.pack(0) + wire.INT.pack(timeout_ms) + wire.LONG.pack(self.session)
        self._write(head + wire.data(_PASSWORD) + b"\0")

    def _end_soon(self) -> None:
        """Deliver what was written first."""
        if self._transport is not None:
            self._transport.close()
            self._transport = None

    def _answer(self, kind: int, request: FrameReader) -> bytes:
        """Execute one request; returns the body of its response. Raises Conflict, BrokenAnswer."""
        ensemble = self._ensemble
        if kind in {PING, wire.CLOSE}:
            return b""
        if kind in _READS:
            return self._read_request(ensemble, kind, request)
        if kind in {wire.CREATE, wire.CREATE_CONTAINER, wire.SET, wire.DELETE}:
            return _packed(ensemble.change(_change(kind, request), self.session))
        if kind == wire.SYNC:
            return wire.text(request.text())
        if kind == wire.ADD_WATCH:
            ensemble.watch_tree(_node(request.text()), self)
            return b""
        if kind == wire.MULTI:
            return self._multi(request)
        raise BrokenAnswer(f"operation {kind} is not simulated")

    def _read_request(self, tree: Tree, kind: int, request: FrameReader) -> bytes:
        if kind == wire.READ_MANY:
            return self._read_many(tree, request)
        path, is_watched = _node(request.text()), request.flag()
        return self._read(tree, kind, path, is_watched=is_watched)

    def _read(self, tree: Tree, kind: int, path: str, *, is_watched: bool = False) -> bytes:
        found: Any = {
            wire.GET: tree.read,
            wire.EXISTS: tree.stat,
            wire.CHILDREN: tree.names,
        }[kind](path)
        if is_watched and (found is not None or kind == wire.EXISTS):
            kept = "children" if kind == wire.CHILDREN else "node"
            self._ensemble.watch_once(kept, path, self)
        if found is None:
            raise Conflict(path, wire.NO_NODE)
        if isinstance(found, list):
            return wire.INT.pack(len(found)) + b"".join(map(wire.text, found))
        stat = tree.stat(path)
        assert stat is not None
        return (wire.data(found.value) if isinstance(found, NodeState) else b"") + wire.stat(stat)

    def _read_many(self, tree: Tree, request: FrameReader) -> bytes:
        parts = []
        for kind in request.multi():
            path, _is_watched = _node(request.text()), request.flag()
            try:
                parts.append(wire.part(kind) + self._read(tree, kind, path))
            except Conflict as conflict:
                parts.append(wire.part(-1) + wire.INT.pack(conflict.code))
        return b"".join(parts) + wire.END_OF_MULTI

    def _multi(self, request: FrameReader) -> bytes:
        changes = [_change(kind, request) for kind in request.multi()]
        try:
            answers = self._ensemble.multi(changes, self.session)
        except Conflict as conflict:
            self._ensemble.zxid += 1
            before, after = 0, -2
            codes = [
                conflict.code if at == conflict.index else before if at < conflict.index else after
                for at in range(len(changes))
            ]
            parts = [wire.part(-1) + wire.INT.pack(code) for code in codes]
        else:
            parts = [
                wire.part(change.kind) + _packed(answer)
                for change, answer in zip(changes, answers, strict=True)
            ]
        return b"".join(parts) + wire.END_OF_MULTI


def _node(path: str) -> str:
    return "" if path == "/" else path


def _packed(answer: str | Stat | None) -> bytes:
    if isinstance(answer, Stat):
        return wire.stat(answer)
    return b"" if answer is None else wire.text(answer)


def _change(kind: int, request: FrameReader) -> Change:
    path = _node(request.text())
    if kind == wire.DELETE:
        return Change(kind, path, version=request.number())
    value = request.value()
    if kind == wire.SET:
        return Change(kind, path, value, version=request.number())
    for _ in range(request.number()):  # permissions, which are not checked here
        request.number(), request.text(), request.text()
    return Change(wire.CREATE, path, value, request.number())
