"""Finding messages: every kind of condition, every state, pages, limits, tasks."""

from __future__ import annotations

import asyncio
import csv
import io
import json
from typing import Any
from urllib.parse import urlencode

import pytest
from crc32c import crc32c
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.broker import broker
from tests.kit.records import append
from tests.unit.http.http_rig import Web, on_the_web, scope

from headrace.cli.records_in import Reading, record_from_json
from headrace.coordination.quotas import token_bucket
from headrace.http.exports import PIECE_BYTES
from headrace.records.codec import Record, encode_batch
from headrace.records.letters import SHARE_FORMAT

ATTRIBUTES = {"headrace.message.attributes": "true"}
HOUR_MS = 3_600_000


async def create(web: Web, name: str = "orders", partitions: int = 1) -> None:
    body = {"name": name, "partitions": partitions, "config": ATTRIBUTES}
    assert (await web.ask("POST", "/v1/topics", body))[0] == 201


async def send(web: Web, *records: dict[str, Any], topic: str = "orders") -> list[dict[str, Any]]:
    status, answer = await web.ask("POST", f"/v1/topics/{topic}/records", {"records": [*records]})
    assert status == 200
    assert all(result["ok"] for result in answer["results"]), answer
    return answer["results"]


def message(number: int, **more: str) -> dict[str, Any]:
    headers = [["headrace-message-id", f"id-{number}"]]
    headers += [[f"headrace-{name.replace('_', '-')}", value] for name, value in more.items()]
    return {"key": f"key-{number}", "value": f"value {number}", "headers": headers}


async def find(web: Web, topic: str = "orders", **query: Any) -> dict[str, Any]:
    status, answer = await web.ask("GET", f"/v1/topics/{topic}/messages?{urlencode(query)}")
    assert status == 200, answer
    return answer


def values(answer: dict[str, Any]) -> list[str]:
    return [one["value"] for one in answer["messages"]]


@on_the_web
async def test_a_message_is_found_by_each_of_its_attributes(web: Web) -> None:
    await create(web, partitions=3)
    custom = {"key": "k", "value": "custom", "headers": [["region", "eu"]], "timestamp_ms": 5_000}
    await send(web, custom)
    await send(web, *(message(n, tag=f"t{n % 2}", keys=f"a{n} shared") for n in range(10)))
    assert values(await find(web, message_id="id-7")) == ["value 7"]
    assert values(await find(web, key="key-3")) == ["value 3"]
    assert values(await find(web, key="a4")) == ["value 4"]
    assert sorted(values(await find(web, key="shared", tag="t1"))) == [
        f"value {n}" for n in (1, 3, 5, 7, 9)
    ]
    assert values(await find(web, header="region=eu")) == ["custom"]
    assert values(await find(web, until_ms=6_000)) == ["custom"]
    assert values(await find(web, key="k", since_ms=6_000)) == []
    assert values(await find(web, message_id="id")) == [], "part of an id is no id"
    whole = await find(web)
    assert (len(whole["messages"]), whole["is_complete"]) == (11, True)
    assert "failed" not in whole


@on_the_web
async def test_a_message_is_found_in_whatever_state_it_is(web: Web) -> None:
    await create(web)
    reset = {"set": {"share.auto.offset.reset": "earliest", "share.delivery.count.limit": "2",
                     "errors.deadletterqueue.topic.name": "orders.dead"}}  # fmt: skip
    await web.ask("PATCH", "/v1/groups/workers/config", reset)
    queue = "/v1/queues/orders/workers"
    trace = ["traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"]
    first = message(0)
    first["headers"].append(trace)
    await send(web, first, *(message(n) for n in range(1, 4)))
    await send(web, message(4, delay=str(HOUR_MS)), message(5, half="shop"))
    _, got = await web.ask("POST", f"{queue}/receive", {"max": 3})
    dead, done, held = (one["receipt"] for one in got["messages"])
    settled = {"dead_letter": [{"receipt": dead, "reason": "broken"}], "ack": [done]}
    await web.ask("POST", f"{queue}/settle", settled)
    assert held

    async def state(number: int) -> tuple[str, Any]:
        found = (await find(web, message_id=f"id-{number}"))["messages"]
        one = found[-1]
        return one["state"], [group["state"] for group in one.get("groups", ())]

    while (await state(0))[0] != "dead":
        await asyncio.sleep(0.01)
    (log, copy) = (await find(web, message_id="id-0"))["messages"]
    assert log["groups"][0]["state"] in {"archiving", "archived", "finished"}
    assert copy["origin"]["errors.topic" if "errors.topic" in copy["origin"] else "topic"]
    assert copy["origin"]["message"] == "broken"
    assert trace in copy["headers"], "a dead letter belongs to the trace of its message"
    assert (await state(1))[1] in (["acknowledged"], ["archived"], ["finished"])
    assert await state(2) == ("log", ["acquired"])
    assert (await state(3))[1] in (["waiting"], ["available"])
    assert (await state(4))[0] == "delayed"
    assert (await state(5))[0] == "half"
    group = (await find(web, message_id="id-2"))["messages"][0]["groups"][0]
    assert (group["deliveries"], group["member"][:5]) == (1, "http-")
    by_key = await find(web, key="key-4")
    assert by_key["messages"][0]["due_ms"] > by_key["messages"][0]["timestamp_ms"]
    assert "offset" not in by_key["messages"][0]


