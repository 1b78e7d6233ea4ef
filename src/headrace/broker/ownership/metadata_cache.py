"""A picture in memory of all keys under one prefix of the metadata store, kept up to date.

Invariants: knows keys and entries, not what they mean. `changed(key, entry)` is called for
every key that is there at the start and for each change after it (None: the key is gone), and
`settled()` once after each bundle of changes. A fact that cannot be read is reported and left out:
it must not hide all others. Changes are read in bundles, so that a thousand owners that change at
once cost few round trips. An outage of the store delays the picture: it is read anew, and compared,
when the store is back.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.errors import DataCorrupt, FormatUnsupported, HeadraceError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from headrace.metadata.store import Entry, MetadataStore
    from headrace.runtime.tasks import Tasks

log = logging.getLogger(__name__)

BUNDLE_MAX = 256
"""Keys that are read at once."""
RETRY_S = 0.2


class MetadataCache:
    """Follows one prefix from `start` on, until its tasks are closed."""

    def __init__(
        self,
        metadata: MetadataStore,
        prefix: str,
        changed: Callable[[str, Entry | None], None],
        settled: Callable[[], None],
        tasks: Tasks,
    ) -> None:
        self._metadata = metadata
        self._prefix = prefix
        self._changed = changed
        self._settled = settled
        self._tasks = tasks
        self._known: set[str] = set()
        self._dirty: dict[str, None] = {}
        self._news = asyncio.Event()
        self._is_started = False

    async def start(self) -> None:
        """Read what is there, then follow.

        Raises MetadataUnavailable, and what `changed` says of a fact that cannot be read: a broker
        that cannot know all its topics at the start should not start.
        """
        watch = self._metadata.watch(self._prefix)  # before the list: no change falls between
        await self._read_all()
        self._is_started = True
        self._tasks.spawn(self._pump(watch), f"watch {self._prefix}")
        self._tasks.spawn(self._read_news(), f"follow {self._prefix}")

    async def _read_all(self) -> None:
        entries = await self._metadata.list(self._prefix)
        gone = self._known - {entry.key for entry in entries}
        for entry in entries:
            self._known.add(entry.key)
            self._tell(entry.key, entry)
        for key in sorted(gone):
            self._known.discard(key)
            self._tell(key, None)
        self._settled()

    def _tell(self, key: str, entry: Entry | None) -> None:
        try:
            self._changed(key, entry)
        except (DataCorrupt, FormatUnsupported, ValueError) as error:
            if not self._is_started:
                raise
            log.warning("%s is ignored: %s", key, error)

    async def _pump(self, watch: AsyncIterator[str]) -> None:
        while True:
            try:
                async for key in watch:
                    self._dirty[key] = None
                    self._news.set()
                return  # the store was closed
            except HeadraceError as error:
                log.warning("cannot watch %s (%s): reading it anew", self._prefix, error)
                await asyncio.sleep(RETRY_S)
                watch = self._metadata.watch(self._prefix)
                await self._persist(self._read_all)

    async def _read_news(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            while self._dirty:
                await self._persist(self._read_bundle)
            self._settled()

    async def _read_bundle(self) -> None:
        keys = list(self._dirty)[:BUNDLE_MAX]
        for key in keys:
            del self._dirty[key]
        failed: BaseException | None = None
        reads = (self._metadata.get(key) for key in keys)
        for key, found in zip(
            keys, await asyncio.gather(*reads, return_exceptions=True), strict=True
        ):
            if isinstance(found, DataCorrupt | FormatUnsupported):
                log.warning("%s is ignored: %s", key, found)
            elif isinstance(found, BaseException):
                self._dirty[key] = None
                failed = found
            else:
                (self._known.discard if found is None else self._known.add)(key)
                self._tell(key, found)
        if failed is not None:
            raise failed

    async def _persist(self, read: Callable[[], Awaitable[None]]) -> None:
        """Read until it works: without its picture a broker would act on an old one."""
        while True:
            try:
                await read()
                return
            except Exception as error:  # noqa: BLE001  # a broker that follows nothing is worse
                log.warning("cannot read %s (%r): trying again", self._prefix, error)
                await asyncio.sleep(RETRY_S)
