"""The MetadataStore interface: topics, configs, ledger chains, owners, live brokers.

Keys are paths (`/topics/orders`), values are opaque bytes, and each key has a version that counts
its changes. Nothing that changes per message is stored here. SQLite implements it for one machine,
ZooKeeper for a cluster; both pass `tests/contract/test_metadata_store.py`.

1. `put` with an expected version is a compare-and-set: of several concurrent ones, one wins.
2. The effect of a completed `put`, `delete` or `multi` survives a crash.
3. A watch reports every key under its prefix at least once after each change (bursts may be
   coalesced), in order per key, and never blocks the writer.
4. An ephemeral key is deleted when the session that created it ends. If a session may be lost
   while the process lives (ZooKeeper), the store recreates its ephemeral keys in the next one.
5. `session` reports until when the session cannot expire: an owner that acts only while
   `session.is_safe` holds has stopped before its ephemeral keys can disappear.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from headrace.runtime.session import SessionState

ABSENT = -1
"""The expected version of a key that must not exist yet."""
ANY = -2
"""No expectation: overwrite or create."""


class MetadataEntry(NamedTuple):
    """A key with its value and version (0 when created, then +1 for each put)."""

    key: str
    value: bytes
    version: int


class MultiOperation(NamedTuple):
    """One step of a `multi`: a put, or a delete if `value` is None."""

    key: str
    value: bytes | None
    expected_version: int


class StoreSession(Protocol):
    """What a broker needs to know about its session to step down in time. See `runtime.session`."""

    @property
    def state(self) -> SessionState:
        """CONNECTED, SUSPENDED (the connection broke) or LOST (the session has ended)."""
        ...

    @property
    def since_ns(self) -> int:
        """The monotonic time at which the state was entered."""
        ...

    @property
    def number(self) -> int:
        """Counts sessions: if it has changed, the ephemeral keys were absent for a while."""
        ...

    @property
    def changes(self) -> int:
        """Counts state changes."""
        ...

    @property
    def timeout_ms(self) -> int:
        """How long after the last heartbeat the session may expire."""
        ...

    @property
    def ends_ns(self) -> int:
        """The monotonic time before which the session cannot expire; 0 without a session."""
        ...

    def is_safe(self, now_ns: int, margin_ms: int) -> bool:
        """Whether the session cannot have expired at `now_ns`, with `margin_ms` to spare."""
        ...

    async def wait_change_after(self, changes: int) -> None:
        """Wait until the state has changed more than `changes` times."""
        ...


class MetadataStore(Protocol):
    """A small key-value store with versions and watches."""

    @property
    def session(self) -> StoreSession:
        """The session that this store's ephemeral keys belong to."""
        ...

    async def get(self, key: str) -> MetadataEntry | None:
        """The entry, or None if the key does not exist."""
        ...

    async def list(self, prefix: str) -> Sequence[MetadataEntry]:
        """All entries whose key starts with `prefix`, by key."""
        ...

    async def put(
        self, key: str, value: bytes, expected_version: int, *, ephemeral: bool = False
    ) -> int:
        """Set the key if its version is as expected (or ABSENT, or ANY); returns the new version.

        Raises VersionConflict, MetadataUnavailable.
        """
        ...

    async def delete(self, key: str, expected_version: int) -> None:
        """Delete the key if its version is as expected. Raises VersionConflict."""
        ...

    async def multi(self, operations: Sequence[MultiOperation]) -> Sequence[int]:
        """Apply all operations or none; returns the new versions (ABSENT for a delete).

        Raises VersionConflict.
        """
        ...

    def watch(self, prefix: str) -> AsyncIterator[str]:
        """The keys under `prefix` that change from now on."""
        ...

    async def close(self) -> None:
        """End the session, deleting its ephemeral keys."""
        ...
