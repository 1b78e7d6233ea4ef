"""`headrace verify fuzz`: every parser of bytes that others send, guided by what inputs reach.

Invariants: the run is in `headrace_verify.fuzz`; this module has the options and the report.
"""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from headrace.cli.output import say
from headrace_verify.commands.mode import Mode, Proof, Table, mode_options, perform
from headrace_verify.verdicts import verdict_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace_verify.commands.mode import Asked, Progress
    from headrace_verify.fuzz.run import Found, Plan
    from headrace_verify.self_proof import Bug

QUICK_RUNS = 20_000
RUNS = 1_000_000


@click.command(
    epilog="Examples:\n\n  headrace verify fuzz --runs 10000000 --corpus ./corpus\n\n"
    "  headrace verify fuzz --only http2 --only header_blocks"
)
@click.option("--runs", type=click.IntRange(1), help=f"Inputs in all.  [default: {RUNS}]")
@click.option("--quick", is_flag=True, help="The profile of `make test`.")
@click.option("--only", multiple=True, metavar="WORDS", help="Only targets so named; repeatable.")
@click.option(
    "--corpus",
    type=click.Path(file_okay=False, path_type=Path),
    help="Begin with the inputs in this folder, and add those that reach more.",
)
@mode_options("Same seed and corpus, same inputs.")
@click.pass_context
def fuzz(
    ctx: click.Context,
    runs: int | None,
    quick: bool,
    only: tuple[str, ...],
    corpus: Path | None,
    asked: Asked,
) -> None:
    """Feed every parser with mutations of what real clients have sent.

    Needs atheris, which measures what an input reaches. The exit code is 0 only if no input was
    met by an exception that its caller does not expect, and ways that must agree have agreed.
    """
    from headrace_verify.fuzz import bugs, run

    names = run.target_names(only)
    if not names:
        raise click.UsageError(f"no target matches {' or '.join(only)!r}: see --list")
    plan = run.Plan(runs or (QUICK_RUNS if quick else RUNS), asked.seed, names, corpus)

    def find(bug: Bug, _show: Progress) -> Proof:
        changed = plan._replace(runs=QUICK_RUNS, targets=bug.found_by)
        found = run.run_fuzz(changed, bug.name)
        by = " ".join(found.fault.split())[-100:]
        return Proof(found.is_exception_of(bug.found_by), by)

    mode = Mode(
        lambda _show: run.run_fuzz(plan),
        partial(_as_json, plan),
        _write_report,
        _print_report,
        _tables,
        bugs.BUGS,
        find,
    )
    ctx.exit(perform(mode, asked))


def _as_json(plan: Plan, outcome: Found) -> dict[str, Any]:
    found = {"target": outcome.target, "input": outcome.input.hex(), "fault": outcome.fault}
    return {
        "what": "headrace verify fuzz",
        "seed": plan.seed,
        "verdict": verdict_of(outcome),
        "targets": [*plan.targets],
        "inputs": outcome.inputs,
        "edges": outcome.edges,
        "violations": [found] if outcome.is_violated else [],
    }


def _write_report(folder: Path, outcome: Found, report: dict[str, Any]) -> Sequence[str]:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.json").write_text(json.dumps(report, indent=2) + "\n")
    if not outcome.is_violated:
        return ["report.json"]
    (folder / "input").write_bytes(outcome.input)
    return ["report.json", "input"]


def _print_report(report: dict[str, Any]) -> None:
    for one in report["violations"]:
        say(f"VIOLATION: {one['target']}, input {one['input'][:400]}:\n{one['fault']}")
    say(
        f"{report['inputs']:,} inputs of {len(report['targets'])} targets reached"
        f" {report['edges']:,} edges; seed {report['seed']}: {report['verdict']}"
    )


def _tables() -> list[Table]:
    from headrace_verify.fuzz.targets import TARGETS

    rows = [(name, " ".join((run.__doc__ or "").split())) for name, run in TARGETS.items()]
    return [Table("targets", ("target", "parses"), rows)]
