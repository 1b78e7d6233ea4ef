"""One look at what is soaked, from outside: what each process holds, and what it says of itself.

Invariants: reads /proc, folders and `/metrics`, and judges nothing. What a machine cannot
tell is None in a sample, and the run says so.
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
    """One process at one look."""

    rss_bytes: int | None
    sockets: int | None
    files: int | None
    """Descriptors that are no sockets."""
    threads: int | None
    cpu_s: float | None
    """Since its start."""
    tasks: int | None = None
    """This and what follows: of a broker."""
    connections: int | None = None
    cache_bytes: int = 0
    """What of its memory is kept only while there is no better use for it."""


class Shared(NamedTuple):
    """What brokers have left in ZooKeeper and BookKeeper, which they share."""

    ledgers: int
    orphans: int
    """Ledgers that no chain names: trimmed, of deleted topics, or not yet entered."""
    orphan_s: float
    """For how long the oldest of them has been seen as that."""
    stale: int
    """Partitions of deleted topics of which there are facts."""
    stale_s: float
    """Likewise."""
    znodes: int
    watches: int
    problems: tuple[str, ...] = ()
    """What `headrace cluster verify` says; under load a partition may be on its way."""


class Sample(NamedTuple):
    """One look. Latencies are of the probe's rounds since the one before; None: it had none."""

    at_s: float
    """Since the run began."""
    processes: dict[str, Process]
    """By name; that of a broker that is alone is empty."""
    log_bytes: dict[str, int]
    """What each topic keeps."""
    folder_bytes: int
    """What lies on disks: in the data folder, or on all bookies."""
    copies: float = 1
    """How often each byte of a log may be there."""
    shared: Shared | None = None
    """None: brokers share nothing, or it was not looked at this time."""
    produce_p50_ms: float | None = None
    produce_p99_ms: float | None = None
    fetch_p50_ms: float | None = None
    fetch_p99_ms: float | None = None
    control_p50_ms: float | None = None
    """What the machine alone took for the like: a wake-up and a synced write without a broker."""

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        found = self._asdict()
        found["processes"] = {name: one._asdict() for name, one in self.processes.items()}
        found["shared"] = None if self.shared is None else self.shared._asdict()
        return found


def take(target: Soaked, at_s: float) -> Sample:
    """Look at it now. Raises OSError if a broker does not answer."""
    processes: dict[str, Process] = {}
    logs: dict[str, int] = {}
    for one in target.watched():
        figures = [] if one.http is None else scrape(one.http)
        processes[one.name] = _look_at(one, figures)
        _add_logs(logs, figures)
    return Sample(at_s, processes, logs, target.disk_bytes(), target.copies, target.shared(at_s))


def _look_at(one: Watched, figures: _Figures) -> Process:
    held = None if one.pid is None else usage(one.pid)
    sockets = None if one.pid is None else _sockets(one.pid)
    plain = {name: value for name, labels, value in figures if not labels}
    cpu_s = plain.get("headrace_process_cpu_seconds_total")
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
    """What each topic keeps at a broker."""
    for name, labels, value in figures:
        if name == "headrace_log_size_bytes":
            topic = labels.partition('topic="')[2].partition('"')[0]
            logs[topic] = logs.get(topic, 0) + int(value)


def scrape(address: tuple[str, int]) -> _Figures:
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


def _cpu_s(pid: int | None) -> float | None:
    """What a process that tells nothing of itself has used."""
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
    """What the files of folders take on the disk, holes left out."""
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
