"""Topics, records and groups over HTTP, on a broker in memory."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from collections import defaultdict

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.kit.broker import broker
from tests.unit.http.http_rig import Web, followed, on_the_web

from headrace.errors import GroupUnknown
from headrace.http.problems import details
from headrace.records.batch import check_batch, read_header
from headrace.records.codec import Record, assemble_batch, encode_batch
from headrace.records.partitioner import partition_of_key

GROUP = "workers"


@on_the_web
async def test_topics_are_created_listed_grown_and_deleted(web: Web) -> None:
    status, made = await web.ask("POST", "/v1/topics", {"name": "a", "partitions": 2})
    assert (status, made["partitions"]) == (201, 2)
    await web.ask("POST", "/v1/topics", {"name": "b", "config": {"retention.ms": "5"}})
    status, found = await web.ask("GET", "/v1/topics/b")
    assert (status, found["config"]) == (200, {"retention.ms": "5"})
    status, problem = await web.ask("POST", "/v1/topics", {"name": "a"})
    assert (status, problem["retriable"]) == (409, False)
    assert (await web.ask("PATCH", "/v1/topics/a", {"partitions": 3}))[0] == 200
    assert len((await web.ask("GET", "/v1/topics/a"))[1]["partitions"]) == 3
    assert (await web.ask("DELETE", "/v1/topics/a"))[1]["deleted"]
    assert (await web.ask("GET", "/v1/topics/a"))[0] == 404


@on_the_web
async def test_a_dry_run_changes_nothing(web: Web) -> None:
    for method, path, body in [
        ("POST", "/v1/topics?dry_run=true", {"name": "new"}),
        ("PATCH", "/v1/topics/t?dry_run=true", {"partitions": 9}),
        ("PATCH", "/v1/topics/t/config?dry_run=true", {"set": {"retention.ms": "5"}}),
        ("DELETE", "/v1/topics/t?dry_run=true", None),
        ("PATCH", f"/v1/groups/{GROUP}/config?dry_run=true",
         {"set": {"share.delivery.count.limit": "9"}}),
    ]:  # fmt: skip
        if "t" not in web.node.topics.by_name:
            await web.ask("POST", "/v1/topics", {"name": "t"})
        status, answer = await web.ask(method, path, body)
        assert (status, answer["dry_run"]) == (200, True)
    assert web.node.topics.names() == ["t"]
    topic = web.node.topics.get("t")
    assert (len(topic.partitions), topic.fact.configs) == (1, {})
    assert not web.node.group_configs.overrides(GROUP)


@on_the_web
async def test_pages_show_every_topic_once(web: Web) -> None:
    names = [f"t{number}" for number in range(7)]
    for name in names:
        await web.ask("POST", "/v1/topics", {"name": name})
    seen, query = [], "limit=3"
    for _ in range(3):
        _status, found = await web.ask("GET", f"/v1/topics?{query}")
        seen += [topic["name"] for topic in found["topics"]]
        query = f"limit=3&page_token={found.get('next_page_token', '')}"
    assert seen == names
    assert "next_page_token" not in found
    assert (await web.ask("GET", "/v1/topics?prefix=t6"))[1]["topics"][0]["name"] == "t6"


@on_the_web
async def test_settings_are_set_and_reset(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    change = {"set": {"retention.ms": "5", "cleanup.policy": "compact"}}
    assert (await web.ask("PATCH", "/v1/topics/t/config", change))[0] == 200
    _status, found = await web.ask("PATCH", "/v1/topics/t/config", {"reset": ["retention.ms"]})
    assert found["config"] == {"cleanup.policy": "compact"}
    _status, found = await web.ask("GET", "/v1/topics/t/config")
    shown = {one["name"]: one for one in found["settings"]}
    assert (shown["cleanup.policy"]["value"], shown["cleanup.policy"]["is_set"]) == (
        "compact",
        True,
    )
    status, problem = await web.ask("PATCH", "/v1/topics/t/config", {"set": {"retention.ms": "x"}})
    assert (status, problem["retriable"]) == (409, False)
    assert (await web.ask("PATCH", "/v1/topics/t/config", {"set": {"nonsense": "1"}}))[0] == 400


HEADERS_SENT = [
    ["h", "v"],
    ["b", "/w==", "base64"],
    ["/2g=", "v", "text", "base64"],
    ["/2g=", None, "text", "base64"],
]


@on_the_web
async def test_records_are_written_in_three_encodings_and_read_by_offset(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    records = [
        {
            "value": "plain",
            "key": "k",
            "headers": HEADERS_SENT,
            "timestamp_ms": 5,
        },
        {"value": base64.b64encode(b"\xff\x00").decode(), "value_encoding": "base64"},
        {"value": {"a": [1, None]}, "value_encoding": "json"},
        {},
    ]
    status, answer = await web.ask("POST", "/v1/topics/t/records", {"records": records})
    assert status == 200
    assert [one["offset"] for one in answer["results"]] == [0, 1, 2, 3]
    _status, found = await web.ask("GET", "/v1/topics/t/records?offset=0")
    first, second, third, fourth = found["records"]
    assert (first["value"], first["key"], first["timestamp_ms"]) == ("plain", "k", 5)
    assert first["headers"] == HEADERS_SENT
    assert base64.b64decode(second["value"]) == b"\xff\x00"
    assert json.loads(third["value"]) == {"a": [1, None]}
    assert fourth["value"] is None
    assert (found["next_offset"], found["end_offset"]) == (4, 4)
    _status, found = await web.ask("GET", "/v1/topics/t/records?offset=1&max=2")
    assert [record["offset"] for record in found["records"]] == [1, 2]
    assert found["next_offset"] == 3


@on_the_web
async def test_each_record_has_its_own_result(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 4})
    records = [{"value": "a", "partition": 9}, {"value": "b", "key": "k"}, {"value": 5}]
    _status, answer = await web.ask("POST", "/v1/topics/t/records", {"records": records})
    bad, good, no_text = answer["results"]
    assert (bad["ok"], bad["error"]["status"]) == (False, 404)
    assert (good["ok"], good["partition"]) == (True, partition_of_key(b"k", 4))
    assert (no_text["ok"], no_text["error"]["status"]) == (False, 400)


@on_the_web
async def test_records_are_read_by_time(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    for number in range(5):
        records = [{"value": str(number), "timestamp_ms": 1_000 * number}]
        await web.ask("POST", "/v1/topics/t/records", {"records": records})
    _status, found = await web.ask("GET", "/v1/topics/t/records?timestamp_ms=2500")
    assert [record["value"] for record in found["records"]] == ["3", "4"]
    _status, found = await web.ask("GET", "/v1/topics/t/records?timestamp_ms=9999")
    assert (found["records"], found["next_offset"]) == ([], 5)


@on_the_web
async def test_a_read_waits_for_what_comes(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    waiting = asyncio.create_task(web.ask("GET", "/v1/topics/t/records?wait_ms=20000"))
    await asyncio.sleep(0)
    await web.ask("POST", "/v1/topics/t/records", {"records": [{"value": "late"}]})
    _status, found = await asyncio.wait_for(waiting, 10)
    assert [record["value"] for record in found["records"]] == ["late"]


@on_the_web
async def test_a_follower_sees_each_record_as_it_comes(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 2})
    await web.ask("POST", "/v1/topics/t/records", {"records": [{"value": "old", "partition": 1}]})
    async with followed(web, "/v1/topics/t/tail?from=earliest") as next_record:
        assert (await next_record())["value"] == "old"
        for number in range(3):
            records = [{"value": f"new {number}", "partition": number % 2}]
            await web.ask("POST", "/v1/topics/t/records", {"records": records})
            assert (await next_record())["value"] == f"new {number}"


@on_the_web
async def test_a_follower_that_comes_back_continues_after_its_place(web: Web) -> None:
    """By the id of its last event; one of a topic that was deleted since begins at the end."""
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 2})

    async def send(*values: str) -> None:
        records = [{"value": one, "partition": int(one[0])} for one in values]
        await web.ask("POST", "/v1/topics/t/records", {"records": records})

    async with followed(web, "/v1/topics/t/tail") as following:
        await following("place")
        await send("0 seen", "1 seen")
        assert {(await following())["value"] for _ in range(2)} == {"0 seen", "1 seen"}
        place = await following("place")
    await send("0 missed", "1 missed", "1 too")
    async with followed(web, f"/v1/topics/t/tail?after={place}") as following:
        assert [(await following())["value"] for _ in range(3)] == ["0 missed", "1 missed", "1 too"]
        await send("0 new")
        assert (await following())["value"] == "0 new"
    async with followed(web, f"/v1/topics/t/tail?after={place}&partition=1") as following:
        assert (await following())["value"] == "1 missed"
    beyond = re.sub(r"0:\d+", "0:99", place)
    for lost in (beyond, "0" * 32 + "-0:0", "-", "x" * 60):
        async with followed(web, f"/v1/topics/t/tail?after={lost}&partition=0") as following:
            await following("place")
            await send("0 now")
            assert (await following())["value"] == "0 now"


@on_the_web
async def test_a_partition_added_while_a_follower_was_away_is_followed_from_its_start(
    web: Web,
) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    async with followed(web, "/v1/topics/t/tail") as following:
        place = await following("place")
    assert (await web.ask("PATCH", "/v1/topics/t", {"partitions": 2}))[0] == 200
    missed = {"records": [{"value": "missed", "partition": 1}]}
    await web.ask("POST", "/v1/topics/t/records", missed)
    async with followed(web, f"/v1/topics/t/tail?after={place}") as following:
        assert (await following())["value"] == "missed"
    async with followed(web, f"/v1/topics/t/tail?after={place}&partition=1") as following:
        await following("place")
        await web.ask("POST", "/v1/topics/t/records", {"records": [{"value": "", "partition": 1}]})
        assert (await following())["value"] == "", "one that is named now begins as asked"


@on_the_web
async def test_offsets_that_are_not_there_are_refused(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    status, problem = await web.ask("GET", "/v1/topics/t/records?offset=7")
    assert (status, problem["retriable"]) == (409, False)
    assert (await web.ask("GET", "/v1/topics/t/records?partition=3"))[0] == 404


@on_the_web
async def test_a_share_group_is_shown_moved_and_deleted(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config",
                  {"set": {"share.auto.offset.reset": "earliest"}})  # fmt: skip
    records = [{"value": str(n), "timestamp_ms": 1_000 * n} for n in range(5)]
    await web.ask("POST", "/v1/topics/t/records", {"records": records})
    _status, received = await web.ask("POST", f"/v1/queues/t/{GROUP}/receive", {"max": 3})
    receipts = [message["receipt"] for message in received["messages"]]
    await web.ask("POST", f"/v1/queues/t/{GROUP}/settle", {"ack": receipts})
    _status, listed = await web.ask("GET", "/v1/groups")
    assert listed["groups"] == [{"group": GROUP, "state": "Empty", "type": "share"}]
    _status, offsets = await web.ask("GET", f"/v1/groups/{GROUP}/offsets")
    assert offsets["offsets"] == [{"topic": "t", "partition": 0, "offset": 3, "lag": 2}]
    place = {"topic": "t", "partition": 0}
    for target, expected in [
        ({"timestamp_ms": 1_500}, 2),
        ({"position": "latest"}, 5),
        ({"offset": 1}, 1),
    ]:
        move = {"offsets": [place | target]}
        _status, dry = await web.ask("PUT", f"/v1/groups/{GROUP}/offsets?dry_run=true", move)
        assert dry["results"] == [place | {"ok": True, "offset": expected}]
        await web.ask("PUT", f"/v1/groups/{GROUP}/offsets", move)
        _status, offsets = await web.ask("GET", f"/v1/groups/{GROUP}/offsets")
        assert offsets["offsets"][0]["offset"] == expected
    assert (await web.ask("DELETE", f"/v1/groups/{GROUP}"))[1]["deleted"]
    assert (await web.ask("GET", f"/v1/groups/{GROUP}"))[0] == 404


@on_the_web
async def test_a_group_begins_on_every_partition_with_its_first_receive(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t", "partitions": 3})
    await web.ask("POST", f"/v1/queues/t/{GROUP}/receive", {"max": 1})
    records = [{"value": str(number), "partition": number} for number in range(3)]
    await web.ask("POST", "/v1/topics/t/records", {"records": records})
    _status, found = await web.ask("GET", f"/v1/groups/{GROUP}/offsets")
    assert [(one["partition"], one["lag"]) for one in found["offsets"]] == [(0, 1), (1, 1), (2, 1)]
    seen = set()
    for _ in range(3):
        _status, received = await web.ask("POST", f"/v1/queues/t/{GROUP}/receive", {"max": 1})
        seen |= {message["value"] for message in received["messages"]}
    assert seen == {"0", "1", "2"}


@on_the_web
async def test_one_settle_mixes_four_ways_and_says_what_became_of_each(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    change = {"share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "t.dead"}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", {"set": change})
    records = [{"value": str(number)} for number in range(5)]
    await web.ask("POST", "/v1/topics/t/records", {"records": records})
    _status, received = await web.ask("POST", f"/v1/queues/t/{GROUP}/receive", {"max": 5})
    a, b, c, d, _e = [message["receipt"] for message in received["messages"]]
    wrong = "0.99.nobody"
    settle = {
        "ack": [a, wrong],
        "nack": [{"receipt": b, "delay_ms": 60_000, "reason": "later"}],
        "extend": [{"receipt": c, "lock_ms": 60_000}],
        "dead_letter": [{"receipt": d, "reason": "cannot be parsed"}],
    }
    status, answer = await web.ask("POST", f"/v1/queues/t/{GROUP}/settle", settle)
    results = {one["receipt"]: one for one in answer["results"]}
    assert status == 200
    assert all(results[one]["ok"] for one in (a, b, c, d))
    assert not results[wrong]["ok"]
    assert results[wrong]["next_step"]
    status, again = await web.ask("POST", f"/v1/queues/t/{GROUP}/settle", {"ack": [b]})
    assert not again["results"][0]["ok"]


def test_an_error_that_was_raised_without_a_text_says_what_its_class_means() -> None:
    assert details(GroupUnknown())["detail"] == "No such group"
    assert details(GroupUnknown("no group 'a'"))["detail"] == "no group 'a'"


@on_the_web
async def test_contradictory_requests_get_a_conflict(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    place = {"topic": "t", "partition": 0, "offset": 0}
    for method, target, body in [
        ("GET", "/v1/topics/t/records?offset=0&timestamp_ms=1", None),
        ("PATCH", "/v1/topics/t/config", {"set": {"flush.ms": "0"}, "reset": ["flush.ms"]}),
        ("PUT", f"/v1/groups/{GROUP}/offsets", {"offsets": [place, place]}),
    ]:
        status, problem = await web.ask(method, target, body)
        assert (status, problem["retriable"]) == (409, False)


@on_the_web
async def test_a_page_token_that_was_never_given_out_is_refused(web: Web) -> None:
    for token in ("%FF", "!", "a"):
        status, problem = await web.ask("GET", f"/v1/topics?page_token={token}")
        assert (status, problem["retriable"]) == (409, False), token


@on_the_web
async def test_a_receipt_that_is_refused_leaves_its_neighbours(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    change = {"set": {"share.auto.offset.reset": "earliest"}}
    await web.ask("PATCH", f"/v1/groups/{GROUP}/config", change)
    records = [{"value": str(number)} for number in range(5)]
    await web.ask("POST", "/v1/topics/t/records", {"records": records})
    _status, received = await web.ask("POST", f"/v1/queues/t/{GROUP}/receive", {"max": 5})
    receipts = [message["receipt"] for message in received["messages"]]
    await web.ask("POST", f"/v1/queues/t/{GROUP}/settle", {"ack": [receipts[2]]})
    body = {"ack": receipts}
    _status, answer = await web.ask("POST", f"/v1/queues/t/{GROUP}/settle", body)
    assert [one["receipt"] for one in answer["results"]] == receipts
    assert [one["ok"] for one in answer["results"]] == [True, True, False, True, True]
    _status, offsets = await web.ask("GET", f"/v1/groups/{GROUP}/offsets")
    assert offsets["offsets"][0]["lag"] == 0


async def test_nothing_is_served_beyond_loopback() -> None:
    async with broker() as rig:
        web = Web(rig, is_local=False)
        for operation in web.operations:
            names = {"topic": "t", "group": "g", "task": "x", "tenant": "a", "id": "0" * 16}
            names |= {"user": "u", "broker": "0", "reader": "a"}
            path = operation.path.format(**names, partition=0, offset=0)
            status, problem = await web.ask(operation.method, path)
            assert status == 403
            assert problem["next_step"]


@pytest.mark.parametrize(
    ("method", "target", "body"),
    [
        ("POST", "/v1/topics", b"{"),
        ("POST", "/v1/topics", b"[]"),
        ("POST", "/v1/topics", b"[" * 100_000),
        ("POST", "/v1/topics", b'{"name": "\\ud800"}'),
        ("POST", "/v1/topics", b'{"name": "t", "partitions": 1.5}'),
        ("POST", "/v1/topics", b'{"name": "t", "partitions": 1e300}'),
        ("POST", "/v1/topics", b'{"name": "t", "partitions": NaN}'),
        ("POST", "/v1/topics", b'{"name": "t", "other": 1}'),
        ("POST", "/v1/topics", b"x" * 5_000_000),
        ("GET", "/v1/topics?limit=0", b""),
        ("GET", "/v1/topics?limit=5&limit=6", b""),
        ("GET", "/v1/topics?unknown=1", b""),
        ("GET", "/v1/topics/t/records?offset=-1", b""),
        ("GET", "/v1/topics/t/records?offset=99999999999999999999", b""),
        ("GET", "/v1/topics/a%20b", b""),
        ("GET", "/v1/topics/t%0a", b""),
        ("GET", "/v1/topics/t/messages?header=no-pair", b""),
        ("POST", "/v1/topics/t/delayed/cancel", b"{}"),
        ("POST", "/v1/topics/t/half/settle", b"{}"),
        ("POST", "/v1/traces", b'{"topic": "t", "partition": 0}'),
        ("POST", "/v1/traces", b'{"topic": "t", "partition": 0, "message_id": "a"}'),
        ("POST", "/v1/redrives", b'{"topic": "t", "dry_run": true, "rate": 5}'),
        ("POST", "/v1/redrives", b'{"topic": "t", "letters": ["1"]}'),
        ("PATCH", "/v1/quotas", b'{"set": {"producer_byte_rate": 5}}'),
        ("PATCH", "/v1/quotas", b'{"user": "a", "default_user": true}'),
        ("PATCH", "/v1/quotas", b'{"user": "a", "ip": "10.0.0.1"}'),
    ],
)  # fmt: skip
async def test_malformed_requests_get_a_problem(method: str, target: str, body: bytes) -> None:
    async with broker() as rig:
        web = Web(rig)
        status, data = await web.raw(method, target, body)
        problem = json.loads(data)
        assert status == 400, problem
        assert problem["detail"]
        assert problem["next_step"]
        status, _data = await web.raw("POST", "/v1/topics", b'{"name": "t"}', "text/plain")
        assert status == 400


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=10), inner),
    max_leaves=5,
)
NAMES = st.sampled_from(
    ["name", "partitions", "config", "records", "value", "key", "headers", "ack", "nack", "receipt",
     "max", "offsets", "topic", "partition", "offset", "set", "reset", "wait_ms"]
)  # fmt: skip
BODIES = st.dictionaries(NAMES, JSON | st.lists(st.dictionaries(NAMES, JSON), max_size=3))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(bodies=st.lists(BODIES, min_size=2, max_size=4), data=st.data())
def test_no_body_meets_a_fault_of_the_broker(bodies: list[dict], data: st.DataObject) -> None:
    async def scenario() -> None:
        async with broker() as rig:
            web = Web(rig)
            await web.ask("POST", "/v1/topics", {"name": "t"})
            for body in bodies:
                body.pop("wait_ms", None)
                body.pop("partitions", None)  # each would be a log
                taking = [one for one in web.operations if one.body is not None]
                operation = data.draw(st.sampled_from(taking))
                names = defaultdict(lambda: "1", topic="t", group=GROUP)
                path = operation.path.format_map(names)
                status, _answer = await web.ask(operation.method, path, body)
                assert status in {200, 201, 400, 403, 404, 409, 503}

    asyncio.run(scenario())


@on_the_web
async def test_settings_are_changed_only_if_they_are_what_the_client_saw(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    for path, name in (
        ("/v1/topics/t/config", "retention.ms"),
        ("/v1/groups/g/config", "share.delivery.count.limit"),
    ):
        await web.raw("GET", path, b"")
        seen = web.answered["etag"]
        for value, status in ((5, 200), (6, 412)):
            change = json.dumps({"set": {name: str(value)}}).encode()
            code, _ = await web.raw("PATCH", path, change, if_match=seen)
            assert code == status
            dry, _ = await web.raw("PATCH", f"{path}?dry_run=true", change, if_match=seen)
            assert dry == 412, "a dry run checks it, too"
        await web.raw("GET", path, b"")
        change = json.dumps({"reset": [name]}).encode()
        assert (await web.raw("PATCH", path, change, if_match=web.answered["etag"]))[0] == 200
        assert web.answered["etag"] == seen, "equal settings have one ETag"
        assert (await web.raw("PATCH", path, change, if_match="*"))[0] == 200
        assert (await web.raw("PATCH", path, change, if_match="unquoted"))[0] == 409


@on_the_web
async def test_records_come_and_go_as_lines(web: Web) -> None:
    await web.ask("POST", "/v1/topics", {"name": "t"})
    lines = b'{"value": "a"}\n\n{"value": "b", "key": "k"}\n{"value": 7, "value_encoding": "json"}'
    ndjson = "application/x-ndjson"
    path = "/v1/topics/t/records"
    status, data = await web.raw("POST", path, lines, ndjson, accept=ndjson)
    assert status == 200
    assert [json.loads(line)["offset"] for line in data.splitlines()] == [0, 1, 2]
    status, data = await web.raw("GET", f"{path}?max=2", b"", accept=ndjson)
    assert [json.loads(line)["value"] for line in data.splitlines()] == ["a", "b"]
    assert web.answered["headrace-next-offset"] == "2"
    for wrong in (b'{"value": "a"}\n{', b"", b"7\n"):
        assert (await web.raw("POST", path, wrong, ndjson))[0] == 400
    assert (await web.raw("POST", "/v1/topics", b'{"name": "u"}', ndjson))[0] == 400
    status, data = await web.raw("POST", path, b"\n" * 10_000 + b'{"value": "x"}', ndjson)
    assert status == 400, "a body of 4 MiB of newlines would take a third of a second, and 260 MB"
    assert b"10000 lines" in data


@on_the_web
async def test_a_named_sequence_is_an_idempotency_key(web: Web) -> None:
    config = {"headrace.message.attributes": "true"}
    await web.ask("POST", "/v1/topics", {"name": "t", "config": config})
    named = [["headrace-producer", "request-7"], ["headrace-sequence", "1"]]
    body = {"records": [{"value": "once", "partition": 0, "headers": named}]}
    for _ in range(3):
        status, answer = await web.ask("POST", "/v1/topics/t/records", body)
        assert (status, answer["results"][0]["ok"]) == (200, True)
    _, found = await web.ask("GET", "/v1/topics/t/records")
    assert [record["value"] for record in found["records"]] == ["once"]


@on_the_web
async def test_records_are_read_around_a_batch_that_cannot_be_decoded(web: Web) -> None:
    """As earlier versions stored it, and topics that trust their producers."""
    await web.ask("POST", "/v1/topics", {"name": "t"})
    await web.ask("POST", "/v1/topics/t/records", {"records": [{"value": "1"}]})
    log = web.rig.node.topics.get("t").partitions[0]
    now_ms = web.rig.node.clock.now_ms()
    bad = assemble_batch(
        read_header(encode_batch([Record(0, now_ms, None, b"x")] * 2)), b"\x99" * 60
    )
    for _ in range(2):
        appended = log.append(bad, check_batch(bad))
        assert appended is not None
        await appended.completion.wait()
    await web.ask("POST", "/v1/topics/t/records", {"records": [{"value": "2", "partition": 0}]})
    _status, found = await web.ask("GET", "/v1/topics/t/records?partition=0&offset=0")
    assert [record["value"] for record in found["records"]] == ["1", "2"]
    ranges = [(one["offset"], one["last_offset"]) for one in found["unreadable"]]
    assert ranges == [(1, 2), (3, 4)]
    assert found["next_offset"] == 6
    _status, found = await web.ask("GET", "/v1/topics/t/records?partition=0&offset=4&max=1")
    assert [record["value"] for record in found["records"]] == ["2"]
    assert [one["offset"] for one in found["unreadable"]] == [4]
