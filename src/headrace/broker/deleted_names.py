"""Names of deleted topics whose progress some group may still hold.

Rules of the room: a topic that is made again under its old name must not be greeted by the offsets
that were committed for its predecessor. Groups forget them behind the deletion, and a crash may
come between the two; so the deletion leaves a mark in the same step, which goes when they have.
Whoever makes a topic whose name is marked has them forget first.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from headrace.errors import HeadraceError
from headrace.metadata.facts import deleted_name_key
from headrace.metadata.store import ANY, MetadataStore, Operation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

log = logging.getLogger(__name__)

_MARK = b'{"v":1}'  # do not change: stored


class DeletedNames:
    """The marks, and how groups are told."""

    def __init__(self, metadata: MetadataStore) -> None:
        self._metadata = metadata
        self.forget: Callable[[list[str]], Awaitable[None]]
        """Has the groups of this broker forget their progress in topics, by name."""

    def mark(self, name: str) -> Operation:
        """The step that belongs to the deletion of the topic."""
        return Operation(deleted_name_key(name), _MARK, ANY)

    async def settle(self, name: str) -> None:
        """Have the groups forget it if its mark is there. Raises what keeps them from that."""
        key = deleted_name_key(name)
        if await self._metadata.get(key) is not None:
            await self.forget([name])
            await self._metadata.delete(key, ANY)

    async def try_to_settle(self, name: str) -> None:
        """The same, now or when a topic is made under that name."""
        try:
            await self.settle(name)
        except HeadraceError as error:
            log.warning("offsets of the deleted topic %s stay in their groups: %s", name, error)
