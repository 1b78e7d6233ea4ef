"""Fetch over the wire: long polls, sessions (KIP-227), and what becomes of clients that go away."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest
from tests.kit.broker import BrokerHarness, broker
from tests.kit.records import batch
from tests.waiting import until

from headrace.broker.security.principal import ANONYMOUS
from headrace.errors import FetchSessionUnknown, NotOwner
from headrace.kafka import apis
from headrace.kafka.error_codes import (
    FETCH_SESSION_ID_NOT_FOUND,
    INVALID_FETCH_SESSION_EPOCH,
    NONE,
    NOT_LEADER_OR_FOLLOWER,
    OFFSET_OUT_OF_RANGE,
    UNKNOWN_LEADER_EPOCH,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
)
from headrace.kafka.handlers import fetch, fetch_sessions
from headrace.kafka.handlers.fetch_sessions import FetchSessions
from headrace.kafka.wire.fetch import FetchPartition, FetchRequest
from headrace.records.identifiers import TOPIC_NAME_SIZE_MAX
from headrace.records.tenant_names import prefix_of
from headrace.runtime import compiled
from headrace.runtime.randomness import SystemRandomness

if TYPE_CHECKING:
    from uuid import UUID

    from tests.kit.kafka_client import Client

VERSION = 12
WITH_IDS = 13


def _fetch(
    partitions: dict[tuple[str | UUID, int], int],
    *,
    session: tuple[int, int] = (0, -1),
    wait_ms: int = 0,
    forgotten: list[tuple[str, int]] | None = None,
    leader_epoch: int = -1,
) -> dict[str, Any]:
    topics = []
    for (topic, number), offset in partitions.items():
        key = "topic" if isinstance(topic, str) else "topic_id"
        part = {"partition": number, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
        part |= {"current_leader_epoch": leader_epoch}
        topics.append({key: topic, "partitions": [part]})
    return {
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "session_id": session[0],
        "session_epoch": session[1],
        "topics": topics,
        "forgotten_topics_data": [
            {"topic": topic, "partitions": [number]} for topic, number in forgotten or ()
        ],
    }


def _told(answer: Any) -> dict[tuple[Any, int], tuple[int, int, int]]:
    """(topic, partition) -> (error, high watermark, bytes)."""
    return {
        (getattr(topic, "topic", None) or topic.topic_id, part.partition_index): (
            int(part.error_code),
            part.high_watermark,
            len(part.records or b""),
        )
        for topic in answer.responses
        for part in topic.partitions
    }


async def _produce(client: Client, topic: str, *values: bytes) -> None:
    partition = {"index": 0, "records": batch(*values)}
    request = {
        "acks": -1,
        "timeout": 1_000,
        "transactional_id": None,
        "topic_data": [{"name": topic, "partition_data": [partition]}],
    }
    answer = await client.ask(apis.PRODUCE, 9, request)
    assert int(answer.responses[0].partition_responses[0].error_code) == NONE


async def _topics(rig: BrokerHarness, *names: str) -> None:
    for name in names:
        await rig.node.topics.create(name)
        await rig.node.topics.get(name).partitions[0].wait_loaded()


async def _settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_client_that_disconnects_ends_its_fetch() -> None:
    async with broker() as rig:
        await _topics(rig, "t", "u")
        gone, other = rig.client(), rig.client()
        for client in (gone, other):
            client.send(apis.FETCH, VERSION, _fetch({("t", 0): 0}, wait_ms=60_000))
        gone.send(apis.FETCH, VERSION, _fetch({("t", 0): 0, ("u", 0): 0}, wait_ms=60_000))
        assert rig.face.fetch.waiting == 3
        gone.transport.abort()
        await _settle()
        assert rig.face.fetch.waiting == 1
        await _produce(rig.client(), "t", b"v")
        await _settle()
        assert [_told(answer)["t", 0][1] for answer in other.answers()] == [1]
        assert rig.face.fetch.waiting == 0
        assert not rig.node.topics.get("t").partitions[0].waiters
        assert not rig.node.topics.get("u").partitions[0].waiters


async def test_a_waiting_fetch_does_not_hold_up_the_request_after_it() -> None:
    """Responses leave in order: it is answered with what there is."""

    async with broker() as rig:
        await _topics(rig, "t")
        client = rig.client()
        client.send(apis.FETCH, VERSION, _fetch({("t", 0): 0}, wait_ms=60_000))
        await _settle()
        assert rig.face.fetch.waiting == 1
        topic = {"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}
        request = {"replica_id": -1, "isolation_level": 0, "topics": [topic]}
        client.send(apis.LIST_OFFSETS, 3, request)
        await _settle()
        fetched, listed = client.answers()
        assert _told(fetched) == {("t", 0): (NONE, 0, 0)}
        assert listed.topics[0].partitions[0].offset == 0
        assert rig.face.fetch.waiting == 0


@pytest.mark.skipif(compiled.is_used(), reason="compiled code has its own copy of a constant")
async def test_a_fetch_waits_only_briefly_after_positions_were_looked_up(monkeypatch) -> None:
    """The client is about to fetch from those partitions too, which needs another request. Later
    fetches wait as long as the client asked for."""

    monkeypatch.setattr(fetch, "SETTLING_NS", 60_000_000_000)
    async with broker() as rig:
        await _topics(rig, "t")
        client = rig.client()
        topic = {"topic": "t", "partitions": [{"partition": 0, "leader_epoch": 0}]}
        topic["partitions"][0]["current_leader_epoch"] = -1  # type: ignore[index]
        request = {"replica_id": -1, "topics": [topic]}
        await client.ask(apis.OFFSET_FOR_LEADER_EPOCH, 3, request)
        await client.ask(apis.FETCH, VERSION, _fetch({("t", 0): 0}, wait_ms=60_000))
        monkeypatch.setattr(fetch, "SETTLING_NS", 0)
        await client.ask(apis.OFFSET_FOR_LEADER_EPOCH, 3, request)
        client.send(apis.FETCH, VERSION, _fetch({("t", 0): 0}, wait_ms=60_000))
        await until(lambda: rig.face.fetch.waiting == 1)
        await asyncio.sleep(2 * fetch.SETTLING_WAIT_MS / 1000)
        assert rig.face.fetch.waiting == 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
async def test_a_fetch_that_meets_a_fault_ends_its_connection() -> None:
    async with broker() as rig:
        await _topics(rig, "t")
        await _produce(rig.client(), "t", b"v")
        store = rig.store

        async def vanished(*_arguments: int) -> bytes:
            raise FileNotFoundError("gone")

        store.read_cached = lambda *_arguments: None  # type: ignore[method-assign]
        store.read = vanished  # type: ignore[method-assign,assignment]
        client = rig.client()
        client.send(apis.FETCH, VERSION, _fetch({("t", 0): 0}))
        await _settle()
        assert client.transport.is_over


# --- sessions --------------------------------------------------------------------------------


async def test_a_session_returns_only_what_is_new() -> None:
    async with broker() as rig:
        await _topics(rig, "a", "b")
        client = rig.client()
        both = {("a", 0): 0, ("b", 0): 0}
        first = await client.ask(apis.FETCH, VERSION, _fetch(both, session=(0, 0)))
        assert set(_told(first)) == set(both)
        number = first.session_id
        assert number > 0
        idle = await client.ask(apis.FETCH, VERSION, _fetch({}, session=(number, 1)))
        assert (idle.session_id, _told(idle)) == (number, {})
        await _produce(rig.client(), "b", b"v")
        news = await client.ask(apis.FETCH, VERSION, _fetch({}, session=(number, 2)))
        assert list(_told(news)) == [("b", 0)]
        # It has the record, and says so; the mark it was told already.
        seen = await client.ask(apis.FETCH, VERSION, _fetch({("b", 0): 1}, session=(number, 3)))
        assert _told(seen) == {}
        forgotten = _fetch({}, session=(number, 4), forgotten=[("a", 0)])
        assert _told(await client.ask(apis.FETCH, VERSION, forgotten)) == {}
        await _produce(rig.client(), "a", b"v")
        assert _told(await client.ask(apis.FETCH, VERSION, _fetch({}, session=(number, 5)))) == {}
        again = await client.ask(apis.FETCH, VERSION, _fetch({}, session=(number, 5)))
        assert int(again.error_code) == INVALID_FETCH_SESSION_EPOCH
        closed = await client.ask(apis.FETCH, VERSION, _fetch({}, session=(number, -1)))
        assert (int(closed.error_code), closed.session_id) == (NONE, 0)
        late = await client.ask(apis.FETCH, VERSION, _fetch({}, session=(number, 6)))
        assert int(late.error_code) == FETCH_SESSION_ID_NOT_FOUND


async def test_a_session_repeats_an_error_until_it_has_passed() -> None:
    async with broker() as rig:
        await _topics(rig, "a")
        client = rig.client()
        ask = {("a", 0): 7, ("late", 0): 0}
        first = await client.ask(apis.FETCH, VERSION, _fetch(ask, session=(0, 0)))
        errors = {("a", 0): OFFSET_OUT_OF_RANGE, ("late", 0): UNKNOWN_TOPIC_OR_PARTITION}
        assert {key: told[0] for key, told in _told(first).items()} == errors
        number = first.session_id
        second = await client.ask(apis.FETCH, VERSION, _fetch({}, session=(number, 1)))
        assert {key: told[0] for key, told in _told(second).items()} == errors
        await _topics(rig, "late")
        third = await client.ask(apis.FETCH, VERSION, _fetch({("a", 0): 0}, session=(number, 2)))
        assert {key: told[0] for key, told in _told(third).items()} == {
            ("a", 0): NONE,
            ("late", 0): NONE,
        }


@pytest.mark.parametrize("with_ids", [False, True])
async def test_a_topic_made_again_is_the_new_one_by_name_and_unknown_by_its_old_id(
    *, with_ids: bool
) -> None:
    async with broker() as rig:
        await _topics(rig, "t")
        await _produce(rig.client(), "t", b"old")
        client = rig.client()
        version = WITH_IDS if with_ids else VERSION
        key = rig.node.topics.get("t").id if with_ids else "t"
        first = await client.ask(apis.FETCH, version, _fetch({(key, 0): 1}, session=(0, 0)))
        assert _told(first)[key, 0][0] == NONE
        client.send(apis.FETCH, version, _fetch({}, session=(first.session_id, 1), wait_ms=60_000))
        await rig.node.services.topics.delete("t")
        await _topics(rig, "t")
        for _ in range(50):
            await _settle()
        # The long poll was woken: the partition that it waited for is gone.
        woken = client.answers()[-1]
        assert _told(woken)[key, 0][0] in {UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID}
        third = await client.ask(apis.FETCH, version, _fetch({}, session=(first.session_id, 2)))
        expected = UNKNOWN_TOPIC_ID if with_ids else OFFSET_OUT_OF_RANGE
        assert _told(third)[key, 0][0] == expected


def test_epochs_begin_again_at_one_after_the_last() -> None:
    sessions = FetchSessions(SystemRandomness(), 10)
    session, _ = sessions.resolve(_plain(0, 0, [FetchPartition(b"t", 0, -1, 0, 1)]), ANONYMOUS, 0)
    assert session is not None
    session.epoch = 2**31 - 1
    sessions.resolve(_plain(session.id, 2**31 - 1, []), ANONYMOUS, 0)
    assert session.epoch == 1


def test_a_session_does_not_grow_without_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_MAX", 10)
    sessions = FetchSessions(SystemRandomness(), 10)
    session, _ = sessions.resolve(_plain(0, 0, [FetchPartition(b"t", 0, -1, 0, 1)]), ANONYMOUS, 0)
    assert session is not None
    many = [FetchPartition(b"t", number, -1, 0, 1) for number in range(11)]
    with pytest.raises(FetchSessionUnknown):
        sessions.resolve(_plain(session.id, 1, many), ANONYMOUS, 0)
    assert len(sessions) == 0
    assert sessions.resolve(_plain(0, 0, many), ANONYMOUS, 0) == (None, False)


def test_no_session_keeps_names_that_are_longer_than_any_topics() -> None:
    """A request may have 8 MiB of them, and a broker a thousand sessions."""
    sessions = FetchSessions(SystemRandomness(), 10)
    key = f"{prefix_of('t' * 32)}{'n' * TOPIC_NAME_SIZE_MAX}".encode()
    longest, longer = ([FetchPartition(name, 0, -1, 0, 1)] for name in (key, key + b"n"))
    assert sessions.resolve(_plain(0, 0, longer), ANONYMOUS, 0) == (None, False)
    session, _ = sessions.resolve(_plain(0, 0, longest), ANONYMOUS, 0)
    assert session is not None
    with pytest.raises(FetchSessionUnknown):
        sessions.resolve(_plain(session.id, 1, longer), ANONYMOUS, 0)
    assert len(sessions) == 0


def test_all_sessions_together_have_a_bounded_number_of_partitions(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One beyond them is fetched without, until another one was idle for long."""
    monkeypatch.setattr(fetch_sessions, "PARTITIONS_TOTAL_MAX", 10)
    sessions = FetchSessions(SystemRandomness(), 10)
    six = [FetchPartition(b"t", number, -1, 0, 1) for number in range(6)]
    first, _ = sessions.resolve(_plain(0, 0, six), ANONYMOUS, 0)
    assert first is not None
    late_ns = fetch_sessions.EVICTABLE_NS
    assert sessions.resolve(_plain(0, 0, six), ANONYMOUS, late_ns - 1) == (None, False)
    small, _ = sessions.resolve(_plain(0, 0, six[:4]), ANONYMOUS, late_ns - 1)
    assert small is not None
    with pytest.raises(FetchSessionUnknown):
        sessions.resolve(_plain(small.id, 1, six[4:]), ANONYMOUS, late_ns - 1)
    second, _ = sessions.resolve(_plain(0, 0, six), ANONYMOUS, late_ns)
    assert second is not None
    assert len(sessions) == 1


