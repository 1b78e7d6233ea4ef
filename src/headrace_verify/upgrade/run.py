"""A run: every golden set, data of a newer version, and folders of older commits.

Invariants: writes only to a temporary folder, except for `write_golden`.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from headrace.errors import HeadraceError
from headrace.runtime.clock import SystemClock
from headrace_verify.upgrade import archive, beside, newer, older
from headrace_verify.upgrade.check import check_folder
from headrace_verify.upgrade.findings import Findings
from headrace_verify.upgrade.make import KILLED, MANIFEST, STOPPED, TIERED, make_set
from headrace_verify.upgrade.parts import check_parts, has_module
from headrace_verify.verdicts import missing

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

SETS, NEWER, PARTS, BESIDE = "sets", "newer", "parts", "beside"
QUICK = (PARTS, SETS, NEWER)
EVERYTHING = (*QUICK, BESIDE)


class Plan(NamedTuple):
    """The options of a run."""

    commits: tuple[str, ...] = ()
    """Older commits whose folders are opened, too."""
    what: tuple[str, ...] = QUICK
    golden: Path = archive.GOLDEN
    folders: tuple[str, ...] = (KILLED, STOPPED, TIERED)
    """Of the sets."""


class Outcome(NamedTuple):
    """The result of a run."""

    findings: list[Findings]
    seconds: float

    @property
    def violations(self) -> list[str]:
        """Everything that was wrong."""
        return [wrong for found in self.findings for wrong in found.wrong]

    @property
    def is_violated(self) -> bool:
        """See Judged."""
        return bool(self.violations)

    @property
    def gaps(self) -> list[str]:
        """See Judged. A check that was skipped for a reason is none, unless all were."""
        if not any(found.checked for found in self.findings):
            return ["nothing was compared", *(why for one in self.findings for why in one.skipped)]
        return missing(
            {f"comparisons of {one.where}": one.checked
             for one in self.findings if not one.skipped}
        )  # fmt: skip


def run_upgrade(plan: Plan, on_progress: Callable[[float, str], None]) -> Outcome:
    """Check all that the plan names."""
    clock = SystemClock()
    begun_ns = clock.now_ns()
    findings = [_sets_are_whole(plan)]
    with tempfile.TemporaryDirectory(prefix="headrace-upgrade-") as folder:
        work = Path(folder)
        names = archive.names(plan.golden)
        steps = len(names) + 1 + len(plan.commits)
        for number, name in enumerate(names):
            on_progress(number / steps, f"set {name}")
            root = work / name
            archive.unpack(archive.path_of(name, plan.golden), root)
            findings += _check_set(plan, name, root, work)
        on_progress(len(names) / steps, "data of a newer version")
        stopped = work / archive.current() / STOPPED
        if NEWER in plan.what and stopped.exists():
            findings += asyncio.run(_check_newer(stopped, work))
        if BESIDE in plan.what:
            on_progress(len(names) / steps, beside.WHERE)
            findings.append(_usable(beside.WHERE, beside.check_beside, work / "beside"))
        for number, commit in enumerate(plan.commits, len(names) + 1):
            on_progress(number / steps, f"commit {commit}")
            check = partial(older.check_commit, commit)
            findings.append(_usable(f"commit {commit}", check, work / f"commit-{commit}"))
    return Outcome(findings, (clock.now_ns() - begun_ns) / 1e9)


def _sets_are_whole(plan: Plan) -> Findings:
    found = Findings("golden sets")
    found.wrong += archive.changed_or_missing(plan.golden)
    found.checked = len(archive.RELEASED) + 1  # and this version has one
    if archive.current() not in archive.names(plan.golden):
        found.wrong.append(
            f"version {archive.current()} has no golden set: create it with `headrace verify"
            " upgrade --write-golden`"
        )
    return found


def _check_set(plan: Plan, name: str, root: Path, work: Path) -> list[Findings]:
    manifest = json.loads((root / MANIFEST).read_text())
    findings = []
    if PARTS in plan.what:
        found = Findings(f"{name}: parts")
        is_own = name == archive.current()
        wrong, found.checked, found.skipped = check_parts(manifest["parts"], is_own=is_own)
        found.wrong += [f"{name}: {one}" for one in wrong]
        findings.append(found)
    if SETS in plan.what:
        for folder, known in manifest["folders"].items():
            if folder not in plan.folders:
                continue
            if known["has_objects"] and not has_module("obstore"):
                left_out = Findings(f"{name}: {folder}")
                left_out.skipped.append("obstore is not installed")
                findings.append(left_out)
                continue
            at = work / f"{name}-{folder}"
            found = asyncio.run(check_folder(root, at, folder, known))
            found.where = f"{name}: {folder}"
            findings.append(found)
    return findings


async def _check_newer(stopped: Path, work: Path) -> Sequence[Findings]:
    findings = []
    for name, check in (
        ("a newer version", newer.check_refusals(stopped, work / "refused")),
        ("unknown fields", newer.check_unknown(stopped, work / "unknown")),
        ("beside a newer broker", newer.check_neighbour()),
    ):
        try:
            findings.append(await check)
        except HeadraceError as error:
            found = Findings(name)
            found.wrong.append(f"{name}: not usable: {error}"[:600])
            findings.append(found)
    return findings


def _usable(where: str, check: Callable[[Path], Findings], work: Path) -> Findings:
    work.mkdir()
    try:
        return check(work)
    except (HeadraceError, OSError) as error:
        found = Findings(where)
        found.wrong.append(f"{where}: {type(error).__name__}: {error}"[:600])
        return found


def write_golden(golden: Path = archive.GOLDEN) -> tuple[Path, list[str]]:
    """Create the set of this version: (its path, what was skipped). Raises RequestInvalid."""
    archive.refuse_released(archive.current())
    with tempfile.TemporaryDirectory(prefix="headrace-golden-") as folder:
        skipped = asyncio.run(make_set(Path(folder)))
        return archive.pack(Path(folder), archive.current(), golden), skipped
