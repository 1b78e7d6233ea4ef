"""`headrace verify crash`: all attacks on crash safety and damage handling, and their verdict.

Invariants: the list of attacks, how they share the time, and what makes a run fail: a violation, or
an attack that has checked nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError
from headrace_verify.crash.broker_kills import run_broker_kills
from headrace_verify.crash.bugs import is_found
from headrace_verify.crash.damage import run_flips, run_tails
from headrace_verify.crash.faults import run_faults
from headrace_verify.crash.kills import run_kills
from headrace_verify.crash.log_model import run_log
from headrace_verify.crash.power import run_power, run_power_faults
from headrace_verify.crash.power_broker import run_power_broker, run_power_files
from headrace_verify.crash.power_table import run_power_table
from headrace_verify.task import Attack, Task
from headrace_verify.verdicts import CANNOT_RUN, missing

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.self_proof import Bug

# Attacks that fork come first, before any thread exists.
ATTACKS = (
    Attack(
        "kills",
        "A writer killed at random moments: what was acknowledged is stored, byte for"
        " byte, and nothing else.",
        "kills",
        15,
        run_kills,
        ("acknowledgements",),
    ),
    Attack(
        "power",
        "Power loss at every disk operation, also during recovery: nothing acknowledged"
        " is lost, nothing appears that was not written.",
        "disk states",
        20,
        run_power,
    ),
    Attack(
        "power-faults",
        "Power loss after failed syncs and torn writes: failed data never reappears once"
        " its positions are reused.",
        "disk states",
        10,
        run_power_faults,
    ),
    Attack(
        "power-broker",
        "Power loss of a whole broker: acknowledged topics, configurations, committed"
        " offsets, generations, producer ids and log start offsets are kept; deleted ones"
        " stay deleted, and a recreated topic has no state of its predecessor.",
        "disk states",
        15,
        run_power_broker,
    ),
    Attack(
        "power-table",
        "Power loss while a table is written in transactions and compacted: each key has"
        " its latest committed value; no aborted or older value is visible, no tombstone"
        " or marker is missing.",
        "disk states",
        10,
        run_power_table,
    ),
    Attack(
        "power-files",
        "The same for a recorded process: SQLite's files and the ledgers' are truncated"
        " at the same instant.",
        "disk states",
        15,
        run_power_files,
    ),
    Attack(
        "log",
        "A log against a plain model: the last five batches are recognised as retries and"
        " no others, sequences wrap, offsets by time are the first ones, before and after"
        " a kill.",
        "appends",
        5,
        run_log,
    ),
    Attack(
        "tails",
        "Files truncated, zeroed or garbled from every byte of their tails: complete"
        " appends up to there are served, or the damage is reported.",
        "torn files",
        10,
        run_tails,
    ),
    Attack(
        "flips",
        "One bit flipped anywhere in a data folder: exactly the acknowledged data is served, or"
        " the damage is reported.",
        "flips",
        15,
        run_flips,
    ),
    Attack(
        "faults",
        "Full disk, EIO, short writes, slow syncs, then a kill: offsets stay dense,"
        " retries are recognised, records that were read stay, failed appends leave no"
        " trace.",
        "recoveries",
        10,
        run_faults,
        ("acknowledgements",),
    ),
    Attack(
        "broker",
        "The installed command under load of real clients, killed with -9: every"
        " acknowledged record is stored once, in order, byte for byte; committed offsets"
        " and producers survive.",
        "kills",
        20,
        run_broker_kills,
        ("acknowledged by the library", "acknowledged batches, raw"),
    ),
)
BY_NAME = {attack.name: attack for attack in ATTACKS}
QUICK_RUNS = {
    "kills": 60,
    "broker": 3,
    "faults": 40,
    "power": 6,
    "power-faults": 4,
    "power-broker": 2,
    "power-table": 4,
    "power-files": 2,
    "log": 12,
}
"""`--quick`: runs per attack; flips and tails have their own counts."""
QUICK_FLIPS = 2_000
QUICK_TAILS = 400


class Plan(NamedTuple):
    """The options of a run."""

    seconds: float
    seed: int
    runs: int | None = None
    flips: int | None = None
    is_quick: bool = False
    is_exhaustive: bool = False
    only: tuple[str, ...] = ()
    """Names of attacks; empty: all."""


class Outcome(NamedTuple):
    """The result of an attack."""

    attack: Attack
    task: Task
    seconds: float

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return self.task.violation_count > 0

    @property
    def gaps(self) -> list[str]:
        """See Judged. None if this machine lacks what the attack needs: it is skipped."""
        task = self.task
        if task.is_impossible:
            return []
        figures = {name: task.figures.get(name, 0) for name in self.attack.evidence}
        return [*task.not_run, *missing({f"{self.attack.unit} checked": task.checked, **figures})]


class Attacked(NamedTuple):
    """The results of all attacks."""

    outcomes: list[Outcome]

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return any(one.is_violated for one in self.outcomes)

    @property
    def gaps(self) -> list[str]:
        """See Judged."""
        found = [f"{one.attack.name}: {gap}" for one in self.outcomes for gap in one.gaps]
        if not found and not any(one.task.checked for one in self.outcomes):
            skipped = [f"{one.attack.name}: {why}" for one in self.outcomes
                       for why in one.task.skipped]  # fmt: skip
            found = ["nothing was checked", *skipped]
        return found


class Proof(NamedTuple):
    """The result for a planted bug."""

    bug: Bug
    task: Task
    seconds: float

    @property
    def is_found(self) -> bool:
        """Whether its attack found it."""
        return self.task.violation_count > 0

    @property
    def is_skipped(self) -> bool:
        """Whether this machine lacks what the attack needs."""
        return self.task.is_impossible


def run_attacks(
    plan: Plan, on_begin: Callable[[Attack], None], on_progress: Callable[[Task], None]
) -> list[Outcome]:
    """Run the planned attacks one after the other."""
    outcomes = []
    attacks = [attack for attack in ATTACKS if not plan.only or attack.name in plan.only]
    whole = sum(attack.share for attack in attacks)
    for attack in attacks:
        on_begin(attack)
        with tempfile.TemporaryDirectory(prefix="headrace-verify-") as folder:
            runs, flips = plan.runs, plan.flips
            if plan.is_quick:
                runs = runs or QUICK_RUNS.get(attack.name)
                flips = flips or {"flips": QUICK_FLIPS, "tails": QUICK_TAILS}.get(attack.name)
            task = Task(
                attack.name,
                plan.seed,
                plan.seconds * attack.share / whole,
                Path(folder),
                runs_max=runs,
                flips_max=flips,
                is_exhaustive=plan.is_exhaustive and attack.name in {"flips", "tails"},
                on_progress=on_progress,
            )
            is_interrupted = False
            try:
                attack.run(task)
            except KeyboardInterrupt:
                is_interrupted = True
                task.skip("interrupted: the checks made until then count")
            except CANNOT_RUN as error:
                task.could_not_run(f"the attack could not run: {error!r}")
            except (HeadraceError, AssertionError) as error:
                task.wrong(f"the attack ended with an error: {error!r}", seed=plan.seed)
            outcomes.append(Outcome(attack, task, task.seconds))
            if is_interrupted:
                break
    return outcomes


def find_planted(bug: Bug, seed: int) -> Proof:
    """Plant a bug and check that its attack finds it."""
    with tempfile.TemporaryDirectory(prefix="headrace-verify-") as folder:
        task = is_found(bug, BY_NAME, seed, Path(folder))
    return Proof(bug, task, task.seconds)
