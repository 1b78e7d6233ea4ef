"""A change of one stored fact on top of what is stored: compare and set, with retries.

Invariants: knows no fact. A fact that becomes empty is stored empty: `followed_facts` deletes it
later.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.errors import MetadataUnavailable, VersionConflict
from headrace.metadata.store import ABSENT, MetadataEntry

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.metadata.store import MetadataStore

ATTEMPTS_MAX: Final = 10


async def change_fact(
    metadata: MetadataStore,
    key: str,
    what: str,
    change: Callable[[MetadataEntry | None], bytes | None],
) -> MetadataEntry | None:
    """Store what `change` makes of the stored entry; None: nothing is to be stored. It is called
    again if another broker was faster.

    Returns the stored entry, for the caller to apply. Raises what `change` raises, and
    MetadataUnavailable, which names `what`.
    """
    for _ in range(ATTEMPTS_MAX):
        entry = await metadata.get(key)
        value = change(entry)
        if value is None:
            return None
        try:
            version = await metadata.put(key, value, ABSENT if entry is None else entry.version)
        except VersionConflict:  # another broker was faster
            continue
        return MetadataEntry(key, value, version)
    raise MetadataUnavailable(
        f"{what} is being changed concurrently: nothing was changed by this request, try again"
    )
