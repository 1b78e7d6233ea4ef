"""The simulated ZooKeeper servers: one tree, sessions that expire, watches.

Invariants: one place that never fails and never lies: ZooKeeper's own consensus is not what
is tried here. Called outside of all hosts; how calls and events travel is `zookeeper`'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.runtime.zookeeper import Create, Delete, Put, Written
from headrace.runtime.zookeeper_wire import NodeState
from headrace_verify.simulation.loop import OUTSIDE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace_verify.simulation.loop import SimulatedLoop
    from headrace_verify.simulation.zookeeper import SimulatedZooKeeper

ANY_VERSION = -1


class _Stored:
    __slots__ = ("changed_zxid", "counter", "owner", "value", "version")

    def __init__(self, value: bytes, owner: int, zxid: int) -> None:
        self.value = value
        self.version = 0
        self.owner = owner
        self.changed_zxid = zxid
        self.counter = 0


class Conflict(Exception):
    """A node is not as it was expected to be."""

    def __init__(self, path: str, index: int = 0, *, is_missing: bool = False) -> None:
        super().__init__(path)
        self.path, self.index, self.is_missing = path, index, is_missing


class Ensemble:
    """The servers: a tree of nodes, sessions, watches."""

    def __init__(self, loop: SimulatedLoop) -> None:
        self._loop = loop
        self.nodes: dict[str, _Stored] = {"": _Stored(b"", 0, 0)}
        self.children: dict[str, dict[str, None]] = {"": {}}
        self.zxid = 0
        self.heard_s: dict[int, float] = {}
        """Session -> when it last gave a sign of life."""
        self._timeout_s: dict[int, float] = {}
        self._last_session = 0
        self.trees: dict[SimulatedZooKeeper, str] = {}
        self.one_shots: dict[tuple[str, str], dict[Callable[[], None], None]] = {}
        """(`node` or `children`, path) -> who is told once."""

    # --- sessions ----------------------------------------------------------------------------

    def begin(self, timeout_ms: int) -> int:
        """A new session."""
        self._last_session += 1
        session = self._last_session
        self._timeout_s[session] = timeout_ms / 1000
        self.heard_s[session] = self._loop.now_s
        self._look(session)
        return session

    def is_alive(self, session: int) -> bool:
        """Whether the session lives; if so, it is prolonged."""
        if session not in self.heard_s:
            return False
        self.heard_s[session] = self._loop.now_s
        return True

    def _look(self, session: int) -> None:
        heard_s = self.heard_s.get(session)
        if heard_s is None:
            return
        end_s = heard_s + self._timeout_s[session]
        if self._loop.now_s >= end_s:
            self.expire(session)
        else:
            self._loop.call_at(end_s + 0.001, self._look, session, context=OUTSIDE)

    def expire(self, session: int) -> None:
        """Whatever belonged to the session goes."""
        if self.heard_s.pop(session, None) is None:
            return
        for path in [path for path, node in self.nodes.items() if node.owner == session]:
            self.zxid += 1
            self._remove(path)

    # --- the tree ----------------------------------------------------------------------------

    def read(self, path: str) -> NodeState | None:
        """One node."""
        node = self.nodes.get(path)
        if node is None:
            return None
        return NodeState(node.value, node.version, node.owner, node.changed_zxid)

    def names(self, path: str) -> list[str] | None:
        """The names right below."""
        found = self.children.get(path)
        return None if found is None else list(found)

    def create(self, path: str, value: bytes, session: int, *, is_made_up: bool = False) -> None:
        """A new node; with `is_made_up` those above it, too. Raises Conflict."""
        if path in self.nodes:
            raise Conflict(path)
        parent, _, name = path.rpartition("/")
        if parent not in self.nodes:
            if not is_made_up:
                raise Conflict(path, is_missing=True)
            self.create(parent, b"", 0, is_made_up=True)
        self.nodes[path] = _Stored(value, session, self.zxid)
        self.children[path] = {}
        self.children[parent][name] = None
        self._fire(path, is_gone=False)
        self._fire_once("children", parent)

    def put(self, path: str, value: bytes, version: int) -> int:
        """A new value. Raises Conflict."""
        node = self._expect(path, version)
        node.value, node.changed_zxid = value, self.zxid
        node.version += 1
        self._fire(path, is_gone=False)
        return node.version

    def delete(self, path: str, version: int) -> None:
        """No more node. Raises Conflict."""
        self._expect(path, version)
        if self.children[path]:
            raise Conflict(path)
        self._remove(path)

    def _expect(self, path: str, version: int) -> _Stored:
        node = self.nodes.get(path)
        if node is None:
            raise Conflict(path, is_missing=True)
        if version not in {ANY_VERSION, node.version}:
            raise Conflict(path)
        return node

    def _remove(self, path: str) -> None:
        parent, _, name = path.rpartition("/")
        del self.nodes[path], self.children[path], self.children[parent][name]
        self._fire(path, is_gone=True)
        self._fire_once("children", path)
        self._fire_once("children", parent)

    def multi(self, parts: Sequence[Create | Put | Delete], session: int) -> list[Written]:
        """All or none. Raises Conflict with the index of the part that does not fit."""
        self._check(parts)
        self.zxid += 1
        written = []
        for part in parts:
            if isinstance(part, Create):
                self.create(part.path, part.value, session if part.is_ephemeral else 0)
                written.append(Written(0, 0))
            elif isinstance(part, Put):
                version = self.put(part.path, part.value, part.version)
                written.append(Written(version, self.nodes[part.path].owner))
            else:
                self.delete(part.path, part.version)
                written.append(Written(ANY_VERSION, 0))
        return written

    def _check(self, parts: Sequence[Create | Put | Delete]) -> None:
        """Play the parts on versions alone."""
        versions: dict[str, int | None] = {}

        def now(path: str) -> int | None:
            if path not in versions:
                node = self.nodes.get(path)
                versions[path] = None if node is None else node.version
            return versions[path]

        for index, part in enumerate(parts):
            version = now(part.path)
            if isinstance(part, Create):
                if version is not None:
                    raise Conflict(part.path, index)
                if now(part.path.rpartition("/")[0]) is None:
                    raise Conflict(part.path, index, is_missing=True)
                versions[part.path] = 0
                continue
            if version is None:
                raise Conflict(part.path, index, is_missing=True)
            if part.version not in {ANY_VERSION, version}:
                raise Conflict(part.path, index)
            if isinstance(part, Delete) and self.children.get(part.path):
                raise Conflict(part.path, index)
            versions[part.path] = version + 1 if isinstance(part, Put) else None

    # --- watches -----------------------------------------------------------------------------

    def _fire(self, path: str, *, is_gone: bool) -> None:
        for client, root in list(self.trees.items()):
            if path == root or path.startswith(root + "/"):
                client.told(self.zxid, path, is_gone)
        self._fire_once("node", path)

    def _fire_once(self, kind: str, path: str) -> None:
        for tell in list(self.one_shots.pop((kind, path), ())):
            tell()
