"""RabbitMQ: a quorum queue, a classic queue, or a stream per topic, loaded with its own PerfTest.

Invariants: messages are persistent and confirmed. A quorum queue is synced before it confirms; so
is a durable classic queue (in this version); a stream never requests a sync. Streams are loaded
over AMQP: the load tool of their own protocol is not available as a Maven artifact. Latency is
PerfTest's own: from publishing to receiving, which hides the waiting time of a held-up sender.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.dev_cluster.ports import free_port
from headrace_bench import parts
from headrace_bench.kafka_parts import java
from headrace_bench.processes import SystemFailed
from headrace_bench.systems.own_server import OwnServer
from headrace_bench.systems.system import Latency, System, read_again
from headrace_bench.tools import Steady, Tool, Window, run_tool, watch
from headrace_bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from headrace_bench.loads import Acknowledge

PERF_TEST = "com.rabbitmq:perf-test:2.22.1"
CONFIRMS_MAX, PREFETCH, ACK_EVERY = 2_000, 1_000, 100
_HELLO = b"AMQP\x00\x00\x09\x01"
_KINDS = {
    "quorum": ("quorum queue", SYNCED, ["--quorum-queue"]),
    "classic": ("durable classic queue", SYNCED, ["--auto-delete", "false"]),
    "stream": (
        "stream over AMQP",
        UNSYNCED,
        ["--stream-queue", "--stream-consumer-offset", "first"],
    ),
}


def _server_folder() -> Path:
    return parts.peers_folder() / "rabbitmq"


def _perf_folder() -> Path:
    return parts.peers_folder() / "rabbitmq-perf-test"


def _home() -> tuple[Path, Path] | None:
    """(RabbitMQ's home, Erlang's home), unpacked in the cache or installed system-wide."""
    for root in (_server_folder(), Path("/")):
        homes = sorted((root / "usr/lib/rabbitmq/lib").glob("rabbitmq_server-*"))
        erlangs = [
            r / "usr/lib/erlang" for r in (root, Path("/")) if (r / "usr/lib/erlang").is_dir()
        ]
        if homes and erlangs:
            return homes[-1], erlangs[0]
    return None


def missing() -> str:
    """What is missing, or ""."""
    absent = [] if _home() else ["no rabbitmq-server"]
    absent += [] if list(_perf_folder().glob("perf-test-*.jar")) else ["no PerfTest"]
    return " and ".join(absent)


def install() -> None:
    """The server, and PerfTest. Raises PartMissing."""
    install_server()
    parts.fetch_maven([PERF_TEST], _perf_folder())


def install_server() -> None:
    """Unpack Debian's server and Erlang. Raises PartMissing."""
    if _home() is None:
        parts.fetch_debian("rabbitmq-server", _server_folder())
        # Debian's start script has its build folder hard-coded.
        erlang = _server_folder() / "usr" / "lib" / "erlang"
        for starter in [*erlang.glob("bin/erl"), *erlang.glob("erts-*/bin/erl")]:
            starter.write_text(re.sub(r"=/usr/lib/erlang$", f"={erlang}", starter.read_text(),
                                      flags=re.MULTILINE))  # fmt: skip


def version() -> str:
    """As its folder name says."""
    found = _home()
    return found[0].name.rpartition("-")[2] if found else "unknown"


def confirmed_of(line: str) -> float | None:
    """Confirmed messages per second, from PerfTest's output of each second."""
    return _rate(r"time .*confirmed: (\d+) msg/s", line)


def received_of(line: str) -> float | None:
    """Received messages per second, from PerfTest's output of each second."""
    return _rate(r"time .*received: (\d+) msg/s", line)


def _rate(pattern: str, line: str) -> float | None:
    found = re.search(pattern, line)
    return float(found[1]) if found else None


