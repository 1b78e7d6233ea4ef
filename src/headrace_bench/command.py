"""`headrace bench`: measures Headrace, Apache Kafka and other systems.

Invariants: the measurements are in `headrace_bench`; this module has the options, a list and a
table.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import print_json, print_table, say

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace_bench.figures import Figures
    from headrace_bench.side_page import Part
    from headrace_bench.workloads import Workload

_CHECKOUT = Path(__file__).resolve().parents[2]
QUICK_LENGTH = 0.3
PROFILER = "profiler"


@click.command(
    epilog="Examples:\n\n  headrace bench --list\n\n  headrace bench --install redis,nats\n\n"
    "  headrace bench --workload beside --rounds 2\n\n"
    "  headrace bench --workload produce-100 --peer headrace --profile"
)
@click.option("--list", "is_list", is_flag=True, help="List workloads and systems.")
@click.option(
    "--workload",
    "--only",
    "names",
    metavar="NAME",
    multiple=True,
    help="Run this workload, or all whose names start with this; repeatable.",
)
@click.option(
    "--peer", "peers", metavar="NAME", multiple=True, help="Run only this system; repeatable."
)
@click.option("--rounds", type=click.IntRange(min=1), default=3, show_default=True)
@click.option(
    "--quick", is_flag=True, help="A single short round: a quick look, not a measurement."
)
@click.option(
    "--profile", is_flag=True, help="Draw a flame graph of Headrace's broker per workload."
)
@click.option(
    "--page", "is_page", is_flag=True, help="Regenerate the page and charts; measure nothing."
)
@click.option("--install", metavar="NAME[,...]", help="Download systems, `all`, or `profiler`.")
@click.option(
    "--data-dir",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where brokers store their data; default: in HEADRACE_CACHE.",
)
@click.option(
    "--output",
    type=click.Path(file_okay=False, path_type=Path),
    help="Where results go; default: the checkout's benchmarks/results, else ./headrace-bench.",
)
@click.option("--no-save", is_flag=True, help="Do not save results.")
@click.option("--json", "as_json", is_flag=True, help="Print the results as JSON.")
def bench(names: tuple[str, ...], install: str | None, *, is_list: bool, **options: Any) -> None:
    """Measure Headrace, Apache Kafka and other installed systems.

    Workloads that begin with `beside` run on every system: one at a time is started, measured and
    stopped, round by round; those that begin with `rocketmq` on Headrace and RocketMQ, with
    RocketMQ's own protocol. The others compare only with Apache Kafka, in turn, and give verdicts.
    """
    from headrace_bench.side_page import BESIDE, ROCKETMQ
    from headrace_bench.stopping import Stopped, stopped_by_signals
    from headrace_bench.workloads import WORKLOADS

    if is_list:
        _list(as_json=options["as_json"])
        return
    if options["is_page"]:
        _make_page(options)
        return
    if install is not None:
        _install(install)
        return
    workloads = [w for w in WORKLOADS if not names or w.name.startswith(names)]
    parts = [_chosen(part, names) for part in (BESIDE, ROCKETMQ)]
    if not workloads and not any(part.loads or part.series for part in parts):
        every: list[Any] = [*WORKLOADS, *BESIDE.loads, *BESIDE.series, *ROCKETMQ.loads]
        known = ", ".join(one.name for one in every)
        raise click.UsageError(f"no workload {names[0]!r}; choose from {known}")
    folder = _data_folder(options["data_dir"])
    measured: dict[str, Any] = {}
    try:
        with stopped_by_signals():
            if workloads:
                measured["kafka"] = _with_kafka(workloads, folder, options)
            for part in parts:
                if part.loads or part.series:
                    measured[part.name] = _side_by_side(part, folder, options)
    except Stopped as stopped:
        click.echo(err=True)  # after a progress bar on the same line
        say(f"stopped by {stopped.name}: all processes are stopped; finished turns are kept")
        sys.exit(stopped.exit_code)
    if options["as_json"]:
        print_json(measured)


def _chosen(part: Part, names: tuple[str, ...]) -> Part:
    """What of it runs: without names, everything."""

    def of_names(several: Iterable[Any]) -> tuple[Any, ...]:
        return tuple(one for one in several if not names or one.name.startswith(names))

    return part._replace(loads=of_names(part.loads), series=of_names(part.series))


def _data_folder(asked: Path | None) -> Path:
    from headrace.java.jars import cache_folder
    from headrace_bench.peers import disk_under

    folder = asked or cache_folder() / "bench-data"
    folder.mkdir(parents=True, exist_ok=True)
    if disk_under(folder) == "tmpfs":
        raise click.UsageError(
            f"{folder} is in memory, so a sync has no effect there. Use a folder on a disk."
        )
    return folder


def _places(options: dict[str, Any]) -> tuple[Path | None, Path | None]:
    """The folder of results and the page; in a checkout, the project's own."""
    if options["no_save"] or options["profile"]:
        return None, None
    page = _CHECKOUT / "docs" / "BENCHMARKS.md"
    if options["output"] is None and page.exists():
        return _CHECKOUT / "benchmarks" / "results", page
    return options["output"] or Path("headrace-bench"), None


