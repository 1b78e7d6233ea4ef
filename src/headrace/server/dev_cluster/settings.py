"""The settings of the servers of a development cluster, as Apache's own files of settings say them.

Rules of the room: pure; knows names and values of settings, not how a server is started with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LOOPBACK = "127.0.0.1"
TICK_MS = 500
"""ZooKeeper's unit of time: sessions last from 2 to 120 of them here."""


@dataclass(frozen=True)
class Place:
    """Where a server runs: on this machine's loopback, unless somebody has made another place."""

    host: str = LOOPBACK
    interface: str | None = None
    """What its system calls the interface of `host`; None: it is the loopback's."""
    launch: tuple[str, ...] = ()
    """What its command begins with, such as one that enters a network namespace."""


@dataclass(frozen=True)
class ClusterOptions:
    """What may differ between clusters; the rest is as Apache ships it."""

    bookie_count: int = 3
    zookeeper_count: int = 1
    """1, or an ensemble of 3 or 5, which serves while more than half of it lives."""
    bookie_session_timeout_ms: int = 4_000
    """So long after its death a bookie still counts as available."""
    heap_mb: int = 192
    """Heap of each bookie, and as much again outside of it; ZooKeeper has half."""
    auto_recovery: bool = False
    """Whether the bookies look for lost copies and make new ones."""
    bookie_settings: Mapping[str, str] = field(default_factory=dict)
    """More of a bookie's own settings, such as journalMaxGroupWaitMSec."""
    zookeeper_settings: Mapping[str, str] = field(default_factory=dict)
    """More of a ZooKeeper's own settings, such as secureClientPort."""
    places: Mapping[str, Place] = field(default_factory=dict)
    """By the names of the servers' folders (`zookeeper`, `zookeeper-2`, `bookie-1`, ...)."""

    def place(self, folder: str) -> Place:
        """Where a server runs."""
        return self.places.get(folder, Place())


@dataclass(frozen=True)
class Member:
    """One ZooKeeper of an ensemble: its host, and its ports for clients, peers and elections."""

    host: str
    client_port: int
    peer_port: int
    election_port: int


def of_zookeeper(folder: Path, members: Sequence[Member], number: int) -> dict[str, object]:
    """Of the ZooKeeper with this number, counted from 1."""
    me = members[number - 1]
    settings: dict[str, object] = {
        "tickTime": TICK_MS,
        "maxSessionTimeout": 120 * TICK_MS,
        "dataDir": folder / "data",
        "clientPort": me.client_port,
        "clientPortAddress": me.host,
        "admin.enableServer": "false",
        "maxClientCnxns": 0,
    }
    if len(members) > 1:
        settings |= {"initLimit": 20, "syncLimit": 4}
        for at, one in enumerate(members, start=1):
            settings[f"server.{at}"] = f"{one.host}:{one.peer_port}:{one.election_port}"
    return settings


def of_bookie(
    folder: Path, port: int, interface: str, zookeepers: Sequence[str], options: ClusterOptions
) -> dict[str, object]:
    """Of a bookie whose data lie in `folder`."""
    return {
        "bookiePort": port,
        "advertisedAddress": options.place(folder.name).host,
        "listeningInterface": interface,
        "allowLoopback": "true",
        "metadataServiceUri": f"zk+hierarchical://{';'.join(zookeepers)}/ledgers",
        "zkTimeout": options.bookie_session_timeout_ms,
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        "autoRecoveryDaemonEnabled": str(options.auto_recovery).lower(),
        # A developer's disk is small and nearly full: refuse at the very end only.
        "minUsableSizeForEntryLogCreation": 1 << 20,
        "minUsableSizeForIndexFileCreation": 1 << 20,
        "diskUsageThreshold": 0.99,
        "diskUsageWarnThreshold": 0.98,
        "journalPreAllocSizeMB": 4,
        "journalMaxSizeMB": 64,
        "skipListSizeLimit": 8 << 20,
        "numAddWorkerThreads": 1,
        "numReadWorkerThreads": 2,
        "serverNumIOThreads": 2,
        "numHighPriorityWorkerThreads": 2,
        **options.bookie_settings,
    }


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    """As Java's property files have them; the same path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
