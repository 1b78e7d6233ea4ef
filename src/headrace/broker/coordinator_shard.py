"""The host of machines: see `CoordinatorShard`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

from headrace.runtime.completion import Completion


class ShardLog(Protocol):
    """One partition of the internal topic, as its shard needs it."""

    def append(self, records: list[tuple[bytes | None, bytes | None]]) -> Completion:
        """Append one record batch in this turn of the loop.

        Completes when it is durable, in the order of the appends; fails with StorageUnavailable.
        """
        ...

    def replay(self) -> AsyncIterator[tuple[bytes | None, bytes | None]]:
        """All (key, value) from the log's start to its end, in order."""
        ...

    def snapshot(self, records: list[tuple[bytes | None, bytes | None]]) -> Completion:
        """Append `records` (the whole state) in this turn, then trim the log before them.

        Completes when the records are durable; fails like `append`. The trim may come later or
        never: what is replayed twice gives the same state.
        """
        ...
