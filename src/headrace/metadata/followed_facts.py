"""Facts of one kind that a broker follows and changes, and of which names come and go.

Invariants: knows keys and entries, not what they mean. A change is stored first and then applied
here at once; other brokers learn of it by their watch. What a broker applies for a key is in the
order in which it was stored (`turns`), whatever the versions.

A fact without content is stored empty first. It is deleted once it has been empty for EMPTY_KEPT_S,
so that no change that was decided on an earlier version can be under way: the version begins anew
with the next fact of that key. Brokers of earlier versions compare versions and would ignore that
fact, so nothing is deleted while there is one (`may_delete`). Empty facts are bounded meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import TYPE_CHECKING, Final

from headrace.errors import HeadraceError, PolicyViolation
from headrace.metadata.changes import change_fact
from headrace.metadata.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection

    from headrace.metadata.store import MetadataEntry, MetadataStore

log = logging.getLogger(__name__)

EMPTY_KEPT_S: Final = 600.0
"""Longer than a broker can be cut off and keep its session."""
EMPTY_MAX: Final = 100_000
"""Empty facts of one kind: about 400 bytes of memory each."""
DELETED_FACTS, CLOSED_TENANTS, TENANTS_CLUSTER_IDS, SHARED_TOPICS = 1, 2, 3, 4
"""What brokers know by then: to follow a fact that was deleted and created again; tenants whose
principals have what rules allow; that a tenant's clients see a cluster id of their own; topics that
tenants share. Do not change: stored."""
FACTS_VERSION: Final = SHARED_TOPICS
"""Of this version's brokers."""


class FollowedFacts:
    """See the module."""

    def __init__(
        self,
        metadata: MetadataStore,
        prefix: str,
        what: str,
        apply: Callable[[str, MetadataEntry | None], None],
        tenant_of_key: Callable[[str], str] | None = None,
    ) -> None:
        """`what`: one of them, as errors call it. `apply`, which `turns` keep in order, calls
        `note`. `tenant_of_key`: by which empty facts are counted."""
        self._metadata = metadata
        self.prefix = prefix
        self._what = what
        self.apply = apply
        self._tenant_of_key = tenant_of_key
        self._empty: dict[str, MetadataEntry] = {}
        self.empty_counts: Counter[str] = Counter()
        """How many facts are empty, by tenant."""
        self._swept: dict[str, MetadataEntry] = {}
        """Those that have been empty since before the last sweep ended."""
        self.turns = Turns()

    @property
    def empty(self) -> Collection[str]:
        """The keys of empty facts."""
        return self._empty.keys()

    def note(self, key: str, entry: MetadataEntry | None, *, is_empty: bool) -> None:
        """The entry stored under a key is applied."""
        self._swept.pop(key, None)  # it may be another fact of the same version
        was_empty = key in self._empty
        if is_empty and entry is not None:
            self._empty[key] = entry
        else:
            self._empty.pop(key, None)
        change = (key in self._empty) - was_empty
        if change and self._tenant_of_key is not None:
            tenant = self._tenant_of_key(key)
            self.empty_counts[tenant] += change
            if not self.empty_counts[tenant]:
                del self.empty_counts[tenant]

    async def change(
        self,
        key: str,
        change: Callable[[MetadataEntry | None], bytes | None],
        witness: Callable[[bytes], Awaitable[MetadataEntry | None]] | None = None,
    ) -> None:
        """Store what `change` makes of the stored entry, and apply it. See `change_fact`.

        Raises what `change` raises, PolicyViolation, MetadataUnavailable.
        """

        def changed(entry: MetadataEntry | None) -> bytes | None:
            value = change(entry)
            if value is not None and entry is None:
                self._check_count()
            return value

        async with self.turns.of(key):
            stored = await change_fact(self._metadata, key, self._what, changed, witness)
            if stored is not None:
                self.apply(key, stored)

    def _check_count(self) -> None:
        if len(self._empty) >= EMPTY_MAX:
            raise PolicyViolation(
                f"{len(self._empty)} names are kept of which {self._what} was removed, the limit:"
                f" nothing was changed. They are forgotten {EMPTY_KEPT_S / 60:.0f} minutes after"
                " their removal, once all brokers have this version of Headrace: try again then, or"
                " use one of them again"
            )

    async def delete_empty(self, may_delete: Callable[[], bool]) -> None:
        """Delete facts that have been empty for EMPTY_KEPT_S, until cancelled. `may_delete`:
        whether all brokers have DELETED_FACTS, and this one is to do it."""
        while True:
            await asyncio.sleep(EMPTY_KEPT_S)
            await self.sweep(may_delete)

    async def sweep(self, may_delete: Callable[[], bool]) -> None:
        """Delete the facts that have been empty since the last sweep, if they could be deleted at
        both."""
        if not may_delete():
            self._swept.clear()
            return
        for key in list(self._swept):
            entry = self._swept.get(key)  # it may have changed meanwhile
            if entry is not None:
                await self._delete(key, entry)
        self._swept = dict(self._empty)

    async def _delete(self, key: str, empty: MetadataEntry) -> None:
        """Only if it is still as it was seen: the same version may be that of a later fact."""
        try:
            async with self.turns.of(key):
                entry = await self._metadata.get(key)
                if entry == empty:
                    await self._metadata.delete(key, empty.version)
                    self.apply(key, None)
        except HeadraceError as error:  # another broker was faster, or it is set again
            log.debug("cannot delete the empty fact %s: %s", key, error)
