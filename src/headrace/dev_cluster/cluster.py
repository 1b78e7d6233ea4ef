"""A real ZooKeeper and real bookies on the loopback interface, for tests and developers.

Invariants: starts Apache's own servers with small heaps and otherwise unchanged. Stored data is as
durable as in a real cluster, but all of it is on one disk. Ports and folders are remembered in the
cluster's folder, because a bookie's address is its identity: a cluster restarts unchanged. Every
call may block; nothing here uses asyncio.
"""

from __future__ import annotations

import fcntl
import json
import socket
import subprocess
from typing import IO, TYPE_CHECKING, Self

from headrace.dev_cluster.parts import Parts, find_parts
from headrace.dev_cluster.ports import free_ports
from headrace.dev_cluster.processes import Family, ProcessNotReady, ServerProcess
from headrace.dev_cluster.settings import (
    ClusterOptions,
    Member,
    of_bookie,
    of_zookeeper,
    write_settings,
)
from headrace.errors import FolderInUse, Rejected

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

READY_TIMEOUT_S = 300.0
_PROBE_TIMEOUT_S = 1.0

_ZOOKEEPER_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_ENSEMBLE_MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
_BOOKIE_MAIN = "org.apache.bookkeeper.server.Main"
_AUTO_RECOVERY_MAIN = "org.apache.bookkeeper.replication.AutoRecoveryMain"
_SHELL_MAIN = "org.apache.bookkeeper.bookie.BookieShell"


class OtherEnsemble(Rejected):
    """A folder holds the data of this many ZooKeepers, but another number was requested."""


