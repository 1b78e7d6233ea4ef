"""The tree of the simulated ZooKeeper servers: nodes, sessions that expire, watches.

Invariants: one tree that all servers share and that is always consistent and current, except for a
partitioned server, which has a copy. ZooKeeper's own consensus is not under test. `zookeeper`
delivers requests and events. Sources: ZooKeeper 3.9, `DataTree`, `WatchManager`,
`ZooKeeperServer.processConnectRequest`.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.zookeeper import wire
from headrace.zookeeper.wire import NodeState, Stat, WatchEvent
from headrace_verify.simulation.loop import OUTSIDE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.simulation.loop import SimulatedLoop

ANY_VERSION = -1
SEQUENCE_DIGITS = 10


class Change(NamedTuple):
    """One operation of a multi."""

    kind: int
    """`CREATE`, `SET` or `DELETE`"""
    path: str
    value: bytes = b""
    flags: int = 0
    version: int = ANY_VERSION


class Watcher(Protocol):
    """A server's connection to a client."""

    @property
    def is_gone(self) -> bool:
        """Whether its server has stopped."""
        ...

    def tell(self, event: WatchEvent) -> None:
        """Deliver an event, before any later response."""
        ...

    def cut(self) -> None:
        """The session has ended, or moved to another connection."""
        ...


class _Stored:
    """A node."""

    __slots__ = ("changed_zxid", "created_count", "owner", "value", "version")

    def __init__(self, value: bytes, owner: int, zxid: int) -> None:
        self.value = value
        self.version = 0
        self.owner = owner
        self.changed_zxid = zxid
        self.created_count = 0
        """Nodes ever created below it: the next sequential node's number."""


class Conflict(Exception):
    """A node does not have the expected state."""

    def __init__(self, path: str, code: int, index: int = 0) -> None:
        super().__init__(path)
        self.path, self.code, self.index = path, code, index


class Tree:
    """The readable nodes."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Stored] = {"": _Stored(b"", 0, 0)}
        self.children: dict[str, dict[str, None]] = {"": {}}
        self.zxid = 0

    def copied(self) -> Tree:
        """A snapshot of the tree."""
        tree = Tree()
        tree.nodes = {path: copy(node) for path, node in self.nodes.items()}
        tree.children = {path: dict(names) for path, names in self.children.items()}
        tree.zxid = self.zxid
        return tree

    def read(self, path: str) -> NodeState | None:
        """One node."""
        node = self.nodes.get(path)
        if node is None:
            return None
        return NodeState(node.value, node.version, node.owner, node.changed_zxid)

    def stat(self, path: str) -> Stat | None:
        """A node's stat; times are not modelled."""
        node = self.nodes.get(path)
        if node is None:
            return None
        count = len(self.children[path])
        return Stat(
            0,
            node.changed_zxid,
            0,
            0,
            node.version,
            2 * node.created_count - count,
            0,
            node.owner,
            len(node.value),
            count,
            0,
        )

    def names(self, path: str) -> list[str] | None:
        """The names of its children."""
        found = self.children.get(path)
        return None if found is None else list(found)


