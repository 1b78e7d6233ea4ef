"""The metadata store of a cluster: keys as ZooKeeper nodes. See MetadataStore.

Invariants: knows keys, versions and watches; the session and reconnects are in
`headrace.zookeeper`, the mapping of keys to paths in `zookeeper_keys`. The caller owns the client
and shares it with the BookKeeper store.

- The outcome of a change is unknown if the connection broke: MetadataUnavailable with the field
  `is_in_doubt`. Read again before deciding; a compare-and-set may be repeated unchanged.
- A read may return stale data, but never misses the client's own changes. A compare-and-set is
  never stale.
- `list` is not a snapshot: changes made while it runs may or may not be included.
- A `multi` ignores an unconditional delete (ANY) of a key that did not exist when it began.
- Ephemeral keys outlive a lost session: the next one recreates them at version 0, unless another
  session has created them meanwhile. Others have seen them disappear; `session.number` shows it.
- One persistent ZooKeeper watch on the whole tree serves all watches. After a gap, deleted keys,
  keys with a newer transaction than the last one seen and keys older than this store wrote them are
  reported.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError, MetadataUnavailable, VersionConflict
from headrace.metadata.store import ABSENT, ANY, MetadataEntry, MultiOperation
from headrace.metadata.watches import Watches
from headrace.metadata.zookeeper_keys import (
    folder_of_prefix,
    key_of_path,
    may_match,
    path_of_key,
)
from headrace.metadata.zookeeper_plan import Found, plan_changes, recreate_node
from headrace.runtime.fair_locks import FairLock
from headrace.runtime.session import SessionState
from headrace.runtime.tasks import Tasks
from headrace.zookeeper.client import Create, Delete, Put
from headrace.zookeeper.link import NodeConflict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterable, Sequence

    from headrace.runtime.session import Session
    from headrace.zookeeper.client import ZooKeeper
    from headrace.zookeeper.wire import NodeState

log = logging.getLogger(__name__)

ROOT = "/headrace"
_ATTEMPTS_MAX = 100  # of a contended change: each loss means that another writer succeeded
_RETRY_S = 0.2
_CLOSE_PATIENCE_S = 5.0
_SILENT_PATIENCE_S = 0.5
"""For deleting ephemeral keys on close; while disconnected, they expire with the session."""
_NO_SESSION = -1  # no session now, so no node can belong to it


class ZooKeeperMetadataStore:
    """See MetadataStore and above. Used from one event loop."""

    def __init__(self, zookeeper: ZooKeeper, root: str) -> None:
        """Use `open`."""
        self._zookeeper = zookeeper
        self._root = root
        self._watches = Watches()
        self._tasks = Tasks()
        self._is_closed = False
        self._ephemeral: dict[str, bytes] = {}  # ephemeral keys and their values
        self._known: set[str] = set()  # all keys, to detect deletions after a gap
        self._written: dict[str, int] = {}  # versions that no later one may be older than
        self._ephemeral_lock = FairLock()
        self._pending_changes: (
            list[tuple[str, bool]] | None
        ) = []  # changes seen while the tree is read
        self._gap_zxid: int | None = None
        self._gap = asyncio.Event()

    @classmethod
    async def open(cls, zookeeper: ZooKeeper, root: str = ROOT) -> ZooKeeperMetadataStore:
        """A store on an open client. Raises MetadataUnavailable."""
        store = cls(zookeeper, root)
        try:
            await zookeeper.create(root, b"")
        except NodeConflict:
            pass  # the cluster already exists
        await zookeeper.watch_tree(root, store._note_change, store._note_gap)
        store._learn(await store._keys(""))
        store._tasks.spawn(store._follow_gaps(), "metadata watch")
        store._tasks.spawn(store._follow_session(zookeeper.session.number), "ephemeral keys")
        return store

    @property
    def session(self) -> Session:
        """See MetadataStore."""
        return self._zookeeper.session

    async def get(self, key: str) -> MetadataEntry | None:
        """See MetadataStore."""
        self._check_open()
        node = await self._zookeeper.get(self._path(key))
        return None if node is None else MetadataEntry(key, node.value, node.version)

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """See MetadataStore."""
        self._check_open()
        return [
            MetadataEntry(key, state.value, state.version)
            for key, state in await self._read(await self._keys(prefix))
        ]

    async def put(
        self, key: str, value: bytes, expected_version: int, *, ephemeral: bool = False
    ) -> int:
        """See MetadataStore."""
        operations = [MultiOperation(key, bytes(value), expected_version)]
        (version,) = await self._write(operations, is_ephemeral=ephemeral)
        return version

    async def delete(self, key: str, expected_version: int) -> None:
        """See MetadataStore."""
        await self._write([MultiOperation(key, None, expected_version)], is_ephemeral=False)

    async def multi(self, operations: Sequence[MultiOperation]) -> Sequence[int]:
        """See MetadataStore."""
        return await self._write(operations, is_ephemeral=False)

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """See MetadataStore."""
        self._check_open()
        return self._watches.add(prefix)

    async def close(self) -> None:
        """See MetadataStore: deletes its ephemeral keys if ZooKeeper is reachable."""
        if self._is_closed:
            return
        self._is_closed = True
        await self._tasks.close()
        self._watches.close()
        is_connected = self.session.state is SessionState.CONNECTED
        try:
            async with asyncio.timeout(_CLOSE_PATIENCE_S if is_connected else _SILENT_PATIENCE_S):
                await self._delete_ephemeral()
        except (MetadataUnavailable, VersionConflict, TimeoutError) as error:
            why = str(error) or "ZooKeeper does not answer"
            log.info("ephemeral keys will remain until the session expires: %s", why)

    async def _delete_ephemeral(self) -> None:
        mine = list(self._ephemeral)  # a copy: a pending change may complete meanwhile
        states = await self._zookeeper.get_many([self._path(key) for key in mine])
        for key, state in zip(mine, states, strict=True):
            if state is not None and state.owner == self._zookeeper.session_id:
                await self._zookeeper.delete(self._path(key), state.version)

    # --- reading -----------------------------------------------------------------------------

    async def _keys(self, prefix: str) -> Sequence[str]:
        """All keys with this prefix, sorted."""
        if prefix and not prefix.startswith("/"):
            return []
        keys = []
        folders = [folder_of_prefix(prefix)]
        while folders:
            listed = await self._zookeeper.children_of_many([self._root + f for f in folders])
            below = [
                f"{folder}/{name}"
                for folder, names in zip(folders, listed, strict=True)
                for name in names or ()
            ]
            folders = []
            for path in below:
                key = key_of_path(path)
                if not may_match(path, prefix):
                    continue
                if key is None:
                    folders.append(path)
                else:
                    keys.append(key)
        return sorted(keys)

    async def _read(self, keys: Sequence[str]) -> Sequence[tuple[str, NodeState]]:
        """The state of each key that exists."""
        states = await self._zookeeper.get_many([self._path(key) for key in keys])
        return [(key, state) for key, state in zip(keys, states, strict=True) if state is not None]

    # --- writing -----------------------------------------------------------------------------

    async def _write(
        self, operations: Sequence[MultiOperation], *, is_ephemeral: bool
    ) -> Sequence[int]:
        """Apply all or none; returns new versions. Raises VersionConflict, MetadataUnavailable."""
        self._check_open()
        keys = list(dict.fromkeys(operation.key for operation in operations))
        if not is_ephemeral and self._ephemeral.keys().isdisjoint(keys):
            versions = await self._change(operations, keys, is_ephemeral=False)
            self._note_written(operations, versions)
            return versions
        async with self._ephemeral_lock:  # so that `_restore` does not recreate a key deleted here
            versions = await self._change(operations, keys, is_ephemeral=is_ephemeral)
            for key, value, _ in operations:
                self._ephemeral.pop(key, None)
                self._written.pop(key, None)  # the next session recreates it at version 0
                if is_ephemeral and value is not None:
                    self._ephemeral[key] = value
        return versions

    def _note_written(self, operations: Sequence[MultiOperation], versions: Sequence[int]) -> None:
        for (key, value, _), version in zip(operations, versions, strict=True):
            if value is None:
                self._written.pop(key, None)
            else:
                self._written[key] = version

    async def _change(
        self, operations: Sequence[MultiOperation], keys: Sequence[str], *, is_ephemeral: bool
    ) -> Sequence[int]:
        found: dict[str, Found] | None = None
        if is_ephemeral or any(operation.expected_version == ANY for operation in operations):
            found = await self._look(keys)
        for _ in range(_ATTEMPTS_MAX):
            session_or_none = (self._zookeeper.session_id or _NO_SESSION) if is_ephemeral else None
            try:
                plan = plan_changes(operations, found, session_or_none, self._path)
            except VersionConflict:
                if found is not None:
                    raise
                found = await self._look(keys)
                continue
            try:
                written = await self._zookeeper.multi(plan.parts) if plan.parts else []
            except NodeConflict as conflict:
                if not await self._make_folders(plan.parts, conflict):
                    found = await self._look(keys)
                continue
            if not is_ephemeral:
                for part, result in zip(plan.parts, written, strict=True):
                    if result.owner:
                        await self._make_persistent(part.path)
            return plan.versions
        raise MetadataUnavailable(f"{', '.join(keys[:3])} keep changing: retry")

    async def _look(self, keys: Sequence[str]) -> dict[str, Found]:
        found = dict.fromkeys(keys, Found(ABSENT))
        found |= {key: Found(at.version, at.owner) for key, at in await self._read(keys)}
        return found

    async def _make_folders(
        self, parts: Sequence[Create | Put | Delete], conflict: NodeConflict
    ) -> bool:
        """Create missing folders; returns whether they were the cause of the conflict."""
        part = parts[conflict.fields["index"]]
        if not (isinstance(part, Create) and conflict.fields["is_missing"]):
            return False
        for path in dict.fromkeys(part.path for part in parts if isinstance(part, Create)):
            await self._zookeeper.create_container(path.rpartition("/")[0])
        return True

    async def _make_persistent(self, path: str) -> None:
        """Detach a key, put as persistent, from the session that created it as ephemeral.

        Raises VersionConflict if that session has ended and deleted it, MetadataUnavailable.
        """
        for _ in range(_ATTEMPTS_MAX):
            (state,) = await self._zookeeper.get_many([path])
            if state is None:
                raise VersionConflict(f"{path} was deleted with its session: reread it", key=path)
            if not state.owner:
                return
            parts = recreate_node(path, state.value, state.version, state.version, False)
            try:
                await self._zookeeper.multi(parts)
                return
            except NodeConflict:
                continue
        raise MetadataUnavailable(f"{path} keeps changing: retry")

    # --- the session -------------------------------------------------------------------------

    async def _follow_session(self, number: int) -> None:
        """Recreate ephemeral keys in each new session."""
        session = self.session
        while True:
            changes = session.changes
            if session.number != number and session.state is SessionState.CONNECTED:
                now = session.number
                try:
                    await self._restore()
                    number = now
                except MetadataUnavailable as error:
                    log.warning("cannot recreate ephemeral keys yet, retrying: %s", error)
                    await asyncio.sleep(_RETRY_S)
                continue
            await session.wait_change_after(changes)

    async def _restore(self) -> None:
        async with self._ephemeral_lock:
            for key, value in list(self._ephemeral.items()):
                operations = [MultiOperation(key, value, ABSENT)]
                try:
                    await self._change(operations, [key], is_ephemeral=True)
                except VersionConflict:
                    found = (await self._look([key]))[key]
                    if found.owner != self._zookeeper.session_id:
                        log.warning("another session created %s while ours was lost", key)
                        del self._ephemeral[key]

    # --- watching ----------------------------------------------------------------------------

    def _note_change(self, path: str, is_gone: bool) -> None:
        """Handle an event: watches are notified at once."""
        key = key_of_path(path[len(self._root) :])
        if key is None:
            return
        if self._pending_changes is not None:
            self._pending_changes.append((key, is_gone))
        else:
            self._note_key(key, is_gone)
        self._watches.notify([key])

    def _note_key(self, key: str, is_gone: bool) -> None:
        if is_gone:
            self._known.discard(key)
            self._written.pop(key, None)
        else:
            self._known.add(key)

    def _note_gap(self, zxid: int) -> None:
        """Changes after `zxid` were not reported."""
        self._gap_zxid = min(zxid, self._gap_zxid if self._gap_zxid is not None else zxid)
        self._pending_changes = self._pending_changes or []
        self._gap.set()

    async def _follow_gaps(self) -> None:
        """After a gap, determine and report what changed."""
        try:
            while True:
                await self._gap.wait()
                self._gap.clear()
                try:
                    await self._close_gap()
                except MetadataUnavailable as error:
                    log.info("cannot determine missed changes yet, retrying: %s", error)
                    await asyncio.sleep(_RETRY_S)
                    self._gap.set()
        except HeadraceError as error:
            self._watches.close(error)

    async def _close_gap(self) -> None:
        await self._zookeeper.sync(self._root)  # this server may be another one, which lags
        found = await self._read(await self._keys(""))
        if self._gap.is_set():
            return  # another gap: start over
        assert self._gap_zxid is not None
        changed = [(state.changed_zxid, key) for key, state in found]
        newer = [key for zxid, key in sorted(changed) if zxid > self._gap_zxid]
        # The servers have lost changes, or another session has recreated the key.
        older = [key for key, state in found if state.version < self._written.get(key, 0)]
        deleted = sorted(self._known - {key for key, _ in found})
        for key in [*deleted, *older]:
            self._written.pop(key, None)
        self._gap_zxid = None
        self._learn(key for key, _ in found)
        self._watches.notify([*deleted, *older, *newer])

    def _learn(self, keys: Iterable[str]) -> None:
        """Set the known keys, then apply changes seen while they were read."""
        self._known = set(keys)
        changes, self._pending_changes = self._pending_changes or [], None
        for key, is_deleted in changes:
            self._note_key(key, is_deleted)

    def _path(self, key: str) -> str:
        return self._root + path_of_key(key)

    def _check_open(self) -> None:
        if self._is_closed:
            raise MetadataUnavailable("the metadata store is closed: open a new one")
