"""What an operator can say about BookKeeper.

Invariants: values and their limits, nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from headrace.storage.bookkeeper.quorum import Quorum

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

ENTRY_BYTES_MAX = 1 << 20
"""Payload of one entry. Bookies take frames of up to 5 MiB (`nettyMaxFrameSizeBytes`)."""

QUORUM = Quorum(3, 3, 2)


@dataclass(frozen=True, slots=True)
class BookKeeperSettings:
    """Where the cluster is, and how safe and how patient to be.

    `quorum` is what a new ledger gets (3, 3, 2) where there are bookies enough. With fewer, bookies
    that are away get slots that can be done without, so that a cluster of three goes on when one is
    away and has all copies again when it is back. Beyond that, down to the ack quorum, the ensemble
    is as large as can be; the ack quorum never shrinks.
    """

    ledgers_root: str = "/ledgers"
    """BookKeeper's own part of ZooKeeper (`metadataServiceUri`)."""
    cluster: str = "headrace"
    """Tells the ledgers of several Headrace clusters over the same bookies apart."""
    quorum: Quorum = QUORUM
    password: bytes = b""
    """Of the ledgers; it is kept in the clear in their metadata, as BookKeeper does."""
    tls: ssl.SSLContext | None = None
    """How to speak to bookies (`secure_channel`); None: in the clear."""
    add_timeout_ms: int = 5_000
    """A bookie that does not answer for so long is replaced."""
    stall_ms: int = 5_000
    """How long a ledger waits for bookies when too few are left to acknowledge anything."""
    metadata_timeout_ms: int = 15_000
    """A change of metadata that takes longer fails what waits for it."""
    read_hedge_ms: int = 200
    """A read that takes longer is sent to the next replica as well."""
    cache_bytes: int = 64 << 20
    """Memory for entries that were written or read lately, for the whole store."""
    bookie_bytes_max: int = 64 << 20
    """Bytes that one bookie may owe answers for; beyond, it counts as failed."""
    quarantine_first_ms: int = 5_000
    quarantine_max_ms: int = 60_000
    """A bookie that failed gets no entries until it answers again; one that fails again soon after
    that for so long at least, doubling with each failure."""
    racks: Mapping[str, str] = field(default_factory=dict)
    """Bookie id -> rack; else what the bookie's own `rack` property says, else one rack for all."""
    in_flight_bytes_max: int = 32 << 20
    """Bytes of all ledgers together that may be under way; more wait."""
    opened_bytes_max: int = 64 << 20
    """Memory for indexes and footers of sealed ledgers; the oldest are read anew when needed."""
    entry_bytes_max: int = ENTRY_BYTES_MAX
    entry_bytes_target: int = 256 << 10
    """Appends are gathered up to this size while others are under way (see docs/BOOKKEEPER.md)."""
    eager_entries: int = 4
    """So many entries of a ledger may be under way before appends are gathered."""
