"""NATS JetStream: a file stream per topic, synced always or by its interval (two minutes).

Rules of the room: the loads are written in Go on NATS's own client (`nats_load`), for the bench
tool of its command line cannot be had as a Go module everywhere. One server, one way to sync.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import time
from pathlib import Path

from headrace.bench import parts
from headrace.bench.hdr import HdrHistogram
from headrace.bench.latency import WARMUP_S
from headrace.bench.peers import free_port
from headrace.bench.processes import Processes, SystemFailed, run_tool
from headrace.bench.systems.system import Latency, Produced, Side, System
from headrace.bench.workloads import SYNCED, UNSYNCED

SERVER_VERSION = "v2.15.2"
_MODULE = f"github.com/nats-io/nats-server/v2@{SERVER_VERSION}"
_SOURCE = Path(__file__).parent / "nats_load"
SYNC = {SYNCED: "always", UNSYNCED: "2m"}
_SETTINGS = """\
listen: "127.0.0.1:{port}"
jetstream {{
  store_dir: "{folder}/store"
  sync_interval: {sync}
}}
"""


def _folder() -> Path:
    return parts.peers_folder() / "nats"


def missing() -> str:
    """What is not there, or ""."""
    wanted = ("nats-server", "nats_load")
    absent = [name for name in wanted if not parts.find_program(name, _folder())]
    return f"no {' and no '.join(absent)}" if absent else ""


def install() -> None:
    """Build the server and the load program with the Go compiler that is here."""
    parts.fetch_go(_MODULE, _folder())
    source = _folder() / "source"
    shutil.copytree(_SOURCE, source)
    parts.build_go(source, _folder() / "nats_load")


def _program(name: str) -> str:
    found = parts.find_program(name, _folder())
    if found is None:
        raise parts.PartMissing(f"no {name}: `headrace bench --install nats`")
    return str(found)


def version() -> str:
    """As the server says it."""
    found = re.search(r"v([\d.]+)", run_tool([_program("nats-server"), "--version"]))
    return found[1] if found else "unknown"


class Nats:
    """One server with one way to sync."""

    name = "nats"

    def __init__(self, folder: Path, policy: str) -> None:
        self.policy = policy
        self.words = f"sync_interval {SYNC[policy]}"
        self.ready_s = 0.0
        self._port = 0
        self._processes = Processes("NATS", folder / f"nats-{policy}")

    @property
    def pids(self) -> list[int]:
        """See Side."""
        return self._processes.pids

    def start(self) -> None:
        """See Side."""
        self._processes.clear()
        self._port = free_port()
        folder = self._processes.folder
        settings = folder / "nats.conf"
        settings.write_text(
            _SETTINGS.format(port=self._port, folder=folder, sync=f'"{SYNC[self.policy]}"')
        )
        began = time.perf_counter()
        self._processes.spawn([_program("nats-server"), "-c", str(settings)])
        self._processes.wait_until(self._answers)
        self.ready_s = time.perf_counter() - began

    def _answers(self) -> bool:
        """JetStream answers a request, not only the port."""
        ask = b'CONNECT {"verbose":false}\r\nSUB i 1\r\nPUB $JS.API.INFO i 0\r\n\r\nPING\r\n'
        seen = b""
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1.0) as connection:
                connection.sendall(ask)
                while b"MSG i" not in seen and b"-ERR" not in seen:
                    more = connection.recv(4096)
                    if not more:
                        return False
                    seen += more
        except OSError:
            return False
        return b"MSG i" in seen

    def stop(self) -> None:
        """See Side."""
        self._processes.stop()

    def _load(self, *words: str) -> str:
        return run_tool([_program("nats_load"), f"nats://127.0.0.1:{self._port}", *words])

    def produce(self, name: str, records: int, record_bytes: int) -> Produced:
        """See Side."""
        return Produced(
            records, rate_of(self._load("produce", name, str(records), str(record_bytes)))
        )

    def consume(self, name: str, records: int, record_bytes: int) -> float:
        """See Side."""
        return rate_of(self._load("consume", name, str(records)))

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """See Side."""
        said = self._load("latency", name, str(rate_per_s), str(seconds), str(int(WARMUP_S)))
        return Latency(HdrHistogram(json.loads(said)["taken_ns"]), {})

    def drop(self, name: str) -> None:
        """See Side."""
        self._load("drop", name)


def rate_of(out: str) -> float:
    """Messages a second, from what `nats_load` prints. Raises SystemFailed."""
    try:
        said = json.loads(out)
        return float(said["messages"] / said["seconds"])
    except (ValueError, KeyError, ZeroDivisionError) as error:
        raise SystemFailed(f"nats_load said something else: {out[-200:]!r}") from error


def _sides(folder: Path) -> list[Side]:
    return [Nats(folder, SYNCED), Nats(folder, UNSYNCED)]


SYSTEM = System(
    name="nats",
    title="NATS JetStream",
    tool="nats.go client: PublishAsync, 4,096 unacknowledged; ordered consumer",
    version=version,
    missing=missing,
    install=install,
    sides=_sides,
)
