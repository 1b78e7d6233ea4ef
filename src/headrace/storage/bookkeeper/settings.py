"""The operator's settings for BookKeeper.

Invariants: values and their limits only.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.storage.bookkeeper.quorum import Quorum

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

ENTRY_BYTES_MAX = 1 << 20
"""Payload of one entry. Bookies accept frames of up to 5 MiB (`nettyMaxFrameSizeBytes`)."""

QUORUM = Quorum(3, 3, 2)


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    """Cluster location, durability and time-outs.

    `quorum` (3, 3, 2) applies to new ledgers if there are enough bookies. With fewer, unavailable
    bookies get the slots that entries can do without, so that a cluster of three continues with
    one down and has all copies again when it is back. Beyond that, the ensemble shrinks down to
    the ack quorum, which never shrinks.
    """

    ledgers_root: str = "/ledgers"
    """BookKeeper's root node in ZooKeeper (`metadataServiceUri`)."""
    cluster: str = "headrace"
    """Distinguishes the ledgers of several Headrace clusters on the same bookies."""
    quorum: Quorum = QUORUM
    password: bytes = b""
    """Password of the ledgers; stored as plaintext in their metadata, as in BookKeeper."""
    tls: ssl.SSLContext | None = None
    """TLS context for bookies (`secure_channel`); None: plaintext."""
    credential: str | None = field(default=None, repr=False)
    """`user:password` for bookies that require a login; a secret."""
    add_timeout_ms: int = 5_000
    """After this time without an answer, a bookie is replaced."""
    stall_ms: int = 5_000
    """How long a ledger waits for bookies if too few are left for an ack quorum."""
    metadata_timeout_ms: int = 15_000
    """After this time, an update of metadata fails, and with it the operations that need it."""
    read_hedge_ms: int = 200
    """After this time, a read is also sent to the next replica."""
    cache_bytes: int = 64 << 20
    """Memory for recently written or read entries, for the whole store."""
    bookie_bytes_max: int = 64 << 20
    """Limit of pending request bytes per bookie; if exceeded, it counts as failed."""
    quarantine_first_ms: int = 5_000
    quarantine_max_ms: int = 60_000
    """A failed bookie gets no entries until it answers again; if it fails again soon after that,
    for at least this long, doubling with each failure."""
    racks: Mapping[str, str] = field(default_factory=dict)
    """Bookie id -> rack; default: the bookie's own `rack` property, or one rack for all."""
    in_flight_bytes_max: int = 32 << 20
    """Limit of bytes in flight for all ledgers together; further entries wait."""
    opened_bytes_max: int = 64 << 20
    """Memory for indexes and footers of sealed ledgers; the oldest are evicted and reread."""
    entry_bytes_max: int = ENTRY_BYTES_MAX
    entry_bytes_target: int = 256 << 10
    """Appends are batched up to this size while others are in flight (see docs/BOOKKEEPER.md)."""
    eager_entries: int = 4
    """Appends are batched once this many entries of a ledger are in flight."""
