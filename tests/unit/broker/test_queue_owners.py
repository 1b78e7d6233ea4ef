"""Calls to the owners of partitions wait out a takeover, and say so if it takes too long."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.broker.services import queue_owners
from headrace.broker.services.queue_owners import MOVING_PAUSES_S, QueueOwners
from headrace.errors import (
    BrokerUnreachable,
    CoordinatorUnavailable,
    HeadraceError,
    StorageUnavailable,
)

HERE, DEAD = 1, 2


class Ownership:
    """Of a partition whose owner has died, until this broker has taken it over."""

    def __init__(self, rounds: float) -> None:
        self.rounds = rounds
        self.asked = 0

    def is_mine(self, _topic: Any, _number: int) -> bool:
        self.asked += 1
        return self.asked > self.rounds

    def leader(self, _topic: Any, _number: int) -> Any:
        return SimpleNamespace(broker=DEAD, leader_epoch=3)


TOPIC: Any = SimpleNamespace(name="orders", id=None, partitions=[None])


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch) -> None:
    monkeypatch.setattr(queue_owners, "MOVING_PAUSES_S", (0,) * len(MOVING_PAUSES_S))


def owners(rounds: float, shares: Any = None) -> QueueOwners:
    ownership: Any = Ownership(rounds)
    others: Any = object()
    here: Any = SimpleNamespace(id=HERE)
    return QueueOwners(ownership, HERE, shares, None, lambda: [here], None, others)  # type: ignore[arg-type]


async def asked(of: QueueOwners, *answers: str | HeadraceError) -> Any:
    """What the partition's owner returns, which returns or raises these."""
    left = list(answers)

    async def here(_number: int) -> str:
        answer = left.pop(0)
        if isinstance(answer, HeadraceError):
            raise answer
        return answer

    async def there(*_: Any) -> dict[int, str]:
        raise AssertionError("no other broker is alive")

    return (await of.ask_all(TOPIC, here, there))[0]


async def test_a_partition_without_an_owner_is_asked_once_it_has_one() -> None:
    assert await asked(owners(3), "answer") == "answer"


async def test_a_partition_without_an_owner_for_long_is_said_to_have_none() -> None:
    found = await asked(owners(float("inf")))
    assert isinstance(found, BrokerUnreachable)
    assert "broker 2" in str(found)


async def test_a_journal_that_is_discarded_is_asked_again_once_it_is_read_back() -> None:
    error = CoordinatorUnavailable("try again")
    assert await asked(owners(0), error, error, "answer") == "answer"
    assert await asked(owners(0), *[error] * len(MOVING_PAUSES_S)) is error


async def test_other_errors_are_returned_at_once() -> None:
    error = StorageUnavailable("no disk")
    assert await asked(owners(0), error, "not asked for") is error


async def test_settlements_are_sent_to_the_next_owner() -> None:
    class Shares:
        async def settle(self, *_given: Any, **_named: Any) -> list[None]:
            return [None]

    delivery: Any = SimpleNamespace(partition=0, member_id="m", settlements=[object()])
    assert await owners(2, Shares()).settle(TOPIC, "group", [delivery]) == [[None]]
    (found,) = await owners(float("inf"), Shares()).settle(TOPIC, "group", [delivery])
    assert isinstance(found[0], BrokerUnreachable)
