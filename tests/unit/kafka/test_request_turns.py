"""Many requests of one client keep neither others waiting nor answers that it does not read."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import broker, on_a_broker

from headrace.broker.security.principal import Principal
from headrace.kafka import dispatch, request_turns
from headrace.kafka.request_turns import UNANSWERED_MIN, WAITING_BYTES_MAX
from headrace.runtime.loop_turns import BEGUN_MAX, TURN_NS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from tests.kit.broker import BrokerHarness
    from tests.kit.kafka_client import Client

METADATA, JOIN, LEAVE, SYNC, DESCRIBE, COMMIT = 3, 11, 13, 14, 15, 8
ALL = {"topics": None, "allow_auto_topic_creation": False}
LARGE = {"groups": ["large"], "include_authorized_operations": False}
LARGE_BYTES = 200_000
COUNT = 100


def join(group: str, member: str = "", size: int = 10) -> dict[str, Any]:
    return {
        "group_id": group, "session_timeout": 300_000, "rebalance_timeout": 300_000,
        "member_id": member, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": bytes(size)}],
    }  # fmt: skip


async def member(client: Client, group: str, size: int = 10) -> str:
    """The member of a group that is complete."""
    joined = await answered(client, JOIN, 3, join(group, size=size))
    given = {"group_id": group, "generation_id": joined.generation_id, "assignments": []}
    await answered(client, SYNC, 3, {**given, "member_id": joined.member_id})
    return joined.member_id


async def answered(client: Client, api: int, version: int, request: dict[str, Any]) -> Any:
    """As `Client.ask`, however long it takes: a group waits for its first members."""
    client.send(api, version, request)
    return await answers(client, len(client.asked))


async def answers(client: Client, count: int) -> Any:
    """The last of so many."""
    async with asyncio.timeout(60):
        while len(client.answers()) < count:
            await asyncio.sleep(0.01)
    return client.answers()[-1]


HANDLERS = dict(dispatch._HANDLERS)


@pytest.fixture(autouse=True)
def _handlers() -> Iterator[None]:
    yield
    dispatch._HANDLERS.update(HANDLERS)


def note_requests(note: Callable[[int, Any], Awaitable[None]]) -> None:
    """Await `note` before each request is handled: its API and it. A face may be compiled, which
    takes no other methods."""

    def noted(handler: Any) -> Any:
        async def handle(node: Any, request: Any, context: Any) -> Any:
            await note(context.api_key, request)
            return await handler(node, request, context)

        return handle

    dispatch._HANDLERS.update((key, noted(handler)) for key, handler in HANDLERS.items())


async def turns(count: int = 50) -> None:
    """So many of the loop."""
    for _ in range(count):
        await asyncio.sleep(0)


@on_a_broker(lambda rig: rig)
async def test_who_asks_once_waits_for_few_of_anothers_requests(rig: BrokerHarness) -> None:
    many, one = rig.client(), rig.client()
    for _ in range(COUNT):
        many.send(METADATA, 4, ALL)
    await one.ask(METADATA, 4, ALL)
    assert len(many.answers()) <= 4 * BEGUN_MAX
    await answers(many, COUNT)


@on_a_broker(lambda rig: rig)
async def test_who_asks_once_waits_for_few_that_take_long(rig: BrokerHarness) -> None:
    """Also if it is not known yet that they do."""
    now_ns = rig.face.now_ns
    spent: list[int] = []
    rig.face.now_ns = lambda: now_ns() + len(spent) * 2 * TURN_NS

    async def slow(api_key: int, request: Any) -> None:
        if api_key == DESCRIBE:
            await asyncio.sleep(0)  # it has waited for something
            spent.append(api_key)

    note_requests(slow)
    many, one = [rig.client() for _ in range(COUNT)], rig.client()
    for client in many:
        client.send(DESCRIBE, 4, LARGE)
    await one.ask(METADATA, 4, ALL)
    assert len(spent) <= 5
    for client in many:
        await answers(client, 1)


@on_a_broker(lambda rig: rig)
async def test_who_asks_once_waits_for_few_of_those_whose_last_request_took_long(
    rig: BrokerHarness,
) -> None:
    """Also if they wait for each answer before they ask again."""
    now_ns = rig.face.now_ns
    spent: list[int] = []
    rig.face.now_ns = lambda: now_ns() + len(spent) * 2 * TURN_NS

    async def slow(api_key: int, request: Any) -> None:
        if api_key == DESCRIBE:
            spent.append(api_key)

    note_requests(slow)
    many, one = [rig.client() for _ in range(COUNT)], rig.client()
    for count in (1, 2):
        for client in many:
            client.send(DESCRIBE, 4, LARGE)
        if count == 1:
            for client in many:
                await answers(client, count)
    spent.clear()
    await one.ask(METADATA, 4, ALL)
    assert len(spent) <= 5
    for client in many:
        await answers(client, 2)


@on_a_broker(lambda rig: rig)
async def test_few_answers_are_made_that_an_earlier_one_holds_back(rig: BrokerHarness) -> None:
    await member(rig.client(), "large", LARGE_BYTES)
    first = await member(rig.client(), "held")
    client = rig.client()
    client.send(JOIN, 3, join("held"))
    for _ in range(COUNT):
        client.send(DESCRIBE, 4, LARGE)
    await turns(20 * COUNT)
    held = rig.face.responses.held_bytes
    assert LARGE_BYTES < held < WAITING_BYTES_MAX + 3 * LARGE_BYTES
    assert client.connection.unsent_bytes() == held, "memory is short: it is known who has it"
    await rig.client().ask(LEAVE, 2, {"group_id": "held", "member_id": first})
    await answers(client, 1 + COUNT)
    assert rig.face.responses.held_bytes == 0 == client.connection.unsent_bytes()


@on_a_broker(lambda rig: rig)
async def test_no_answer_is_made_for_a_client_that_reads_none(rig: BrokerHarness) -> None:
    client = rig.client()
    for _ in range(COUNT):
        client.send(METADATA, 4, ALL)
    client.connection.pause_writing()
    await turns(20 * COUNT)
    assert len(client.answers()) <= UNANSWERED_MIN  # what had begun
    client.connection.resume_writing()
    await answers(client, COUNT)


@on_a_broker(lambda rig: rig)
async def test_a_request_with_an_effect_is_handled_although_its_client_has_left(
    rig: BrokerHarness,
) -> None:
    first = await member(rig.client(), "left")
    handled: list[int] = []

    async def noted(api_key: int, request: Any) -> None:
        handled.append(api_key)

    note_requests(noted)
    many, one = rig.client(), rig.client()
    for _ in range(COUNT):
        many.send(METADATA, 4, ALL)
    one.send(LEAVE, 2, {"group_id": "left", "member_id": first})
    one.transport.abort()
    many.transport.abort()
    async with asyncio.timeout(60):
        while True:
            asked = {"groups": ["left"], "include_authorized_operations": False}
            found = await rig.client().ask(DESCRIBE, 4, asked)
            if not found.groups[0].members:
                break
    assert handled.count(METADATA) <= UNANSWERED_MIN, "what has no effect is not handled then"


async def test_few_requests_wait_whose_clients_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each connection would leave one: they are as many as a client opens."""
    monkeypatch.setattr(request_turns, "DEPARTED_MAX", 30)
    handled: list[str] = []

    async def noted(api_key: int, request: Any) -> None:
        if api_key == COMMIT:
            handled.append(request.group_id)

    async with broker() as rig:

        def leave(group: str, user: str) -> None:
            client = rig.client()
            client.connection.session.principal = Principal(user)
            client.send(COMMIT, 2, commit(group, 1))
            client.transport.abort()

        note_requests(noted)
        for _ in range(BEGUN_MAX):
            rig.client().send(METADATA, 4, ALL)
        for number in range(COUNT):
            leave(f"noisy{number}", "noisy")
        for number in range(3):
            leave(f"quiet{number}", "quiet")
        await turns(20 * COUNT)
        quiet = [group for group in handled if group.startswith("quiet")]
        assert quiet == ["quiet0", "quiet1", "quiet2"]
        assert 20 <= len(handled) - len(quiet) <= 20 + BEGUN_MAX
        handled.clear()
        leave("later", "noisy")
        await turns(COUNT)
        assert handled == ["later"], "places are given back"


