"""`headrace verify blackbox`: real brokers and clients under faults, and the checkers' verdict.

Invariants: the run is in `headrace_verify.blackbox`; this module has the options, the progress line
and the tables.
"""

from __future__ import annotations

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.failures import OK
from headrace.cli.output import print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.checkers.share_ends import STATES
from headrace_verify.commands.mode import Mode, Proof, Table, mode_options, perform

if TYPE_CHECKING:
    from headrace_verify.blackbox.run import Outcome
    from headrace_verify.commands.mode import Asked, Progress

QUICK_S = 8.0


@click.command(
    epilog="Examples:\n\n  headrace verify blackbox --time 60s --seed 7 --report"
    " ./blackbox\n\n  headrace verify blackbox --only kill --only pause\n\n  headrace"
    " verify blackbox --target cluster --time 5m   # needs a Java runtime\n\n"
    "  headrace verify blackbox --planted all   # check that it finds bugs"
)
@click.option(
    "--time", "seconds", type=Duration(), help="Duration of load and faults.  [default: 60s]"
)
@click.option(
    "--target",
    type=click.Choice(["single", "workers", "cluster"]),
    default="single",
    show_default=True,
    help="A single broker; a worker cluster; or three brokers, four bookies and three ZooKeepers.",
)
@click.option("--quick", is_flag=True, help="Fewer clients, 8 s: the profile of `make test`.")
@click.option(
    "--with-archive", is_flag=True, help="Also archive a topic to Iceberg; needs Spark and 2 GB."
)
@click.option(
    "--load",
    type=click.FloatRange(0.01, 4),
    default=1.0,
    show_default=True,
    help="Producers' rate as a fraction of the usual: lower it for runs of hours.",
)
@click.option(
    "--clients",
    "parts",
    multiple=True,
    metavar="PART",
    help="Run only the clients of this part; repeatable.",
)
@click.option(
    "--only", multiple=True, metavar="FAULT", help="Inject only this kind of fault; repeatable."
)
@mode_options("Same seed, same faults.")
@click.pass_context
def blackbox(
    ctx: click.Context,
    seconds: float | None,
    target: str,
    quick: bool,
    with_archive: bool,
    load: float,
    parts: tuple[str, ...],
    only: tuple[str, ...],
    asked: Asked,
) -> None:
    """Test real clients and brokers under kills, pauses, network faults and slow or full disks.

    Every operation is recorded, and checkers verify the history. The exit code is 0 only if
    something was checked and nothing was wrong.
    """
    from headrace_verify.blackbox import bugs, report
    from headrace_verify.blackbox.all_parts import NAMES
    from headrace_verify.blackbox.run import Plan, run_blackbox
    from headrace_verify.blackbox.targets import kinds_of, wants_network

    kinds = kinds_of(target)
    unknown = [kind for kind in only if kind not in kinds]
    if unknown:
        raise click.UsageError(f"unknown fault {unknown[0]!r}: choose from {', '.join(kinds)}")
    strange = [part for part in parts if part not in NAMES]
    if strange:
        raise click.UsageError(f"unknown part {strange[0]!r}: choose from {', '.join(NAMES)}")
    if seconds is None:
        seconds = QUICK_S if quick else 60.0
    plan = Plan(seconds, asked.seed, quick, None, only, target, with_archive, load, parts)
    if not asked.is_list and asked.planted is None:
        _make_ready(plan)
        if wants_network(target) and not _in_own_network():
            from headrace_verify.blackbox import fabric

            arguments = _as_arguments(plan, asked.report, as_json=asked.as_json)
            ctx.exit(fabric.run_inside(*arguments))
    # Evidence of a failure is kept, even if no report was requested.
    kept = asked.report or Path(tempfile.mkdtemp(prefix="headrace-blackbox-report-"))
    mode = Mode(
        partial(run_blackbox, plan, kept),
        _as_json,
        report.write_report,
        _show,
        _tables,
        bugs.BUGS,
        partial(_find, asked.seed),
    )
    code = perform(mode, asked)
    if asked.report is None and (code == OK or not any(kept.iterdir())):
        shutil.rmtree(kept, ignore_errors=True)
    ctx.exit(code)


def _as_json(outcome: Outcome) -> dict[str, Any]:
    from headrace_verify.blackbox import report

    found = report.as_json(outcome)
    if not outcome.held:
        report.write_report(outcome.folder, outcome, found)
        say(f"the history is kept in {outcome.folder}")
    return found


def _find(seed: int, bug: Any, show: Progress) -> Proof:
    from headrace_verify.blackbox.bugs import find

    with tempfile.TemporaryDirectory(prefix="headrace-blackbox-") as folder:
        found = find(bug, seed, Path(folder), show)
    return Proof(not found.kinds.isdisjoint(bug.found_by), ", ".join(sorted(found.kinds)))


