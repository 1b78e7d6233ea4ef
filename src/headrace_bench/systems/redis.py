"""Redis: a stream per topic (XADD, XREADGROUP), its append-only file synced always or every second.

Invariants: `redis-benchmark` writes and reads; only latency at a steady rate is measured by `paced`
over a plain socket, because `redis-benchmark` has no rate option. A stream is completely in memory:
the append-only file makes it durable.
"""

from __future__ import annotations

import csv
import re
import socket
import threading
from typing import TYPE_CHECKING

from headrace_bench import parts
from headrace_bench.processes import SystemFailed, usage_of
from headrace_bench.systems import paced
from headrace_bench.systems.own_server import OwnServer
from headrace_bench.systems.system import PASSES_MAX, Latency, Side, System, read_again
from headrace_bench.tools import Steady, Tool, Window, run_tool, watch
from headrace_bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from pathlib import Path

FSYNC = {SYNCED: "always", UNSYNCED: "everysec"}
CONNECTIONS, PIPELINE = 50, 16
READ_COUNT = 500
_WORDS_SHOWN = 120
_ENDLESS = 2_000_000_000  # requests: the window ends it


def _folder() -> Path:
    return parts.peers_folder() / "redis"


def _program(name: str) -> str:
    found = parts.find_program(name, _folder())
    if found is None:
        raise parts.PartMissing(f"no {name}: `headrace bench --install redis`, or install it")
    return str(found)


def missing() -> str:
    """What is missing, or ""."""
    absent = [
        n for n in ("redis-server", "redis-benchmark") if not parts.find_program(n, _folder())
    ]
    return f"no {' and no '.join(absent)}" if absent else ""


def install() -> None:
    """Unpack Debian's package."""
    parts.fetch_debian("redis-server", _folder())


def version() -> str:
    """As the server reports it."""
    output = run_tool([_program("redis-server"), "--version"], parts.library_path(_folder()))
    found = re.search(r"v=(\S+)", output)
    return found[1] if found else "unknown"


def rate_of(out: str) -> float:
    """Requests per second, from redis-benchmark's comma-separated lines. Raises SystemFailed."""
    lines = [line for line in out.replace("\r", "\n").splitlines() if line.startswith('"')]
    if len(lines) < 2 or "rps" not in lines[0]:
        raise SystemFailed(f"unexpected output of redis-benchmark: {out[-_WORDS_SHOWN:]!r}")
    heading, values = (next(csv.reader([line])) for line in (lines[0], lines[-1]))
    return float(values[heading.index("rps")])


def current_rate_of(line: str) -> float | None:
    """Requests per second since the previous line, from redis-benchmark's progress output."""
    found = re.search(r": rps=([\d.]+) \(overall:", line)
    return float(found[1]) if found else None


class Redis(OwnServer):
    """One server with one sync policy."""

    def __init__(self, folder: Path, policy: str) -> None:
        super().__init__(
            "redis", folder / f"redis-{policy}", policy, f"appendfsync {FSYNC[policy]}"
        )

    def spawn(self) -> None:
        """See OwnServer."""
        self.processes.spawn(
            [
                *(_program("redis-server"), "--port", str(self.port), "--bind", "127.0.0.1"),
                *("--dir", str(self.processes.folder), "--save", ""),
                *("--appendonly", "yes", "--appendfsync", FSYNC[self.policy]),
            ],
            parts.library_path(_folder()),
        )

    def answers(self) -> bool:
        """See OwnServer."""
        return self.exchange(b"PING\r\n", b"+PONG")

    def _bench(self, requests: int, clients: int, pipeline: int) -> list[str]:
        command = [_program("redis-benchmark"), "-p", str(self.port), "-n", str(requests)]
        return [*command, "-c", str(clients), "-P", str(pipeline)]

    def _ask(self, *words: str) -> object:
        connection = RedisChannel(self.port, "")
        try:
            connection.command(*(word.encode() for word in words))
            return connection.reply()
        finally:
            connection.close()

    def produce(self, name: str, record_bytes: int, window: Window) -> Steady:
        """See Side."""
        command = self._bench(_ENDLESS, CONNECTIONS, PIPELINE)
        command += ["XADD", name, "*", "v", "x" * record_bytes]
        asked = Tool(command, current_rate_of, parts.library_path(_folder()))
        return watch(asked, window, self.pids)

    def consume(self, name: str, records: int, record_bytes: int, window: Window) -> Steady:
        """See Side; its benchmark starts immediately, and a pass is its whole run."""
        del record_bytes
        groups = iter(range(PASSES_MAX + 1))
        return read_again(lambda: self._read(name, records, f"group-{next(groups)}"), window)

    def _read(self, name: str, records: int, group: str) -> Steady:
        self._ask("XGROUP", "CREATE", name, group, "0")
        requests = records // READ_COUNT
        command = [*self._bench(requests, 1, 1), "--csv"]
        command += ["XREADGROUP", "GROUP", group, "c", "COUNT", str(READ_COUNT), "NOACK"]
        before = usage_of(self.pids)
        output = run_tool([*command, "STREAMS", name, ">"], parts.library_path(_folder()))
        used = usage_of(self.pids).since(before)
        read = requests * READ_COUNT
        return Steady(read, requests / rate_of(output), used, read)

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """See Side."""
        return paced.measure(__name__, self.port, name, rate_per_s, seconds)

    def drop(self, name: str) -> None:
        """See Side."""
        self._ask("DEL", name)