def _with_kafka(workloads: list[Workload], folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    from headrace_bench.report import Book
    from headrace_bench.run import Session

    results, page = _places(options)
    book = Book(results / "latest.json" if results else None, page)
    kept = book.load()
    peers = [name for name in ("headrace", "kafka") if name in options["peers"]]
    if options["peers"] and not peers:
        return {}
    session = Session(
        folder,
        1 if options["quick"] else options["rounds"],
        QUICK_LENGTH if options["quick"] else 1.0,
        peers or ["headrace", "kafka"],
        book,
    )
    if options["profile"]:
        session.peers.pop("kafka", None)
        session.wrap = _flames(options["output"] or Path("headrace-bench"))
    session.run(workloads, kept)
    return {w.name: kept[w.name] for w in workloads if w.name in kept}


def _side_by_side(part: Part, folder: Path, options: dict[str, Any]) -> dict[str, Any]:
    from headrace_bench.growth import SIDES
    from headrace_bench.side_by_side import Plan, Runner, chosen_systems
    from headrace_bench.side_page import BESIDE, PARTS, SideBook, growth_table, load_table
    from headrace_bench.systems.registry import BY_NAME, ROCKETMQ_SYSTEMS

    known = BY_NAME if part.name == BESIDE.name else ROCKETMQ_SYSTEMS
    if options["peers"] and BY_NAME.keys() - known.keys() >= {*options["peers"]}:
        return {}  # they have other workloads
    results, page = _places(options)
    book = SideBook(results, page, PARTS[part.name])
    quick = options["quick"]
    runner = Runner(folder, 1 if quick else options["rounds"], QUICK_LENGTH if quick else 1.0)
    peers = options["peers"] or (() if part.loads else SIDES)
    if options["profile"]:
        peers = ("headrace",)
        runner.wrap = _flames(options["output"] or Path("headrace-bench"))
    plan = Plan(part.loads, part.series, chosen_systems(peers, known))
    found = runner.run(plan, book.load(), book.save)
    book.publish(found)
    if not options["as_json"]:
        for load in part.loads:
            say(load.title)
            click.echo("\n".join(load_table(load, found["loads"][load.name], found)))
        for one in part.series:
            say(one.title)
            click.echo("\n".join(growth_table(one, found["growth"][one.name], found)))
    return found


def _make_page(options: dict[str, Any]) -> None:
    from headrace_bench.report import Book
    from headrace_bench.side_page import PARTS, SideBook

    results, page = _places(options)
    if results is None:
        return
    book = Book(results / "latest.json", page)
    if kept := book.load():
        book.save(kept)
    for part in PARTS.values():
        beside = SideBook(results, page, part)
        beside.publish(beside.load())


def _flames(folder: Path) -> Callable[[str, int, Callable[[], Figures]], Figures]:
    """A wrapper that draws a flame graph of a run; the last round's picture is kept."""
    from headrace_bench.profiling import flame_graph

    def around(name: str, pid: int, measured: Callable[[], Figures]) -> Figures:
        target = folder / "profiles" / f"{name}.svg"
        figures = flame_graph(pid, target, measured)
        say(f"profile: {target}")
        return figures

    return around


def _install(names: str) -> None:
    from headrace_bench import profiling
    from headrace_bench.systems.registry import BY_NAME

    if names == PROFILER:
        if profiling.missing():
            profiling.install()
        say(f"py-spy: {profiling.missing() or 'available'}")
        return
    asked = list(BY_NAME) if names == "all" else names.split(",")
    unknown = [name for name in asked if name not in BY_NAME]
    if unknown:
        raise click.UsageError(f"no system {unknown[0]!r}; choose from {', '.join(BY_NAME)}")
    for name in asked:
        system = BY_NAME[name]
        if system.missing():
            say(f"{system.title}: downloading")
            system.install()
        say(f"{system.title}: {system.missing() or f'version {system.version()} is available'}")


def _list(*, as_json: bool) -> None:
    from headrace_bench.growth import SERIES
    from headrace_bench.loads import LOADS, QUEUE_LOADS, ROCKETMQ_LOADS
    from headrace_bench.systems.registry import SYSTEMS
    from headrace_bench.workloads import WORKLOADS

    workloads = [(w.name, w.title, "Kafka") for w in WORKLOADS]
    workloads += [(load.name, load.title, "every system") for load in (*LOADS, *QUEUE_LOADS)]
    workloads += [(one.name, one.title, "Kafka") for one in SERIES]
    workloads += [(load.name, load.title, "RocketMQ") for load in ROCKETMQ_LOADS]
    systems = [(one.name, one.title, one.missing() or one.version()) for one in SYSTEMS]
    if as_json:
        print_json(
            {
                "workloads": [
                    dict(zip(("name", "title", "beside"), w, strict=True)) for w in workloads
                ],
                "systems": [dict(zip(("name", "title", "state"), s, strict=True)) for s in systems],
            }
        )
        return
    print_table(("workload", "what", "beside"), workloads)
    click.echo()
    print_table(("system", "what", "state"), systems)
