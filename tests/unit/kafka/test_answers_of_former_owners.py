"""A broker that was frozen past its session answers nothing as an owner, whenever it was frozen."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest
from tests.kit.broker import ADDRESS
from tests.kit.records import batch
from tests.unit.kafka.shared_rig import SharedBrokerHarness

from headrace.records.identifiers import OFFSETS_TOPIC

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

NOT_LEADER, LEADER_NOT_AVAILABLE, OUT_OF_ORDER = 6, 5, 45
NOT_COORDINATOR, NO_COORDINATOR = 16, 15
TURNS_MAX = 200


@pytest.fixture(autouse=True)
def _no_pause_after_a_move(monkeypatch: pytest.MonkeyPatch) -> None:
    """These tests count turns of the loop, and FindCoordinator would wait for time to pass."""
    monkeypatch.setattr("headrace.kafka.handlers.metadata.MOVED_S", 0.0)


@asynccontextmanager
async def owner() -> AsyncIterator[SharedBrokerHarness]:
    """A broker that owns a topic with a record and coordinates a group with an offset."""
    rig = SharedBrokerHarness()
    await rig.start()
    try:
        await rig.node.register(ADDRESS, ("127.0.0.1", 0))
        await rig.node.topics.create("t", 1)
        await rig.node.topics.ensure_internal(OFFSETS_TOPIC)
        client = rig.client()
        first = produce(batch(b"a", producer_id=1, producer_epoch=0, base_sequence=0))
        part = {"partition_index": 0, "committed_offset": 1}
        commit = {"group_id": "g", "generation_id_or_member_epoch": -1}
        commit["topics"] = [{"name": "t", "partitions": [part]}]
        async with asyncio.timeout(60):  # until both partitions are claimed and loaded
            while (await client.ask(0, 7, first)).responses[0].partition_responses[0].error_code:
                await asyncio.sleep(0.005)
            while (await client.ask(8, 2, commit)).topics[0].partitions[0].error_code:
                await asyncio.sleep(0.005)
        yield rig
    finally:
        await rig.stop()


def produce(data: bytes) -> dict[str, Any]:
    part = {"index": 0, "records": data}
    return {"acks": -1, "timeout": 5_000, "topic_data": [{"name": "t", "partition_data": [part]}]}


def fetch(offset: int, wait_ms: int = 0) -> dict[str, Any]:
    part = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "topics": [{"topic": "t", "partitions": [part]}],
    }


class Ask(NamedTuple):
    """A request whose answer depends on owning: the code in it, and what refuses it."""

    name: str
    api_key: int
    version: int
    request: dict[str, Any]
    code: Callable[[Any], int]
    as_owner: int
    """What an owner answers."""
    refusals: tuple[int, ...]


def _fetched(answer: Any) -> int:
    return int(answer.responses[0].partitions[0].error_code)


def _listed(answer: Any) -> int:
    return int(answer.topics[0].partitions[0].error_code)


def _plain(answer: Any) -> int:
    return int(answer.error_code)


_TIMES = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": 1}]}
_LATEST = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}
_EPOCH = {"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}
_OFFSETS = {"name": "t", "partition_indexes": (0,)}
_MEMBER = {"group_id": "g", "generation_id": 1, "member_id": "nobody"}
ASKS = [
    Ask("fetch", 1, 4, fetch(0), _fetched, 0, (NOT_LEADER,)),
    Ask("empty fetch", 1, 4, fetch(1), _fetched, 0, (NOT_LEADER,)),
    Ask("fetch out of range", 1, 4, fetch(9), _fetched, 1, (NOT_LEADER,)),
    Ask("latest offset", 2, 4, {"topics": [_LATEST]}, _listed, 0, (NOT_LEADER,)),
    Ask("offset by time", 2, 4, {"topics": [_TIMES]}, _listed, 0, (NOT_LEADER,)),
    Ask(
        "leader epoch",
        *(23, 3, {"replica_id": -2, "topics": [{"topic": "t", "partitions": [_EPOCH]}]}),
        *(_listed, 0, (NOT_LEADER,)),
    ),
    Ask(
        "metadata",
        *(3, 4, {"topics": [{"name": "t"}]}, _listed, 0, (LEADER_NOT_AVAILABLE,)),
    ),
    Ask(
        "topic partitions",
        *(75, 0, {"topics": [{"name": "t"}], "response_partition_limit": 9}),
        *(_listed, 0, (LEADER_NOT_AVAILABLE,)),
    ),
    Ask("coordinator", 10, 1, {"key": "g", "key_type": 0}, _plain, 0, (NO_COORDINATOR,)),
    Ask("fetch offsets", 9, 5, {"group_id": "g", "topics": [_OFFSETS]}, _plain, 0, (16,)),
    Ask(
        "describe group",
        *(15, 3, {"groups": ("g",)}, lambda answer: int(answer.groups[0].error_code), 0, (16,)),
    ),
    Ask(
        "list groups",  # the groups of the partitions that it owns: of none
        *(16, 2, {}, lambda answer: -len(answer.groups), -1, (0,)),
    ),
    Ask("heartbeat", 12, 3, _MEMBER, _plain, 25, (NOT_COORDINATOR,)),
    Ask("sync", 14, 3, _MEMBER, _plain, 25, (NOT_COORDINATOR,)),
    Ask("leave", 13, 2, _MEMBER, _plain, 25, (NOT_COORDINATOR,)),
    Ask(
        "produce out of order",
        *(0, 7, produce(batch(b"x", producer_id=1, producer_epoch=0, base_sequence=7))),
        lambda answer: int(answer.responses[0].partition_responses[0].error_code),
        *(OUT_OF_ORDER, (NOT_LEADER,)),
    ),
]


async def turns_until_answered(rig: SharedBrokerHarness, ask: Ask) -> int:
    client = rig.client()
    client.send(ask.api_key, ask.version, ask.request)
    for turns in range(TURNS_MAX):
        if client.answers():
            assert ask.code(client.answers()[0]) == ask.as_owner
            return turns
        await asyncio.sleep(0)
    raise AssertionError("no answer")


async def answer_or_none(client: Any) -> Any:
    """What comes in the end; None: the connection was closed."""
    for _ in range(TURNS_MAX):
        if client.answers():
            return client.answers()[0]
        if client.transport.is_over:
            return None
        await asyncio.sleep(0)
    raise AssertionError("neither an answer nor an end")


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_requests_after_a_freeze_are_refused(ask: Ask) -> None:
    async with owner() as rig:
        await turns_until_answered(rig, ask)
        rig.clock.freeze()
        client = rig.client()
        client.send(ask.api_key, ask.version, ask.request)
        answer = await answer_or_none(client)
        assert answer is not None, "refused by an answer, not by the end of the connection"
        assert ask.code(answer) in ask.refusals


@pytest.mark.parametrize("has_session", [False, True], ids=["no session", "another session"])
@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_frozen_at_any_await_it_gives_no_answer_from_before(
    ask: Ask, has_session: bool
) -> None:
    async def frozen_after(turns: int) -> bool:
        """Whether it had answered before it was frozen."""
        async with owner() as rig:
            client = rig.client()
            client.send(ask.api_key, ask.version, ask.request)
            for _ in range(turns):
                await asyncio.sleep(0)
            if client.answers():
                return True
            rig.clock.freeze()
            if has_session:
                rig.session.lose(rig.clock.now_ns())
                rig.renew()
            answer = await answer_or_none(client)
            assert answer is None or ask.code(answer) in ask.refusals
            return False

    turns = 0
    while not await frozen_after(turns):
        turns += 1
        assert turns < TURNS_MAX


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: ask.name)
async def test_frozen_within_a_turn_it_gives_no_answer_from_before(ask: Ask) -> None:
    async def frozen_before(reading: int) -> bool:
        """Whether it had answered before it was frozen."""
        async with owner() as rig:
            client = rig.client()
            rig.clock.readings_left = reading
            client.send(ask.api_key, ask.version, ask.request)
            answer = await answer_or_none(client)
            if not rig.clock.ahead_ms:
                return True
            assert answer is None or ask.code(answer) in ask.refusals
            return False

    reading = 0
    while not await frozen_before(reading):
        reading += 1
        assert reading < TURNS_MAX


async def test_a_fetch_that_waits_is_refused_when_the_broker_steps_down() -> None:
    async with owner() as rig:
        client = rig.client()
        client.send(1, 4, fetch(1, wait_ms=60_000))
        await asyncio.sleep(0.01)
        rig.clock.freeze()
        rig.node.ownership.guard.check()
        answer = await answer_or_none(client)
        assert _fetched(answer) == NOT_LEADER


async def test_an_acknowledgement_leaves_although_the_broker_has_stepped_down() -> None:
    """Storage has said that the record is safe: to keep that back would make clients send twice."""

    async with owner() as rig:
        client = rig.client()
        client.send(0, 7, produce(batch(b"b", timestamp_ms=rig.clock.now_ms())))
        rig.clock.freeze()
        answer = await answer_or_none(client)
        part = answer.responses[0].partition_responses[0]
        assert (part.error_code, part.base_offset) == (0, 1)


async def test_with_a_session_again_it_serves_what_no_other_broker_has_taken() -> None:
    async with owner() as rig:
        rig.clock.freeze()
        client = rig.client()
        assert _listed(await client.ask(2, 4, {"topics": [_LATEST]})) == NOT_LEADER
        rig.renew()
        rig.node.ownership.guard.check()
        async with asyncio.timeout(5):
            while _listed(await client.ask(2, 4, {"topics": [_LATEST]})) != 0:
                await asyncio.sleep(0.005)