@on_a_broker(lambda rig: rig)
async def test_offsets_are_committed_in_order_although_others_took_their_turn(
    rig: BrokerHarness,
) -> None:
    """A consumer that does not wait for answers commits the last one last."""
    now_ns = rig.face.now_ns
    spent: list[int] = []
    rig.face.now_ns = lambda: now_ns() + len(spent) * 2 * TURN_NS
    committed: list[int] = []

    async def noted(api_key: int, request: Any) -> None:
        if api_key == COMMIT:
            committed.append(request.topics[0].partitions[0].committed_offset)
        elif api_key == DESCRIBE:
            spent.append(api_key)

    note_requests(noted)
    rig.client().send(DESCRIBE, 4, LARGE)
    for _ in range(BEGUN_MAX - 2):
        rig.client().send(METADATA, 4, ALL)
    one = rig.client()
    for offset in range(4):
        one.send(COMMIT, 2, commit("g", offset))
    await answers(one, 4)
    assert committed == [*range(4)]


def commit(group: str, offset: int) -> dict[str, Any]:
    part = {"partition_index": 0, "committed_offset": offset}
    topics = [{"name": "t", "partitions": [part]}]
    return {"group_id": group, "generation_id": -1, "topics": topics}


@pytest.mark.parametrize("seed", range(5))
def test_offsets_are_committed_in_order_among_requests_of_any_length(seed: int) -> None:
    draw = random.Random(seed)

    async def scenario() -> None:
        async with broker() as rig:
            now_ns = rig.face.now_ns
            spent_ns = 0
            rig.face.now_ns = lambda: now_ns() + spent_ns
            committed: dict[str, list[int]] = {}

            async def drawn(api_key: int, request: Any) -> None:
                nonlocal spent_ns
                if api_key == COMMIT:
                    found = committed.setdefault(request.group_id, [])
                    found.append(request.topics[0].partitions[0].committed_offset)
                spent_ns += draw.choice([0, 0, 0, TURN_NS // 5, TURN_NS // 2, 2 * TURN_NS])
                if draw.random() < 0.5:
                    await asyncio.sleep(0)

            note_requests(drawn)
            clients = [rig.client() for _ in range(draw.choice([3, 10, 30]))]
            sent = [0] * len(clients)
            for _ in range(200):
                number = draw.randrange(len(clients))
                for _ in range(draw.choice([1, 1, 2, 5])):
                    if draw.random() < 0.3:
                        clients[number].send(METADATA, 4, ALL)
                    else:
                        clients[number].send(COMMIT, 2, commit(str(number), sent[number]))
                        sent[number] += 1
                await turns(draw.choice([0, 0, 1, 2, 5]))
            for client in clients:
                if client.asked:
                    await answers(client, len(client.asked))
            assert committed == {str(n): [*range(count)] for n, count in enumerate(sent) if count}

    asyncio.run(scenario())