@on_the_web
async def test_pages_show_every_message_once_and_end(web: Web) -> None:
    await create(web, partitions=2)
    for at in range(10):
        await send(web, *(message(at * 7 + n) for n in range(7)))
    await send(web, *(message(100 + n, delay=str(HOUR_MS)) for n in range(5)))
    await send(web, *(message(200 + n, half="shop") for n in range(5)))
    seen: list[str] = []
    answer = await find(web, limit=3)
    while True:
        seen += values(answer)
        assert len(answer["messages"]) <= 3
        if answer["is_complete"]:
            break
        answer = await find(web, limit=3, page_token=answer["next_page_token"])
    numbers = [*range(70), *range(100, 105), *range(200, 205)]
    assert sorted(seen) == sorted(f"value {n}" for n in numbers)
    status, _ = await web.ask("GET", "/v1/topics/orders/messages?page_token=nonsense")
    assert status == 409


@on_the_web
async def test_a_search_that_runs_out_of_time_says_how_far_it_came(web: Web) -> None:
    await create(web)
    large = "x" * 300_000
    for number in range(8):
        record = {"key": "k", "value": f"{number}{large}", "timestamp_ms": 1_000 + number}
        await send(web, record)
    answer = await find(web, message_id="none", time_ms=1)
    rounds = 1
    while not answer["is_complete"]:
        assert answer["searched"]["up_to"]["topic"] == "orders"
        answer = await find(web, message_id="none", time_ms=1, page_token=answer["next_page_token"])
        rounds += 1
        assert rounds < 100


@on_the_web
async def test_a_search_task_has_progress_results_and_an_end(web: Web) -> None:
    await create(web)
    await send(web, *(message(n, tag="t") for n in range(30)))
    status, task = await web.ask("POST", "/v1/searches", {"topic": "orders", "tag": "t"})
    assert (status, task["state"]) == (202, "running")
    path = f"/v1/searches/{task['id']}"
    while task["state"] == "running":
        await asyncio.sleep(0)
        task = (await web.ask("GET", f"{path}?limit=20"))[1]
    assert (task["state"], task["result_count"], len(task["results"])) == ("done", 30, 20)
    assert task["progress"]["records"] == 30
    rest = (await web.ask("GET", f"{path}?page_token={task['next_page_token']}"))[1]
    assert len(rest["results"]) == 10
    assert (await web.ask("GET", "/v1/searches"))[1]["searches"][0]["id"] == task["id"]
    assert (await web.ask("DELETE", path))[0] == 200
    assert (await web.ask("GET", path))[0] == 404


@on_the_web
async def test_dead_letters_of_groups_that_this_broker_does_not_serve_are_found(web: Web) -> None:
    await create(web)
    await create(web, "orders.dead", 2)
    dead_letters = {"set": {"errors.deadletterqueue.topic.name": "orders.dead"}}
    assert (await web.ask("PATCH", "/v1/groups/workers/config", dead_letters))[0] == 200
    for number, origin in enumerate(["orders", "others"]):
        copy = message(number)
        copy["headers"].append([SHARE_FORMAT.topic, origin])
        await send(web, copy, topic="orders.dead")
    found = await find(web)
    assert [(one["state"], one["value"]) for one in found["messages"]] == [("dead", "value 0")]


async def ended(web: Web, task: dict[str, Any]) -> dict[str, Any]:
    while task["state"] == "running":
        await asyncio.sleep(0)
        task = (await web.ask("GET", f"/v1/searches/{task['id']}"))[1]
    return task


async def trace(web: Web, **query: Any) -> dict[str, Any]:
    status, answer = await web.ask("GET", f"/v1/topics/orders/trace?{urlencode(query)}")
    assert status == 200, answer
    return answer


