"""The seam for small facts: topics, configs, chains of ledgers, owners, live brokers.

Keys are paths (`/topics/orders`), values are opaque bytes, each key has a version that counts
its changes. Nothing that changes per message goes here. SQLite implements it for one machine,
ZooKeeper for a cluster; both pass `tests/contract/test_metadata_store.py`.

1. `put` with an expected version is a compare-and-set: exactly one of several rivals wins.
2. What a completed `put`, `delete` or `multi` said survives a crash.
3. A watch sees every key under its prefix change at least once after each change (bursts may be
   folded into one event), in order per key, and never keeps the writer waiting.
4. An ephemeral key goes when the session that made it ends. Where a session may be lost while
   the process lives (ZooKeeper), the store makes its ephemeral keys again in the next one.
5. `session` tells how long the session surely lives: an owner that acts only while
   `session.is_safe` holds has stopped before anybody can see its ephemeral keys go.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.runtime.session import SessionState

ABSENT = -1
"""The expected version of a key that must not be there yet."""
ANY = -2
"""Expect nothing: overwrite or create."""


class Entry(NamedTuple):
    """A key's value and version (0 when new, then +1 for each put)."""

    key: str
    value: bytes
    version: int


class Operation(NamedTuple):
    """One step of a `multi`: a put, or a delete where `value` is None."""

    key: str
    value: bytes | None
    expected_version: int


class StoreSession(Protocol):
    """What a broker must know of its session to step down in time. See `runtime.session`."""

    @property
    def state(self) -> SessionState:
        """CONNECTED, SUSPENDED (the connection broke) or LOST (the session is over)."""
        ...

    @property
    def since_ns(self) -> int:
        """The monotonic time at which the state was entered."""
        ...

    @property
    def number(self) -> int:
        """Counts sessions: where it has changed, the ephemeral keys were gone for a while."""
        ...

    @property
    def changes(self) -> int:
        """Counts changes of the state."""
        ...

    @property
    def timeout_ms(self) -> int:
        """So long after the last sign of life others may see the session end."""
        ...

    @property
    def ends_ns(self) -> int:
        """Before this monotonic time no other client has seen the session end; 0: there is none."""
        ...

    def is_safe(self, now_ns: int, margin_ms: int) -> bool:
        """Whether at `now_ns` (monotonic) the session cannot have ended, `margin_ms` to spare."""
        ...

    async def wait_beyond(self, changes: int) -> None:
        """Wait until the state has changed more than `changes` times."""
        ...


class MetadataStore(Protocol):
    """Small facts with versions and watches."""

    @property
    def session(self) -> StoreSession:
        """The session that this store's ephemeral keys belong to."""
        ...

    async def get(self, key: str) -> Entry | None:
        """The entry, or None."""
        ...

    async def list(self, prefix: str) -> Sequence[Entry]:
        """All entries whose key starts with `prefix`, by key."""
        ...

    async def put(
        self, key: str, value: bytes, expected_version: int, *, ephemeral: bool = False
    ) -> int:
        """Set the key if its version is the expected one (or ABSENT, or ANY); the new version.

        Raises VersionConflict, MetadataUnavailable.
        """
        ...

    async def delete(self, key: str, expected_version: int) -> None:
        """Remove the key if its version is the expected one. Raises VersionConflict."""
        ...

    async def multi(self, operations: Sequence[Operation]) -> Sequence[int]:
        """All operations or none; the new versions (ABSENT for a delete).

        Raises VersionConflict.
        """
        ...

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` that change from now on, as they change."""
        ...

    async def close(self) -> None:
        """End the session: its ephemeral keys go."""
        ...
