"""Attack: kill -9 of the process that has the store open (the page cache survives)."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from headrace_verify.crash.kill_cycles import run_kill_cycles

if TYPE_CHECKING:
    from headrace_verify.task import Task

CYCLES_PER_FOLDER = 40


def run_kills(task: Task) -> None:
    """Fork a writer, kill it at random, recover: repeatedly in one folder, then in the next.

    With `runs_max`, this many kills.
    """
    if not hasattr(os, "fork"):
        task.skip("this system has no fork")
        return
    while task.has_time():
        count = CYCLES_PER_FOLDER
        if task.runs_max is not None:
            count = min(count, task.runs_max - task.runs)
        folder = task.folder / f"kills-{task.runs}"
        seed = task.seed + task.runs
        model = run_kill_cycles(count, seed, folder, lambda: not task.is_out_of_time())
        task.runs += model.kills
        task.checked += model.kills
        task.add("acknowledgements", model.acknowledgements)
        task.add("interpreters of their own", model.spawned)
        for text in model.wrong:
            task.wrong(text, seed=seed, kills=count)
        shutil.rmtree(folder, ignore_errors=True)
        if not model.kills:
            break
