"""An asyncio client for ZooKeeper, one per process.

Invariants: knows nodes and watches, not what they store. Used from the event loop's thread only,
which also runs the callbacks. Deadlines, reconnects and the session are in `link`, the
order of messages on a connection in `connection`, the encoding in `wire`.

A one-shot watch fires once: when its node changes or when the connection breaks, after which the
state of the node is unknown. A tree watch is persistent: it is set again on each new connection,
and reports that changes may have been missed.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import MetadataUnavailable, RequestInvalid
from headrace.runtime.session import SessionState
from headrace.zookeeper import wire
from headrace.zookeeper.connection import WatchRequest
from headrace.zookeeper.link import (
    NodeConflict,
    ZooKeeperLink,
    ZooKeeperOptions,
    is_conflict,
)
from headrace.zookeeper.wire import NodeState, Refused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness
    from headrace.runtime.session import Session
    from headrace.zookeeper.wire import Request, Stat, WatchEvent

log = logging.getLogger(__name__)

ANY_VERSION = -1
VALUE_BYTES_MAX = 1_000_000
"""ZooKeeper closes the connection on requests of 1 MiB (jute.maxbuffer), paths included."""
_READ_AT_ONCE = 200
_RETRY_S = 0.2
_CREATE_TRIES = 5


class ZNode(NamedTuple):
    """A node's value and version."""

    value: bytes
    version: int


class Create(NamedTuple):
    """Part of a multi: create a node, which must not exist."""

    path: str
    value: bytes
    is_ephemeral: bool = False


class Put(NamedTuple):
    """Part of a multi: set a node's value."""

    path: str
    value: bytes
    version: int = ANY_VERSION


class Delete(NamedTuple):
    """Part of a multi: delete a node."""

    path: str
    version: int = ANY_VERSION


class MultiResult(NamedTuple):
    """The result of one part of a multi."""

    version: int
    owner: int
    """The session that owns an ephemeral node whose value was set; otherwise 0."""


@dataclass(slots=True)
class _TreeWatch:
    path: str
    changed: Callable[[str, bool], None]
    gap: Callable[[int], None]
    is_set: bool = False
    seen_zxid: int = 0
    """All changes up to this one were reported: a server sends events before later answers."""


