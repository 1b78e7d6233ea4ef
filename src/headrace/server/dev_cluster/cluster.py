"""A real ZooKeeper and real bookies on this machine's loopback, for tests and for developers.

Rules of the room: it starts Apache's own servers with small memory and nothing else of theirs
changed; what is stored is as durable as in a real cluster, but all of it lies on one disk. Ports
and folders are remembered in the cluster's folder, since a bookie's address is its identity: a
cluster starts again as it was. Every call may block; nothing here knows asyncio.
"""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
from dataclasses import dataclass, field
from typing import IO, TYPE_CHECKING, Self

from headrace.errors import FolderInUse
from headrace.runtime.randomness import SystemRandomness
from headrace.server.dev_cluster.parts import Parts, find_parts
from headrace.server.dev_cluster.processes import Family, ProcessNotReady, ServerProcess

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence
    from pathlib import Path

LOOPBACK = "127.0.0.1"
TICK_MS = 500
"""ZooKeeper's unit of time: sessions last from 2 to 120 of them here."""
READY_TIMEOUT_S = 60.0
_PROBE_TIMEOUT_S = 1.0
# Below the range from which systems take the ports of outgoing connections, so that nobody gets
# the port of a server that is down for a moment.
_PORTS = range(18_000, 32_000)
_ATTEMPTS_MAX = 200

_ZOOKEEPER_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_BOOKIE_MAIN = "org.apache.bookkeeper.server.Main"
_SHELL_MAIN = "org.apache.bookkeeper.bookie.BookieShell"


@dataclass(frozen=True)
class ClusterOptions:
    """What may differ between clusters; the rest is as Apache ships it."""

    bookie_count: int = 3
    bookie_session_timeout_ms: int = 4_000
    """So long after its death a bookie still counts as available."""
    heap_mb: int = 192
    """Heap of each bookie, and as much again outside of it; ZooKeeper has half."""
    auto_recovery: bool = False
    """Whether the bookies look for lost copies and make new ones."""
    bookie_settings: Mapping[str, str] = field(default_factory=dict)
    """More of a bookie's own settings, such as journalMaxGroupWaitMSec."""