@on_the_web
async def test_a_rate_without_effect_is_refused(web: Web) -> None:
    await create(web)
    asked = {"topic": "orders", "dry_run": True, "rate": 10}
    status, problem = await web.ask("POST", "/v1/redrives", asked)
    assert (status, "no effect" in problem["detail"]) == (400, True)


@on_the_web
async def test_tasks_that_cannot_be_are_refused(web: Web) -> None:
    assert (await web.ask("POST", "/v1/searches", {"topic": "nowhere"}))[0] == 404
    assert (await web.ask("GET", "/v1/searches/unknown"))[0] == 404
    assert (await web.ask("DELETE", "/v1/searches/unknown"))[0] == 404
    assert (await web.ask("POST", "/v1/searches", {}))[0] == 400


@on_the_web
async def test_a_batch_that_misstates_its_times_is_searched_all_the_same(web: Web) -> None:
    """As such batches may have been stored before batches were validated."""
    await create(web)
    await send(web, {**message(1), "timestamp_ms": 60})
    log = web.node.topics.get("orders").require_log(0)
    records = [Record(0, at, b"key-1", value, []) for at, value in ((5, b"early"), (100, b"late"))]
    for claimed_ms in (-1, 5):
        batch = bytearray(encode_batch(records))
        batch[35:43] = claimed_ms.to_bytes(8, "big", signed=True)
        batch[17:21] = crc32c(bytes(batch[21:])).to_bytes(4, "big")
        await append(log, bytes(batch))
    assert values(await find(web, key="key-1", since_ms=50)) == ["value 1", "late", "late"]


WORDS = st.sampled_from(["a", "b", "ab", "abc", "id-1"])
SENT = st.tuples(WORDS, WORDS, st.lists(WORDS, max_size=3), st.integers(0, 50))


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    sent=st.lists(SENT, min_size=1, max_size=20),
    wanted=st.fixed_dictionaries({}, optional={"key": WORDS, "tag": WORDS}),
    since=st.integers(0, 50),
    size=st.integers(0, 50),
    limit=st.integers(1, 5),
)
def test_a_search_finds_what_a_look_at_every_record_finds(
    sent: list[Any], wanted: dict[str, str], since: int, size: int, limit: int
) -> None:
    async def scenario() -> None:
        async with broker() as rig:
            web = Web(rig)
            await create(web, partitions=2)
            expected = []
            for number, (key, tag, words, at) in enumerate(sent):
                headers = [["headrace-tag", tag]]
                headers += [["headrace-keys", " ".join(words)]] if words else []
                record = {"key": key, "value": str(number), "headers": headers}
                await send(web, {**record, "timestamp_ms": at})
                is_wanted = wanted.get("key", key) in {key, *words}
                is_wanted = is_wanted and wanted.get("tag", tag) == tag
                if is_wanted and since <= at < since + size:
                    expected.append(str(number))
            query: dict[str, Any] = {**wanted, "since_ms": since, "until_ms": since + size}
            found: list[str] = []
            answer = await find(web, **query, limit=limit)
            found += values(answer)
            while not answer["is_complete"]:
                token = answer["next_page_token"]
                answer = await find(web, **query, limit=limit, page_token=token)
                found += values(answer)
            assert sorted(found) == sorted(expected)

    asyncio.run(scenario())


# --- expressions, resumed searches, exports ------------------------------------------------------


@on_the_web
async def test_an_expression_selects_messages_wherever_they_are(web: Web) -> None:
    await create(web, partitions=2)
    values_in = [{"value": {"n": n}, "value_encoding": "json"} for n in range(20)]
    await send(web, *values_in, {"value": "no json"})
    found = await find(web, where="value.n >= 17")
    assert sorted(values(found)) == ['{"n":17}', '{"n":18}', '{"n":19}']
    assert found["searched"]["not_evaluated"] == 1
    assert "has no field" in found["searched"]["not_evaluated_because"]
    delayed = message(4, delay=str(HOUR_MS))
    await send(web, delayed)
    assert values(await find(web, where="headers['headrace-message-id'] == 'id-4'")) == ["value 4"]
    query = urlencode({"where": "value.n >"})
    status, answer = await web.ask("GET", f"/v1/topics/orders/messages?{query}")
    assert (status, "ends too early" in answer["detail"]) == (409, True)


@pytest.mark.parametrize("place", [{}, {"delay": str(HOUR_MS)}, {"half": "shop"}])
def test_a_costly_expression_ends_with_the_time_of_its_call_within_a_read(
    place: dict[str, str],
) -> None:
    """It goes on at the record at which it ended, and comes further with each call."""

    async def scenario(web: Web) -> None:
        await search_costly(web, place)

    on_the_web(scenario)()


