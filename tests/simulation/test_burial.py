"""The end of a simulated run: nothing of its hosts runs on, and nothing is left unsaid."""

from __future__ import annotations

import asyncio
import gc
import warnings

from headrace.runtime.tasks import Tasks
from headrace_verify.simulation.loop import Host, SimulatedLoop


def test_tasks_spawned_while_hosts_are_buried_are_buried_with_them():
    """Tasks that a `finally` began belonged to no host, and were said to have been forgotten."""
    loop = SimulatedLoop()
    host = Host("broker")
    steps: list[str] = []

    async def second() -> None:
        steps.append("second")

    async def first(tasks: Tasks) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            steps.append("first ended")
            tasks.spawn(second(), "second")

    async def main() -> None:
        tasks = Tasks()
        host.run(lambda: tasks.spawn(first(tasks), "first"))
        await asyncio.sleep(1)

    loop.run_until_complete(main())
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        loop.bury([host])
        gc.collect()
    assert steps == ["first ended"]
    assert [str(one.message) for one in told] == []
    assert host.tasks == []
