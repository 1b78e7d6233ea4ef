"""Explores possible states after a power loss: at each operation, in every mode, two levels deep.

`explore` records a workload on a ModelDisk, recovers each state that a power loss may leave, and
compares it with the Oracle.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from headrace.errors import HeadraceError
from headrace_verify.crash.model_disk import Image, ModelDisk
from headrace_verify.crash.power_loss import KEEPS, PowerLoss
from headrace_verify.crash.scenario import Oracle, abandon, open_store, run_workload
from headrace_verify.rng import seeded

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

NEW_DISK = Image([], {"": {}})


class Report:
    def __init__(self) -> None:
        self.states = 0
        self.violations: list[str] = []


async def _check(
    image: Image, oracle: Oracle, where: str, report: Report
) -> list[tuple[Any, ...]] | None:
    """Recover `image` and compare; returns the recovery's operation log, or None if it failed."""
    disk = ModelDisk(image)
    report.states += 1
    try:
        store = await open_store(disk)
    except HeadraceError as error:
        report.violations.append(f"{where}: {error!r}")
        return None
    operations = list(disk.operations)
    try:
        report.violations += [f"{where}: {text}" for text in oracle.violations(store)]
        if not report.violations:
            fresh = await store.create()
            if fresh in oracle.ledgers and oracle.ledgers[fresh].is_created:
                report.violations.append(f"{where}: id {fresh} was allocated twice")
    finally:
        await abandon(store)
    return operations


async def explore(
    seed: int,
    profile: str,
    *,
    sync_turns: int = 0,
    has_threads: bool = False,
    workload: Callable[..., Awaitable[None]] = run_workload,
    turns: int = 25,
    generations: int = 2,
    recovery_share: float = 0.01,
    states_max: int = 1 << 30,
    stop_at_first: bool = False,
) -> Report:
    """Lose power at each operation of each generation; in `recovery_share` of the states, lose it
    again during each operation of their recovery."""
    rng = seeded(seed)
    report = Report()
    image = NEW_DISK
    seen: set[int] = set()
    oracle = Oracle()
    for generation in range(generations):
        disk = ModelDisk(image, sync_turns, has_threads=has_threads)
        store = await open_store(disk)
        oracle = Oracle.after_recovery(store)
        begun_at = len(disk.operations) if generation == 0 else 0
        await workload(store, disk, seed + generation, turns, generation)
        await abandon(store)
        loss = PowerLoss(image, profile)
        candidates: deque[Image] = deque(maxlen=20)
        for index, operation in enumerate(disk.operations):
            if operation[0] in TEST_EVENTS:
                oracle.step(operation)
                loss.step(operation)
                continue
            loss.step(operation)
            if index < begun_at:
                continue
            for keep, state in zip(KEEPS, loss.states(rng), strict=True):
                key = hash((tuple(state.inodes), repr(state.names), _acknowledged(oracle)))
                if key in seen:
                    continue
                seen.add(key)
                where = f"seed {seed} {profile} generation {generation} operation {index} {keep}"
                again = await _check(state, oracle, where, report)
                if again is not None and rng.random() < recovery_share:
                    await _lose_power_in_recovery(state, again, oracle, profile, where, report)
                if report.states >= states_max or (stop_at_first and report.violations):
                    return report
                candidates.append(state)
        image = candidates[-rng.randint(1, len(candidates))]
    return report


TEST_EVENTS = {
    "creating",
    "created",
    "failed",
    "append",
    "acknowledged",
    "sealing",
    "sealed",
    "deleting",
    "deleted",
}


def _acknowledged(oracle: Oracle) -> int:
    return hash(
        tuple(
            (number, one.acknowledged, one.is_created, one.is_sealed, one.is_deleted)
            for number, one in oracle.ledgers.items()
        )
    )


async def _lose_power_in_recovery(
    image: Image,
    operations: list[tuple[Any, ...]],
    oracle: Oracle,
    profile: str,
    where: str,
    report: Report,
) -> None:
    rng = seeded(where)
    loss = PowerLoss(image, profile)
    for index, operation in enumerate(operations):
        loss.step(operation)
        for state in loss.states(rng, ("none", "prefix", "subset", "all")):
            await _check(state, oracle, f"{where}, then in recovery at {index}", report)
