"""An in-memory copy of all keys under one prefix of the metadata store, kept up to date.

Invariants: knows keys and entries, not their meaning. `changed(key, entry)` is called for every key
present at the start and for each change after that (None: the key was deleted), and `settled()`
once after each batch of changes. A fact that cannot be decoded is logged and skipped: it must not
hide all others. A key has at most one read in flight, and none while this broker changes it, so
that an older entry never follows a newer one (`metadata.turns`). An outage of the store delays the
copy: everything is read again, and compared, when the store is back.

How it works: changed keys are read in batches, so that a thousand owners that change at once cost
few round trips. Several batches are read concurrently: a change waits neither for the reads before
it nor, to be applied, for those after it.
"""

from __future__ import annotations

import asyncio
import logging
from itertools import islice
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, FormatUnsupported, HeadraceError
from headrace.metadata.turns import Turns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Sequence

    from headrace.metadata.store import MetadataEntry, MetadataStore
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BUNDLE_MAX = 256
"""Keys read in one batch."""
BUNDLES_AT_ONCE = 8
"""While this many batches are in flight, changes collect for the next one."""
RETRY_S = 0.2


class MetadataCache:
    """Follows one prefix from `start` until its tasks are closed."""

    def __init__(
        self,
        metadata: MetadataStore,
        prefix: str,
        changed: Callable[[str, MetadataEntry | None], None],
        settled: Callable[[], None],
        tasks: Tasks,
        damaged: dict[str, str] | None = None,
        turns: Turns | None = None,
    ) -> None:
        """`damaged` gets the keys whose value cannot be decoded, with the reason, until it can.
        `turns` with this broker's own changes, if there are any."""
        self._damaged = {} if damaged is None else damaged
        self._metadata = metadata
        self._prefix = prefix
        self._changed = changed
        self._settled = settled
        self._tasks = tasks
        self._known: set[str] = set()
        self._dirty: dict[str, None] = {}
        self._turns = turns or Turns()
        self._places = asyncio.Semaphore(BUNDLES_AT_ONCE)  # noqa: TID251  # of tasks
        self._changed_event = asyncio.Event()
        self._turns.on_free = self._changed_event.set  # keys that failed, or have changed since
        self._is_started = False

    async def start(self) -> None:
        """Read the present keys, then follow changes.

        Raises MetadataUnavailable. Also FormatUnsupported if `changed` does so for a fact of a
        later version: an older broker should not start on such metadata.
        """
        watch = self._metadata.watch(self._prefix)  # before the list, so that no change is missed
        await self._read_all()
        self._is_started = True
        self._tasks.spawn(self._pump(watch), f"watch {self._prefix}")
        self._tasks.spawn(self._read_changes(), f"follow {self._prefix}")

    async def _read_all(self) -> None:
        with self._turns.overlapping() as taken:
            entries = await self._metadata.list(self._prefix)
        deleted = self._known - {entry.key for entry in entries}
        present = ((entry.key, entry) for entry in entries)
        for key, found in (*present, *((key, None) for key in sorted(deleted))):
            if key in taken:
                self._dirty[key] = None
                continue
            (self._known.discard if found is None else self._known.add)(key)
            self._report(key, found)
        self._settled()
        if self._dirty:
            self._changed_event.set()

    def _report(self, key: str, entry: MetadataEntry | None) -> None:
        self._damaged.pop(key, None)
        try:
            self._changed(key, entry)
        except (DataCorrupt, FormatUnsupported, ValueError) as error:
            if isinstance(error, FormatUnsupported) and not self._is_started:
                raise
            self._damaged[key] = str(error)
            log.warning("%s cannot be decoded and is ignored until it can: %s", key, error)
        except Exception:
            if not self._is_started:
                raise
            log.exception("%s is ignored", key)  # the other keys still count

    async def _pump(self, watch: AsyncIterator[str]) -> None:
        while True:
            try:
                async for key in watch:
                    self._dirty[key] = None
                    self._changed_event.set()
                return  # the store was closed
            except HeadraceError as error:
                log.warning("cannot watch %s (%s): reading it again", self._prefix, error)
                await asyncio.sleep(RETRY_S)
                watch = self._metadata.watch(self._prefix)
                await self._persist(self._read_all)

    async def _read_changes(self) -> None:
        while True:
            await self._changed_event.wait()
            self._changed_event.clear()
            while await self._begin_bundle():
                pass

    async def _begin_bundle(self) -> bool:
        """Start reading changed keys that are not being read already; whether there were any."""
        await self._places.acquire()
        keys = list(islice(filter(self._turns.is_free, self._dirty), BUNDLE_MAX))
        if not keys:
            self._places.release()
            return False
        for key in keys:
            del self._dirty[key]
        self._turns.take(keys)
        self._tasks.spawn(self._read_bundle(keys), f"read {self._prefix}")
        return True

    async def _read_bundle(self, keys: Sequence[str]) -> None:
        try:
            failed = await self._read_keys(keys)
            if failed:
                log.warning("cannot read %s (%r): retrying", self._prefix, failed[0][1])
                self._dirty |= dict.fromkeys(key for key, _ in failed)
                await asyncio.sleep(RETRY_S)
        finally:
            self._places.release()
            self._turns.free(keys)

    async def _read_keys(self, keys: Sequence[str]) -> Sequence[tuple[str, BaseException]]:
        """Report the keys that can be read; return the others with their errors."""
        failed = []
        reads = (self._metadata.get(key) for key in keys)
        for key, found in zip(
            keys, await asyncio.gather(*reads, return_exceptions=True), strict=True
        ):
            if isinstance(found, DataCorrupt | FormatUnsupported):
                log.warning("ignoring %s: %s", key, found)
            elif isinstance(found, BaseException):
                failed.append((key, found))
            else:
                (self._known.discard if found is None else self._known.add)(key)
                self._report(key, found)
        self._settled()
        return failed

    async def _persist(self, read: Callable[[], Awaitable[None]]) -> None:
        """Read until it succeeds: a broker with an outdated copy would act on it."""
        while True:
            try:
                await read()
                return
            except Exception as error:  # noqa: BLE001  # a broker that follows nothing is worse
                log.warning("cannot read %s (%r): retrying", self._prefix, error)
                await asyncio.sleep(RETRY_S)
