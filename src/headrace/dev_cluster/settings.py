"""Server settings of a development cluster, in the terms of Apache's own configuration files.

Invariants: settings for production are in `zoo.cfg` and `bookie.conf` beside this module, which
`deploy/` ships; this module has only the differences for one small machine. Knows names and values
of settings, not how a server is started with them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from importlib.resources import files
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class ServerPlace:
    """Where a server runs: the loopback interface, unless the caller has set up another place."""

    host: str = LOOPBACK
    interface: str | None = None
    """The name of the interface of `host`; None: the loopback interface."""
    launch: tuple[str, ...] = ()
    """A command prefix, such as one that enters a network namespace."""


@dataclass(frozen=True)
class ClusterOptions:
    """What may differ between clusters."""

    bookie_count: int = 3
    zookeeper_count: int = 1
    """1, or an ensemble of 3 or 5, which serves while a majority is up."""
    bookie_session_timeout_ms: int | None = None
    """How long a dead bookie still counts as available; None: as in `bookie.conf`."""
    heap_mb: int = 192
    """Heap of each bookie, and the same amount of direct memory; ZooKeeper gets half."""
    auto_recovery: bool = False
    """Whether to run an auto-recovery process, which re-replicates lost copies."""
    bookie_settings: Mapping[str, str] = field(default_factory=dict)
    """Further bookie settings, such as journalMaxGroupWaitMSec."""
    zookeeper_settings: Mapping[str, str] = field(default_factory=dict)
    """Further ZooKeeper settings, such as secureClientPort."""
    places: Mapping[str, ServerPlace] = field(default_factory=dict)
    """By the names of the servers' folders (`zookeeper`, `zookeeper-2`, `bookie-1`, ...)."""

    def place(self, folder: str) -> ServerPlace:
        """The place of a server."""
        return self.places.get(folder, ServerPlace())


@dataclass(frozen=True)
class Member:
    """One ZooKeeper of an ensemble: its host, and its ports for clients, peers and elections."""

    host: str
    client_port: int
    peer_port: int
    election_port: int


def of_zookeeper(folder: Path, members: Sequence[Member], number: int) -> dict[str, object]:
    """Settings of the ZooKeeper with this number, counted from 1."""
    me = members[number - 1]
    shipped = sample("zoo.cfg").items()
    settings: dict[str, object] = {
        **{name: value for name, value in shipped if not name.startswith("server.")},
        "dataDir": folder / "data",
        "clientPort": me.client_port,
        "clientPortAddress": me.host,
    }
    if len(members) > 1:
        for at, one in enumerate(members, start=1):
            settings[f"server.{at}"] = f"{one.host}:{one.peer_port}:{one.election_port}"
    return settings


def of_bookie(
    folder: Path, port: int, interface: str, zookeepers: Sequence[str], options: ClusterOptions
) -> dict[str, object]:
    """Settings of a bookie whose data is in `folder`."""
    own = options.bookie_session_timeout_ms
    return {
        **sample("bookie.conf"),
        "bookiePort": port,
        "advertisedAddress": options.place(folder.name).host,
        "listeningInterface": interface,
        "allowLoopback": "true",
        "metadataServiceUri": f"zk+hierarchical://{';'.join(zookeepers)}/ledgers",
        **({} if own is None else {"zkTimeout": own}),
        "journalDirectories": folder / "journal",
        "ledgerDirectories": folder / "ledgers",
        # A developer's disk is small and nearly full: refuse writes only at the very end.
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


def sample(name: str) -> dict[str, str]:
    """The settings in a file that `deploy/` ships."""
    lines = (files(__package__) / name).read_text().splitlines()
    pairs = (line.partition("=") for line in lines if line and not line.startswith("#"))
    return {key.strip(): value.strip() for key, _, value in pairs}


def write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    """Write a Java property file; returns the same path."""
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path
