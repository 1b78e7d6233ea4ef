"""One sample of the soaked processes, from outside: their resources and their metrics.

Invariants: reads /proc, folders and `/metrics`, and judges nothing. Values that a machine cannot
provide are None in a sample, and the run reports it.
"""

from __future__ import annotations

import http.client
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace_verify.wire.process import usage

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from headrace_verify.soak.targets import Soaked, Watched

HTTP_TIMEOUT_S = 60

_Figures = list[tuple[str, str, float]]


class Process(NamedTuple):
    """One process in one sample."""

    rss_bytes: int | None
    sockets: int | None
    files: int | None
    """Descriptors that are not sockets."""
    threads: int | None
    cpu_s: float | None
    """Since its start."""
    tasks: int | None = None
    """This and the following: brokers only."""
    connections: int | None = None
    cache_bytes: int = 0
    """The part of its memory that is a cache and can be evicted."""


class Shared(NamedTuple):
    """What brokers have left in ZooKeeper and BookKeeper, which they share."""

    ledgers: int
    orphans: int
    """Ledgers that are in no chain: trimmed, of deleted topics, or not registered yet."""
    orphan_s: float
    """The age of the oldest of them."""
    stale: int
    """Partitions of deleted topics that still have metadata."""
    stale_s: float
    """Likewise."""
    znodes: int
    watches: int
    problems: tuple[str, ...] = ()
    """The result of `headrace cluster verify`; under load, a partition may be moving."""


class Sample(NamedTuple):
    """One sample. Latencies are of the probe's rounds since the previous one; None: there were
    none."""

    at_s: float
    """Since the start of the run."""
    processes: dict[str, Process]
    """By name; a standalone broker's is empty."""
    log_bytes: dict[str, int]
    """The size of each topic."""
    folder_bytes: int
    """Disk usage: of the data folder, or of all bookies."""
    copies: float = 1
    """The maximum number of copies of each byte of a log."""
    shared: Shared | None = None
    """None: brokers share nothing, or it was not checked this time."""
    produce_p50_ms: float | None = None
    produce_p99_ms: float | None = None
    fetch_p50_ms: float | None = None
    fetch_p99_ms: float | None = None
    control_p50_ms: float | None = None
    """The control measurement: a wake-up and a synced write without a broker."""

    def as_json(self) -> dict[str, Any]:
        """Convert to plain values."""
        found = self._asdict()
        found["processes"] = {name: one._asdict() for name, one in self.processes.items()}
        found["shared"] = None if self.shared is None else self.shared._asdict()
        return found


def take(target: Soaked, at_s: float) -> Sample:
    """Take a sample. Raises OSError if a broker does not respond."""
    processes: dict[str, Process] = {}
    logs: dict[str, int] = {}
    for one in target.watched():
        figures = [] if one.http is None else scrape(one.http)
        processes[one.name] = _sample_process(one, figures)
        _add_logs(logs, figures)
    return Sample(at_s, processes, logs, target.disk_bytes(), target.copies, target.shared(at_s))


def _sample_process(one: Watched, figures: _Figures) -> Process:
    held = None if one.pid is None else usage(one.pid)
    sockets = None if one.pid is None else _sockets(one.pid)
    plain = {name: value for name, labels, value in figures if not labels}
    cpu_s = plain.get("process_cpu_seconds_total")
    return Process(
        None if held is None else held.memory_bytes,
        sockets,
        None if held is None or sockets is None else held.descriptors - sockets,
        None if held is None else held.threads,
        cpu_s if one.http is not None else _cpu_s(one.pid),
        int(plain["headrace_tasks"]) if plain else None,
        int(plain["headrace_connections"]) if plain else None,
        int(plain.get("headrace_cache_bytes", 0)),
    )


def _add_logs(logs: dict[str, int], figures: _Figures) -> None:
    """The size of each topic at a broker."""
    for name, labels, value in figures:
        if name == "headrace_log_size_bytes":
            topic = labels.partition('topic="')[2].partition('"')[0]
            logs[topic] = logs.get(topic, 0) + int(value)


def scrape(address: tuple[str, int]) -> _Figures:
    """Yield (name, labels, value) of every metric under `/metrics`. Raises OSError."""
    client = http.client.HTTPConnection(*address, timeout=HTTP_TIMEOUT_S)
    try:
        client.request("GET", "/metrics")
        answer = client.getresponse()
        text = answer.read().decode()
    except http.client.HTTPException as error:
        raise ConnectionError(f"no response from /metrics: {error!r}") from error
    finally:
        client.close()
    if answer.status != 200:
        raise ConnectionError(f"/metrics returns status {answer.status}")
    return list(_figures(text))


def _figures(text: str) -> Iterator[tuple[str, str, float]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            left, _, value = line.rpartition(" ")
            name, _, labels = left.partition("{")
            yield name, labels.removesuffix("}"), float(value)


def _cpu_s(pid: int | None) -> float | None:
    """The resources of a process without metrics."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


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


def folder_bytes(*folders: Path) -> int:
    """The disk usage of folders, without holes in files."""
    return sum(map(_bytes_of, _files(folders)))


def _files(folders: Iterable[Path]) -> Iterator[Path]:
    for folder in folders:
        for where, _, names in os.walk(folder):
            yield from (Path(where) / name for name in names)


def _bytes_of(path: Path) -> int:
    try:
        return path.stat().st_blocks * 512
    except OSError:
        return 0  # removed meanwhile