async def search_costly(web: Web, place: dict[str, str]) -> None:
    await create(web)
    numbers = [*range(40)]
    headers = message(0, **place)["headers"]
    costly = {"value": {"n": 0, "of": numbers}, "value_encoding": "json", "headers": headers}
    await send(web, *(costly | {"value": {"n": n, "of": numbers}} for n in range(40)))
    where = "value.of.all(a, value.of.all(b, a + b >= 0)) && value.n >= 0"
    seen: list[int] = []
    rounds, records, more = 0, 0, {}
    while True:
        rounds += 1
        assert rounds <= 2 * len(numbers)
        answer = await find(web, where=where, time_ms=10, **more)
        assert len(answer["messages"]) < len(numbers)
        seen += [json.loads(one)["n"] for one in values(answer)]
        if answer["is_complete"]:
            break
        records += answer["searched"]["records"]
        more = {"page_token": answer["next_page_token"]}
    assert rounds > 1
    assert seen == numbers
    assert records + answer["searched"]["records"] == len(numbers)


@on_the_web
async def test_a_page_begins_at_an_offset(web: Web) -> None:
    await create(web)
    await send(web, *(message(n) for n in range(9)))
    assert values(await find(web, partition=0, offset=7)) == ["value 7", "value 8"]
    status, _ = await web.ask("GET", "/v1/topics/orders/messages?offset=7")
    assert status == 409


@on_the_web
async def test_a_search_that_was_cut_goes_on_where_it_ended(web: Web) -> None:
    await create(web, partitions=3)
    await send(web, *(message(n) for n in range(50)))
    seen: list[str] = []
    more: dict[str, str] = {}
    for _ in range(10):
        body = {"topic": "orders", "where": "value.contains('value')", "max": 7, **more}
        status, task = await web.ask("POST", "/v1/searches", body)
        assert status == 202
        while task["state"] == "running":
            await asyncio.sleep(0.01)
            _, task = await web.ask("GET", f"/v1/searches/{task['id']}")
        seen += [one["value"] for one in task["results"]]
        assert task["progress"]["bytes"] <= task["progress"]["bytes_at_most"]
        if task["progress"]["is_complete"]:
            break
        more = {"page_token": task["progress"]["next_page_token"]}
    assert sorted(seen) == sorted(f"value {n}" for n in range(50))


@on_the_web
async def test_a_search_is_followed_and_resumed_after_the_last_event(web: Web) -> None:
    await create(web)
    await send(web, *(message(n) for n in range(70)))
    _, task = await web.ask("POST", "/v1/searches", {"topic": "orders"})
    target = f"/v1/searches/{task['id']}/events"
    _, data = await web.raw("GET", target, b"", "application/json")
    whole = data.decode()
    assert whole.count('"state":"log"') == 70
    assert "event: progress" in whole
    assert whole.rstrip().rpartition("event: ")[2].startswith("end")
    _, data = await web.raw("GET", target, b"", "application/json", **{"last-event-id": "50"})
    assert data.decode().count('"state":"log"') == 20


@on_the_web
async def test_an_export_holds_all_bytes(web: Web) -> None:
    await create(web)
    hostile = {"value": "/wA=", "value_encoding": "base64"}
    await send(web, {"key": 'a,"b"\n', "value": "x", "headers": [["token", "s3cret"]]}, hostile)
    status, data = await web.raw("GET", "/v1/topics/orders/export", b"", "application/json")
    rows = [json.loads(line) for line in data.splitlines()]
    assert (status, len(rows)) == (200, 2)
    assert (rows[0]["key"], rows[0]["value"]) == ('a,"b"\n', "x")
    assert rows[0]["headers"] == [{"key": "token", "value": "s3cret"}]
    assert rows[1]["value_base64"] == "/wA="
    again = [record_from_json(row, Reading(None, None, [], 0, -1)) for row in rows]
    assert [(one.key, one.value) for one in again] == [(b'a,"b"\n', b"x"), (None, b"\xff\x00")]
    query = "/v1/topics/orders/export?format=csv&max=1"
    _, data = await web.raw("GET", query, b"", "application/json")
    head, row = csv.reader(io.StringIO(data.decode(), newline=""))
    shown_row = dict(zip(head, row, strict=True))
    assert (shown_row["key"], shown_row["value"], shown_row["offset"]) == ('a,"b"\n', "x", "0")
    assert json.loads(shown_row["headers"]) == [["token", "s3cret"]]


