"""Dead letters by cause, and the diagnosis of a group, over HTTP."""

from __future__ import annotations

from tests.unit.http.http_rig import on_the_web

from headrace.errors import StorageUnavailable
from headrace.records.codec import Record, encode_batch

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
    _, loaded = await web.ask("GET", "/v1/groups/g/offsets?times=true&loaded=true")
    names = "topic", "partition", "offset", "lag"
    assert [[one[name] for name in names] for one in loaded["offsets"]] == [
        [one[name] for name in names] for one in answer["offsets"]
    ]
    _, answer = await web.ask("GET", "/v1/groups/g/offsets")
    assert all("lag_ms" not in one for one in answer["offsets"])


# --- one letter ------------------------------------------------------------------------------


def letters_of(number: int) -> list[list[str]]:
    return [*OURS, ["__dlq.errors.partition", "0"], ["__dlq.errors.offset", str(number)]]


async def with_letters(web, count: int = 3) -> None:
    await web.ask("POST", "/v1/topics", {"name": "orders.dead"})
    begun_ms = web.node.services.appends.clock.now_ms() - 10_000
    records = [
        {
            "key": "k",
            "value": f"v{n}",
            "headers": [["h", "1"], *letters_of(n)],
            "timestamp_ms": begun_ms + n,
        }
        for n in range(count)
    ]
    await web.ask("POST", "/v1/topics/orders.dead/records", {"records": records})


@on_the_web
async def test_letters_are_listed_with_their_origin_and_by_pages(web):
    await with_letters(web)
    path = "/v1/dead-letters/orders.dead/letters"
    status, answer = await web.ask("GET", f"{path}?limit=2&origin=orders&group=billing")
    assert (status, len(answer["letters"]), answer["is_complete"]) == (200, 2, True)
    first = answer["letters"][0]
    assert (first["origin"], first["origin_offset"], first["deliveries"]) == ("orders", 0, 5)
    assert (first["record"]["value"], first["own_headers"]) == ("v0", [["h", "1"]])
    token = answer["next_page_token"]
    _, rest = await web.ask("GET", f"{path}?limit=2&page_token={token}")
    assert [one["letter_offset"] for one in rest["letters"]] == [2]
    assert "next_page_token" not in rest
    _, none = await web.ask("GET", f"{path}?reason=other")
    assert none["letters"] == []
    second = answer["letters"][1]["record"]["timestamp_ms"]
    _, since = await web.ask("GET", f"{path}?since_ms={second}")
    _, until = await web.ask("GET", f"{path}?until_ms={second}")
    assert [one["letter_offset"] for one in since["letters"]] == [1, 2]
    assert [one["letter_offset"] for one in until["letters"]] == [0]
    assert (await web.ask("GET", f"{path}?page_token=x"))[0] == 400


@on_the_web
async def test_an_edit_replaces_its_letter_says_so_and_is_audited(web):
    await with_letters(web)
    path = "/v1/dead-letters/orders.dead"
    edit = {"partition": 0, "offset": 1, "value": "mended", "headers": [["h", "2"]]}
    status, dry = await web.ask("POST", f"{path}/edits?dry_run=true", edit)
    assert (status, dry["changed"]) == (200, ["value", "headers"])
    _, same = await web.ask("GET", f"{path}/letters/0/1")
    assert (same["record"]["value"], same["edits"]) == ("v1", [])
    before = web.node.audit.changed_total
    status, done = await web.ask("POST", f"{path}/edits", edit)
    assert (status, done["before"]["record"]["value"]) == (200, "v1")
    assert web.node.audit.changed_total == before + 1
    _, edited = await web.ask("GET", f"{path}/letters/0/1")
    assert (edited["record"]["value"], edited["record"]["key"]) == ("mended", "k")
    assert edited["record"]["headers"][0] == ["h", "2"]
    assert edited["edits"][0].endswith(" value,headers")
    assert (edited["origin"], edited["origin_offset"]) == ("orders", 1)
    # a second edit changes what the first one left
    more = {"partition": 0.0, "offset": 1.0, "key": None}  # integers, says JSON Schema
    status, again = await web.ask("POST", f"{path}/edits", more)
    assert (status, again["changed"]) == (200, ["key"])
    _, listed = await web.ask("GET", f"{path}/letters")
    shown = [(one["letter_offset"], one["record"]["value"]) for one in listed["letters"]]
    assert shown == [(0, "v0"), (1, "mended"), (2, "v2")]
    assert listed["letters"][1]["record"]["key"] is None
    assert len(listed["letters"][1]["edits"]) == 2
    _, summary = await web.ask("GET", path)
    assert (summary["records"], summary["edits"]) == (3, 2)


