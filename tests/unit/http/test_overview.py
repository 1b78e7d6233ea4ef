"""Whether a broker is well, its figures of an hour, and the stream of events."""

from __future__ import annotations

import asyncio
import itertools
import json

from tests.clocks import HandClock
from tests.kit.records import batch
from tests.unit.http.http_rig import Web, on_the_web, scope

from headrace.http.history import INTERVAL_S, SAMPLES_MAX, History, Sample


def counted(count: int) -> History:
    """A history of `count` samples, in which ten records a second come."""
    clock = HandClock(1_000_000, step_ms=INTERVAL_S * 1_000)
    history = History(clock, lambda: Sample(records_in=history.taken * 50))
    for _ in range(count):
        history.take()
    return history


def test_memory_is_bounded_by_an_hour():
    history = counted(3 * SAMPLES_MAX)
    assert SAMPLES_MAX * INTERVAL_S == 3_600
    assert history.first == 2 * SAMPLES_MAX
    points = history.points(SAMPLES_MAX)
    assert len(points) == SAMPLES_MAX - 1
    assert {one["records_in_per_s"] for one in points} == {10.0}
    spans = {b["at_ms"] - a["at_ms"] for a, b in itertools.pairwise(points)}
    assert spans == {INTERVAL_S * 1_000}


def test_fewer_points_are_means_of_more_samples():
    history = counted(700)
    points = history.points(10)
    assert len(points) == 10
    assert {one["records_in_per_s"] for one in points} == {10.0}
    assert points[-1] == history.point(699, 629)


def test_a_history_without_two_samples_has_no_points():
    assert counted(0).points(10) == counted(1).points(10) == []


