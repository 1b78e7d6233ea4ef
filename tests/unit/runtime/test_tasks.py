"""Tasks that have an owner: none outlives it, and none is forgotten."""

from __future__ import annotations

import asyncio

from headrace.runtime.tasks import Tasks


def test_tasks_spawned_by_an_ending_task_end_with_their_owner():
    """A broker that stopped left such tasks, which nothing awaited."""
    steps: list[str] = []

    async def main() -> None:
        tasks = Tasks()

        async def follow() -> None:
            steps.append("begun behind the end")
            await asyncio.sleep(60)

        async def work() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                tasks.spawn(follow(), "follow")
                steps.append("ended")

        tasks.spawn(work(), "work")
        await asyncio.sleep(0)
        await tasks.close()
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert steps == ["ended"]


def test_tasks_started_after_their_owner_has_closed_never_run():
    steps: list[str] = []

    async def main() -> None:
        tasks = Tasks()
        await tasks.close()

        async def work() -> None:
            steps.append("begun")

        task = tasks.start(work(), "work")
        await asyncio.wait([task])
        assert task.cancelled()
        await tasks.close()

    asyncio.run(main())
    assert steps == []


async def test_an_owner_closes_though_its_tasks_have_ended_in_this_turn_of_the_loop():
    """On Python 3.12 and later `close` went on for ever, without letting their callbacks run."""

    tasks = Tasks()

    async def work() -> None:
        pass

    task = tasks.start(work(), "work")
    await asyncio.sleep(0)
    assert task.done()
    await asyncio.wait_for(tasks.close(), 5)


async def test_work_spawned_after_its_owner_has_closed_is_no_task():
    """Nothing awaits it, so the loop might end before it does."""
    tasks = Tasks()
    await tasks.close()
    tasks.spawn(asyncio.sleep(60), "late")
    assert asyncio.all_tasks() == {asyncio.current_task()}