def _as_arguments(plan: Any, report: Path | None, *, as_json: bool) -> list[str]:
    """The arguments that repeat the run."""
    arguments = ["-m", "headrace.cli.main", "verify", "blackbox", "--target", plan.target]
    arguments += ["--seed", str(plan.seed)]
    arguments += ["--time", f"{plan.seconds:g}s"]
    for kind in plan.kinds:
        arguments += ["--only", kind]
    for part in plan.parts:
        arguments += ["--clients", part]
    arguments += ["--quick"] * plan.is_quick + ["--with-archive"] * plan.with_archive
    arguments += ["--json"] * as_json + ["--load", f"{plan.load:g}"]
    return arguments + (["--report", str(report)] if report is not None else [])


def _make_ready(plan: Any) -> None:
    """Download and build what the run needs, because its network namespace has no internet access.

    Raises JavaMissing, JarUnavailable, JarCorrupt for required parts.
    """
    from headrace_verify.blackbox.crew import LANGUAGES, find_program
    from headrace_verify.blackbox.targets import CLUSTER

    line = StatusLine()
    if plan.target == CLUSTER:
        from headrace.dev_cluster.parts import find_parts

        line.show(0, "preparing BookKeeper and ZooKeeper")
        find_parts()
    if plan.with_archive:
        from headrace.java.installation import find_java_home
        from headrace.java.jars import cache_folder, ensure_jars
        from headrace.pipeline.jars import PINNED

        line.show(0, "preparing Spark's jars")
        find_java_home(cache_folder())
        ensure_jars(PINNED)
    for language in () if plan.is_quick else LANGUAGES:
        line.show(0, f"preparing clients in {language}")
        find_program(language)
    line.end()


def _in_own_network() -> bool:
    """Whether everything is ready for a network namespace."""
    from headrace_verify.blackbox import fabric

    why = None if fabric.is_inside() else fabric.why_not()
    if why is not None:
        say(
            "no network namespace, so nodes share the loopback interface and fewer faults"
            f" are injected: {why}"
        )
    return fabric.is_inside() or why is not None


def _show(report: dict[str, Any]) -> None:
    kinds = ("invoke", "ok", "fail", "info")
    print_table(
        ("operation", *kinds),
        [
            (name, *(counts.get(kind, 0) for kind in kinds))
            for name, counts in sorted(report["operations"].items())
            if name not in {"note", "headrace-history"}
        ],
    )
    print_table(
        ("client", "sent", "acknowledged", "polls", "commits"),
        [
            (name, *(counts.get(key, 0) for key in _CLIENT_COLUMNS))
            for name, counts in sorted(report["clients"].items())
            if name
        ],
    )
    if report["messages"]:
        print_table(
            ("share group", "sent", *STATES),
            [
                (name, *(counts[state] for state in ("sent", *STATES)))
                for name, counts in sorted(report["messages"].items())
            ],
        )
    names = ("write_gap_ms", "write_after_ms", "read_gap_ms", "read_after_ms")
    print_table(
        ("fault", "done", "alone", *(f"{name[:-3]} max/p99 ms" for name in names)),
        [
            (
                one["fault"],
                one["count"],
                one.get("alone", one["count"]),
                *(f"{_ms(one[name + '_max'])}/{_ms(one[name + '_p99'])}" for name in names),
            )
            for one in report["unavailability"]
        ],
    )
    for what, why in report["skipped"].items():
        say(f"skipped: {what}: {why}")
    for what in report["violations"]:
        say(f"VIOLATION: {what}")
    for anomaly in report["anomalies"]:
        where = f"{anomaly['topic']}-{anomaly['partition']}: " if anomaly["topic"] else ""
        say(f"VIOLATION: {anomaly['kind']}: {where}{anomaly['what']}")
    for kind, count in report["counts"].items():
        say(f"{kind}: {count} in total")
    if report["archive"] is not None:
        archive = report["archive"]
        say(
            f"archive: {archive['kills']} kills, {archive['archived']:,} of"
            f" {archive['stored']:,} records in the table"
        )
    say(
        f"{report['events']:,} events, {report['records_read']:,} records read, checked"
        f" in {report['judged_s']} s; replay: {report['replay']}"
    )
    say(f"seed {report['seed']}, version {report['version']}: {report['verdict']}")


_CLIENT_COLUMNS = ("send invoke", "send ok", "poll ok", "commit ok")


def _ms(value: int | None) -> str:
    return "-" if value is None else str(value)


def _tables() -> list[Table]:
    from headrace_verify.blackbox.crew import roles_of
    from headrace_verify.blackbox.schedule import CLUSTER_KINDS

    clients = [(role.name, role.kind, role.part) for role in roles_of()]
    return [
        Table("faults", ("fault",), [(kind,) for kind in CLUSTER_KINDS]),
        Table("clients", ("client", "kind", "part"), clients),
    ]