@pytest.mark.parametrize("sessions_max", [0, 2])
def test_clients_do_not_evict_sessions_that_are_in_use(sessions_max: int) -> None:
    """One more than there may be fetches without, until another one was idle for long."""
    sessions = FetchSessions(SystemRandomness(), sessions_max)
    wanted = [FetchPartition(b"t", 0, -1, 0, 1)]
    kept = [sessions.resolve(_plain(0, 0, wanted), ANONYMOUS, 0)[0] for _ in range(sessions_max)]
    late_ns = fetch_sessions.EVICTABLE_NS
    assert sessions.resolve(_plain(0, 0, wanted), ANONYMOUS, late_ns - 1) == (None, False)
    for one in kept[:1]:
        assert one is not None
        sessions.resolve(_plain(one.id, 1, []), ANONYMOUS, late_ns)
        other, _ = sessions.resolve(_plain(0, 0, wanted), ANONYMOUS, late_ns)
        assert other is not None
        assert sessions.resolve(_plain(one.id, 2, []), ANONYMOUS, late_ns) == (one, True)
    assert len(sessions) == sessions_max


def _plain(session_id: int, epoch: int, partitions: list[FetchPartition]) -> FetchRequest:
    return FetchRequest(0, 1, 1, 0, session_id, epoch, partitions, [])


