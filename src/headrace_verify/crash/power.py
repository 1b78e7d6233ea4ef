"""Attack: power loss at any disk operation, and again during recovery."""

from __future__ import annotations

import asyncio
import itertools
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import HeadraceError
from headrace.storage.files import segment_write_buffer, wal_sync
from headrace_verify.crash.exploration import explore
from headrace_verify.crash.power_loss import PROFILES
from headrace_verify.crash.scenario import run_faulty_workload, run_workload
from headrace_verify.rng import seeded
from headrace_verify.task import patched

if TYPE_CHECKING:
    from headrace_verify.task import Task

STATES_PER_RUN = 1_500
FAULTY_STATES_PER_RUN = 3_000
_WAYS = ("inline", "thread", "real threads")


class _Case(NamedTuple):
    profile: str
    way: str
    """Who syncs: the loop, a modelled thread, or real threads (which are not reproducible)."""
    is_faulty: bool
    """Whether syncs fail and writes tear before the power loss."""


CASES = [
    _Case(profile, way, is_faulty)
    for is_faulty in (False, True)
    for way in _WAYS
    for profile in PROFILES
    if not (is_faulty and way == "real threads")
]


def run_power(task: Task) -> None:
    """A healthy disk that loses power."""
    _explore(task, [case for case in CASES if not case.is_faulty])


def run_power_faults(task: Task) -> None:
    """A disk that fails, and then loses power."""
    _explore(task, [case for case in CASES if case.is_faulty])


def _explore(task: Task, cases: list[_Case]) -> None:
    """Explore case after case, each with its own seed."""
    if task.stop_at_first:
        cases = [case for case in cases if case.profile == "posix-strict"]
    for number, case in enumerate(itertools.cycle(cases)):
        if not task.has_time():
            break
        run_case(task, case, task.seed + number)
        task.runs += 1
    left = {f"{case.profile}, {case.way}" for case in cases[task.runs :]}
    if left:
        task.skip(f"out of time for {', '.join(sorted(left))}")


def run_case(task: Task, case: _Case, seed: int) -> None:
    """One recorded workload, and the states that a power loss may leave of it."""
    settings: dict[str, Any] = {"turns": 25, "generations": 2, "recovery_share": 0.01}
    if case.is_faulty:
        settings = {"turns": 60, "generations": 2, "recovery_share": 0.0}
        settings["workload"] = run_faulty_workload
    else:
        settings["workload"] = run_workload
    sync_turns = 3 if case.way == "thread" else 0
    inline_ns = wal_sync.INLINE_SYNC_NS if case.way == "inline" else -1
    replay = {"seed": seed, **case._asdict()}
    # How far a segment lags behind the log: not at all, some appends, up to the checkpoint.
    small_bytes = seeded(seed).choice((0, 600, segment_write_buffer.SMALL_BYTES))
    with (
        patched(wal_sync, "INLINE_SYNC_NS", inline_ns),
        patched(segment_write_buffer, "SMALL_BYTES", small_bytes),
        patched(segment_write_buffer, "RUN_BYTES_MAX", 2_000),
    ):
        try:
            report = asyncio.run(
                explore(
                    seed,
                    case.profile,
                    sync_turns=sync_turns,
                    has_threads=case.way == "real threads",
                    states_max=FAULTY_STATES_PER_RUN if case.is_faulty else STATES_PER_RUN,
                    stop_at_first=True,
                    **settings,
                )
            )
        except (HeadraceError, AssertionError, OSError) as error:
            task.wrong(f"the store does not run on the recovered state: {error!r}", **replay)
            return
    task.checked += report.states
    task.add(f"states {case.profile}", report.states)
    for text in report.violations:
        task.wrong(text, **replay)
