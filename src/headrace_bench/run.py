"""Runs the workloads alternately on Headrace and Apache Kafka, and keeps the results.

Invariants: both brokers run all the time and are used in turn; the one that is not measured is
idle. Kafka is warmed up first, until its JVM has compiled the code it will run. Each run begins
with a clean page cache, so that it does not wait for another run's writes.
"""

from __future__ import annotations

import os
import subprocess
import time
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from headrace_bench.measures import Figures, Measures, at_rest
from headrace_bench.peers import Headrace, Kafka, Peer, disk_under, raise_file_limit
from headrace_bench.processes import undisturbed
from headrace_bench.report import Book, judge
from headrace_bench.tools import serving
from headrace_bench.workloads import FIGURES, SYNCED, UNSYNCED, WORKLOADS, Side, Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

CONSOLE = Console(stderr=True)
WARMUP = ("produce-100-1p", "produce-1024-6p", "single-pipelined", "single-librdkafka")


def machine(folder: Path) -> dict[str, Any]:
    """What figures depend on: cores, disk, sync time, system load before."""
    return {
        "cores": os.cpu_count(),
        "disk": disk_under(folder),
        "sync_us": round(_sync_us(folder)),
        "load": f"{os.getloadavg()[0]:.1f}",
    }


def _sync_us(folder: Path) -> float:
    """The median time of an fdatasync of 200 B into a preallocated file here."""
    path = folder / "sync-probe"
    handle = os.open(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(handle, 0, 1 << 20)
        os.fsync(handle)
        taken = []
        for index in range(500):
            os.pwrite(handle, b"x" * 200, index * 200)
            started = time.perf_counter()
            os.fdatasync(handle)
            taken.append(time.perf_counter() - started)
        return median(taken) * 1e6
    finally:
        os.close(handle)
        path.unlink()


def commit() -> str:
    """The measured commit, or `unknown` outside a checkout."""
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        capture_output=True, text=True, check=False, cwd=Path(__file__).parent,
    )  # fmt: skip
    return done.stdout.strip() or "unknown"


def _entry(folder: Path, of_commit: str) -> dict[str, Any]:
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "commit": of_commit,
        "machine": machine(folder),
        "rounds": {},
        "failures": [],
    }


