"""A change of one stored fact on top of what is stored: compare and set, with retries.

Invariants: knows no fact. A fact that becomes empty is stored empty: `followed_facts` deletes it
later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import MetadataUnavailable, VersionConflict
from headrace.metadata.store import ABSENT, MetadataEntry, MultiOperation

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from headrace.metadata.store import MetadataStore

ATTEMPTS_MAX: Final = 10


async def change_fact(
    metadata: MetadataStore,
    key: str,
    what: str,
    change: Callable[[MetadataEntry | None], bytes | None],
    witness: Callable[[bytes], Awaitable[MetadataEntry | None]] | None = None,
) -> MetadataEntry | None:
    """Store what `change` makes of the stored entry; None: nothing is to be stored. It is called
    again if another broker was faster.

    `witness(value)`: the entry of another key without which this value is not to be stored. It is
    stored again as it is in one step with the change, so that of two changes that are each other's
    witness one is decided again, on what the other has left. It raises if there is none.

    Returns the stored entry, for the caller to apply. Raises what `change` raises, and
    MetadataUnavailable, which names `what`.
    """
    for _ in range(ATTEMPTS_MAX):
        entry = await metadata.get(key)
        value = change(entry)
        if value is None:
            return None
        seen = None if witness is None else await witness(value)
        expected = ABSENT if entry is None else entry.version
        try:
            if seen is None:
                version = await metadata.put(key, value, expected)
            else:
                steps = MultiOperation(key, value, expected), MultiOperation(*seen)
                version, _ = await metadata.multi(steps)
        except VersionConflict:  # another broker was faster
            continue
        return MetadataEntry(key, value, version)
    raise MetadataUnavailable(
        f"{what} is being changed concurrently: nothing was changed by this request, try again"
    )
