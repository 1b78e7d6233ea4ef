"""A redrive that has other rights than its client ends when the client's are withdrawn."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from headrace.errors import TopicUnauthorized
from headrace.http import redrives


class Withdrawn:
    """A call whose client loses its rights after a few looks."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def check_again(self) -> None:
        self.looks -= 1
        if self.looks < 0:
            raise TopicUnauthorized("withdrawn")


def test_the_work_is_cancelled_when_a_right_is_withdrawn(monkeypatch):
    monkeypatch.setattr(redrives, "RIGHTS_S", 0.001)
    ended: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def scenario() -> None:
        call: Any = Withdrawn(3)
        with pytest.raises(TopicUnauthorized):
            await asyncio.wait_for(redrives._while_allowed(call, endless()), 10)

    asyncio.run(scenario())
    assert ended == ["work"]


def test_work_that_ends_before_its_rights_are_withdrawn_keeps_its_outcome(monkeypatch):
    monkeypatch.setattr(redrives, "RIGHTS_S", 0.001)
    call: Any = Withdrawn(1_000_000)

    async def short() -> None:
        await asyncio.sleep(0.01)

    async def failing() -> None:
        raise redrives.RedriveFailed("no process")

    asyncio.run(redrives._while_allowed(call, short()))
    with pytest.raises(redrives.RedriveFailed):
        asyncio.run(redrives._while_allowed(call, failing()))
