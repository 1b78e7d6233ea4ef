"""Follows the bookies registered in ZooKeeper, and their addresses.

Invariants: updates a BookiePool through watches, and logs bookies that appear and disappear. While
ZooKeeper is unavailable, the last known state applies. A bookie belongs to the cluster as long as
its cookie exists: decommissioning deletes it.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import DataCorrupt, MetadataUnavailable
from headrace.storage.bookkeeper.ledger_metadata import (
    BookieAddress,
    address_in,
    decode_service_info,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from headrace.runtime.tasks import Tasks
    from headrace.storage.bookkeeper.ensemble import BookiePool
    from headrace.storage.bookkeeper.metadata_service import ZooKeeperCalls

log = logging.getLogger(__name__)

RETRY_S = 1.0
_READ_ONLY = "readonly"


class _Seen(NamedTuple):
    """The registered bookies when the list was read."""

    writable: frozenset[str]
    read_only: frozenset[str]


class BookieDirectory:
    """Follows `<root>/available` and updates `pool`; `changed` is called after each change."""

    def __init__(
        self,
        zookeeper: ZooKeeperCalls,
        root: str,
        pool: BookiePool,
        tasks: Tasks,
        changed: Callable[[], None],
    ) -> None:
        self._zookeeper = zookeeper
        self._path = f"{root}/available"
        self._pool = pool
        self._tasks = tasks
        self._changed = changed
        self._addresses: dict[str, BookieAddress] = {}
        self._names: Sequence[str] = ()
        self._read_only: Sequence[str] = ()
        self._known: Sequence[str] = ()
        self._cookies = f"{root}/cookies"
        self._seen: _Seen | None = None
        self._stale = {self._path, f"{self._path}/{_READ_ONLY}", self._cookies}
        """Paths to read again, which have no watch now."""
        self._is_stale = asyncio.Event()

    async def open(self) -> None:
        """Read the registrations and follow them from now on. Raises MetadataUnavailable."""
        await self._read()
        self._tasks.spawn(self._follow(), "follow the bookies in ZooKeeper")

    async def _follow(self) -> None:
        while True:
            await self._is_stale.wait()
            try:
                await self._read()
            except MetadataUnavailable as error:
                log.info("cannot read the list of bookies, retrying: %s", error)
                await asyncio.sleep(RETRY_S)

    async def _read(self) -> None:
        self._is_stale.clear()
        read_only_path = f"{self._path}/{_READ_ONLY}"
        try:
            self._names = await self._children(self._path, self._names)
            self._read_only = await self._children(read_only_path, self._read_only)
            self._known = await self._children(self._cookies, self._known)
            read_only = self._read_only
            bookies = [name for name in self._names if name != _READ_ONLY]
            for bookie in bookies:
                if bookie not in self._addresses:
                    await self._learn(bookie, f"{self._path}/{bookie}")
        except MetadataUnavailable:
            self._is_stale.set()
            raise
        for gone in self._addresses.keys() - set(bookies) - set(read_only):
            del self._addresses[gone]
        self._pool.set_writable(bookies)
        self._pool.set_read_only(read_only)
        self._pool.set_known(self._known)
        self._log_changes(_Seen(frozenset(bookies) - frozenset(read_only), frozenset(read_only)))
        self._changed()

    def _log_changes(self, now: _Seen) -> None:
        before, self._seen = self._seen, now
        count = len(now.writable)
        if before is None:
            log.info("%d bookies are registered as writable", count)
            return
        for bookie in sorted(before.writable - now.writable - now.read_only):
            log.warning(
                "lost bookie %s: no longer registered in ZooKeeper (stopped, dead, or its session"
                " expired); writable bookies: %d",
                bookie,
                count,
            )
        for bookie in sorted(now.read_only - before.read_only):
            log.warning("bookie %s is read-only; writable bookies: %d", bookie, count)
        for bookie in sorted(now.writable - before.writable):
            log.info("bookie %s is registered; writable bookies: %d", bookie, count)

    async def _children(self, path: str, known: Sequence[str]) -> Sequence[str]:
        """The children of `path`: `known`, unless a watch has fired since."""
        if path not in self._stale:
            return known

        def changed() -> None:
            self._stale.add(path)
            if path == self._path:
                # A missing path has no watch; its parent's fires when it is created.
                self._stale.add(f"{path}/{_READ_ONLY}")
                self._stale.add(self._cookies)
            self._is_stale.set()

        self._stale.discard(path)
        try:
            names = await self._zookeeper.children(path, changed)
        except MetadataUnavailable:
            self._stale.add(path)
            raise
        return names or ()

    async def _learn(self, bookie: str, path: str) -> None:
        found = await self._zookeeper.get(path)
        if found is None:
            return
        try:
            address, properties = decode_service_info(found[0])
        except DataCorrupt as error:
            log.warning("%s: %s", bookie, error)
            address, properties = None, {}
        address = address or address_in(bookie)
        if address is not None:
            self._addresses[bookie] = address
        if "rack" in properties:
            self._pool.set_rack(bookie, properties["rack"])

    async def resolve(self, bookie: str) -> BookieAddress:
        """The address of a bookie. Raises ConnectionError."""
        known = self._addresses.get(bookie)
        if known is None:
            try:
                for folder in (self._path, f"{self._path}/{_READ_ONLY}"):
                    await self._learn(bookie, f"{folder}/{bookie}")
            except MetadataUnavailable as error:
                log.info("cannot look up bookie %s now: %s", bookie, error)
            known = self._addresses.get(bookie) or address_in(bookie)
        if known is None:
            raise ConnectionError(f"bookie {bookie} is not registered")
        return known