class Session:
    """One run of the benchmarks."""

    def __init__(
        self, folder: Path, rounds: int, length: float, peers: Sequence[str], book: Book
    ) -> None:
        self.book = book
        self.wrap: Callable[[str, int, Callable[[], Figures]], Figures] | None = None
        """Wraps each measured run of Headrace, such as a profiler."""
        self.folder = folder
        self.rounds = rounds
        self.measures = Measures(length)
        self.commit = commit()  # of the broker that is about to start, not of a later checkout
        self.peers: dict[str, Peer] = {}
        if "headrace" in peers:
            self.peers["headrace"] = Headrace(folder / "headrace")
        if "kafka" in peers:
            self.peers["kafka"] = Kafka(folder / "kafka")

    def run(self, workloads: list[Workload], results: dict[str, Any]) -> None:
        """Run everything; results are saved immediately, so that an interruption loses little."""
        at_rest_too = [w for w in workloads if w.kind == "idle"]
        under_load = [w for w in workloads if w.kind != "idle"]
        for workload in at_rest_too:
            results[workload.name] = self._at_rest(workload)
            self._done(workload, results)
        if not under_load:
            return
        try:
            for peer in self.peers.values():
                peer.start()
                CONSOLE.print(f"{peer.name}: ready after {peer.ready_s:.2f} s")
            self._warm_up()
            for workload in under_load:
                results[workload.name] = self._under_load(workload)
                self._done(workload, results)
        finally:
            with undisturbed():
                for peer in self.peers.values():
                    peer.stop()

    def _done(self, workload: Workload, results: dict[str, Any]) -> None:
        self.book.save(results)
        _show(workload, results[workload.name])

    def _warm_up(self) -> None:
        by_name = {workload.name: workload for workload in WORKLOADS}
        with CONSOLE.status("warming up") as status:
            for name in WARMUP:
                for peer in list(self.peers.values()):  # one that does not return is excluded
                    for policy in (SYNCED, UNSYNCED):
                        status.update(f"warming up {peer.name}: {name} {policy}")
                        side = Side(peer.name, policy)
                        self._one(by_name[name], side, 0, {"failures": []})

    def _at_rest(self, workload: Workload) -> dict[str, Any]:
        entry = _entry(self.folder, self.commit)
        wanted = workload.options["connections"]
        allowed = raise_file_limit(wanted + 1000)
        connections = min(wanted, allowed - 500)
        with CONSOLE.status("at rest"):
            for _ in range(self.rounds):
                for peer in self.peers.values():
                    side = f"{peer.name}/{SYNCED if peer.name == 'headrace' else UNSYNCED}"
                    figures = at_rest(peer, connections)
                    entry["rounds"].setdefault(side, []).append(figures)
        return entry

    def _under_load(self, workload: Workload) -> dict[str, Any]:
        entry = _entry(self.folder, self.commit)
        sides = [side for side in workload.sides if side.peer in self.peers]
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        with Progress(*columns, console=CONSOLE, transient=True) as progress:
            task = progress.add_task(workload.name, total=len(sides) * (self.rounds + 1))
            for number in range(self.rounds + 1):
                for side in sides:
                    kind = f"round {number}" if number else "warm-up"
                    progress.update(task, description=f"{workload.name} {kind}: {side.peer} "
                                    f"{side.policy}")  # fmt: skip
                    self._one(workload, side, number, entry)
                    progress.advance(task)
        if workload.kind in ("fetch", "copy", "isolation"):
            self.measures.forget_filled()
        return entry

    def _around(self, name: str, peer: Peer, measured: Callable[[], Figures]) -> Figures:
        if self.wrap is None or peer.name != "headrace":
            return measured()
        return self.wrap(name, peer.pid, measured)

    def _is_back(self, peer: Peer) -> bool:
        """Whether it runs; a broker that has exited is restarted, or excluded from now on."""
        if peer.is_alive():
            return True
        CONSOLE.print(f"[red]{peer.name} has exited[/red]: restarting")
        peer.stop()
        self.measures.forget_peer(peer)
        try:
            peer.start()
        except Exception as error:
            CONSOLE.print(f"[red]{peer.name} is excluded[/red]: {escape(str(error))}")
            peer.stop()
            del self.peers[peer.name]
            return False
        return True

    def _one(self, workload: Workload, side: Side, number: int, entry: dict[str, Any]) -> None:
        peer = self.peers.get(side.peer)
        if peer is None or not self._is_back(peer):
            return
        try:
            with serving(peer.is_alive):
                if number == 0:
                    self.measures.calibrate(workload, peer, side)
                    return
                name = f"{workload.name}-{side.policy}"
                os.sync()
                figures = self._around(name, peer, lambda: self.measures.run(workload, peer, side))
        except Exception as error:
            message = str(error).replace(str(self.folder), "DATA").replace(str(Path.home()), "~")
            entry["failures"].append(f"{side.peer}/{side.policy}: {message}"[:500])
            CONSOLE.print(
                f"[red]{workload.name} {side.peer} {side.policy}[/red]: {escape(str(error))}"
            )
            return
        entry["rounds"].setdefault(f"{side.peer}/{side.policy}", []).append(figures)
        shown = ", ".join(
            f"{FIGURES[name][0]} {value:,.{FIGURES[name][2]}f} {FIGURES[name][1]}"
            for name, value in figures.items()
            if name in FIGURES
        )
        CONSOLE.print(f"  {workload.name} {number}: {side.peer} {side.policy}: {shown}")


def _show(workload: Workload, entry: dict[str, Any]) -> None:
    table = Table(title=workload.title, title_justify="left")
    for heading in ("figure", "Headrace", "Kafka", "result", "bar", "verdict"):
        table.add_column(heading)
    for verdict in judge(workload, entry):
        colour = "red" if "missed" in verdict.verdict else "green"
        table.add_row(*verdict[:-1], f"[{colour}]{verdict.verdict.strip('*')}[/{colour}]")
    CONSOLE.print(table)