class DevCluster:
    """ZooKeeper, standalone or an ensemble, and bookies.

    Use as a context manager, or call `start` and `stop`.
    """

    def __init__(
        self,
        folder: Path,
        options: ClusterOptions | None = None,
        parts: Parts | None = None,
        on_progress: Callable[[str], None] | None = None,
    ) -> None:
        """`on_progress` is called with a line of text before each step that may take seconds."""
        self._on_progress = on_progress
        self.folder = folder
        self.options = options or ClusterOptions()
        self.parts = parts
        self._family: Family | None = None
        self._lock: IO[str] | None = None
        self.bookies: list[ServerProcess] = []
        self.zookeepers: list[ServerProcess] = []
        self.auto_recovery: ServerProcess | None = None

    @property
    def servers(self) -> Sequence[ServerProcess]:
        """All bookies created so far."""
        apart = [] if self.auto_recovery is None else [self.auto_recovery]
        return [*self.zookeepers, *self.bookies, *apart]

    @property
    def zookeeper(self) -> ServerProcess:
        """The first ZooKeeper of a started cluster."""
        assert self.zookeepers, "the cluster was not started"
        return self.zookeepers[0]

    @property
    def zookeeper_addresses(self) -> str:
        """The comma-separated addresses of all ZooKeepers: a client's connection string."""
        return ",".join(server.address for server in self.zookeepers)

    def start(self) -> None:
        """Start everything and wait until it serves.

        Raises JavaMissing, JarUnavailable, JarCorrupt, FolderInUse, OtherEnsemble, ProcessNotReady,
        OSError.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(self.folder)
        try:
            self._say("looking for Java and the servers' jars (downloaded the first time)")
            self.parts = self.parts or find_parts()
            self._family = Family()
            ports = self._ports()
            self.zookeepers = self._make_zookeepers(ports)
            for server in self.zookeepers:
                server.start()
            for server in self.zookeepers:
                self._say(f"waiting for {server.name} at {server.address}")
                self.wait_ready(server)
            self.bookies = [
                self._make_bookie(number, ports[f"bookie-{number}"])
                for number in range(1, self.options.bookie_count + 1)
            ]
            self._format_once()
            for bookie in self.bookies:
                bookie.start()
            for bookie in self.bookies:
                self._say(f"waiting for {bookie.name} at {bookie.address}")
                self.wait_ready(bookie)
            if self.options.auto_recovery and self.bookies:
                self.auto_recovery = self._make_auto_recovery()
                self.auto_recovery.start()
        except BaseException:
            self.stop()
            raise

    def _say(self, step: str) -> None:
        if self._on_progress is not None:
            self._on_progress(step)

    def stop(self) -> None:
        """Stop everything: the bookies first, so that they can unregister."""
        for server in reversed(self.servers):
            if server not in self.zookeepers:
                server.ask_to_stop()
        for server in reversed(self.servers):
            if server not in self.zookeepers:
                server.stop()
        for server in self.zookeepers:
            server.stop()
        firsts = [(self.zookeepers[:1], self._zookeeper_main), (self.bookies[:1], _BOOKIE_MAIN)]
        if self.auto_recovery is not None:
            firsts.append(([self.auto_recovery], _AUTO_RECOVERY_MAIN))
        for servers, main in firsts:
            if self.parts is not None and all(server.has_ended_well for server in servers):
                self.parts.keep_archive(self.folder, main)
        self.kill()

    def kill(self) -> None:
        """kill -9 everything at once, as in a machine failure."""
        for server in self.servers:
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
        """Wait until a started server serves. Raises ProcessNotReady."""
        if server in self.zookeepers:
            server.wait_until(lambda: "Mode: " in _answer(server, "srvr"), timeout_s)
        else:
            server.wait_until(lambda: self._serves(server), timeout_s)

    def revive(self) -> Sequence[ServerProcess]:
        """Restart servers that have exited on their own, as systemd's `Restart=always` does."""
        ended = [server for server in self.servers if not server.is_alive]
        for server in ended:
            server.start()
        return ended

    def restart(self, server: ServerProcess) -> None:
        """Kill a server (-9), restart it unchanged, and wait until it serves."""
        server.kill()
        server.start()
        self.wait_ready(server)

    def ask_zookeeper(self, word: str) -> str:
        """The response of a serving ZooKeeper to a four-letter word; empty if none serves."""
        for server in self.zookeepers:
            if server.is_alive and "Mode: " in _answer(server, "srvr"):
                return _answer(server, word)
        return ""

    def leading_zookeeper(self) -> int:
        """The index of the ZooKeeper that is leader or standalone; 0 if there is none at the
        moment."""
        for index, server in enumerate(self.zookeepers):
            mode = _answer(server, "srvr") if server.is_alive else ""
            if "Mode: leader" in mode or "Mode: standalone" in mode:
                return index
        return 0

    def available_bookies(self) -> list[str]:
        """The addresses of the bookies registered in ZooKeeper."""
        paths = (line.strip() for line in self.ask_zookeeper("dump").splitlines())
        prefix = "/ledgers/available/"
        return sorted(path.removeprefix(prefix) for path in paths if path.startswith(prefix))

    def _serves(self, bookie: ServerProcess) -> bool:
        # A bookie opens its port last, after registering: an entry alone may stem from its previous
        # run.
        return _accepts(bookie) and bookie.address in self.available_bookies()

    @property
    def _zookeeper_main(self) -> str:
        return _ENSEMBLE_MAIN if self.options.zookeeper_count > 1 else _ZOOKEEPER_MAIN

    def _ports(self) -> dict[str, int]:
        """The servers' ports by name, as in this folder's previous run. Raises OtherEnsemble."""
        path = self.folder / "cluster.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        count = self.options.zookeeper_count
        if known.get("zookeepers", count) != count:
            raise OtherEnsemble(
                f"{self.folder} holds the data of {known['zookeepers']} ZooKeepers, and"
                f" {count} would elect a leader without them: start the same number, or"
                " choose another folder"
            )
        ports: dict[str, int] = known.get("by_name", {})
        for number, port in enumerate(known.get("ports", ())):  # written before ensembles existed
            ports[f"bookie-{number}" if number else "zookeeper"] = port
        names = [f"bookie-{number}" for number in range(1, self.options.bookie_count + 1)]
        for number in range(1, count + 1):
            name = _zookeeper_name(number)
            names += [name, f"{name} peers", f"{name} elections"] if count > 1 else [name]
        for name in names:
            if name not in ports:
                ports[name] = free_ports(1, ports.values())
        path.write_text(json.dumps({"zookeepers": count, "by_name": ports}))
        return ports

    def _make_zookeepers(self, ports: dict[str, int]) -> list[ServerProcess]:
        names = [_zookeeper_name(at) for at in range(1, self.options.zookeeper_count + 1)]
        members = [
            Member(
                self.options.place(name).host,
                ports[name],
                ports.get(f"{name} peers", 0),
                ports.get(f"{name} elections", 0),
            )
            for name in names
        ]
        servers = []
        for number, name in enumerate(names, start=1):
            folder = self.folder / name
            (folder / "data").mkdir(parents=True, exist_ok=True)
            if len(names) > 1:
                (folder / "data" / "myid").write_text(f"{number}\n")
            own = of_zookeeper(folder, members, number)
            settings = {**own, **self.options.zookeeper_settings}
            path = write_settings(folder / "zoo.cfg", settings)
            title = "ZooKeeper" if len(names) == 1 else f"ZooKeeper {number}"
            servers.append(self._make(title, ports[name], folder, self.options.heap_mb // 2,
                                      self._zookeeper_main, str(path)))  # fmt: skip
        return servers

    def _make_bookie(self, number: int, port: int) -> ServerProcess:
        folder = self.folder / f"bookie-{number}"
        folder.mkdir(exist_ok=True)
        interface = self.options.place(folder.name).interface or _loopback_interface()
        zookeepers = [server.address for server in self.zookeepers]
        settings = of_bookie(folder, port, interface, zookeepers, self.options)
        path = write_settings(folder / "bookie.conf", settings)
        return self._make(f"bookie {number}", port, folder, self.options.heap_mb,
                          _BOOKIE_MAIN, "--conf", str(path))  # fmt: skip

    def _make_auto_recovery(self) -> ServerProcess:
        """Uses the first bookie's settings, and stores nothing itself."""
        folder = self.folder / "autorecovery"
        folder.mkdir(exist_ok=True)
        settings = self.folder / "bookie-1" / "bookie.conf"
        return self._make("AutoRecovery", 0, folder, self.options.heap_mb // 2,
                          _AUTO_RECOVERY_MAIN, "--conf", str(settings))  # fmt: skip

    def _make(
        self, name: str, port: int, folder: Path, heap_mb: int, main: str, *arguments: str
    ) -> ServerProcess:
        assert self.parts is not None
        assert self._family is not None
        place = self.options.place(folder.name)
        command = [*place.launch, *self.parts.command(self.folder, heap_mb, main, *arguments)]
        address = place.host, port
        return ServerProcess(name, address, command, folder / "log", self._family)

    def _format_once(self) -> None:
        """Create BookKeeper's root in ZooKeeper, on a cluster's first start."""
        done = self.folder / "formatted"
        if done.exists() or not self.bookies:
            return
        assert self.parts is not None
        self._say("formatting BookKeeper's metadata in ZooKeeper")
        settings = self.folder / "bookie-1" / "bookie.conf"
        command = [
            *self.options.place("bookie-1").launch,  # it resolves the bookie's own interface
            *self.parts.command(
                self.folder, 64, _SHELL_MAIN, "-conf", str(settings), "initnewcluster"
            ),
        ]
        try:
            ended = subprocess.run(  # noqa: S603 - our own command
                command,
                capture_output=True,
                text=True,
                check=False,
                timeout=READY_TIMEOUT_S,
            )
        except subprocess.TimeoutExpired as error:
            raise ProcessNotReady(
                f"BookKeeper's root was not created in ZooKeeper within {READY_TIMEOUT_S:.0f}"
                " s: is the machine overloaded? start again, existing data is kept"
            ) from error
        if ended.returncode != 0:
            raise ProcessNotReady(
                "BookKeeper's root could not be created in ZooKeeper:\n"
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
            f"{folder} belongs to a running cluster: stop it, or choose another folder"
        ) from None
    return stream


def _loopback_interface() -> str:
    """The name of the loopback interface: a bookie listens on an interface, not an address."""
    names = [name for _, name in socket.if_nameindex()]
    return next((name for name in ("lo", "lo0") if name in names), names[0])


def _zookeeper_name(number: int) -> str:
    return "zookeeper" if number == 1 else f"zookeeper-{number}"


def _answer(zookeeper: ServerProcess, word: str) -> str:
    """The response to one of ZooKeeper's four-letter words; empty if there is none."""
    try:
        with socket.create_connection((zookeeper.host, zookeeper.port), _PROBE_TIMEOUT_S) as s:
            s.sendall(word.encode())
            with s.makefile("rb") as stream:
                return stream.read().decode()
    except OSError:
        return ""


def _accepts(server: ServerProcess) -> bool:
    try:
        socket.create_connection((server.host, server.port), _PROBE_TIMEOUT_S).close()
    except OSError:
        return False
    return True
