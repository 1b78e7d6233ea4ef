"""`headrace verify blackbox`: real brokers and clients under faults, and the checkers' verdict.

Invariants: the run is in `headrace_verify.blackbox`; this module has the options, the progress line
and the tables.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.duration import Duration
from headrace.cli.output import print_table, say
from headrace.cli.progress import StatusLine
from headrace_verify.checkers.share_ends import STATES
from headrace_verify.commands.mode import Proof, mode_options, perform
from headrace_verify.self_proof import choose

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.blackbox.bugs import Bug
    from headrace_verify.blackbox.run import Outcome, Plan
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
    from headrace_verify.blackbox.all_parts import NAMES
    from headrace_verify.blackbox.run import Plan
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
    kept = asked.report or Path(tempfile.mkdtemp(prefix="headrace-blackbox-report-"))
    mode = BlackBox(plan, kept)
    try:
        ctx.exit(perform(mode, asked))
    finally:
        if asked.report is None and mode.has_held:
            shutil.rmtree(kept, ignore_errors=True)


class BlackBox:
    """See Mode."""

    def __init__(self, plan: Plan, folder: Path) -> None:
        self._plan = plan
        self._folder = folder
        """Keep the history, even if no report was requested, as evidence of a failure."""
        self.has_held = True

    def run(self, show: Progress) -> Outcome:
        """See Mode."""
        from headrace_verify.blackbox.run import run_blackbox

        outcome = run_blackbox(self._plan, self._folder, show)
        self.has_held = outcome.held
        if not outcome.held:
            say(f"the history is kept in {self._folder}")
        return outcome

    def as_json(self, outcome: Outcome) -> dict[str, Any]:
        """See Mode."""
        from headrace_verify.blackbox.report import as_json, write_report

        report = as_json(outcome)
        if not outcome.held:
            write_report(outcome, report)
        return report

    def write_report(
        self, _folder: Path, outcome: Outcome, report: dict[str, Any]
    ) -> Sequence[str]:
        """See Mode."""
        from headrace_verify.blackbox.report import write_report

        return write_report(outcome, report)

    def print_report(self, report: dict[str, Any]) -> None:
        """See Mode."""
        _show(report)

    def print_list(self, *, as_json: bool) -> None:
        """See Mode."""
        _list()

    def choose(self, words: str) -> Sequence[Bug]:
        """See Mode."""
        from headrace_verify.blackbox.bugs import BUGS

        return choose(BUGS, words)

    def find(self, bug: Bug, show: Progress) -> Proof:
        """See Mode."""
        from headrace_verify.blackbox.bugs import find

        with tempfile.TemporaryDirectory(prefix="headrace-blackbox-") as folder:
            found = find(bug, self._plan.seed, Path(folder), show)
        return Proof(bool(found.kinds & bug.found_by), ", ".join(sorted(found.kinds)))


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


def _list() -> None:
    from headrace_verify.blackbox.bugs import BUGS, NOT_PLANTED
    from headrace_verify.blackbox.crew import roles_of
    from headrace_verify.blackbox.schedule import CLUSTER_KINDS

    print_table(("fault",), [(kind,) for kind in CLUSTER_KINDS])
    click.echo()
    print_table(
        ("client", "kind", "part"), [(role.name, role.kind, role.part) for role in roles_of()]
    )
    click.echo()
    print_table(
        ("no", "planted bug", "found by"),
        [(bug.number, bug.name, ", ".join(sorted(bug.found_by))) for bug in BUGS],
    )
    for number, why in NOT_PLANTED.items():
        say(f"not planted: {number}: {why}")
