"""Receipts and the bodies that carry them; messages as the JSON text that they are sent as."""

from __future__ import annotations

import asyncio
import json

import pytest

from headrace.broker.services.queue_deliveries import PartitionDeliveries
from headrace.broker.services.queue_receipts import ranges
from headrace.broker.shares.share_receive import Received
from headrace.coordination.shares.commands import ACCEPT, RELEASE, Acquired, Settlement
from headrace.errors import ReceiptInvalid, RecordStateInvalid, RequestInvalid
from headrace.http import receipts
from headrace.http.messages import messages_for
from headrace.http.records import shown
from headrace.records.codec import Record, encode_batch

CONTENTS = (
    b"plain",
    None,
    b"",
    b'"quoted" \\ and\n\x00\x7f',
    "grüße \u2028 😀".encode(),
    b"\xff\xfe",
)


def test_a_message_is_the_json_of_its_record():
    records = [
        Record(0, 7, key, value, headers)
        for key in CONTENTS
        for value in CONTENTS
        for headers in ([], [("name", b"v"), ("n", None), ("b", b"\xff")])
    ]
    records = [Record(n, r.timestamp_ms, r.key, r.value, r.headers) for n, r in enumerate(records)]
    deliveries = PartitionDeliveries(3, messages_for("abc"), 1 << 20)
    last = len(records) - 1
    received = Received([Acquired(0, last, 2)], [encode_batch(records)])
    asyncio.run(deliveries.add(received))
    assert not deliveries.settlements
    assert [json.loads(text) for text in deliveries.messages] == [
        {"receipt": f"3.{r.offset}.abc", "partition": 3, "deliveries": 2} | shown(r)
        for r in records
    ]


def test_neighbours_that_are_settled_alike_are_one_range():
    body = {
        "ack": ["0.7.m", "0.5.m", "0.6.m", "0.9.m", "1.6.m", "0.6.other"],
        "nack": [{"receipt": "0.8.m", "delay_ms": 5}],
    }
    asked = receipts.parse(body)
    assert asked.receipts == [*body["ack"], "0.8.m"]
    assert {key: ranges(items) for key, items in asked.deliveries.items()} == {
        (0, "m"): [
            Settlement(5, 7, ACCEPT),
            Settlement(8, 8, RELEASE, 5),
            Settlement(9, 9, ACCEPT),
        ],
        (1, "m"): [Settlement(6, 6, ACCEPT)],
        (0, "other"): [Settlement(6, 6, ACCEPT)],
    }


@pytest.mark.parametrize(
    "text",
    ["", "1", "1.2", "1.2.", "1.2.m.x", "-1.2.m", "1.-2.m", "1.+2.m", "1. 2.m", "x.2.m", "1.x.m",
     "1.2.m-", '1.2."', "1.2.é", "1.2." + "m" * 200, "\ud800", "1." + "9" * 19 + ".m",
     "9" * 10 + ".1.m", None, 7, ["1.2.m"]],
)  # fmt: skip
def test_a_receipt_that_receive_never_gave_is_refused(text):
    for item in (text, {"receipt": text}):
        if not isinstance(text, str):
            with pytest.raises(RequestInvalid):
                receipts.parse({"ack": [item]})
            continue
        asked = receipts.parse({"ack": ["1.2.m", item, "1.3.m"]})
        assert {key: len(items) for key, items in asked.deliveries.items() if items} == {
            (1, "m"): 2
        }
        assert {place: type(one) for place, one in asked.refused.items()} == {1: ReceiptInvalid}
        assert json.loads(receipts.results(asked.receipts, [None, asked.refused[1], None]))


@pytest.mark.parametrize("body", [{}, {"ack": []}, {"ack": [], "nack": []}])
def test_nothing_to_settle_is_settled(body):
    asked = receipts.parse(body)
    assert json.loads(receipts.results(asked.receipts, [])) == {"results": []}


def test_a_delivery_is_settled_once_in_a_body():
    for body in (
        {"ack": ["0.1.m", "0.1.m"]},
        {"ack": ["0.1.m"], "nack": ["0.1.m"]},
    ):
        asked = receipts.parse(body)
        assert {*asked.refused} == {0, 1}
        assert not any(asked.deliveries.values())


def test_another_spelling_of_a_receipt_is_none():
    asked = receipts.parse({"ack": ["0.1.m", "00.1.m", "0.01.m", "0.\u0661.m", "\u0660.1.m"]})
    assert {*asked.refused} == {1, 2, 3, 4}
    assert ranges(asked.deliveries[0, "m"]) == [Settlement(1, 1, ACCEPT)]


@pytest.mark.parametrize(
    ("name", "field"), [("ack", "reason"), ("nack", "lock_ms"), ("extend", "delay_ms"),
                        ("dead_letter", "delay_ms"), ("nack", "delay")],
)  # fmt: skip
def test_a_field_without_effect_is_refused(name, field):
    with pytest.raises(RequestInvalid, match=field):
        receipts.parse({name: [{"receipt": "0.1.m", field: 1}]})


def test_results_say_what_became_of_each():
    error = RecordStateInvalid('held by "another"')
    found = json.loads(receipts.results(["0.1.m", "0.2.m"], [None, error]))["results"]
    assert found[0] == {"receipt": "0.1.m", "ok": True}
    assert (found[1]["ok"], found[1]["error"], found[1]["retriable"]) == (False, str(error), False)
