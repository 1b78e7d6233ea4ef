"""Values of records by their schemas, off the event loop.

Invariants: one thread, for which a bounded number of calls waits; each takes a bounded time.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from headrace.errors import StorageUnavailable
from headrace.runtime.slow_calls import SlowCalls

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.schemas.decoding import DecodedValue, Value, ValueDecoder

WAITING_MAX: Final = 8


class DecodedValues:
    """See the module."""

    def __init__(self, decoder: ValueDecoder) -> None:
        self._decoder = decoder
        self._calls = SlowCalls("schemas")
        self._waiting = 0

    async def decode(self, values: Sequence[Value | None]) -> list[DecodedValue | str | None]:
        """For each value what it is, or why it cannot be decoded. Raises StorageUnavailable if many
        calls wait already."""
        if self._waiting >= WAITING_MAX:
            raise StorageUnavailable(
                f"{WAITING_MAX} requests wait for decoded values already: try later, or read"
                " without decode"
            )
        self._waiting += 1
        try:
            return await self._calls.run(partial(self._decoder.decode, values))
        finally:
            self._waiting -= 1

    async def close(self) -> None:
        """Drop what waits."""
        self._calls.close()
