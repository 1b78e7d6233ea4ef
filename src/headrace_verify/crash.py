"""`headrace verify crash`: all attacks on what must survive crashes and damage, and their verdict.

Invariants: the list of attacks, how they share the time, and what makes a run fail: a
violation, or an attack that has checked nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError
from headrace_verify.broker_kills import run_broker_kills
from headrace_verify.damage import run_flips, run_tails
from headrace_verify.faults import run_faults
from headrace_verify.kills import run_kills
from headrace_verify.log_model import run_log
from headrace_verify.planted import is_found
from headrace_verify.power import run_power, run_power_faults
from headrace_verify.power_broker import run_power_broker, run_power_files
from headrace_verify.power_table import run_power_table
from headrace_verify.task import Attack, Task

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace_verify.planted import Planted

# Forks come first: nothing has made a thread by then.
ATTACKS = (
    Attack(
        "kills",
        "A writer killed at any moment, again and again: what it was told is stored is there, byte"
        " for byte, and nothing else.",
        "kills",
        15,
        run_kills,
    ),
    Attack(
        "power",
        "Power lost at any operation of the disk, also while recovery runs: nothing acknowledged"
        " is lost, nothing comes up that was not written.",
        "disk states",
        20,
        run_power,
    ),
    Attack(
        "power-faults",
        "Power lost behind failed syncs and torn writes: what failed never comes back once its"
        " positions are used again.",
        "disk states",
        10,
        run_power_faults,
    ),
    Attack(
        "power-broker",
        "Power lost under a whole broker: topics, configurations, groups' progress and generations,"
        " producer ids and starts of logs that were answered are there; what was deleted is gone"
        " for good, and a topic made again shows nothing of its predecessor.",
        "disk states",
        15,
        run_power_broker,
    ),
    Attack(
        "power-table",
        "Power lost while a table is written in transactions and compacted: each key has its latest"
        " committed value, nothing aborted or older shows, no tombstone or marker is missing.",
        "disk states",
        10,
        run_power_table,
    ),
    Attack(
        "power-files",
        "The same of a recorded process: SQLite's files and the ledgers' cut at the same instant.",
        "disk states",
        15,
        run_power_files,
    ),
    Attack(
        "log",
        "A log against a plain model: five retries back are known and no more, sequences wrap,"
        " offsets by time are the first ones, before and after a kill.",
        "appends",
        5,
        run_log,
    ),
    Attack(
        "tails",
        "Files cut, zeroed or garbled from any byte of their tails on: whole appends up to there,"
        " or the damage is reported.",
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
        "Full disk, EIO, short writes, slow syncs, then a kill: offsets stay dense, retries are"
        " known, what anybody has read stays, what failed leaves no trace.",
        "recoveries",
        10,
        run_faults,
    ),
    Attack(
        "broker",
        "The installed command under load of real clients, killed with -9: every acknowledged"
        " record is there once, in order, byte for byte; progress and producers survive.",
        "kills",
        20,
        run_broker_kills,
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
"""`--quick`: runs of each attack; flips and tails have counts of their own."""
QUICK_FLIPS = 2_000
QUICK_TAILS = 400


class Plan(NamedTuple):
    """What is asked for."""

    seconds: float
    seed: int
    runs: int | None = None
    flips: int | None = None
    is_quick: bool = False
    is_exhaustive: bool = False
    only: tuple[str, ...] = ()
    """Names of attacks; all if empty."""


class Outcome(NamedTuple):
    """How an attack ended."""

    attack: Attack
    task: Task
    seconds: float

    @property
    def held(self) -> bool:
        """Whether the promise held, and something was checked (or could not be on this machine)."""
        return not self.task.violation_count and (self.task.checked > 0 or self.task.is_impossible)


class Proof(NamedTuple):
    """How a planted bug fared."""

    bug: Planted
    task: Task
    seconds: float

    @property
    def is_found(self) -> bool:
        """Whether the attack that must find it did."""
        return self.task.violation_count > 0

    @property
    def is_skipped(self) -> bool:
        """Whether this machine lacks what the attack needs."""
        return self.task.is_impossible


def run_attacks(
    plan: Plan, on_begin: Callable[[Attack], None], on_progress: Callable[[Task], None]
) -> list[Outcome]:
    """Run what the plan says, one attack after the other."""
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
                task.skip("interrupted: what was checked until then counts")
            except (HeadraceError, AssertionError, OSError) as error:
                task.wrong(f"the attack could not go on: {error!r}", seed=plan.seed)
            outcomes.append(Outcome(attack, task, task.seconds))
            if is_interrupted:
                break
    return outcomes


def find_planted(bug: Planted, seed: int) -> Proof:
    """Plant a bug and see whether its attack finds it."""
    with tempfile.TemporaryDirectory(prefix="headrace-verify-") as folder:
        task = is_found(bug, BY_NAME, seed, Path(folder))
    return Proof(bug, task, task.seconds)
