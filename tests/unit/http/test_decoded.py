"""Decoded values beside records: asked for, refused, and as the document says."""

from __future__ import annotations

import asyncio
import base64
import json
from typing import Any

from tests.unit.http.http_rig import Web, on_the_web
from tests.unit.schemas.registry_rig import ORDER, avro_bytes, registry

from headrace.broker.services.decoded_values import WAITING_MAX, DecodedValues
from headrace.runtime.clock import SystemClock
from headrace.schemas.decoding import ValueDecoder
from headrace.schemas.registry import RegistryAccess

RECORDS = "/v1/topics/orders/records"


async def filled(web: Web) -> None:
    """A topic with a value that its schema reads, one that none reads, and a tombstone."""
    value = base64.b64encode(b"\0\0\0\0\2" + avro_bytes(ORDER)).decode()
    assert (await web.ask("POST", "/v1/topics", {"name": "orders", "partitions": 1}))[0] == 201
    records = [
        {"key": "a", "value": value, "value_encoding": "base64"},
        {"key": "a", "value": "bare"},
        {"key": "a"},
    ]
    assert (await web.ask("POST", RECORDS, {"records": records}))[0] == 200


def with_registry(web: Web, url: str) -> DecodedValues:
    access = RegistryAccess(url.rstrip("/"), "me", "hidden", 2.0)
    found = DecodedValues(ValueDecoder(access, None, SystemClock()))
    web.node.services.decoded_values = found
    return found


@on_the_web
async def test_records_have_decoded_values_only_where_that_is_asked_for(web: Web) -> None:
    await filled(web)
    with registry() as url:
        decoder = with_registry(web, url)
        try:
            for target, name in (
                (f"{RECORDS}?decode=schema", "records"),
                ("/v1/topics/orders/messages?key=a&decode=schema", "messages"),
            ):
                status, answer = await web.ask("GET", target)
                assert status == 200
                good, bad, tombstone = answer[name]
                assert (good["decoded"]["format"], good["decoded"]["schema"]) == ("avro", "2")
                assert json.loads(good["decoded"]["json"])["price"] == "12.50"
                assert good["value_encoding"] == "base64"
                assert bad["undecodable"] == "neither a prefix nor a header names its schema"
                assert bad["value"] == "bare"
                assert not {"decoded", "undecodable"} & {*tombstone}
            status, answer = await web.ask("GET", RECORDS)
            assert status == 200
            assert not any({"decoded", "undecodable"} & {*one} for one in answer["records"])
            _, lines = await web.raw(
                "GET", f"{RECORDS}?decode=schema", b"", accept="application/x-ndjson"
            )
            assert "decoded" in json.loads(lines.splitlines()[0])
        finally:
            await decoder.close()


@on_the_web
async def test_a_broker_without_schemas_says_which_setting_it_needs(web: Web) -> None:
    await filled(web)
    for target in (RECORDS, "/v1/topics/orders/messages"):
        status, answer = await web.ask("GET", f"{target}?decode=schema")
        assert status == 409
        assert "headrace.schema.registry.url" in answer["next_step"]
    status, answer = await web.ask("GET", f"{RECORDS}?decode=http://127.0.0.1:1")
    assert (status, answer["detail"]) == (400, "'decode' is one of schema")


@on_the_web
async def test_calls_beyond_the_waiting_limit_get_a_retriable_503(web: Web) -> None:
    await filled(web)
    with registry() as url:
        decoder = with_registry(web, url)
        try:
            asked = [web.ask("GET", f"{RECORDS}?decode=schema") for _ in range(3 * WAITING_MAX)]
            answers: list[Any] = await asyncio.gather(*asked)
        finally:
            await decoder.close()
    statuses = [status for status, _ in answers]
    assert {*statuses} == {200, 503}
    assert all(answer["retriable"] for status, answer in answers if status == 503)
