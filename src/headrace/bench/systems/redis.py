"""Redis: a stream per topic (XADD, XREADGROUP), its append-only file synced always or each second.

Rules of the room: `redis-benchmark` writes and reads; only the latency at a steady rate is sent by
`paced` over a plain socket, for `redis-benchmark` knows no rate. A stream is held in memory whole:
the append-only file is what survives.
"""

from __future__ import annotations

import csv
import re
import socket
import threading
import time
from typing import TYPE_CHECKING

from headrace.bench import parts
from headrace.bench.peers import free_port
from headrace.bench.processes import Processes, SystemFailed, run_tool
from headrace.bench.systems import paced
from headrace.bench.systems.system import Latency, Produced, Side, System
from headrace.bench.workloads import SYNCED, UNSYNCED

if TYPE_CHECKING:
    from pathlib import Path

FSYNC = {SYNCED: "always", UNSYNCED: "everysec"}
CONNECTIONS, PIPELINE = 50, 16
READ_COUNT = 500
_WORDS_SHOWN = 120


def _folder() -> Path:
    return parts.peers_folder() / "redis"


def _program(name: str) -> str:
    found = parts.find_program(name, _folder())
    if found is None:
        raise parts.PartMissing(f"no {name}: `headrace bench --install redis`, or install it")
    return str(found)


def missing() -> str:
    """What is not there, or ""."""
    absent = [
        n for n in ("redis-server", "redis-benchmark") if not parts.find_program(n, _folder())
    ]
    return f"no {' and no '.join(absent)}" if absent else ""


def install() -> None:
    """Unpack Debian's package."""
    parts.fetch_debian("redis-server", _folder())


def version() -> str:
    """As the server says it."""
    said = run_tool([_program("redis-server"), "--version"], parts.library_path(_folder()))
    found = re.search(r"v=(\S+)", said)
    return found[1] if found else "unknown"


def rate_of(out: str) -> float:
    """Requests a second, from the comma-separated lines of redis-benchmark. Raises SystemFailed."""
    lines = [line for line in out.replace("\r", "\n").splitlines() if line.startswith('"')]
    if len(lines) < 2 or "rps" not in lines[0]:
        raise SystemFailed(f"redis-benchmark said something else: {out[-_WORDS_SHOWN:]!r}")
    heading, values = (next(csv.reader([line])) for line in (lines[0], lines[-1]))
    return float(values[heading.index("rps")])


class Redis:
    """One server with one way to sync."""

    name = "redis"

    def __init__(self, folder: Path, policy: str) -> None:
        self.policy = policy
        self.words = f"appendfsync {FSYNC[policy]}"
        self.ready_s = 0.0
        self._port = 0
        self._processes = Processes("Redis", folder / f"redis-{policy}")

    @property
    def pids(self) -> list[int]:
        """See Side."""
        return self._processes.pids

    def start(self) -> None:
        """See Side."""
        self._processes.clear()
        self._port = free_port()
        began = time.perf_counter()
        self._processes.spawn(
            [
                _program("redis-server"),
                "--port",
                str(self._port),
                "--bind",
                "127.0.0.1",
                "--dir",
                str(self._processes.folder),
                "--save",
                "",
                "--appendonly",
                "yes",
                "--appendfsync",
                FSYNC[self.policy],
            ],
            parts.library_path(_folder()),
        )
        self._processes.wait_until(self._answers)
        self.ready_s = time.perf_counter() - began

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), 1.0) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(16).startswith(b"+PONG")
        except OSError:
            return False

    def stop(self) -> None:
        """See Side."""
        self._processes.stop()

    def _bench(self, requests: int, clients: int, pipeline: int, *command: str) -> float:
        said = run_tool(
            [
                _program("redis-benchmark"),
                "-p",
                str(self._port),
                "-n",
                str(requests),
                "--csv",
                "-c",
                str(clients),
                "-P",
                str(pipeline),
                *command,
            ],
            parts.library_path(_folder()),
        )
        return rate_of(said)

    def _ask(self, *words: str) -> None:
        connection = RedisChannel(self._port, "")
        connection.command(*(word.encode() for word in words))
        connection.reply()
        connection.close()

    def produce(self, name: str, records: int, record_bytes: int) -> Produced:
        """See Side."""
        value = "x" * record_bytes
        rate = self._bench(records, CONNECTIONS, PIPELINE, "XADD", name, "*", "v", value)
        return Produced(records, rate)

    def consume(self, name: str, records: int, record_bytes: int) -> float:
        """See Side."""
        self._ask("XGROUP", "CREATE", name, "group", "0")
        read = ("XREADGROUP", "GROUP", "group", "c", "COUNT", str(READ_COUNT), "NOACK")
        requests = -(-records // READ_COUNT)
        return self._bench(requests, 1, 1, *read, "STREAMS", name, ">") * records / requests

    def latency(self, name: str, rate_per_s: int, seconds: float) -> Latency | None:
        """See Side."""
        return paced.measure(__name__, self._port, name, rate_per_s, seconds)

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
        """See Channel; answers are read by a thread, so that the next message need not wait."""
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
                raise SystemFailed("Redis has not acknowledged everything in 30 s")

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
