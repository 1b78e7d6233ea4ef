"""Tasks that outlive their requests: bounded, cancelled, kept for a while after their end."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from headrace.broker.security.tenant_shares import Holder
from headrace.broker.services import background_tasks
from headrace.broker.services.background_tasks import (
    CANCELLED,
    DONE,
    FAILED,
    KEPT_MAX,
    RESULTS_MAX,
    RUNNING,
    RUNNING_MAX,
    BackgroundTask,
    BackgroundTasks,
    TaskUnknown,
    TooManyTasks,
)
from headrace.errors import RequestInvalid
from headrace.runtime.clock import SystemClock
from headrace.runtime.randomness import SystemRandomness
from headrace.runtime.tasks import Tasks

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def _endless(_task: BackgroundTask) -> None:
    await asyncio.Event().wait()


async def _nothing(_task: BackgroundTask) -> None:
    pass


async def _failing(_task: BackgroundTask) -> None:
    raise RequestInvalid("it cannot be")


@asynccontextmanager
async def background_tasks_of() -> AsyncIterator[BackgroundTasks]:
    owner = Tasks()
    try:
        yield BackgroundTasks(owner, SystemClock(), SystemRandomness())
    finally:
        await owner.close()


async def _ended(tasks: BackgroundTasks, task: BackgroundTask) -> BackgroundTask:
    while task.ended_ms < 0:
        await asyncio.sleep(0)
    return tasks.get(task.kind, task.id)


async def test_the_number_of_running_tasks_is_bounded_and_cancelling_makes_room() -> None:
    async with background_tasks_of() as tasks:
        running = [tasks.start("search", {}, _endless) for _ in range(RUNNING_MAX)]
        with pytest.raises(TooManyTasks):
            tasks.start("search", {}, _endless)
        assert (await tasks.cancel("search", running[0].id)).state == CANCELLED
        assert (await _ended(tasks, tasks.start("search", {}, _nothing))).state == DONE


async def test_a_tenant_starts_no_more_than_its_part_of_the_tasks() -> None:
    async with background_tasks_of() as tasks:
        for tenant in ("acme", "beta", "gamma"):
            running = [
                tasks.start("search", {}, _endless, Holder(tenant)) for _ in range(RUNNING_MAX // 4)
            ]
            with pytest.raises(TooManyTasks, match="the limit of one tenant"):
                tasks.start("search", {}, _endless, Holder(tenant))
        with pytest.raises(TooManyTasks, match="all tenants together"):
            tasks.start("search", {}, _endless, Holder("delta"))
        for _ in range(RUNNING_MAX // 4):
            tasks.start("search", {}, _endless)  # of operators
        with pytest.raises(TooManyTasks, match="this broker"):
            tasks.start("search", {}, _endless)
        await tasks.cancel("search", running[0].id)
        assert (
            await _ended(tasks, tasks.start("search", {}, _nothing, Holder("gamma")))
        ).state == DONE


async def test_a_tenant_with_many_tasks_loses_its_own_results_and_no_others() -> None:
    async with background_tasks_of() as tasks:
        others = [
            await _ended(tasks, tasks.start("search", {}, _nothing, Holder(tenant)))
            for tenant in ("", "beta")
        ]
        first = await _ended(tasks, tasks.start("search", {}, _nothing, Holder("acme")))
        for _ in range(KEPT_MAX):
            await _ended(tasks, tasks.start("search", {}, _nothing, Holder("acme")))
        for one in others:
            assert tasks.get("search", one.id) is one
        with pytest.raises(TaskUnknown):
            tasks.get("search", first.id)
        assert len(tasks.list("search")) == KEPT_MAX


async def test_a_user_with_many_tasks_loses_its_own_results_and_no_others() -> None:
    async with background_tasks_of() as tasks:
        quiet, noisy = Holder("", "User:quiet"), Holder("", "User:noisy")
        kept = [await _ended(tasks, tasks.start("search", {}, _nothing, quiet)) for _ in range(2)]
        for _ in range(KEPT_MAX + 5):
            await _ended(tasks, tasks.start("search", {}, _nothing, noisy))
        assert [tasks.get("search", one.id) for one in kept] == kept
        assert len(tasks.list("search")) == KEPT_MAX


async def test_a_user_starts_no_more_than_twice_as_many_tasks_as_are_left() -> None:
    async with background_tasks_of() as tasks:
        noisy, quiet = Holder("", "User:noisy"), Holder("", "User:quiet")
        for _ in range(11):
            tasks.start("search", {}, _endless, noisy)
        with pytest.raises(TooManyTasks, match="the user has 11 tasks running"):
            tasks.start("search", {}, _endless, noisy)
        for _ in range(3):
            tasks.start("search", {}, _endless, quiet)


async def test_a_cancelled_task_is_kept_until_it_is_cancelled_once_more() -> None:
    async with background_tasks_of() as tasks:
        task = tasks.start("search", {}, _endless)
        await asyncio.sleep(0)
        await tasks.cancel("search", task.id)
        assert tasks.get("search", task.id).ended_ms >= task.started_ms
        await tasks.cancel("search", task.id)
        with pytest.raises(TaskUnknown):
            tasks.get("search", task.id)


async def test_a_task_that_is_cancelled_before_it_began_is_cancelled() -> None:
    async with background_tasks_of() as tasks:
        task = tasks.start("search", {}, _endless)
        assert (await tasks.cancel("search", task.id)).state == CANCELLED
        assert (await _ended(tasks, tasks.start("search", {}, _nothing))).state == DONE


async def test_a_failure_is_kept_and_the_oldest_are_forgotten() -> None:
    async with background_tasks_of() as tasks:
        failed = await _ended(tasks, tasks.start("search", {}, _failing))
        assert (failed.state, str(failed.error)) == (FAILED, "it cannot be")
        with pytest.raises(TaskUnknown):
            tasks.get("trace", failed.id)
        for _ in range(KEPT_MAX):
            await _ended(tasks, tasks.start("search", {}, _nothing))
        assert len(tasks.list("search")) == KEPT_MAX
        with pytest.raises(TaskUnknown):
            tasks.get("search", failed.id)


def test_results_are_bounded() -> None:
    task = BackgroundTask("1", "search", {}, 0)
    for _ in range(RESULTS_MAX):
        assert not task.is_full
        task.add({}, 1)
    assert task.is_full


async def test_a_task_that_has_just_ended_is_forgotten_and_not_kept_as_cancelled() -> None:
    """Its state is seen before the callback that notes its end has run."""

    async with background_tasks_of() as tasks:
        task = tasks.start("search", {}, _nothing)
        while task.state != DONE:
            await asyncio.sleep(0)
        assert task.ended_ms < 0
        assert (await tasks.cancel("search", task.id)).state == DONE
        with pytest.raises(TaskUnknown):
            tasks.get("search", task.id)


async def test_who_cancels_what_ends_slowly_is_answered_and_may_ask_again(monkeypatch) -> None:
    """A redrive ends its process first. Another broker would have given up on this one."""
    monkeypatch.setattr(background_tasks, "CANCEL_S", 0.01)
    begun, may_end, ends = asyncio.Event(), asyncio.Event(), []

    async def slow(_task: BackgroundTask) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            await may_end.wait()
            ends.append("as it should")

    async with background_tasks_of() as tasks:
        task = tasks.start("redrive", {}, slow)
        await begun.wait()
        for _ in range(2):
            async with asyncio.timeout(30):
                found = await tasks.cancel("redrive", task.id)
            assert (found.state, found.ended_ms) == (RUNNING, -1)
        may_end.set()
        assert (await _ended(tasks, task)).state == CANCELLED
        assert ends == ["as it should"], "the second request did not interrupt its end"
        assert (await tasks.cancel("redrive", task.id)).state == CANCELLED
        with pytest.raises(TaskUnknown):
            tasks.get("redrive", task.id)