@on_the_web
async def test_invalid_edits_are_refused(web):
    await with_letters(web)
    path = "/v1/dead-letters/orders.dead/edits"
    place = {"partition": 0, "offset": 1}
    assert (await web.ask("POST", path, place))[0] == 400
    assert (await web.ask("POST", path, {**place, "value": "v1"}))[0] == 409
    unfit = {**place, "value": "no base64", "value_encoding": "base64"}
    assert (await web.ask("POST", path, unfit))[0] == 409
    for name in ("__dlq.errors.topic", "headrace-redrives", "headrace-edited", "headrace-producer"):
        refused = await web.ask("POST", path, {**place, "headers": [[name, "x"]]})
        assert refused[0] == 409, name
    assert (await web.ask("POST", path, {**place, "offset": 99, "value": "x"}))[0] == 409
    await web.ask("POST", path, {**place, "value": "x"})
    status, answer = await web.ask("POST", path, {"partition": 0, "offset": 3, "value": "y"})
    assert status == 409
    assert "is an edit of 0:1" in answer["detail"]
    group = "headrace-redrive.orders.dead"
    await web.node.services.all_groups.commit(group, "orders.dead", 0, 2)
    status, answer = await web.ask("POST", path, {**place, "value": "z"})
    assert status == 409
    assert "was sent back already" in answer["detail"]


@on_the_web
async def test_a_letter_that_claims_to_be_an_edit_replaces_no_other(web):
    """Spring and Connect copy the headers of the record that they give up."""
    await with_letters(web)
    path = "/v1/dead-letters/orders.dead"
    edit = {"partition": 0, "offset": 1, "value": "mended"}
    assert (await web.ask("POST", f"{path}/edits", edit))[0] == 200
    topic = web.node.topics.get("orders.dead")
    headers = [
        ("headrace-dlq-edit-of", b"0:1"),
        ("headrace-producer", f"letter-edit/{topic.id.hex}-0:1/{'0' * 32}".encode()),
        ("headrace-sequence", b"0"),
        *((name, value.encode()) for name, value in letters_of(7)),
    ]
    forged = encode_batch([Record(0, 0, None, b"forged", headers)])
    await web.node.services.sends.append_copies(topic, 0, forged)
    _, listed = await web.ask("GET", f"{path}/letters")
    values = [one["record"]["value"] for one in listed["letters"]]
    assert values == ["v0", "mended", "v2", "forged"]
    _, shown = await web.ask("GET", f"{path}/letters/0/1")
    assert shown["record"]["value"] == "mended"
    _, summary = await web.ask("GET", path)
    assert (summary["records"], summary["edits"]) == (4, 1)
    place = {"partition": 0, "offset": listed["letters"][3]["letter_offset"]}
    assert (await web.ask("POST", f"{path}/edits", {**place, "value": "z"}))[0] == 200
    _, listed = await web.ask("GET", f"{path}/letters")
    assert [one["record"]["value"] for one in listed["letters"]][3] == "z"


# --- taking back -----------------------------------------------------------------------------


async def with_redriven(web, count: int = 2, **config: str) -> None:
    """Letters that were sent back to `orders`, which the queue `billing` consumes."""
    await with_letters(web, count)
    await web.ask("POST", "/v1/topics", {"name": "orders"})
    change = {"set": {"share.auto.offset.reset": "earliest", **config}}
    await web.ask("PATCH", "/v1/groups/billing/config", change)
    await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 1})
    records = [
        {
            "key": "k",
            "value": f"v{n}",
            "headers": [
                ["h", "1"],
                ["headrace-redrives", "1"],
                ["headrace-redriven-from", f"orders.dead-0:{n}"],
            ],
        }
        for n in range(count)
    ]
    await web.ask("POST", "/v1/topics/orders/records", {"records": records})
    await web.node.services.all_groups.commit(
        "headrace-redrive.orders.dead", "orders.dead", 0, count
    )


def sent(number: int) -> dict[str, str]:
    return {"letter": f"0:{number}", "to": f"orders-0:{number}"}


async def take_back(web, *numbers: int, is_dry_run: bool = False):
    body = {"sent": [sent(one) for one in numbers]}
    path = "/v1/dead-letters/orders.dead/take-back" + ("?dry_run=true" if is_dry_run else "")
    return (await web.ask("POST", path, body))[1]


@on_the_web
async def test_undelivered_messages_are_taken_back_once(web):
    await with_redriven(web)
    before = web.node.audit.changed_total
    dry = await take_back(web, 1, is_dry_run=True)
    assert (dry["dry_run"], dry["results"]) == (
        True,
        [{**sent(1), "taken_back": True, "groups": ["billing"]}],
    )
    assert web.node.audit.changed_total == before
    _, summary = await web.ask("GET", "/v1/dead-letters/orders.dead")
    assert summary["records"] == 0
    answer = await take_back(web, 1)
    assert answer["results"] == [{**sent(1), "taken_back": True, "groups": ["billing"]}]
    assert (await take_back(web, 1))["taken_back"] == 1
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 10})
    assert [one["value"] for one in got["messages"]] == ["v0"]
    _, listed = await web.ask("GET", "/v1/dead-letters/orders.dead/letters")
    (letter,) = listed["letters"]
    assert (letter["record"]["value"], letter["origin"], letter["group"]) == (
        "v1",
        "orders",
        "billing",
    )
    names = [name for name, *_ in letter["record"]["headers"]]
    assert "headrace-redriven-from" not in names