def latency_of(out: str) -> dict[str, float]:
    """Milliseconds at the percentiles that PerfTest reports, without its first second."""
    lines = re.findall(r"time ([\d.]+) s, .*consumer latency: [\d]+/(\d+)/\d+/\d+/(\d+) µs", out)
    steady = [(int(p50), int(p99)) for at, p50, p99 in lines if float(at) > 1.5]
    if not steady:
        raise SystemFailed(f"PerfTest reported no latency: {out[-400:]!r}")
    # Its percentiles are per second: the median second's p50, the worst second's p99.
    p50s, p99s = sorted(one[0] for one in steady), [one[1] for one in steady]
    return {"p50": p50s[len(p50s) // 2] / 1e3, "p99": max(p99s) / 1e3}


class RabbitMq(OwnServer):
    """One server with one kind of queue."""

    def __init__(self, folder: Path, name: str, kind: str) -> None:
        words, policy, self._flags = _KINDS[kind]
        super().__init__(name, folder / f"rabbitmq-{kind}", policy, words)
        self._is_log = kind == "stream"
        if kind == "quorum":
            self.acknowledges = ("each", "hundred")

    def spawn(self) -> None:
        """See OwnServer: Erlang's port mapper first, so that none is left running."""
        found = _home()
        if found is None:
            raise parts.PartMissing("no rabbitmq-server: `headrace bench --install rabbitmq`")
        home, erlang = found
        mapper, folder = free_port(), self.processes.folder
        (folder / "plugins").write_text("[].\n")
        environment = parts.library_path(_server_folder()) | {
            "PATH": f"{erlang}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(mapper),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": f"bench{self.port}@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self.port),
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder / "data"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
            "RABBITMQ_CONF_ENV_FILE": "/dev/null",
            "RABBITMQ_LOGS": "-",
            "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "-kernel inet_dist_use_interface {127,0,0,1}",
        }
        epmd = [str(erlang / "bin" / "epmd"), "-port", str(mapper), "-address", "127.0.0.1"]
        self.processes.spawn(epmd, environment)
        self.processes.spawn([str(home / "sbin" / "rabbitmq-server")], environment)

    def answers(self) -> bool:
        """See OwnServer: expects a method frame, not a rejection."""
        return self.exchange(_HELLO, b"\x01\x00\x00", b"AMQP")

    def _perf_test(self, name: str, *words: str) -> list[str]:
        command = [java(), "-Xms512m", "-Xmx512m", "-cp", f"{_perf_folder()}/*"]
        command += ["com.rabbitmq.perf.PerfTest", "--uri", f"amqp://127.0.0.1:{self.port}"]
        command += ["--queue", name, "--flag", "persistent", "--interval", "1", *self._flags]
        return [*command, *words]

    def produce(self, name: str, record_bytes: int, window: Window) -> Steady:
        """See Side."""
        command = self._perf_test(
            name, "--producers", "1", "--consumers", "0", "--confirm", str(CONFIRMS_MAX),
            "--size", str(record_bytes),
        )  # fmt: skip
        return watch(Tool(command, confirmed_of), window, self.pids)

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> Steady:
        """See Side; a queue's delivered messages are removed, a stream can be read again."""
        del record_bytes
        command = self._perf_test(
            name, "--producers", "0", "--consumers", "1", "--qos", str(PREFETCH),
            "--multi-ack-every", str(ACK_EVERY), "--cmessages", str(records),
        )  # fmt: skip

        def read() -> Steady:
            return watch(Tool(command, received_of), window, self.pids)

        return read_again(read, window) if self._is_log else read()

    def empty(self, name: str, records: int, acknowledge: Acknowledge, window: Window) -> Steady:
        """See Side; AMQP does not confirm an acknowledgement, and a stream is not a queue.

        Its first report, which is never part of the window, covers a whole second: the warm-up.
        """
        every = {"each": 1, "hundred": ACK_EVERY}[acknowledge]
        command = self._perf_test(
            name, "--producers", "0", "--consumers", "1", "--qos", str(PREFETCH),
            "--multi-ack-every", str(every), "--cmessages", str(records),
        )  # fmt: skip
        return watch(Tool(command, received_of), window._replace(warmup_s=0.0), self.pids)

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """See Side."""
        command = self._perf_test(
            name, "--producers", "1", "--consumers", "1", "--qos", str(PREFETCH), "--size", "100",
            "--confirm", str(CONFIRMS_MAX), "--rate", str(rate_per_s),
            "--time", str(int(seconds) + 3),
        )  # fmt: skip
        return Latency(None, latency_of(run_tool(command)))

    def drop(self, name: str) -> None:
        """See Side: queues are deleted with the server; a request would start an Erlang VM each
        time."""


_TOOL = (
    f"PerfTest over AMQP: 1 producer, {CONFIRMS_MAX:,} unconfirmed; prefetch {PREFETCH:,}, "
    f"an ack per {ACK_EVERY}"
)
SYSTEM = System(
    name="rabbitmq",
    title="RabbitMQ",
    tool=_TOOL,
    version=version,
    missing=missing,
    install=install,
    sides=lambda folder: [
        RabbitMq(folder, "rabbitmq", "quorum"),
        RabbitMq(folder, "rabbitmq", "stream"),
    ],
)
CLASSIC = System(
    name="rabbitmq-classic",
    title="RabbitMQ, classic",
    tool=_TOOL,
    version=version,
    missing=missing,
    install=install,
    sides=lambda folder: [RabbitMq(folder, "rabbitmq-classic", "classic")],
    is_extra=True,
)