class Stream:
    """One client of `/v1/events`."""

    def __init__(self, web: Web, target: str, **headers: str) -> None:
        self._got: asyncio.Queue[str] = asyncio.Queue()
        self._ended = asyncio.Event()
        self.begun = asyncio.Event()
        self.status = 0
        asked = scope("GET", target)
        asked["headers"] += [
            (name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()
        ]
        self.task = asyncio.create_task(web.app(asked, self._receive, self._send))

    async def _receive(self):
        await self._ended.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.begun.set()
        if message.get("body"):
            self._got.put_nowait(message["body"].decode())

    async def next(self) -> tuple[str, str, dict]:
        """(id, event, data)."""
        text = await asyncio.wait_for(self._got.get(), 10)
        found = dict(line.split(": ", 1) for line in text.strip().split("\n"))
        return found.get("id", ""), found["event"], json.loads(found["data"])

    async def end(self) -> None:
        self._ended.set()
        await asyncio.wait_for(self.task, 10)


@on_the_web
async def test_a_stream_continues_after_the_last_event_that_came(web):
    for _ in range(3):
        web.history.take()
    stream = Stream(web, "/v1/events")
    assert (await stream.next())[1:] == ("health", {"is_well": True, "problems": []})
    last, kind, _ = await stream.next()
    assert (kind, last.endswith("-2")) == ("rates", True)
    web.history.take()
    assert (await stream.next())[0].endswith("-3")
    await stream.end()
    web.history.take()
    web.history.take()
    for again in (
        Stream(web, "/v1/events", last_event_id=last),
        Stream(web, f"/v1/events?after={last}"),
    ):
        assert (await again.next())[1] == "health"
        assert [(await again.next())[0][-2:] for _ in range(3)] == ["-3", "-4", "-5"]
        await again.end()
    other = Stream(web, "/v1/events?after=abc-1")  # another run of the broker
    assert (await other.next())[1] == "health"
    assert (await other.next())[0].endswith("-5")
    await other.end()


@on_the_web
async def test_a_stream_shows_the_offsets_of_the_topic_that_is_named(web):
    await web.ask("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    web.history.take()
    stream = Stream(web, "/v1/events?topic=orders")
    await stream.next()
    assert (await stream.next())[1] == "topic"
    await web.ask(
        "POST", "/v1/topics/orders/records", {"records": [{"value": "x", "partition": 1}]}
    )
    web.history.take()
    seen = [await stream.next() for _ in range(2)]
    (shown,) = [data for _, kind, data in seen if kind == "topic"]
    assert [1, 0, 1] in shown["offsets"]
    await web.ask("DELETE", "/v1/topics/orders")
    web.history.take()
    while (ended := await stream.next())[1] != "problem":
        pass
    assert ended[2]["status"] == 404
    await stream.end()


@on_the_web
async def test_streams_are_bounded(web):
    web.history.take()
    streams = [Stream(web, "/v1/events") for _ in range(64)]
    for one in streams:
        await one.next()
    status, answer = await web.ask("GET", "/v1/events")
    assert (status, answer["retriable"]) == (503, True)
    for one in streams:
        await one.end()
    again = Stream(web, "/v1/events")
    assert (await again.next())[1] == "health"
    await again.end()


@on_the_web
async def test_the_overview_counts_and_names_lags(web):
    await web.ask("POST", "/v1/topics", {"name": "orders", "partitions": 2})
    records = [{"value": "x", "partition": 0}] * 5
    await web.ask("POST", "/v1/topics/orders/records", {"records": records})
    moved = {"offsets": [{"topic": "orders", "partition": 0, "offset": 2}]}
    assert (await web.ask("PUT", "/v1/groups/billing/offsets", moved))[0] == 404
    status, answer = await web.ask("GET", "/v1/overview")
    assert (status, answer["is_well"], answer["problems"]) == (200, True, [])
    assert (answer["topics"], answer["partitions"], answer["brokers"]) == (1, 2, 1)
    status, listed = await web.ask("GET", "/v1/topics?details=true")
    (one,) = listed["topics"]
    assert (one["records"], one["size_bytes"] > 0) == (5, True)
    assert (one["records_in_per_s"] > 0, one["bytes_out_per_s"]) == (True, 0)
    assert (one["lag_records"], one["lags"]) == (0, [])
    status, brokers = await web.ask("GET", "/v1/brokers")
    assert [one["partitions"] for one in brokers["brokers"]] == [4]  # with the internal topic's


@on_the_web
async def test_a_problem_says_what_to_do(web):
    web.node.topics.damaged_facts["/topics/x"] = "cannot be decoded: restore it from a backup"
    web.history.take()
    _, answer = await web.ask("GET", "/v1/overview")
    assert not answer["is_well"]
    (problem,) = answer["problems"]
    assert problem["cause"] == "cannot be decoded"
    assert problem["next_step"] == "restore it from a backup"


@on_the_web
async def test_connections_show_the_software_that_clients_name(web):
    client = web.rig.client()
    software = {"client_software_name": "apache-kafka-java", "client_software_version": "4.3.0"}
    await client.ask(18, 3, software)  # ApiVersions (KIP-511)
    status, answer = await web.ask("GET", "/v1/connections")
    (shown,) = answer["connections"]
    assert (status, shown["software"], shown["software_version"]) == (
        200, "apache-kafka-java", "4.3.0",
    )  # fmt: skip
    assert shown["client_id"] == "t"
    client.connection.connection_lost(None)
    assert (await web.ask("GET", "/v1/connections"))[1]["connections"] == []


@on_the_web
async def test_the_quotas_of_connections_are_looked_up_for_the_page_alone(web):
    """With tens of thousands of connections they would block the event loop for a second."""
    quota = {"client_id": "t", "set": {"producer_byte_rate": 10}}
    assert (await web.ask("PATCH", "/v1/quotas", quota))[0] == 200
    for _ in range(5):
        await web.rig.client().ask(18, 3, {})  # ApiVersions
    quotas, looked_up = web.node.services.quotas, []
    rates = quotas.rates

    def counted(session):
        looked_up.append(session)
        return rates(session)

    quotas.rates = counted
    for limit in (1, 5):
        looked_up.clear()
        _, answer = await web.ask("GET", f"/v1/connections?limit={limit}")
        assert [one["quotas"] for one in answer["connections"]] == [
            {"producer_byte_rate": 10}
        ] * len(answer["connections"])
        assert len(looked_up) == len(answer["connections"])


@on_the_web
async def test_connections_tell_quotas_and_throttling_and_are_counted_by_software(web):
    await web.ask("POST", "/v1/topics", {"name": "t"})
    quota = {"client_id": "t", "set": {"producer_byte_rate": 10}}
    assert (await web.ask("PATCH", "/v1/quotas", quota))[0] == 200
    clients = [web.rig.client() for _ in range(3)]
    for client, name in zip(clients, ("java", "java", "librdkafka"), strict=True):
        software = {"client_software_name": name, "client_software_version": "1"}
        await client.ask(18, 3, software)  # ApiVersions (KIP-511)
    data = {"name": "t", "partition_data": [{"index": 0, "records": batch(b"v" * 500)}]}
    sent = {"acks": 1, "timeout": 1000, "transactional_id": None, "topic_data": [data]}
    await clients[2].ask(0, 7, sent)
    _, answer = await web.ask("GET", "/v1/connections?software=librdkafka")
    (slow,) = answer["connections"]
    assert slow["quotas"] == {"producer_byte_rate": 10}
    assert slow["throttled_ms"] > 1_000
    _, answer = await web.ask("GET", "/v1/connections?limit=1")
    assert [(one["software"], one["connections"]) for one in answer["counts"]] == [
        ("java", 2), ("librdkafka", 1),
    ]  # fmt: skip
    assert answer["counts"][1]["throttled_ms"] == slow["throttled_ms"]
    assert "next_page_token" in answer
    _, answer = await web.ask("GET", "/v1/connections?principal=User:nobody")
    assert (answer["connections"], answer["counts"]) == ([], [])