class DevCluster:
    """One ZooKeeper and some bookies. Use as a context manager, or `start` and `stop`."""

    def __init__(
        self, folder: Path, options: ClusterOptions | None = None, parts: Parts | None = None
    ) -> None:
        self.folder = folder
        self.options = options or ClusterOptions()
        self.parts = parts
        self._family: Family | None = None
        self._lock: IO[str] | None = None
        self.bookies: list[ServerProcess] = []
        self._zookeeper: ServerProcess | None = None

    @property
    def zookeeper(self) -> ServerProcess:
        """The ZooKeeper of a started cluster."""
        assert self._zookeeper is not None, "the cluster was not started"
        return self._zookeeper

    def start(self) -> None:
        """Start everything and wait until it serves.

        Raises JavaMissing, JarUnavailable, JarCorrupt, FolderInUse, ProcessNotReady, OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self.parts = self.parts or find_parts()
            self._family = Family()
            ports = self._ports()
            self._zookeeper = self._make_zookeeper(ports[0])
            self._zookeeper.start()
            self.wait_ready(self._zookeeper)
            self.bookies = [
                self._make_bookie(number, port) for number, port in enumerate(ports[1:], start=1)
            ]
            self._format_once()
            for bookie in self.bookies:
                bookie.start()
            for bookie in self.bookies:
                self.wait_ready(bookie)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop everything: the bookies first, so that they can say goodbye."""
        for bookie in self.bookies:
            bookie.ask_to_stop()
        for bookie in self.bookies:
            bookie.stop()
        if self._zookeeper is not None:
            self._zookeeper.stop()
        for server, main in ((self._zookeeper, _ZOOKEEPER_MAIN), *self._first_bookie()):
            if server is not None and server.has_ended_well and self.parts is not None:
                self.parts.keep_archive(self.folder, main)
        self.kill()

    def kill(self) -> None:
        """kill -9 everything at once, as when the machine fails."""
        for server in (self._zookeeper, *self.bookies):
            if server is not None:
                server.kill()
        if self._family is not None:
            self._family.close()
            self._family = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait_ready(self, server: ServerProcess, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Wait until a server that was started serves. Raises ProcessNotReady."""
        if server is self._zookeeper:
            server.wait_until(lambda: self.ask_zookeeper("ruok") == "imok", timeout_s)
        else:
            server.wait_until(lambda: self._serves(server), timeout_s)

    def restart(self, server: ServerProcess) -> None:
        """Kill it (-9), start it again as it was, and wait until it serves."""
        server.kill()
        server.start()
        self.wait_ready(server)

    def ask_zookeeper(self, word: str) -> str:
        """The answer to one of ZooKeeper's four-letter words; empty if there is none."""
        try:
            with socket.create_connection((LOOPBACK, self.zookeeper.port), _PROBE_TIMEOUT_S) as s:
                s.sendall(word.encode())
                with s.makefile("rb") as stream:
                    return stream.read().decode()
        except OSError:
            return ""

    def available_bookies(self) -> list[str]:
        """The addresses of the bookies that ZooKeeper believes alive."""
        paths = (line.strip() for line in self.ask_zookeeper("dump").splitlines())
        prefix = "/ledgers/available/"
        return sorted(path.removeprefix(prefix) for path in paths if path.startswith(prefix))

    def _first_bookie(self) -> Sequence[tuple[ServerProcess, str]]:
        return [(bookie, _BOOKIE_MAIN) for bookie in self.bookies[:1]]

    def _serves(self, bookie: ServerProcess) -> bool:
        # A bookie opens its port last, when it is registered: an entry alone may be its past life.
        return _accepts(bookie.port) and bookie.address in self.available_bookies()

    def _ports(self) -> list[int]:
        """ZooKeeper's port and the bookies', as in the last life of this folder."""
        path = self.folder / "cluster.json"
        ports: list[int] = json.loads(path.read_text())["ports"] if path.exists() else []
        while len(ports) < 1 + self.options.bookie_count:
            ports.append(_free_port(ports))
        path.write_text(json.dumps({"ports": ports}))
        return ports

    def _make_zookeeper(self, port: int) -> ServerProcess:
        folder = self.folder / "zookeeper"
        folder.mkdir(exist_ok=True)
        settings = {
            "tickTime": TICK_MS,
            "maxSessionTimeout": 120 * TICK_MS,
            "dataDir": folder / "data",
            "clientPort": port,
            "clientPortAddress": LOOPBACK,
            "admin.enableServer": "false",
            "maxClientCnxns": 0,
        }
        path = _write_settings(folder / "zoo.cfg", settings)
        return self._make("ZooKeeper", port, folder, self.options.heap_mb // 2,
                          _ZOOKEEPER_MAIN, str(path))  # fmt: skip

    def _make_bookie(self, number: int, port: int) -> ServerProcess:
        folder = self.folder / f"bookie-{number}"
        folder.mkdir(exist_ok=True)
        settings = {
            "bookiePort": port,
            "advertisedAddress": LOOPBACK,
            "listeningInterface": _loopback_interface(),
            "allowLoopback": "true",
            "metadataServiceUri": f"zk+hierarchical://{self.zookeeper.address}/ledgers",
            "zkTimeout": self.options.bookie_session_timeout_ms,
            "journalDirectories": folder / "journal",
            "ledgerDirectories": folder / "ledgers",
            "autoRecoveryDaemonEnabled": str(self.options.auto_recovery).lower(),
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
            **self.options.bookie_settings,
        }
        path = _write_settings(folder / "bookie.conf", settings)
        return self._make(f"bookie {number}", port, folder, self.options.heap_mb,
                          _BOOKIE_MAIN, "--conf", str(path))  # fmt: skip

    def _make(
        self, name: str, port: int, folder: Path, heap_mb: int, main: str, *arguments: str
    ) -> ServerProcess:
        assert self.parts is not None
        assert self._family is not None
        command = self.parts.command(self.folder, heap_mb, main, *arguments)
        return ServerProcess(name, port, command, folder / "log", self._family)

    def _format_once(self) -> None:
        """Make BookKeeper's root in ZooKeeper, in a cluster's first life."""
        done = self.folder / "formatted"
        if done.exists() or not self.bookies:
            return
        assert self.parts is not None
        settings = self.folder / "bookie-1" / "bookie.conf"
        command = self.parts.command(
            self.folder, 64, _SHELL_MAIN, "-conf", str(settings), "initnewcluster"
        )
        ended = subprocess.run(  # noqa: S603 - our own command
            command,
            capture_output=True,
            text=True,
            check=False,
            timeout=READY_TIMEOUT_S,
        )
        if ended.returncode != 0:
            raise ProcessNotReady(
                "BookKeeper's root could not be made in ZooKeeper:\n"
                + (ended.stdout + ended.stderr)[-2000:]
            )
        done.touch()


def _lock(folder: Path) -> IO[str]:
    stream = (folder / "lock").open("w")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        stream.close()
        raise FolderInUse(
            f"{folder} belongs to a cluster that runs: stop it, or name another folder"
        ) from None
    return stream


def _free_port(taken: Collection[int]) -> int:
    """A port that nobody listens at now."""
    randomness = SystemRandomness()
    for _ in range(_ATTEMPTS_MAX):
        port = _PORTS[randomness.below(len(_PORTS))]
        if port in taken:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((LOOPBACK, port))
            except OSError:
                continue
            return port
    raise ProcessNotReady(f"no free port was found in {_PORTS.start}-{_PORTS.stop - 1}")


def _loopback_interface() -> str:
    """What this system calls its loopback: a bookie listens at an interface, not an address."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), names[0])


def _write_settings(path: Path, settings: Mapping[str, object]) -> Path:
    path.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
    return path


def _accepts(port: int) -> bool:
    try:
        socket.create_connection((LOOPBACK, port), _PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True
