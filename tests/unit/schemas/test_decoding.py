"""Values as JSON by their schemas: of every kind, within bounds, and why not."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime

import fastavro
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from tests.unit.schemas.registry_rig import (
    AVRO,
    GUID,
    JSON_SCHEMA,
    ORDER,
    Registry,
    avro_bytes,
    proto_file,
    registry,
)

from headrace.runtime.clock import SystemClock
from headrace.schemas import avro, decoding
from headrace.schemas.decoding import DecodedValue, Value, ValueDecoder
from headrace.schemas.errors import RegistryRefused, SchemaUnusable
from headrace.schemas.json_schema import JsonSchema
from headrace.schemas.registry import RegisteredSchema, RegistryAccess, SchemaCache, by_reference
from headrace.schemas.undecodable import Undecodable

PREFIX = b"\0\0\0\0"
SHOWN = {
    "id": 7, "note": None, "price": "12.50", "at": "2026-01-02T03:04:05.678000+00:00",
    "day": "2026-01-02", "state": "PAID", "lines": [{"sku": "a"}, {"sku": "b"}], "tags": {"x": 1},
}  # fmt: skip
NODE = {"type": "record", "name": "N", "fields": [{"name": "next", "type": ["null", "N"]}]}
NULLS = {"type": "record", "name": "R", "fields": [
    {"name": "many", "type": {"type": "array", "items": "null"}}]}  # fmt: skip
PROTO = b"\x02\x02\x08\x07\x12\x01n"  # the second message of its file: id 7, note "n"


@pytest.fixture
def decode():
    """Decodes values of the topic `orders` by a registry."""
    with registry() as url:
        decoder = ValueDecoder(access(url), None, SystemClock())

        def run(*values, headers=()):
            return decoder.decode([one and Value("orders", one, headers) for one in values])

        yield run


def access(url, password="hidden"):
    return RegistryAccess(url.rstrip("/"), "me", password, 2.0)


def test_a_value_of_each_kind_is_json_by_the_schema_that_it_names(decode):
    proto = PREFIX + b"\4" + PROTO
    found = decode(
        PREFIX + b"\2" + avro_bytes(ORDER), PREFIX + b'\3{"id":1,"name":"\xc3\xa9"}', None, proto
    )
    assert [one and one[:2] for one in found] == [
        ("avro", "2"), ("json", "3"), None, ("protobuf", "4"),
    ]  # fmt: skip
    assert json.loads(found[0].text) == SHOWN
    assert found[1].text == '{"id":1,"name":"é"}'
    assert json.loads(found[3].text) == {"id": "7", "note": "n"}
    mark = b"\1" + bytes.fromhex(GUID.replace("-", ""))
    (by_header,) = decode(avro_bytes(ORDER), headers=[("__value_schema_id", mark)])
    assert (by_header.schema, json.loads(by_header.text)) == (GUID.replace("-", ""), SHOWN)


def test_a_value_that_cannot_be_decoded_says_why_beside_those_that_can(decode):
    good = PREFIX + b"\2" + avro_bytes(ORDER)
    values = [
        (good[:-3], "tags: 1 bytes are missing"),
        (good + b"x", "1 bytes follow the value"),
        (b"bare", "neither a prefix nor a header"),
        (PREFIX + b"\x63x", "the registry has no schema at /schemas/ids/99"),
        (PREFIX + b'\3{"id":-1}', "id: -1 is less than the minimum"),
        (PREFIX + b"\3{", "it is not valid JSON"),
        (PREFIX + b'\3{"id":1,"where":{"x":NaN}}', "where/x: null is not of type"),
        (PREFIX + b"\4\x02\x63", "its file has no message"),
        (PREFIX + b"\4\x00\xff", "."),
        (PREFIX + b"\2" + bytes(decoding.VALUE_BYTES_MAX), "more than 262144 bytes"),
    ]
    found = decode(*(value for value, _ in values), good)
    for outcome, (value, reason) in zip(found, values, strict=False):
        assert isinstance(outcome, str), value[:40]
        assert re.search(reason, outcome), outcome
    assert json.loads(found[-1].text) == SHOWN


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        (NODE, b"\2" * 100_000 + b"\0", "nested more than 64 levels"),
        (NULLS, b"\xfe\xff\xff\xff\xff\xff\xff\xff\x7f\0", "more than 50000 parts"),
        ("string", b"\xfe\xff\xff\xff\x0f", "a length or index of"),
        ("string", b"\1", "a length or index of -1"),
        ("long", b"\xff" * 20, "more than 64 bits"),
        (["null", "int"], b"\4", "its union has no branch 2"),
        ({"type": "enum", "name": "E", "symbols": ["A"]}, b"\2", "a length or index of 1"),
        ({"type": "int", "logicalType": "date"}, b"\xfe\xff\xff\xff\x0f", "greater than maximum"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 4},
         b"\x82\x10" + bytes(1_025), "a decimal of more than 1024 bytes"),
    ],
)  # fmt: skip
def test_a_hostile_avro_value_is_refused_within_bounds(schema, payload, reason):
    with pytest.raises(Undecodable, match=reason):
        avro.value_of(json.dumps(schema), payload)


def test_avro_values_are_as_another_reader_has_them():
    schema = {
        "type": "record", "name": "shop.All", "fields": [
            {"name": "f", "type": "float"}, {"name": "d", "type": "double"},
            {"name": "b", "type": ["null", "boolean", "bytes"]},
            {"name": "x", "type": {"type": "fixed", "name": "Two", "size": 2}},
            {"name": "again", "type": {"type": "array", "items": ["Two", "shop.All"]}},
            {"name": "m", "type": {"type": "map", "values": {"type": "array", "items": "long"}}},
        ],
    }  # fmt: skip
    inner = {"f": 0.5, "d": -1e300, "b": True, "x": b"ab", "again": [], "m": {}}
    value = {**inner, "b": None, "again": [b"cd", inner], "m": {"k": [-(2**63), 2**63 - 1, 0]}}
    found = avro.value_of(json.dumps(schema), avro_bytes(value, fastavro.parse_schema(schema)))
    shown = {**inner, "x": "YWI="}
    assert found == {**value, "x": "YWI=", "again": ["Y2Q=", shown]}
    assert avro.value_of('"double"', avro_bytes(math.inf, "double")) == "inf"


def test_half_of_a_surrogate_pair_is_escaped_or_refused(decode):
    """JSON can escape it, and no answer in UTF-8 can hold it."""
    for name in (b'"\\ud800"', b'{"\\udfff":1}'):
        (found,) = decode(PREFIX + b'\3{"id":1,"any":' + name + b"}")
        text = found if isinstance(found, str) else found.text
        assert text.encode().decode() == text
        assert isinstance(found, str) or json.loads(text)["any"] == json.loads(name)


def test_a_schema_fetches_nothing_that_it_refers_to():
    with registry() as url:
        with pytest.raises(SchemaUnusable, match="cannot be used"):
            JsonSchema(json.dumps({"properties": {"a": {"$ref": f"{url}subjects/json"}}}))
        assert Registry.asked == []


def test_a_call_asks_a_registry_for_few_schemas_once_each_and_not_again_when_it_is_away(decode):
    unknown = [PREFIX + bytes([number]) + b"x" for number in range(100, 150)]
    found = decode(*unknown, *unknown)
    assert len(Registry.asked) == decoding.LOOKUPS_MAX
    assert "name more than 32 schemas" in found[40]
    away = ValueDecoder(access("http://127.0.0.1:1"), None, SystemClock())
    found = away.decode([Value("orders", one, ()) for one in unknown])
    assert set(found) == {"the schema registry did not answer: try again"}


def test_reasons_name_neither_the_registry_nor_its_login():
    with registry() as url:
        decoder = ValueDecoder(access(url, "wrong-one"), None, SystemClock())
        (found,) = decoder.decode([Value("orders", PREFIX + b"\1x", ())])
    assert found == "the schema registry refuses this broker: its log says why"


@pytest.mark.parametrize("moved_to", ["http://localhost:{port}", "https://127.0.0.1:{port}"])
def test_a_login_follows_no_redirect_to_another_address(monkeypatch, moved_to):
    with registry() as url:
        to = moved_to.format(port=url.rstrip("/").rpartition(":")[2])
        monkeypatch.setattr(Registry, "moved_to", to)
        with pytest.raises(RegistryRefused, match="redirects") as refused:
            by_reference(access(url), 1)
        assert Registry.received == [(url.split("/")[2], True)]
    assert "hidden" not in str(refused.value)


def test_decoding_ends_with_its_time_and_with_its_size(monkeypatch, tmp_path):
    (tmp_path / "orders.avsc").write_text('"string"')
    decoder = ValueDecoder(None, str(tmp_path), SystemClock())
    values = [Value("orders", b"\4ab", ())] * 3
    monkeypatch.setattr(decoding, "ALL_TEXT_LENGTH_MAX", 8)
    assert [isinstance(one, DecodedValue) for one in decoder.decode(values)] == [True, True, False]
    monkeypatch.setattr(decoding, "TIME_NS_MAX", -1)
    assert decoder.decode(values) == ["the time for decoding is over: ask for fewer records"] * 3


def test_a_folder_has_the_schemas_of_values_that_name_none(tmp_path):
    files = descriptor_pb2.FileDescriptorSet(file=[proto_file()])
    (tmp_path / "a.avsc").write_text(json.dumps(AVRO))
    (tmp_path / "b.json").write_text(json.dumps(JSON_SCHEMA))
    (tmp_path / "c.desc").write_bytes(files.SerializeToString())
    (tmp_path / "d.avsc").write_text("{")
    decoder = ValueDecoder(None, str(tmp_path), SystemClock())
    values = {"a": avro_bytes(ORDER), "b": b'{"id":1}', "c": b"\x0a\x01s", "d": b"x", "e": b"x"}
    found = decoder.decode([Value(topic, data, ()) for topic, data in values.items()])
    assert found[0][:2] == ("avro", "a.avsc")
    assert json.loads(found[0].text) == SHOWN
    assert found[1] == DecodedValue("json", "b.json", '{"id":1}')
    assert found[2] == DecodedValue("protobuf", "c.desc", '{"sku":"s"}')
    assert "The Avro schema cannot be parsed" in found[3]
    assert found[4] == "it names no schema, and the folder of schemas has no file of e"


def test_a_protobuf_time_is_as_protojson_has_it(decode):
    at = timestamp_pb2.Timestamp()
    at.FromDatetime(datetime(2026, 1, 2, tzinfo=UTC))
    body = at.SerializeToString()
    (found,) = decode(PREFIX + b"\4\x02\x02\x22" + bytes([len(body)]) + body)
    assert json.loads(found.text) == {"at": "2026-01-02T00:00:00Z"}


def test_a_cache_keeps_what_was_used_last_within_its_bounds():
    cache = SchemaCache(2, 10)
    for name in "abc":
        cache.put(name, RegisteredSchema(1, "", "AVRO", name * 3))
        assert cache.get("a") is not None
    assert cache.get("b") is None
    cache.put("d", RegisteredSchema(1, "", "AVRO", "d" * 9))
    assert [cache.get(name) is None for name in "acd"] == [True, True, False]