class ZooKeeper:
    """A ZooKeeper client. Create it with `connect`, end it with `close`."""

    def __init__(self, link: ZooKeeperLink) -> None:
        """Use `connect`."""
        self._link = link
        self._root = link.options.root
        self._rights = wire.acl(link.options.credential is not None)
        self._trees: list[_TreeWatch] = []
        link.on_break = self._note_break
        link.on_event = self._notify_trees

    @classmethod
    async def connect(
        cls, options: ZooKeeperOptions, clock: Clock, randomness: Randomness | None = None
    ) -> ZooKeeper:
        """Open a session. Raises MetadataUnavailable, RequestInvalid."""
        link = ZooKeeperLink(options, clock, randomness)
        zookeeper = cls(link)
        try:
            await link.open()
            if options.root:
                await zookeeper._ensure_path(options.root)
        except BaseException:
            await link.close()
            raise
        link.tasks.spawn(zookeeper._follow_session(link.session.changes), "ZooKeeper's watches")
        return zookeeper

    @property
    def session(self) -> Session:
        """The session: its state, its number, and until when it cannot expire."""
        return self._link.session

    @property
    def session_id(self) -> int:
        """The session id, as ephemeral nodes name their owner; 0 without a session."""
        return self._link.session_id

    async def close(self) -> None:
        """End the session, deleting its ephemeral nodes if a server is reachable. Never hangs."""
        self._trees.clear()
        await self._link.close()

    # --- nodes -------------------------------------------------------------------------------

    async def get(self, path: str, changed: Callable[[], None] | None = None) -> ZNode | None:
        """The node, or None.

        `changed` is called once: when the node has changed or was deleted, or when the connection
        broke; never for a node that did not exist. Raises MetadataUnavailable.
        """
        full = self._full(path)
        request = wire.get(full, is_watched=changed is not None)
        try:
            found: NodeState = await self._link.ask(
                path, request, is_read=True, watch=_watch("node", full, changed)
            )
        except NodeConflict:
            return None
        return ZNode(found.value, found.version)

    async def get_many(self, paths: Sequence[str]) -> list[NodeState | None]:
        """Each node's state when it was read. Raises MetadataUnavailable."""
        found: list[NodeState | None] = await self._read_many(paths, wire.GET)
        return found

    async def children_of_many(self, paths: Sequence[str]) -> list[list[str] | None]:
        """The names of each node's children when it was read. Raises MetadataUnavailable."""
        found: list[list[str] | None] = await self._read_many(paths, wire.CHILDREN)
        return found

    async def _read_many(self, paths: Sequence[str], kind: int) -> Any:
        async def read(some: Sequence[str]) -> Any:
            request = wire.read_many(kind, [self._full(path) for path in some])
            return await self._link.ask(f"{len(some)} nodes", request, is_read=True)

        found: list[Any] = []
        parts = [paths[at : at + _READ_AT_ONCE] for at in range(0, len(paths), _READ_AT_ONCE)]
        for answers in await asyncio.gather(*map(read, parts)):
            found += answers
        for index, answer in enumerate(found):
            if isinstance(answer, Refused):
                if answer.code != wire.NO_NODE:
                    raise self._link.translate(paths[index], answer, is_read=True)
                found[index] = None
        return found

    async def children(
        self, path: str, changed: Callable[[], None] | None = None
    ) -> list[str] | None:
        """The names of a node's children, unordered; None if the node does not exist.

        `changed` is called once: when a child was created or deleted, or the connection broke;
        never for a node that did not exist. Raises MetadataUnavailable.
        """
        full = self._full(path)
        request = wire.children(full, is_watched=changed is not None)
        try:
            names: list[str] = await self._link.ask(
                path, request, is_read=True, watch=_watch("children", full, changed)
            )
        except NodeConflict:
            return None
        return names

    async def next_sequence(self, path: str) -> int:
        """The number of the next sequential node below `path`. Raises MetadataUnavailable.

        ZooKeeper reports a child version of twice the number of creations minus the number of
        children left (`DataNode.copyStat`), so that deletions count as changes, too.
        """
        try:
            stat: Stat = await self._link.ask(path, wire.exists(self._full(path)), is_read=True)
        except NodeConflict:
            return 0
        return (stat.children_version + stat.child_count) // 2

    async def exists(self, path: str, changed: Callable[[], None] | None = None) -> bool:
        """Whether the node exists.

        `changed` is called once: when the node was created, changed or deleted, or the connection
        broke. Raises MetadataUnavailable.
        """
        full = self._full(path)
        request = wire.exists(full, is_watched=changed is not None)
        try:
            await self._link.ask(
                path,
                request,
                is_read=True,
                watch=_watch("node", full, changed, is_for_absent=True),
            )
        except NodeConflict:
            return False
        return True

    async def create(
        self, path: str, value: bytes, *, ephemeral: bool = False, sequence: bool = False
    ) -> str:
        """Create a node and its missing parents; returns its path, with any sequence number.

        Raises NodeConflict if it exists, MetadataUnavailable (it may have been created),
        RequestInvalid if the value is too large.
        """
        full = self._full(path)
        self._check_size(path, value)
        flags = wire.EPHEMERAL * ephemeral | wire.SEQUENTIAL * sequence
        made: str = await self._create_below(
            path, full, wire.create(full, bytes(value), self._rights, flags)
        )
        return made[len(self._root) :]

    async def _create_below(self, what: str, full: str, request: Request) -> str:
        """Create the node `full`, creating missing parents first."""
        for _ in range(_CREATE_TRIES):
            try:
                return str(await self._link.ask(what, request))
            except NodeConflict as error:
                if not error.fields["is_missing"]:
                    raise
            parent = full.rpartition("/")[0]
            if parent:
                await self._ensure_path(parent)
        raise MetadataUnavailable(f"cannot create {what} in ZooKeeper: its parent keeps vanishing")

    async def _ensure_path(self, full: str) -> None:
        """Create a node without a value, and its parents, where they do not exist."""
        with suppress(NodeConflict):
            await self._create_below(full, full, wire.create(full, b"", self._rights))

    async def create_container(self, path: str) -> None:
        """Create a container, which ZooKeeper deletes after its last child, and its parents.

        No error if it exists. Raises MetadataUnavailable.
        """
        request = wire.create(self._full(path), b"", self._rights, wire.CONTAINER)
        for _ in range(path.count("/") + 1):
            try:
                await self._link.ask(path, request)
                return
            except NodeConflict as error:
                if not error.fields["is_missing"]:
                    return
            parent = path.rpartition("/")[0]
            if parent:
                await self.create_container(parent)
        raise MetadataUnavailable(f"cannot create {path} in ZooKeeper: its parent keeps vanishing")

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        """Set a node's value; returns its new version.

        Raises NodeConflict, MetadataUnavailable (it may have been changed), RequestInvalid.
        """
        self._check_size(path, value)
        request = wire.put(self._full(path), bytes(value), version)
        stat: Stat = await self._link.ask(path, request)
        return stat.version

    async def delete(self, path: str, version: int = ANY_VERSION) -> bool:
        """Delete a node; False if it did not exist.

        Raises NodeConflict (another version, or it has children), MetadataUnavailable.
        """
        try:
            await self._link.ask(path, wire.delete(self._full(path), version))
        except NodeConflict as error:
            if error.fields["is_missing"]:
                return False
            raise
        return True

    async def multi(self, parts: Sequence[Create | Put | Delete]) -> list[MultiResult]:
        """Apply all changes in order, or none.

        Raises NodeConflict with the `index` of the part that failed, MetadataUnavailable
        (all may have been applied), RequestInvalid.
        """
        size = 0
        for part in parts:
            if not isinstance(part, Delete):
                self._check_size(part.path, part.value)
                size += len(part.value)
        if size > VALUE_BYTES_MAX:
            raise RequestInvalid(
                f"{len(parts)} changes hold {size} bytes, ZooKeeper accepts {VALUE_BYTES_MAX} at"
                " once: split them into several changes"
            )
        request = wire.multi([self._part(part) for part in parts])
        results: list[Any] = await self._link.ask(f"{len(parts)} nodes", request)
        refused = [(at, result) for at, result in enumerate(results) if isinstance(result, Refused)]
        if refused:
            # A rollback refuses all other parts, too, with different codes.
            index, error = min(refused, key=lambda one: _blame(one[1]))
            raise self._link.translate(parts[index].path, error, index=index)
        return [
            MultiResult(result.version, result.owner)
            if isinstance(part, Put)
            else MultiResult(0 if isinstance(part, Create) else ANY_VERSION, 0)
            for part, result in zip(parts, results, strict=True)
        ]

    def _part(self, part: Create | Put | Delete) -> Request:
        full = self._full(part.path)
        if isinstance(part, Create):
            flags = wire.EPHEMERAL * part.is_ephemeral
            return wire.create(full, bytes(part.value), self._rights, flags)
        if isinstance(part, Put):
            return wire.put(full, bytes(part.value), part.version)
        return wire.delete(full, part.version)

    async def sync(self, path: str) -> None:
        """Make the server catch up with its leader: later reads see all changes made until now.

        Raises MetadataUnavailable.
        """
        await self._link.ask(path, wire.sync(self._full(path)), is_read=True)

    async def watch_tree(
        self, path: str, changed: Callable[[str, bool], None], gap: Callable[[int], None]
    ) -> None:
        """Call `changed(path, is_gone)` for every change at and below `path` until `close`.

        `gap(zxid)` is called each time the watch was set again on a new connection: changes with a
        `changed_zxid` up to `zxid` were reported, later ones may have been missed.
        Raises MetadataUnavailable; the watch is then set on the next connection.
        """
        tree = _TreeWatch(path, changed, gap)
        self._trees.append(tree)
        await self._set_tree_watch(tree)

    async def _set_tree_watch(self, tree: _TreeWatch) -> None:
        changes = self.session.changes
        await self._link.ask(tree.path, wire.add_watch(self._full(tree.path)), is_read=True)
        # Otherwise the connection broke meanwhile, and `_follow_session` sets the watch again.
        tree.is_set = self.session.changes == changes

    async def _follow_session(self, changes: int) -> None:
        """Set tree watches again on each new connection."""
        while True:
            await self.session.wait_change_after(changes)
            changes = self.session.changes
            for tree in list(self._trees):
                await self._set_patiently(tree, changes)

    async def _set_patiently(self, tree: _TreeWatch, changes: int) -> None:
        while self.session.changes == changes and self.session.state is SessionState.CONNECTED:
            try:
                await self._set_tree_watch(tree)
            except MetadataUnavailable as error:
                log.info("cannot watch for changes in ZooKeeper, retrying: %s", error)
                await asyncio.sleep(_RETRY_S)
            else:
                if tree.is_set:
                    tree.gap(tree.seen_zxid)
                return

    def _note_break(self, zxid: int) -> None:
        for tree in self._trees:
            if tree.is_set:
                tree.is_set = False
                tree.seen_zxid = zxid

    def _notify_trees(self, event: WatchEvent) -> None:
        if event.kind == wire.CHILDREN_CHANGED or not event.path.startswith(self._root):
            return
        path, is_gone = event.path[len(self._root) :] or "/", event.kind == wire.DELETED
        for tree in list(self._trees):
            if path == tree.path or path.startswith(tree.path.rstrip("/") + "/"):
                tree.changed(path, is_gone)

    def _full(self, path: str) -> str:
        assert path.startswith("/"), path
        return self._root + path

    def _check_size(self, path: str, value: bytes) -> None:
        if len(value) > VALUE_BYTES_MAX:
            raise RequestInvalid(
                f"{path} would hold {len(value)} bytes, ZooKeeper accepts {VALUE_BYTES_MAX}:"
                " split the value over several keys",
                path=path,
                limit=VALUE_BYTES_MAX,
            )


def _blame(error: Refused) -> int:
    """Sort key: the error that made a multi fail comes before those it caused."""
    return 0 if is_conflict(error) else 2 if error.code in wire.ROLLED_BACK else 1


def _watch(
    kind: str, full: str, changed: Callable[[], None] | None, *, is_for_absent: bool = False
) -> WatchRequest | None:
    return None if changed is None else WatchRequest(kind, full, changed, is_for_absent)