class Ensemble(Tree):
    """The mutable tree, with sessions and watches."""

    def __init__(self, loop: SimulatedLoop) -> None:
        super().__init__()
        self._loop = loop
        self.timed_out: set[int] = set()
        """Sessions that have expired."""
        self.last_seen_s: dict[int, float] = {}
        """Session -> when it last sent anything."""
        self._timeout_s: dict[int, float] = {}
        self._last_session = 0
        self._connections: dict[int, Watcher] = {}
        """Session -> its connection; no other may act for it."""
        self._trees: dict[Watcher, dict[str, None]] = {}
        self._one_shots: dict[tuple[str, str], dict[Watcher, None]] = {}
        """(`node` or `children`, path) -> connections to notify once."""

    # --- sessions ----------------------------------------------------------------------------

    def begin(self, timeout_ms: int) -> int:
        """Create a session."""
        self._last_session += 1
        session = self._last_session
        self._timeout_s[session] = timeout_ms / 1000
        self.last_seen_s[session] = self._loop.now_s
        self._expire_if_due(session)
        return session

    def attach(self, session: int, connection: Watcher) -> None:
        """Move the session to this connection; the previous one is closed."""
        former = self._connections.get(session)
        self._connections[session] = connection
        if former is not None and former is not connection:
            self.forget(former)
            former.cut()

    def speaks_for(self, session: int, connection: Watcher) -> bool:
        """Whether to serve a request on this connection; also renews the session."""
        if session not in self.last_seen_s or self._connections.get(session) is not connection:
            return False
        self.last_seen_s[session] = self._loop.now_s
        return True

    def is_alive(self, session: int) -> bool:
        """Whether the session is alive; if so, it is renewed."""
        if session not in self.last_seen_s:
            return False
        self.last_seen_s[session] = self._loop.now_s
        return True

    def _expire_if_due(self, session: int) -> None:
        last_seen_s = self.last_seen_s.get(session)
        if last_seen_s is None:
            return
        end_s = last_seen_s + self._timeout_s[session]
        if self._loop.now_s >= end_s:
            self.timed_out.add(session)
            self.expire(session)
        else:
            self._loop.call_at(end_s + 0.001, self._expire_if_due, session, context=OUTSIDE)

    def forget_since(self, sessions: Sequence[int], since_s: float) -> None:
        """Forget renewals since then: they were lost on the way to the leader."""
        for session in sessions:
            if self.last_seen_s.get(session, 0.0) > since_s:
                self.last_seen_s[session] = since_s
                self._expire_if_due(session)

    def expire(self, session: int) -> None:
        """Delete everything that belongs to the session."""
        if self.last_seen_s.pop(session, None) is None:
            return
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self.zxid += 1
            self._remove(path)
        connection = self._connections.pop(session, None)
        if connection is not None:
            self.forget(connection)
            connection.cut()

    def forget(self, connection: Watcher) -> None:
        """Forget a closed connection's watches."""
        self._trees.pop(connection, None)
        for watching in self._one_shots.values():
            watching.pop(connection, None)

    # --- the tree ----------------------------------------------------------------------------

    def create(self, path: str, value: bytes, session: int, *, is_made_up: bool = False) -> None:
        """Create a node; with `is_made_up`, also its missing parents. Raises Conflict."""
        if path in self.nodes:
            raise Conflict(path, wire.NODE_EXISTS)
        parent, _, name = path.rpartition("/")
        if parent not in self.nodes:
            if not is_made_up:
                raise Conflict(path, wire.NO_NODE)
            self.create(parent, b"", 0, is_made_up=True)
        above = self.nodes[parent]
        if above.owner:
            raise Conflict(path, wire.EPHEMERAL_PARENT)
        above.created_count += 1
        self.nodes[path] = _Stored(value, session, self.zxid)
        self.children[path] = {}
        self.children[parent][name] = None
        self._fire(wire.CREATED, path)
        self._fire_parent(parent)

    def put(self, path: str, value: bytes, version: int) -> int:
        """Set a value. Raises Conflict."""
        node = self._expect(path, version)
        node.value, node.changed_zxid = value, self.zxid
        node.version += 1
        self._fire(wire.CHANGED, path)
        return node.version

    def delete(self, path: str, version: int) -> None:
        """Delete a node. Raises Conflict."""
        self._expect(path, version)
        if self.children[path]:
            raise Conflict(path, wire.NOT_EMPTY)
        self._remove(path)

    def _expect(self, path: str, version: int) -> _Stored:
        node = self.nodes.get(path)
        if node is None:
            raise Conflict(path, wire.NO_NODE)
        if version not in {ANY_VERSION, node.version}:
            raise Conflict(path, wire.BAD_VERSION)
        return node

    def _remove(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        del self.nodes[path], self.children[path], self.children[parent][name]
        self._fire(wire.DELETED, path)
        self._fire_parent(parent)

    def change(self, one: Change, session: int) -> str | Stat | None:
        """Apply one change; returns the server's answer. Raises Conflict."""
        self.zxid += 1
        return self._change(one, session)

    def multi(self, parts: Sequence[Change], session: int) -> list[str | Stat | None]:
        """Apply all or none. Raises Conflict with the index of the failing operation."""
        self._check(parts)
        self.zxid += 1
        return [self._change(part, session) for part in parts]

    def _change(self, one: Change, session: int) -> str | Stat | None:
        if one.kind == wire.SET:
            self.put(one.path, one.value, one.version)
            return self.stat(one.path)
        if one.kind == wire.DELETE:
            self.delete(one.path, one.version)
            return None
        path = one.path
        if one.flags & wire.SEQUENTIAL:
            above = self.nodes.get(path.rpartition("/")[0])
            if above is None:
                raise Conflict(path, wire.NO_NODE)
            path = f"{path}{above.created_count:0{SEQUENCE_DIGITS}}"
        self.create(path, one.value, session if one.flags & wire.EPHEMERAL else 0)
        return path

    def _check(self, parts: Sequence[Change]) -> None:
        """Check the operations on versions only."""
        versions: dict[str, int | None] = {}

        def now(path: str) -> int | None:
            if path not in versions:
                node = self.nodes.get(path)
                versions[path] = None if node is None else node.version
            return versions[path]

        for index, part in enumerate(parts):
            version = now(part.path)
            if part.kind == wire.CREATE:
                if version is not None:
                    raise Conflict(part.path, wire.NODE_EXISTS, index)
                if now(part.path.rpartition("/")[0]) is None:
                    raise Conflict(part.path, wire.NO_NODE, index)
                versions[part.path] = 0
                continue
            if version is None:
                raise Conflict(part.path, wire.NO_NODE, index)
            if part.version not in {ANY_VERSION, version}:
                raise Conflict(part.path, wire.BAD_VERSION, index)
            if part.kind == wire.DELETE and self.children.get(part.path):
                raise Conflict(part.path, wire.NOT_EMPTY, index)
            versions[part.path] = version + 1 if part.kind == wire.SET else None

    # --- watches -----------------------------------------------------------------------------

    def watch_tree(self, path: str, watcher: Watcher) -> None:
        """Notify of everything at and below `path`."""
        self._trees.setdefault(watcher, {})[path] = None

    def watch_once(self, kind: str, path: str, watcher: Watcher) -> None:
        """Notify of the next change of the `node`, or of its `children`."""
        self._one_shots.setdefault((kind, path), {})[watcher] = None

    def _fire(self, kind: int, path: str) -> None:
        """Notify each connection once per event, however many of its watches match."""
        watching = {
            watcher: None
            for watcher, roots in self._trees.items()
            if any(path == root or path.startswith(root + "/") for root in roots)
        }
        watching |= self._one_shots.pop(("node", path), {})
        if kind == wire.DELETED:
            watching |= self._one_shots.pop(("children", path), {})
        self._notify([*watching], WatchEvent(kind, path))

    def _fire_parent(self, path: str) -> None:
        watching = self._one_shots.pop(("children", path), {})
        self._notify([*watching], WatchEvent(wire.CHILDREN_CHANGED, path or "/"))

    def _notify(self, watchers: Sequence[Watcher], event: WatchEvent) -> None:
        for watcher in watchers:
            if watcher.is_gone:
                self.forget(watcher)
            else:
                watcher.tell(event)
