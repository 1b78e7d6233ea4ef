"""The demo from end to end: publish, read, archive, compute, draw, verify.

Invariants: one Spark session, started in parallel with the first steps; every step's figures go
into one summary; a wrong count makes the exit code 1 and is reported.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from threading import Thread
from time import monotonic_ns
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.demo import clients
from headrace.pipeline.demo.broker import BrokerProcess
from headrace.pipeline.demo.chart import draw_chart
from headrace.pipeline.demo.delays import read_delays, run_delays
from headrace.pipeline.demo.flights import FLIGHT_COUNT, Flight, airlines, flights
from headrace.pipeline.jobs.archive import ArchiveConfig, run_archive
from headrace.pipeline.jobs.reconcile import ReconcileConfig, run_reconcile
from headrace.pipeline.session import JAVA, SessionConfig, adopt, make_session
from headrace.pipeline.warehouse import Warehouse

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

PARTITIONS = 6
TABLE = "headrace.flights"
_STREAM_BATCH_RECORDS = 180_000
_SHOWN_EVERY = 20_000


@dataclass
class Step:
    """One line of the summary."""

    name: str
    record_count: int
    elapsed_ms: int
    note: str

    @property
    def rate(self) -> str:
        """Records a second, in words."""
        return f"{self.record_count * 1000 // max(1, self.elapsed_ms):,}/s"


@dataclass
class Demo:
    """State shared by the steps."""

    bootstrap: str
    out: Path
    topic: str
    results: str
    steps: list[Step] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def note(self, name: str, count: int, begun_ns: int, note: str) -> None:
        """Add a step that ends now."""
        elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
        self.steps.append(Step(name, count, elapsed_ms, note))

    def expect(self, what: str, actual: int, expected: int) -> None:
        """Record a count that differs from the expected one."""
        if actual != expected:
            self.problems.append(f"{what}: {actual:,}, expected {expected:,}")


def main(data_dir: Path | None = None, out: Path = Path("demo-output")) -> int:
    """Start a broker, run the demo against it, stop the broker; returns the exit code."""
    from rich.console import Console

    console = Console()
    out.mkdir(parents=True, exist_ok=True)
    begun_ns = monotonic_ns()
    with tempfile.TemporaryDirectory(prefix="headrace-demo-") as temporary:
        folder = data_dir or Path(temporary)
        try:
            with BrokerProcess(folder, out / "broker.log") as broker:
                started_ms = (monotonic_ns() - begun_ns) // 1_000_000
                console.print(
                    f"[bold]Headrace[/] is up on [cyan]{broker.kafka}[/] after {started_ms} ms "
                    f"(process {broker.pid}, data in {folder})",
                    soft_wrap=True,
                )
                code = run_demo(broker.kafka, out, console)
        except HeadraceError as error:
            console.print(f"[bold red]The demo failed:[/] {error}")
            return 1
    seconds = (monotonic_ns() - begun_ns) / 1e9
    console.print(f"The broker has stopped. Total time {seconds:.0f} s.")
    if code == 0:
        _next_steps(console, out, data_dir)
    return code


def run_demo(bootstrap: str, out_dir: Path, console: Console) -> int:
    """Run all steps against a running broker; returns 0 if every count is right, else 1."""
    out_dir.mkdir(parents=True, exist_ok=True)
    for leftover in ("warehouse", "checkpoint"):
        shutil.rmtree(out_dir / leftover, ignore_errors=True)
    topic = _free_name(bootstrap, "flights")
    demo = Demo(bootstrap, out_dir, topic, f"{topic}-delays")
    # A session takes ten seconds to start: running it in parallel with the first steps hides that.
    session: Future[Any] = Future()
    Thread(target=_make_session, args=(session, out_dir), daemon=True).start()
    try:
        with _progress(console) as progress:
            published = _publish(demo, progress)
            total = sum(published.values())
            _consume(demo, progress, total)
            spark = _wait_for(session, progress)
            _archive(demo, progress, spark, total)
            _delays(demo, progress, spark, total)
            _verify(demo, progress, spark, published)
    finally:
        if not JAVA.is_ended and session.exception() is None:
            session.result().stop()
    _summary(demo, console)
    return 1 if demo.problems else 0


def _make_session(made: Future[Any], out: Path) -> None:
    config = SessionConfig(
        app_name="headrace-demo",
        warehouse=Warehouse(out / "warehouse"),
        short_run=True,
        log_file=out / "spark.log",
    )
    try:
        made.set_result(make_session(config))
    except BaseException as error:  # noqa: BLE001 - raised where the session is needed
        made.set_exception(error)


def _free_name(bootstrap: str, wanted: str) -> str:
    """Return `wanted`, with a number appended if an earlier demo left a topic of that name."""
    cluster = ClusterClient({"bootstrap.servers": bootstrap})
    names = [wanted, *(f"{wanted}-{number}" for number in range(2, 1000))]
    return next(name for name in names if cluster.partition_count_or_none(name) is None)


def _publish(demo: Demo, progress: Progress) -> dict[int, int]:
    bar = progress.add_task("unpack flights", total=FLIGHT_COUNT)
    records: list[Flight] = []
    for flight in flights():
        records.append(flight)
        if len(records) % _SHOWN_EVERY == 0:
            progress.update(bar, completed=len(records))
    progress.update(bar, completed=len(records))
    bar = progress.add_task("publish", total=len(records))
    # The flights are from 2013: a topic with a week's retention would delete them at once.
    keep = {"retention.ms": "-1"}
    clients.create_topic(demo.bootstrap, demo.topic, PARTITIONS, keep)
    clients.create_topic(demo.bootstrap, demo.results, 1, {})
    begun_ns = monotonic_ns()
    published = clients.publish(demo.bootstrap, demo.topic, records, _advance(progress, bar))
    total = sum(published.values())
    demo.note("published", total, begun_ns, f"acks=all, {PARTITIONS} partitions, lz4")
    demo.expect("published", total, FLIGHT_COUNT)
    cluster = ClusterClient({"bootstrap.servers": demo.bootstrap})
    ends = cluster.latest(cluster.partitions_of((demo.topic,), None))[demo.topic]
    demo.expect("stored (sum of high watermarks)", sum(ends.values()), total)
    return published


def _consume(demo: Demo, progress: Progress, total: int) -> None:
    bar = progress.add_task("consumer group", total=total)
    begun_ns = monotonic_ns()
    consumed = clients.consume_with_group(
        demo.bootstrap, demo.topic, f"{demo.topic}-readers", total, _advance(progress, bar)
    )
    shares = " + ".join(f"{count:,}" for count in consumed.per_member)
    demo.note("consumed", consumed.count, begun_ns, f"group of {consumed.members}: {shares}")
    demo.expect("consumed", consumed.count, total)
    demo.expect("gaps seen by the group", consumed.gaps, 0)
    demo.expect("duplicates seen by the group", consumed.duplicates, 0)


def _wait_for(session: Future[Any], progress: Progress) -> Any:
    bar = progress.add_task("waiting for Spark", total=1)
    spark = session.result()
    adopt(spark)
    progress.update(bar, completed=1)
    return spark


def _archive(demo: Demo, progress: Progress, spark: Any, total: int) -> None:
    bar = progress.add_task("archive to Iceberg", total=total)
    begun_ns = monotonic_ns()
    config = ArchiveConfig(
        demo.bootstrap, demo.topic, demo.out / "warehouse", TABLE, round_records_max=200_000
    )
    report = run_archive(
        config, spark=spark, on_round=lambda each: progress.advance(bar, each.record_count)
    )
    size = sum(path.stat().st_size for path in (demo.out / "warehouse").rglob("*.parquet"))
    note = f"{report.round_count} commits, {size / 1e6:.1f} MB of Parquet"
    demo.note("archived", report.record_count, begun_ns, note)
    demo.expect("archived", report.record_count, total)


def _delays(demo: Demo, progress: Progress, spark: Any, total: int) -> None:
    bar = progress.add_task("delays by streaming", total=2)
    begun_ns = monotonic_ns()
    batches = run_delays(
        spark,
        demo.bootstrap,
        demo.topic,
        demo.results,
        demo.out / "checkpoint",
        _STREAM_BATCH_RECORDS,
    )
    progress.advance(bar)
    delays = read_delays(spark, demo.bootstrap, demo.results)
    note = f"{batches} micro-batches to topic {demo.results}, {len(delays)} cells"
    demo.note("computed", sum(each.flights for each in delays), begun_ns, note)
    demo.expect("flights in the delays", sum(each.flights for each in delays), total)
    draw_chart(delays, airlines(), demo.out / "delays.png")
    progress.advance(bar)


def _verify(demo: Demo, progress: Progress, spark: Any, published: dict[int, int]) -> None:
    bar = progress.add_task("verification", total=1)
    begun_ns = monotonic_ns()
    report = run_reconcile(
        ReconcileConfig(demo.bootstrap, demo.topic, TABLE, published=published), spark=spark
    )
    progress.advance(bar)
    demo.note("reconciled", report.archived_count, begun_ns, "counts, bounds and bytes agree")
    demo.problems.extend(report.problems)
    demo.expect("records in the log", report.stored_count, sum(published.values()))
    if demo.problems:
        demo.steps[-1].note = "see below"


def _summary(demo: Demo, console: Console) -> None:
    from rich.table import Table

    table = Table(
        title="A year of flights through Headrace",
        title_style="bold",
        caption="Spark's times include its warm-up: docs/PIPELINE.md has the rates of longer runs.",
    )
    for heading in ("", "records", "time", "rate"):
        table.add_column(heading, justify="right" if heading else "left")
    table.add_column("how")
    for step in demo.steps:
        seconds = f"{step.elapsed_ms / 1000:.1f} s"
        table.add_row(step.name, f"{step.record_count:,}", seconds, step.rate, step.note)
    console.print(table)
    record = [{**vars(step), "rate": step.rate} for step in demo.steps]
    summary = {"steps": record, "problems": demo.problems, "is_exact": not demo.problems}
    (demo.out / "summary.json").write_text(json.dumps(summary, indent=2) + "\n")
    if demo.problems:
        console.print("[bold red]Not exact:[/]")
        for problem in demo.problems:
            console.print(f"  {problem}")
        return
    console.print(
        "[bold green]published = stored = consumed = archived[/], no gap, no duplicate, "
        "same bytes. "
    )
    console.print(f"Chart: {demo.out / 'delays.png'}   figures: {demo.out / 'summary.json'}")


def _next_steps(console: Console, out: Path, data_dir: Path | None) -> None:
    command = Path(sys.executable).parent / "headrace"
    program = os.path.relpath(command) if command.is_relative_to(Path.cwd()) else "headrace"
    folder = data_dir or Path("headrace-data")
    lines = [
        (f"{program} serve --data-dir {folder}", "the broker; then, in another terminal:"),
        (f"{program} consume flights", "the records, by any Kafka client"),
    ]
    if data_dir is None:
        lines.insert(0, (f"{program} demo --data-dir {folder}", "keep the data this time"))
    console.print("\n[bold]What to try next[/]")
    width = max(len(line) for line, _ in lines)
    for line, what in lines:
        console.print(f"  [cyan]{line:<{width}}[/]  {what}", soft_wrap=True, highlight=False)
    console.print(f"  The table is in {out}/warehouse: see docs/PIPELINE.md", soft_wrap=True)


def _progress(console: Console) -> Progress:
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bars

    return Bars(
        TextColumn("{task.description:<20}"),
        BarColumn(40),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
    )


def _advance(progress: Progress, bar: TaskID) -> clients.OnProgress:
    return lambda count: progress.update(bar, completed=count)