class RedisChannel:
    """A plain socket that writes to a stream, or follows it."""

    def __init__(self, port: int, name: str) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 30.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = self._socket.makefile("rb")
        self._name = name.encode()
        self._last = b"0"
        self._sent = 0
        self._answered = threading.Semaphore(0)
        self._reader: threading.Thread | None = None

    def command(self, *words: bytes) -> None:
        """Send a command as an array of bulk strings."""
        parts_ = [b"*%d\r\n" % len(words)]
        parts_ += [b"$%d\r\n%b\r\n" % (len(word), word) for word in words]
        self._socket.sendall(b"".join(parts_))

    def reply(self) -> object:
        """Read one reply: a status, a number, bytes, None, or a list of replies."""
        line = self._stream.readline()
        kind, rest = line[:1], line[1:-2]
        if kind == b"$":
            return None if rest == b"-1" else self._stream.read(int(rest) + 2)[:-2]
        if kind == b"*":
            return None if rest == b"-1" else [self.reply() for _ in range(int(rest))]
        if kind in (b"+", b":"):
            return rest
        raise SystemFailed(f"Redis answered {line!r}")

    def send(self, value: bytes) -> None:
        """See Channel; a thread reads replies, so that the next message need not wait."""
        if self._reader is None:
            self._reader = threading.Thread(target=self._read_answers, daemon=True)
            self._reader.start()
        self.command(b"XADD", self._name, b"*", b"v", value)
        self._sent += 1

    def _read_answers(self) -> None:
        while True:
            self.reply()
            self._answered.release()

    def finish(self) -> None:
        """See Channel."""
        for _ in range(self._sent):
            if not self._answered.acquire(timeout=30):
                raise SystemFailed("Redis has not acknowledged everything within 30 s")

    def receive(self) -> list[bytes]:
        """See Channel."""
        self.command(b"XREAD", b"COUNT", b"1000", b"BLOCK", b"1000", b"STREAMS", self._name,
                     self._last)  # fmt: skip
        found = self.reply()
        if not isinstance(found, list):
            return []
        entries = found[0][1]
        self._last = entries[-1][0]
        return [fields[1] for _, fields in entries]

    def close(self) -> None:
        """Close the connection."""
        self._stream.close()
        self._socket.close()


def open_channel(port: int, name: str) -> RedisChannel:
    """For `paced`."""
    return RedisChannel(port, name)


def _sides(folder: Path) -> list[Side]:
    return [Redis(folder, SYNCED), Redis(folder, UNSYNCED)]


SYSTEM = System(
    name="redis",
    title="Redis streams",
    tool=f"redis-benchmark: XADD, {CONNECTIONS} connections, {PIPELINE} in flight each; XREADGROUP "
    f"COUNT {READ_COUNT} NOACK",
    version=version,
    missing=missing,
    install=install,
    sides=_sides,
)
