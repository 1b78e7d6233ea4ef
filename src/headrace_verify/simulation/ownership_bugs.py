"""Planted bugs of the proof that an owner has died.

Invariants: as in `bugs`.
"""

# ruff: noqa: SLF001 - a planted bug patches private parts

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.broker.ownership.peers import Peers
from headrace.broker.ownership.shared_ownership import SharedOwnership
from headrace.errors import HeadraceError
from headrace.metadata.facts import broker_key
from headrace.metadata.store import ANY

if TYPE_CHECKING:
    from headrace_verify.self_proof import Patch


def take_refused_connections_for_a_death(patch: Patch) -> None:
    """A broker removes the registration of another one whose address refuses its connections."""
    begin, is_refused = SharedOwnership.__init__, Peers._is_refused

    def knowing(self: Any, config: Any, metadata: Any, *more: Any, **named: Any) -> None:
        begin(self, config, metadata, *more, **named)
        self._peers.planted_metadata = metadata

    async def judge(self: Any, open_line: Any, fact: Any) -> bool:
        if not await is_refused(self, open_line, fact):
            return False
        with suppress(HeadraceError):
            await self.planted_metadata.delete(broker_key(fact.id), ANY)
        return True

    patch(SharedOwnership, "__init__", knowing)
    patch(Peers, "_is_refused", judge)
