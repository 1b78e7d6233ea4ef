"""Dead letters by cause, and the diagnosis of a group, over HTTP."""

from __future__ import annotations

from tests.unit.http.http_rig import on_the_web

OURS = [
    ["__dlq.errors.topic", "orders"],
    ["__dlq.errors.group", "billing"],
    ["__dlq.errors.message", "no such customer"],
    ["__dlq.errors.delivery.count", "5"],
]
SPRING = [
    ["kafka_dlt-original-topic", "orders"],
    ["kafka_dlt-original-consumer-group", "shipping"],
    ["kafka_dlt-exception-message", "timeout"],
]
CONNECT = [
    ["__connect.errors.topic", "orders"],
    ["__connect.errors.connector.name", "sink"],
    ["__connect.errors.exception.message", "bad schema"],
]


@on_the_web
async def test_dead_letters_are_counted_by_origin_consumer_and_reason(web):
    await web.ask("POST", "/v1/topics", {"name": "orders.dead", "partitions": 2})
    records = [
        {"value": "x", "partition": number % 2, "timestamp_ms": 1_000 + number, "headers": headers}
        for number, headers in enumerate([OURS] * 5 + [SPRING] * 2 + [CONNECT, []])
    ]
    await web.ask("POST", "/v1/topics/orders.dead/records", {"records": records})
    status, answer = await web.ask("GET", "/v1/dead-letters/orders.dead")
    assert (status, answer["records"], answer["is_complete"]) == (200, 9, True)
    found = {one["format"]: one for one in answer["causes"]}
    assert [one["count"] for one in answer["causes"]] == [5, 2, 1, 1]
    ours = found["share group"]
    assert (ours["origin"], ours["group"], ours["reason"]) == (
        "orders", "billing", "no such customer",
    )  # fmt: skip
    assert (ours["deliveries_max"], ours["first_ms"], ours["last_ms"]) == (5, 1_000, 1_004)
    assert len(ours["samples"]) == 3
    assert found["Spring"]["group"] == "shipping"
    assert found["Connect"]["reason"] == "bad schema"
    assert found[None]["origin"] is None
    _, part = await web.ask("GET", "/v1/dead-letters/orders.dead?records=3")
    assert (part["records"], part["is_complete"]) == (3, False)


@on_the_web
async def test_topics_that_groups_name_are_listed(web):
    await web.ask("POST", "/v1/topics", {"name": "orders.dead"})
    setting = {"set": {"errors.deadletterqueue.topic.name": "orders.dead"}}
    await web.ask("PATCH", "/v1/groups/billing/config", setting)
    status, answer = await web.ask("GET", "/v1/dead-letters")
    assert (status, [one["name"] for one in answer["topics"]]) == (200, ["orders.dead"])


@on_the_web
async def test_a_queue_without_receivers_is_diagnosed(web):
    await web.ask("POST", "/v1/topics", {"name": "orders"})
    change = {"set": {"share.auto.offset.reset": "earliest"}}
    await web.ask("PATCH", "/v1/groups/billing/config", change)
    await web.ask("POST", "/v1/topics/orders/records", {"records": [{"value": "x"}] * 5})
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 1})
    receipts = [one["receipt"] for one in got["messages"]]
    await web.ask("POST", "/v1/queues/orders/billing/settle", {"ack": receipts})
    status, answer = await web.ask("GET", "/v1/groups/billing/diagnosis?span_ms=0")
    assert (status, answer["lag"]) == (200, 4)
    assert answer["findings"][0]["kind"] == "no_members"
    assert (await web.ask("GET", "/v1/groups/nobody/diagnosis?span_ms=0"))[0] == 404


@on_the_web
async def test_a_lag_is_also_the_age_of_the_next_record(web):
    await web.ask("POST", "/v1/topics", {"name": "orders", "partitions": 3})
    now_ms = web.node.clock.now_ms()
    records = [
        {"value": "x", "partition": number, "timestamp_ms": now_ms - age_ms}
        for number, age_ms in ((0, 90_000), (0, 60_000), (1, 5_000))
    ]
    await web.ask("POST", "/v1/topics/orders/records", {"records": records})
    # Only a share group is made by moving it; a group of Kafka's begins with a commit.
    await web.ask("PATCH", "/v1/groups/g/config", {"set": {"share.auto.offset.reset": "earliest"}})
    await web.ask("POST", "/v1/queues/orders/g/receive", {"max": 1})
    places = [(0, 1), (1, 1), (2, 0)]
    offsets = [{"topic": "orders", "partition": n, "offset": offset} for n, offset in places]
    status, moved = await web.ask("PUT", "/v1/groups/g/offsets", {"offsets": offsets})
    assert (status, [one["ok"] for one in moved["results"]]) == (200, [True] * 3)
    _, answer = await web.ask("GET", "/v1/groups/g/offsets?times=true")
    first, second, third = (one["lag_ms"] for one in answer["offsets"])
    assert 60_000 <= first < 120_000
    assert (second, third) == (0, 0)
    _, answer = await web.ask("GET", "/v1/groups/g/offsets")
    assert all("lag_ms" not in one for one in answer["offsets"])
