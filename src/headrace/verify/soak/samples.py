"""One look at a broker from outside: what it holds, and what it says of itself.

Rules of the room: reads /proc, the data folder and `/metrics`, and judges nothing. What a machine
cannot tell is None in a sample, and the run says so.
"""

from __future__ import annotations

import http.client
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.verify.wire.process import usage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.verify.real_broker import RealBroker

HTTP_TIMEOUT_S = 60


class Sample(NamedTuple):
    """One look. Latencies are of the probe's rounds since the one before; None: it had none."""

    at_s: float
    """Since the run began."""
    rss_bytes: int | None
    sockets: int | None
    files: int | None
    """Descriptors that are no sockets."""
    threads: int | None
    cpu_s: float | None
    """Since the broker's start."""
    tasks: int
    connections: int
    log_bytes: dict[str, int]
    """What each topic keeps."""
    folder_bytes: int
    produce_p50_ms: float | None = None
    produce_p99_ms: float | None = None
    fetch_p50_ms: float | None = None
    fetch_p99_ms: float | None = None
    control_p50_ms: float | None = None
    """What the machine alone took for the like: a wake-up and a synced write without a broker."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return self._asdict()


def take(broker: RealBroker, at_s: float) -> Sample:
    """Look at the broker now. Raises OSError if it does not answer."""
    pid = broker.pid
    assert pid is not None
    figures = scrape(broker.http_address)
    held = usage(pid)
    sockets = _sockets(pid)
    logs: dict[str, int] = {}
    for name, labels, value in figures:
        if name == "headrace_log_size_bytes":
            topic = labels.partition('topic="')[2].partition('"')[0]
            logs[topic] = logs.get(topic, 0) + int(value)
    plain = {name: value for name, labels, value in figures if not labels}
    return Sample(
        at_s,
        None if held is None else held.memory_bytes,
        sockets,
        None if held is None or sockets is None else held.descriptors - sockets,
        None if held is None else held.threads,
        plain.get("headrace_process_cpu_seconds_total"),
        int(plain["headrace_tasks"]),
        int(plain["headrace_connections"]),
        logs,
        folder_bytes(broker.data_dir),
    )


def scrape(address: tuple[str, int]) -> list[tuple[str, str, float]]:
    """(name, labels, value) of every figure under `/metrics`. Raises OSError."""
    client = http.client.HTTPConnection(*address, timeout=HTTP_TIMEOUT_S)
    try:
        client.request("GET", "/metrics")
        answer = client.getresponse()
        text = answer.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError(f"/metrics does not answer: {error!r}") from error
    finally:
        client.close()
    if answer.status != 200:
        raise ConnectionError(f"/metrics answers {answer.status}")
    return list(_figures(text))


def _figures(text: str) -> Iterator[tuple[str, str, float]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            left, _, value = line.rpartition(" ")
            name, _, labels = left.partition("{")
            yield name, labels.removesuffix("}"), float(value)


def _sockets(pid: int) -> int | None:
    """How many of a process's descriptors are sockets."""
    count = 0
    folder = Path(f"/proc/{pid}/fd")
    try:
        names = os.listdir(folder)
    except OSError:
        return None
    for name in names:
        try:
            count += os.readlink(folder / name).startswith("socket:")
        except OSError:
            continue  # closed meanwhile
    return count


def folder_bytes(folder: Path) -> int:
    """What the files of a folder take on the disk, holes left out."""
    total = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(where) / name).stat().st_blocks * 512
            except OSError:
                continue  # removed meanwhile
    return total