@on_the_web
async def test_messages_before_the_group_start_are_not_reported_as_delivered(web):
    """The group has forgotten which of both it was: a repeated call says so."""
    await with_redriven(web)
    assert (await take_back(web, 0))["taken_back"] == 1
    answer = await take_back(web, 0)
    reason = answer["results"][0]["reason"]
    assert "delivered to it, or taken back before" in reason
    assert "list the dead letters" in reason
    _, listed = await web.ask("GET", "/v1/dead-letters/orders.dead/letters")
    assert [one["record"]["value"] for one in listed["letters"]] == ["v0"]


@on_the_web
async def test_an_acknowledged_message_is_not_taken_back_with_its_neighbour(web):
    """Neither by the same call nor by a later one: its letter would be handled twice."""
    await with_redriven(web, count=3)
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 2})
    first, second = (one["receipt"] for one in got["messages"])
    await web.ask("POST", "/v1/queues/orders/billing/settle", {"ack": [second]})
    answer = await take_back(web, 2, 1)
    assert [one["taken_back"] for one in answer["results"]] == [True, False]
    assert "was delivered to group billing" in answer["results"][1]["reason"]
    assert (await take_back(web, 1))["taken_back"] == 0
    assert (await take_back(web, 2))["taken_back"] == 1
    _, listed = await web.ask("GET", "/v1/dead-letters/orders.dead/letters")
    assert [one["record"]["value"] for one in listed["letters"]] == ["v2"]
    await web.ask("POST", "/v1/queues/orders/billing/settle", {"ack": [first]})
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 10})
    assert got["messages"] == []


@on_the_web
async def test_a_take_back_refused_for_one_group_leaves_the_others_unchanged(web):
    await with_redriven(web)
    change = {"set": {"share.auto.offset.reset": "earliest"}}
    await web.ask("PATCH", "/v1/groups/archive/config", change)
    await web.ask("POST", "/v1/queues/orders/archive/receive", {"max": 1})
    answer = await take_back(web, 0)
    assert "was delivered to group archive" in answer["results"][0]["reason"]
    answer = await take_back(web, 1)
    assert answer["results"][0]["groups"] == ["archive", "billing"]
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 10})
    assert [one["value"] for one in got["messages"]] == ["v0"]


@on_the_web
async def test_messages_that_cannot_become_dead_letters_again_stay_deliverable(web):
    """Of the first record too, which the group leaves behind as soon as it is finished."""
    await with_redriven(web)
    desk = web.node.services.desk
    append = desk._sends.append_copies

    async def refuse(*_arguments):
        raise StorageUnavailable("its owner is away")

    desk._sends.append_copies = refuse
    failed = await take_back(web, 0)
    desk._sends.append_copies = append
    assert failed["taken_back"] == 0
    assert (await take_back(web, 0, is_dry_run=True))["taken_back"] == 1
    assert (await take_back(web, 0))["taken_back"] == 1
    _, listed = await web.ask("GET", "/v1/dead-letters/orders.dead/letters")
    assert [one["record"]["value"] for one in listed["letters"]] == ["v0"]
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 10})
    assert [one["value"] for one in got["messages"]] == ["v1"]


@on_the_web
async def test_undelivered_messages_are_taken_back_under_key_order_too(web):
    await with_redriven(web, **{"headrace.share.key.order": "true"})
    assert (await take_back(web, 1))["taken_back"] == 1
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 10})
    assert [one["value"] for one in got["messages"]] == ["v0"]
    receipts = [one["receipt"] for one in got["messages"]]
    await web.ask("POST", "/v1/queues/orders/billing/settle", {"ack": receipts})
    await web.ask("POST", "/v1/topics/orders/records", {"records": [{"key": "k", "value": "v2"}]})
    _, got = await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 10})
    assert [one["value"] for one in got["messages"]] == ["v2"]


@on_the_web
async def test_messages_delivered_or_yet_to_be_read_are_not_taken_back_with_the_reason(web):
    await with_redriven(web)
    await web.ask("POST", "/v1/queues/orders/billing/receive", {"max": 1})
    answer = await take_back(web, 0)
    assert answer["taken_back"] == 0
    assert "was delivered to group billing" in answer["results"][0]["reason"]
    await web.node.services.all_groups.commit("readers", "orders", 0, 0)
    answer = await take_back(web, 1)
    assert "consumer group readers will read it" in answer["results"][0]["reason"]
    path = "/v1/dead-letters/orders.dead/take-back"
    wrong = {"sent": [{"letter": "0:0", "to": "orders-0:1"}]}
    _, answer = await web.ask("POST", path, wrong)
    assert "is not the letter at 0:0" in answer["results"][0]["reason"]
    for letter, to in (("abc", "orders-0:1"), ("0:0", "orders"), ("0:0\n", "orders-0:1")):
        refused = await web.ask("POST", path, {"sent": [{"letter": letter, "to": to}]})
        assert refused[0] == 400, refused
    _, summary = await web.ask("GET", "/v1/dead-letters/orders.dead")
    assert summary["records"] == 0
