"""NATS JetStream: a file stream per topic, synced always or by its interval (two minutes).

Invariants: the loads are written in Go with NATS's own client (`nats_load`), because the bench tool
of its command line is not available everywhere as a Go module. One server, one sync policy.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

from headrace_bench import parts
from headrace_bench.hdr import HdrHistogram
from headrace_bench.latency import WARMUP_S
from headrace_bench.systems.go_load import GoLoad, rate_of
from headrace_bench.systems.own_server import OwnServer
from headrace_bench.systems.system import Latency, Side, System
from headrace_bench.tools import Steady, Tool, Window, run_tool, watch
from headrace_bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from headrace_bench.loads import Acknowledge

SERVER_VERSION = "v2.15.2"
_MODULE = f"github.com/nats-io/nats-server/v2@{SERVER_VERSION}"
_LOAD = GoLoad("nats_load")
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
    """What is missing, or ""."""
    absent = [] if parts.find_program("nats-server", _folder()) else ["nats-server"]
    if not _LOAD.is_built:
        absent.append(_LOAD.name)
    return f"no {' and no '.join(absent)}" if absent else ""


def install() -> None:
    """Build the server and the load program with the installed Go compiler."""
    if not parts.find_program("nats-server", _folder()):
        parts.fetch_go(_MODULE, _folder())
    _LOAD.build()


def _server() -> str:
    found = parts.find_program("nats-server", _folder())
    if found is None:
        raise parts.PartMissing("no nats-server: `headrace bench --install nats`")
    return str(found)


def version() -> str:
    """As the server reports it."""
    found = re.search(r"v([\d.]+)", run_tool([_server(), "--version"]))
    return found[1] if found else "unknown"


class Nats(OwnServer):
    """One server with one sync policy."""

    acknowledges: Collection[Acknowledge] = ("each", "hundred", "confirmed")

    def __init__(self, folder: Path, policy: str) -> None:
        super().__init__("nats", folder / f"nats-{policy}", policy, f"sync_interval {SYNC[policy]}")

    def spawn(self) -> None:
        """See OwnServer."""
        folder = self.processes.folder
        settings = folder / "nats.conf"
        settings.write_text(
            _SETTINGS.format(port=self.port, folder=folder, sync=f'"{SYNC[self.policy]}"')
        )
        self.processes.spawn([_server(), "-c", str(settings)])

    def answers(self) -> bool:
        """See OwnServer: checks that JetStream responds to a request, not only the port."""
        ask = b'CONNECT {"verbose":false}\r\nSUB i 1\r\nPUB $JS.API.INFO i 0\r\n\r\nPING\r\n'
        return self.exchange(ask, b"MSG i")

    def _load(self, *words: str) -> list[str]:
        return _LOAD.command(f"nats://127.0.0.1:{self.port}", *words)

    def produce(self, name: str, record_bytes: int, window: Window) -> Steady:
        """See Side."""
        asked = Tool(self._load("produce", name, str(record_bytes)), rate_of)
        return watch(asked, window, self.pids)

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> Steady:
        """See Side; the tool itself starts over when it has read this many."""
        del record_bytes
        return watch(Tool(self._load("consume", name, str(records)), rate_of), window, self.pids)

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """See Side; `hundred` is NATS's AckAll, `confirmed` its DoubleAck."""
        del records
        return watch(Tool(self._load("empty", name, acknowledge), rate_of), window, self.pids)

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """See Side."""
        words = ("latency", name, str(rate_per_s), str(seconds), str(int(WARMUP_S)))
        return Latency(HdrHistogram(json.loads(run_tool(self._load(*words)))["taken_ns"]), {})

    def drop(self, name: str) -> None:
        """See Side."""
        run_tool(self._load("drop", name))


def _sides(folder: Path) -> list[Side]:
    return [Nats(folder, SYNCED), Nats(folder, UNSYNCED)]


SYSTEM = System(
    name="nats",
    title="NATS JetStream",
    tool="nats.go client: PublishAsync, 1,000 unacknowledged; ordered consumer; as a queue a "
    "durable pull consumer",
    version=version,
    missing=missing,
    install=install,
    sides=_sides,
)
