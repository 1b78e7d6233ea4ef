"""A client of the simulated ZooKeeper, as `runtime/zookeeper` is one of the real.

Invariants: the ensemble never fails; everything between it and a client may. It promises
what `ZooKeeper` does: a change whose connection broke is in doubt, a read is tried again, one-shot
watches fire when the connection breaks, a tree's watch tells of the gap.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.errors import MetadataUnavailable
from headrace.runtime.session import Session, SessionState
from headrace.runtime.tasks import Tasks
from headrace.runtime.zookeeper import Node, Written
from headrace.runtime.zookeeper_link import NodeConflict
from headrace_verify.simulation.ensemble import ANY_VERSION, Conflict
from headrace_verify.simulation.loop import HOST
from headrace_verify.simulation.pipe import Pipe

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.runtime.clock import Clock
    from headrace.runtime.zookeeper import Create, Delete, Put
    from headrace.runtime.zookeeper_wire import NodeState
    from headrace_verify.simulation.ensemble import Ensemble
    from headrace_verify.simulation.loop import Host
    from headrace_verify.simulation.network import Network

PLACE = "zookeeper"
CALL_TIMEOUT_MS = 10_000
CONNECT_TIMEOUT_MS = 15_000
RECONNECT_S = 0.3
BEATS_PER_SESSION = 6
SEQUENCE_DIGITS = 10


class SimulatedZooKeeper:
    """See `runtime.zookeeper.ZooKeeper`: one client, of one host."""

    def __init__(self, ensemble: Ensemble, network: Network, clock: Clock, timeout_ms: int) -> None:
        """Use `connect`."""
        host = HOST.get()
        assert host is not None, "a client belongs to a host"
        self._host: Host = host
        self._ensemble = ensemble
        self._network = network
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._timeout_ms = timeout_ms
        self._session = Session(timeout_ms, clock.now_ns())
        self._session_id = 0
        self._tasks = Tasks()
        self._there = Pipe(network, host.name, PLACE)
        self._back = Pipe(network, PLACE, host.name)
        self._pending: dict[asyncio.Future[Any], None] = {}
        self._shots: dict[Callable[[], None], tuple[str, str, Callable[[], None]]] = {}
        """One-shot watches that are set: what the ensemble calls -> kind, path, who is told."""
        self._tree: tuple[str, Callable[[str, bool], None], Callable[[int], None]] | None = None
        self._heard_zxid = 0
        self._gap_zxid: int | None = None  # heard of last before the tree's watch was gone
        self._is_closed = False

    @classmethod
    async def connect(
        cls, ensemble: Ensemble, network: Network, clock: Clock, timeout_ms: int
    ) -> SimulatedZooKeeper:
        """Open a session. Raises MetadataUnavailable."""
        client = cls(ensemble, network, clock, timeout_ms)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_MS / 1000):
                await client._connect_once()
        except TimeoutError:
            raise MetadataUnavailable("ZooKeeper does not answer: try again") from None
        client._tasks.spawn(client._beat(), "ZooKeeper's heartbeat")
        return client

    @property
    def session(self) -> Session:
        """See ZooKeeper."""
        return self._session

    @property
    def session_id(self) -> int:
        """See ZooKeeper."""
        return 0 if self._session.state is SessionState.LOST else self._session_id

    async def close(self) -> None:
        """See ZooKeeper."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._tasks.close()
        ensemble, session = self._ensemble, self._session_id
        self._there.send(None, ensemble.expire, session)
        ensemble.trees.pop(self, None)
        self._break(MetadataUnavailable("the ZooKeeper client was closed"))
        self._session.lose(self._clock.now_ns())

    # --- the session -------------------------------------------------------------------------

    async def _connect_once(self) -> None:
        """Open a connection, and with it the session that was, or a new one."""
        self._there = Pipe(self._network, self._host.name, PLACE)
        self._back = Pipe(self._network, PLACE, self._host.name)
        sent_ns = self._clock.now_ns()
        ensemble, wanted = self._ensemble, self._session_id

        def open_session() -> int:
            is_kept = wanted and ensemble.is_alive(wanted)
            return wanted if is_kept else ensemble.begin(self._timeout_ms)

        session = await self._ask(open_session, is_session=True)
        now_ns = self._clock.now_ns()
        if session == self._session_id:
            self._session.resume(self._timeout_ms, sent_ns, now_ns)
        else:
            if self._session_id:
                self._session.lose(now_ns)
            self._session_id = session
            self._session.begin(self._timeout_ms, sent_ns, now_ns)
        if self._tree is not None:
            await self._set_tree()
            if self._gap_zxid is not None:
                self._tree[2](self._gap_zxid)
                self._gap_zxid = None

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._timeout_ms / 1000 / BEATS_PER_SESSION)
            silence_ms = (self._clock.now_ns() - (self._session.proven_ns or 0)) // 1_000_000
            if self._session.state is not SessionState.CONNECTED:
                continue
            if silence_ms > self._timeout_ms * 2 // 3:
                self.drop()
            else:
                self._tasks.spawn(self._ping(), "a heartbeat")

    async def _ping(self) -> None:
        with suppress(MetadataUnavailable):
            await self._ask(lambda: True)

    async def _reconnect(self) -> None:
        """Others are tried until one stands."""
        while True:
            is_early = self._network.loop.fault_points.does("connected again early")
            await asyncio.sleep(0 if is_early else RECONNECT_S)
            try:
                async with asyncio.timeout(self._timeout_ms / 3000):
                    await self._connect_once()
                    return
            except (TimeoutError, MetadataUnavailable):
                self._break(None)

    def drop(self) -> None:
        """The connection breaks: it was silent for too long, or a fault has cut it."""
        if not self._is_closed and self._session.state is SessionState.CONNECTED:
            self._session.suspend(self._clock.now_ns())
            self._break(None)
            self._tasks.spawn(self._reconnect(), "connect again")

    def _break(self, error: MetadataUnavailable | None) -> None:
        """Nothing that is under way is answered any more, and watches are gone."""
        self._there.is_closed = self._there.is_closed or error is None
        self._back.is_closed = True
        self._ensemble.trees.pop(self, None)
        if self._gap_zxid is None:
            self._gap_zxid = self._heard_zxid
        pending, self._pending = self._pending, {}
        for future in pending:
            if not future.done():
                future.set_exception(error or _broken())
        shots, self._shots = self._shots, {}
        for fire, (kind, path, changed) in shots.items():
            self._ensemble.one_shots.get((kind, path), {}).pop(fire, None)
            changed()

    # --- calls -------------------------------------------------------------------------------

    async def _ask(self, work: Callable[[], Any], *, is_session: bool = False) -> Any:
        """Have the ensemble do it, and wait for the answer. Raises MetadataUnavailable."""
        if self._is_closed:
            raise MetadataUnavailable("the ZooKeeper client is closed: open it again")
        future: asyncio.Future[Any] = self._loop.create_future()
        back, ensemble, session = self._back, self._ensemble, self._session_id
        sent_ns, fault_points = self._clock.now_ns(), self._network.loop.fault_points

        def answer(result: Any) -> None:
            self._session.confirm(sent_ns)
            if not future.done():
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)

        def arrive() -> None:
            if not is_session and not ensemble.is_alive(session):
                back.send(self._host, self.drop)  # the server closes the connection
                return
            try:
                result = work()
            except Conflict as conflict:
                result = NodeConflict(
                    f"{conflict.path} is not as expected: read it again, then decide anew",
                    path=conflict.path,
                    index=conflict.index,
                    is_missing=conflict.is_missing,
                )
            is_lost = not is_session and fault_points.does("answer of metadata lost")
            back.send(self._host, *((self.drop,) if is_lost else (answer, result)))

        self._pending[future] = None
        self._there.send(None, arrive)
        try:
            async with asyncio.timeout(CALL_TIMEOUT_MS / 1000):
                return await future
        except TimeoutError:
            raise _broken() from None
        finally:
            self._pending.pop(future, None)

    async def _call(self, work: Callable[[], Any], *, is_read: bool = False) -> Any:
        """A call over a connected session; a read is sent again. Raises MetadataUnavailable."""
        deadline_ns = self._clock.now_ns() + CALL_TIMEOUT_MS * 1_000_000
        while True:
            while self._session.state is not SessionState.CONNECTED:
                left_s = (deadline_ns - self._clock.now_ns()) / 1e9
                if left_s <= 0 or self._is_closed:
                    raise MetadataUnavailable("ZooKeeper is not connected: nothing was changed")
                try:
                    async with asyncio.timeout(left_s):
                        await self._session.wait_beyond(self._session.changes)
                except TimeoutError:
                    continue
            try:
                return await self._ask(work)
            except MetadataUnavailable:
                if not is_read or self._clock.now_ns() >= deadline_ns or self._is_closed:
                    raise

    def _once(self, kind: str, path: str, changed: Callable[[], None] | None) -> None:
        """Set a one-shot watch; at the ensemble, in the turn of the read."""
        if changed is None:
            return
        back = self._back

        def fire() -> None:
            back.send_late("watch late", self._host, hear)

        def hear() -> None:
            if self._shots.pop(fire, None) is not None:
                changed()

        self._shots[fire] = (kind, path, changed)
        self._ensemble.one_shots.setdefault((kind, path), {})[fire] = None

    # --- nodes: see ZooKeeper ------------------------------------------------------------------

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> Node | None:
        """See ZooKeeper."""

        def work() -> Node | None:
            found = self._ensemble.read(path)
            if found is None:
                return None
            self._once("node", path, changed)
            return Node(found.value, found.version)

        found: Node | None = await self._call(work, is_read=True)
        return found

    async def get_many(self, paths: Sequence[str]) -> list[NodeState | None]:
        """See ZooKeeper."""
        read = self._ensemble.read
        found: list[NodeState | None] = await self._call(
            lambda: [read(path) for path in paths], is_read=True
        )
        return found

    async def children_of_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """See ZooKeeper."""
        names = self._ensemble.names
        found: list[list[str] | None] = await self._call(
            lambda: [names(path) for path in paths], is_read=True
        )
        return found

    async def children(
        self, path: str, changed: Callable[[], None] | None = None
    ) -> list[str] | None:
        """See ZooKeeper."""

        def work() -> list[str] | None:
            found = self._ensemble.names(path)
            if found is not None:
                self._once("children", path, changed)
            return found

        found: list[str] | None = await self._call(work, is_read=True)
        return found

    async def next_sequence(self, path: str) -> int:
        """See ZooKeeper."""

        def work() -> int:
            node = self._ensemble.nodes.get(path)
            return 0 if node is None else node.counter

        return int(await self._call(work, is_read=True))

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """See ZooKeeper."""
        session = self._session_id if ephemeral else 0

        def work() -> str:
            ensemble, full = self._ensemble, path
            ensemble.zxid += 1
            if sequence:
                parent = path.rpartition("/")[0]
                if parent not in ensemble.nodes:
                    ensemble.create(parent, b"", 0, is_made_up=True)
                node = ensemble.nodes[parent]
                full = f"{path}{node.counter:0{SEQUENCE_DIGITS}}"
                node.counter += 1
            ensemble.create(full, bytes(value), session, is_made_up=True)
            return full

        return str(await self._call(work))

    async def create_container(self, path: str) -> None:
        """See ZooKeeper; an empty container stays here."""

        def work() -> None:
            if path not in self._ensemble.nodes:
                self._ensemble.zxid += 1
                self._ensemble.create(path, b"", 0, is_made_up=True)

        await self._call(work)

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        """See ZooKeeper."""

        def work() -> int:
            self._ensemble.zxid += 1
            return self._ensemble.put(path, bytes(value), version)

        return int(await self._call(work))

    async def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        """See ZooKeeper."""

        def work() -> bool:
            if path not in self._ensemble.nodes:
                return False
            self._ensemble.zxid += 1
            self._ensemble.delete(path, version)
            return True

        return bool(await self._call(work))

    async def multi(self, parts: Sequence[Create | Put | Delete]) -> list[Written]:
        """See ZooKeeper."""
        session = self._session_id
        written: list[Written] = await self._call(lambda: self._ensemble.multi(parts, session))
        return written

    async def sync(self, _path: str) -> None:
        """See ZooKeeper: there is one server."""

    async def watch_tree(
        self, path: str, changed: Callable[[str, bool], None], gap: Callable[[int], None]
    ) -> None:
        """See ZooKeeper; one tree is enough here."""
        assert self._tree is None, "one tree is watched"
        self._tree = (path, changed, gap)
        await self._set_tree()

    async def _set_tree(self) -> None:
        assert self._tree is not None
        root, ensemble = self._tree[0], self._ensemble

        def work() -> None:
            ensemble.trees[self] = root

        await self._ask(work)

    def told(self, zxid: int, path: str, is_gone: bool) -> None:
        """For the ensemble: an event for this client's tree."""
        if not self._host.is_alive:
            del self._ensemble.trees[self]
            return
        self._back.send_late("watch late", self._host, self._hear, zxid, path, is_gone)

    def _hear(self, zxid: int, path: str, is_gone: bool) -> None:
        self._heard_zxid = max(self._heard_zxid, zxid)
        if self._tree is not None:
            self._tree[1](path, is_gone)


def _broken() -> MetadataUnavailable:
    return MetadataUnavailable(
        "the connection to ZooKeeper broke: it is not known whether it was changed",
        is_in_doubt=True,
    )