@on_the_web
async def test_an_export_as_csv_distinguishes_null_from_an_empty_text(web: Web) -> None:
    await create(web)
    await send(web, {"key": "", "value": ""}, {"key": "k"}, {"value": 'a "b"'})
    query = "/v1/topics/orders/export?format=csv"
    _, data = await web.raw("GET", query, b"", "application/json")
    lines = data.decode().split("\r\n")
    cells = [line.split(",")[4:8] for line in lines[1:4]]
    assert cells == [
        ['""', "text", '""', "text"],
        ["k", "text", "", "text"],
        ["", "text", '"a ""b"""', "text"],
    ]


@on_the_web
async def test_an_export_reads_no_dead_letter_topic_and_counts_as_reading(web: Web) -> None:
    await create(web)
    await create(web, "orders.dead", 2)
    dead_letters = {"set": {"errors.deadletterqueue.topic.name": "orders.dead"}}
    assert (await web.ask("PATCH", "/v1/groups/workers/config", dead_letters))[0] == 200
    await send(web, *(message(n) for n in range(3)))
    await send(web, message(1), topic="orders.dead")
    for number in range(2):
        web.node.topics.leave(web.node.topics.get("orders.dead"), number)
    assert (await web.ask("GET", "/v1/topics/orders/messages"))[0] == 503
    status, data = await web.raw("GET", "/v1/topics/orders/export", b"", "application/json")
    assert (status, len(data.splitlines())) == (200, 3)
    quota = {"default_client_id": True, "set": {"consumer_byte_rate": 10}}
    assert (await web.ask("PATCH", "/v1/quotas", quota))[0] == 200
    status, _ = await web.raw("GET", "/v1/topics/orders/export", b"", leaves=True)
    assert status == 200
    status, _ = await web.ask("GET", "/v1/topics/orders/export")
    assert status == 429


@on_the_web
async def test_clients_with_tiny_quotas_leave_places_for_the_exports_of_others(web: Web) -> None:
    await create(web)
    await send(web, *({"value": "v" * 15_000} for _ in range(20)))
    quota = {"client_id": "slow", "set": {"consumer_byte_rate": 1}}
    assert (await web.ask("PATCH", "/v1/quotas", quota))[0] == 200
    begun: asyncio.Queue[int] = asyncio.Queue()

    async def stay() -> dict[str, Any]:
        await asyncio.Event().wait()
        raise AssertionError

    async def note(sent: Any) -> None:
        if sent["type"] == "http.response.start":
            begun.put_nowait(sent["status"])

    def export(host: str) -> asyncio.Task[None]:
        asked = scope("GET", "/v1/topics/orders/export")
        asked["headers"].append((b"x-client-id", b"slow"))
        return asyncio.create_task(web.app({**asked, "client": (host, 1)}, stay, note))

    slow = [export(f"10.0.0.{number // 4}") for number in range(16)]
    answered = [await asyncio.wait_for(begun.get(), 60) for _ in slow]
    assert sorted(answered) == [200] * 8 + [503] * 8, "two of each client"
    assert (await web.raw("GET", "/v1/topics/orders/export", b""))[0] == 200
    for one in slow:
        one.cancel()
    await asyncio.gather(*slow, return_exceptions=True)


@on_the_web
async def test_an_export_takes_the_time_that_a_small_quota_gives_it(web: Web) -> None:
    await create(web)
    value_bytes, rate = 15_000, 100_000
    await send(web, *({"value": "v" * value_bytes} for _ in range(10)))
    quota = {"default_client_id": True, "set": {"consumer_byte_rate": rate}}
    assert (await web.ask("PATCH", "/v1/quotas", quota))[0] == 200
    pieces: list[int] = []

    requests = [{"type": "http.request", "body": b"", "more_body": False}]

    async def receive() -> dict[str, Any]:
        if not requests:
            await asyncio.Event().wait()  # the client stays
        return requests.pop()

    async def send_piece(message: Any) -> None:
        pieces.append(len(message.get("body", b"")))

    loop = asyncio.get_running_loop()
    begun_s = loop.time()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(token_bucket, "WAIT_MS_MAX", 10)  # much less than the debt
        asked = scope("GET", "/v1/topics/orders/export")
        await web.app(asked, receive, send_piece)
    assert sum(pieces) > 10 * value_bytes
    assert max(pieces) < PIECE_BYTES + 2 * value_bytes
    burst = rate
    assert loop.time() - begun_s >= (sum(pieces) - burst) / rate
