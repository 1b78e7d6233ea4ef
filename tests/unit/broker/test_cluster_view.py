"""What a broker knows of the others."""

from __future__ import annotations

import asyncio
from uuid import UUID

from headrace.broker.ownership.cluster_view import ClusterView
from headrace.metadata.facts import OwnerFact
from headrace.metadata.memory import MemoryMetadataStore
from headrace.runtime.tasks import Tasks

KEY = (UUID(int=1), 0)


async def test_a_tenure_is_as_old_as_its_epoch_whatever_its_owner_writes_meanwhile():
    """FindCoordinator pauses after a move, and an owner that announces the next one is no move."""

    view = ClusterView(MemoryMetadataStore(), Tasks(), lambda: None)
    view.own(KEY, OwnerFact(1, "a", 3), 1)
    since_s = view.owners[KEY].since_s
    await asyncio.sleep(0.01)
    view.own(KEY, OwnerFact(1, "a", 3, successor=2), 2)
    assert view.owners[KEY].fact.successor == 2
    assert view.owners[KEY].since_s == since_s
    view.own(KEY, OwnerFact(2, "b", 4), 3)
    assert view.owners[KEY].since_s > since_s
    view.own(KEY, OwnerFact(1, "a", 3), 1)
    assert view.owners[KEY].fact.broker == 2, "an older read never wins"