async def test_a_log_that_was_not_read_yet_is_asked_for_its_epoch_too() -> None:
    async with broker() as rig:
        await rig.node.topics.create("t")
        assert not rig.node.topics.get("t").partitions[0].is_loaded
        answer = await rig.client().ask(apis.FETCH, VERSION, _fetch({("t", 0): 0}, leader_epoch=1))
        assert _told(answer)["t", 0][0] == UNKNOWN_LEADER_EPOCH


async def test_a_fetch_from_a_broker_that_is_not_the_owner_returns_no_offsets() -> None:
    """librdkafka would take the refusal for the partition's end where it stands at that offset."""

    async with broker() as rig:
        await _topics(rig, "t")
        client = rig.client()
        await _produce(client, "t", b"v")
        rig.node.topics.get("t").partitions[0].tenure.abandon(NotOwner("gone"))
        answer = await client.ask(apis.FETCH, VERSION, _fetch({("t", 0): 1}))
        (part,) = answer.responses[0].partitions
        assert int(part.error_code) == NOT_LEADER_OR_FOLLOWER
        assert (part.high_watermark, part.last_stable_offset, part.log_start_offset) == (-1,) * 3


def test_a_topic_that_is_deleted_while_it_is_fetched_is_no_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It was one for each partition at each fetch."""

    async def scenario() -> None:
        async with broker() as rig:
            await _topics(rig, "t", "u")
            client = rig.client()
            client.send(apis.FETCH, VERSION, _fetch({("t", 0): 0, ("u", 0): 0}, wait_ms=60_000))
            await rig.node.services.topics.delete("t")
            await _settle()
            (answer,) = client.answers()
            assert _told(answer)["t", 0][0] == UNKNOWN_TOPIC_OR_PARTITION

    asyncio.run(scenario())
    assert "cannot be read" not in caplog.text
