"""Typed values: what a schema makes of bytes, of rows, and of what is neither."""

import json
from datetime import UTC, datetime
from decimal import Decimal
from itertools import chain

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2
from tests.unit.schemas.registry_rig import (
    AVRO,
    GUID,
    JSON_SCHEMA,
    OLDER,
    ORDER,
    UNTYPED_SCHEMA,
    Registry,
    avro_bytes,
    proto_file,
    registry,
)

from headrace.pipeline.arrow import to_arrow
from headrace.pipeline.columns import RecordColumns
from headrace.pipeline.errors import (
    OptionInvalid,
    RowInvalid,
    ValueUndecodable,
)
from headrace.pipeline.options import parse_sink, parse_source
from headrace.pipeline.rows import rows_of
from headrace.pipeline.typed.avro import AvroCodec
from headrace.pipeline.typed.columns import typed_schema, typed_values, values_of
from headrace.schemas.errors import RegistryUnavailable
from headrace.schemas.registry import RegisteredSchema
from headrace.schemas.undecodable import Undecodable

SERVER = {"bootstrap.servers": "127.0.0.1:9092"}
PROTO_ROW = {
    "id": -5, "note": "", "lines": [{"sku": "a"}], "big": Decimal(2**64 - 1),
    "at": datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC),
}  # fmt: skip


@pytest.fixture
def schema_file(tmp_path):
    def write(content):
        path = tmp_path / f"schema{len(list(tmp_path.iterdir()))}"
        path.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
        return str(path)

    return write


def source(kind, **options):
    return parse_source({**SERVER, "subscribe": "orders", "valueFormat": kind, **options})


def sink(kind, **options):
    return parse_sink({**SERVER, "topic": "orders", "valueFormat": kind, **options})


def read(options, values, headers=None):
    """The rows of records with these values."""
    count = len(values)
    rows = RecordColumns(
        list(range(count)), [1] * count, [1_000] * count, [b"k"] * count, values,
        headers or [None] * count,
    )  # fmt: skip
    batch = values_of(options).typed(to_arrow(rows, "orders", 3))
    batch.validate(full=True)
    assert batch.schema.names == typed_schema(options).names
    return batch.to_pylist()


def written(options, values):
    """The records of rows with these values."""
    kind = typed_values(options.typed, "orders").arrow_type
    batch = pa.record_batch([pa.array(values, kind)], names=["value"])
    return [*chain.from_iterable(rows_of(iter([batch]), options))]


def plain(value):
    """Maps as Arrow returns them, as dicts."""
    return {**value, "tags": dict(value["tags"])}


def test_avro_values_become_columns_and_rows_become_the_same_bytes(schema_file):
    file = {"valueSchemaFile": schema_file(AVRO)}
    (row, tombstone) = read(source("avro", **file), [avro_bytes(ORDER), None])
    assert plain(row["value"]) == ORDER
    assert row["undecodable"] is None
    assert (tombstone["value"], tombstone["undecodable"]) == (None, None)
    (record, again) = written(sink("avro", **file), [ORDER, None])
    assert record.value == avro_bytes(ORDER)
    assert again.value is None


LONG = 2**40


def varint(number):
    found, left = bytearray(), number << 1
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    return bytes([*found, left])


def nested(levels, width):
    """A record of `width` records of ... nulls, without a byte."""
    kind = again = "null"
    for level in range(levels):
        fields = [{"name": f"f{n}", "type": again if n else kind} for n in range(width)]
        again = f"L{level}"
        kind = {"type": "record", "name": again, "fields": fields}
    return kind


NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
DECIMAL = {"type": "bytes", "logicalType": "decimal", "precision": 9}
BIT = {"name": "bit", "type": "boolean"}


@pytest.mark.parametrize(
    ("schema", "payload", "reason"),
    [
        ({"type": "array", "items": "null"}, varint(LONG), "more than 2000000 parts"),
        ({"type": "array", "items": ["null"]}, varint(LONG), "EOFError"),
        (nested(4, 60), b"", "more than 2000000 parts"),
        (
            {"type": "array", "items": {"type": "record", "name": "W", "fields": [
                BIT, *({"name": f"n{n}", "type": "null"} for n in range(300))]}},
            varint(20_000) + bytes(20_001), "more than 2000000 parts",
        ),
        (NODE, b"\2" * 100_000, "nested more than 64"),
        (DECIMAL, varint(2**20) + b"\1" * 2**20, "decimal of more than"),
    ],
    ids=["nulls", "cut off", "wide", "wide items", "deep", "decimal"],
)  # fmt: skip
def test_a_value_that_would_take_much_memory_is_undecodable(schema, payload, reason):
    """Also in a field that no column has: a hostile writer's schema decides what is read."""
    columns = {"type": "record", "name": "R", "fields": [{"name": "id", "type": "long"}]}
    writer = {**columns, "fields": [*columns["fields"], {"name": "x", "type": schema}]}
    codec = AvroCodec(json.dumps(columns))
    with pytest.raises(Undecodable, match=reason):
        codec.decode(b"\2" + payload, RegisteredSchema(1, "", "AVRO", json.dumps(writer)))


def test_a_long_value_is_decoded_as_long_as_it_has_not_too_many_parts():
    columns = {"type": "record", "name": "R", "fields": [
        {"name": "list", "type": {"type": "array", "items": {
            "type": "record", "name": "I", "fields": [BIT, {"name": "of", "type": DECIMAL}]}}}]
    }  # fmt: skip
    row = {"list": [{"bit": True, "of": Decimal(7)}] * 20_000}
    assert AvroCodec(json.dumps(columns)).decode(avro_bytes(row, columns), None) == row


def test_times_of_day_are_written_in_the_unit_of_their_schema(schema_file):
    millis = {"type": "int", "logicalType": "time-millis"}
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": ["null", millis]}]}
    fields = {
        "at": millis, "micros": {"type": "long", "logicalType": "time-micros"},
        "all": {"type": "array", "items": inner}, "one": ["null", "I"],
    }  # fmt: skip
    schema = {
        "type": "record", "name": "R", "namespace": "n",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }  # fmt: skip
    noon = 12 * 3_600_000_000
    row = {"at": noon, "micros": noon + 1, "all": [{"at": noon}, {"at": None}], "one": {"at": 1000}}
    file = {"valueSchemaFile": schema_file(schema)}
    (record,) = written(sink("avro", **file), [row])
    (back,) = read(source("avro", **file), [record.value])
    assert back["value"] == row
    with pytest.raises(RowInvalid, match="is not a whole number of milliseconds"):
        written(sink("avro", **file), [{**row, "at": 1}])


@pytest.mark.parametrize("items", [[], None, {}])
def test_a_time_of_a_type_that_is_named_where_the_row_has_nothing_is_written_in_its_unit(
    items, schema_file
):
    millis = {"type": "int", "logicalType": "time-millis"}
    inner = {"type": "record", "name": "I", "fields": [{"name": "at", "type": millis}]}
    where = {"type": "map", "values": inner} if items == {} else {"type": "array", "items": inner}
    fields = {"all": ["null", where], "one": "I"}
    schema = {
        "type": "record", "name": "R",
        "fields": [{"name": name, "type": kind} for name, kind in fields.items()],
    }  # fmt: skip
    row = {"all": items, "one": {"at": 1_000_000}}
    (record,) = written(sink("avro", valueSchemaFile=schema_file(schema)), [row])
    assert record.value == avro_bytes({"all": items, "one": {"at": 1_000}}, schema)


@pytest.mark.parametrize("unit", ["millis", "micros"])
@pytest.mark.parametrize("time_us", [-1_000, 86_400_000_000, 10**18])
def test_a_time_of_day_that_no_day_has_is_refused(unit, time_us, schema_file):
    kind = {"type": "int" if unit == "millis" else "long", "logicalType": f"time-{unit}"}
    schema = {"type": "record", "name": "R", "fields": [{"name": "at", "type": kind}]}
    file = {"valueSchemaFile": schema_file(schema)}
    with pytest.raises(RowInvalid, match=r"the time of day -?\d+ .* is not within a day"):
        written(sink("avro", **file), [{"at": time_us}])
    row = {"at": 86_399_999_000}
    (record,) = written(sink("avro", **file), [row])
    assert read(source("avro", **file), [record.value])[0]["value"] == row


def test_logical_types_that_do_not_fit_their_type_are_ignored(schema_file):
    kinds = {
        "at": {"type": "long", "logicalType": "time-millis"},
        "bytes": {"type": "bytes", "logicalType": "decimal"},
        "fixed": {"type": "fixed", "name": "F", "size": 2, "logicalType": "decimal"},
        "again": ["null", "F"],
    }
    fields = [{"name": name, "type": kind} for name, kind in kinds.items()]
    file = {"valueSchemaFile": schema_file({"type": "record", "name": "R", "fields": fields})}
    row = {"at": 1_000_001, "bytes": b"x", "fixed": b"ab", "again": b"cd"}
    (record,) = written(sink("avro", **file), [row])
    assert record.value == b"\x82\x89\x7a\x02xab\x02cd"
    assert read(source("avro", **file), [record.value])[0]["value"] == row


@pytest.mark.parametrize("logical", ["time-millis", "date"])
def test_columns_that_the_schema_does_not_have_are_refused(logical, schema_file):
    kind = {"type": "int", "logicalType": logical}
    schema = {"type": "record", "name": "R", "fields": [{"name": "x", "type": kind}]}
    options = sink("avro", valueSchemaFile=schema_file(schema))
    batch = pa.record_batch([pa.array([{"x": 0, "y": 1}])], names=["value"])
    with pytest.raises(RowInvalid, match="more fields than the schema specifies: y"):
        list(rows_of(iter([batch]), options))


def test_types_of_one_name_in_two_namespaces_are_two(schema_file):
    code = {"type": "enum", "name": "Code", "symbols": ["A"]}
    fields = [
        {"name": "a", "type": code},
        {"name": "b", "type": {"type": "fixed", "name": "Code", "namespace": "y", "size": 2}},
        {"name": "c", "type": "Code"},
        {"name": "d", "type": "x.Code"},
    ]
    schema = {"type": "record", "name": "R", "namespace": "x", "fields": fields}
    options = sink("avro", valueSchemaFile=schema_file(schema))
    kinds = typed_values(options.typed, "orders").arrow_type
    assert [str(field.type) for field in kinds] == ["string", "binary", "string", "string"]


def test_parts_of_json_without_a_single_type_are_written_as_they_were_read(schema_file):
    parts = {"anyOf": [{"type": "string"}, {"type": "integer"}, {"type": "array"}]}
    schema = {
        "type": "object",
        "required": ["note"],
        "properties": {"part": parts, "note": {"type": ["string", "null"]}, "more": {}},
    }
    file = {"valueSchemaFile": schema_file(schema)}
    values = [{"part": part, "note": None} for part in (5, "5", [1, "x"], "true")]
    payloads = [json.dumps(each).encode() for each in values]
    rows = [row["value"] for row in read(source("json", **file), payloads)]
    assert [row["part"] for row in rows] == ["5", '"5"', '[1, "x"]', '"true"']
    assert [json.loads(record.value) for record in written(sink("json", **file), rows)] == values
    with pytest.raises(RowInvalid):
        written(sink("json", **file), [{"part": "no JSON", "note": "x", "more": None}])


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity", "1e400", "[NaN]"])
def test_parts_that_are_numbers_of_no_json_are_refused(text, schema_file):
    schema = {"type": "object", "properties": {"part": {}, "number": {"type": "number"}}}
    file = {"valueSchemaFile": schema_file(schema)}
    with pytest.raises(RowInvalid):
        written(sink("json", **file), [{"part": text}])
    if "[" not in text:
        with pytest.raises(RowInvalid):
            written(sink("json", **file), [{"number": float(text)}])


@pytest.mark.parametrize(
    ("kind", "kept"),
    [
        ({"type": "integer"}, {}),
        ({"type": ["integer", "null"]}, {"z": None}),
        ({"$ref": "#/$defs/number"}, {}),
        ({"enum": [1, None]}, {"z": None}),
        ({"enum": [1, 2]}, {}),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, {"z": None}),
        ({"anyOf": [{"type": "integer"}, {"type": "string"}]}, {}),
    ],
)
def test_a_null_of_a_map_is_kept_where_it_may_be_null(kind, kept, schema_file):
    schema = {
        "type": "object", "$defs": {"number": {"type": "integer"}},
        "properties": {"m": {"type": "object", "additionalProperties": kind}},
    }  # fmt: skip
    file = {"valueSchemaFile": schema_file(schema)}
    one = 1 if "type" in kind or "$ref" in kind else "1"
    (record,) = written(sink("json", **file), [{"m": [("k", one), ("z", None)]}])
    assert json.loads(record.value) == {"m": {"k": 1, **kept}}


def test_texts_of_an_enum_without_a_type_are_written_with_and_without_quotes(schema_file):
    schema = {"type": "object", "properties": {"e": {"enum": ["A", "5", 6]}}}
    file = {"valueSchemaFile": schema_file(schema)}
    rows = [{"e": text} for text in ("A", '"A"', "5", '"5"', "6")]
    found = [json.loads(record.value)["e"] for record in written(sink("json", **file), rows)]
    assert found == ["A", "A", "5", "5", 6]
    with pytest.raises(RowInvalid, match="'B' is not valid JSON"):
        written(sink("json", **file), [{"e": "B"}])


@pytest.mark.parametrize(
    ("kind", "schema", "bad"),
    [
        ("avro", AVRO, [b"", avro_bytes(ORDER)[:-3], avro_bytes(ORDER) + b"x", b"\xff" * 20]),
        ("json", JSON_SCHEMA, [b"", b"{", b'{"id":-1}', b'{"id":"1"}', b'{"name":"x"}',
                               b'{"id":99999999999999999999}', b"\xff", b"[" * 9_000]),
        ("json", UNTYPED_SCHEMA, [b"[1]", b"5", b'"x"', b'{"d":5}', b'{"d":[1]}', b"[]",
                                  b'{"a":"\\ud800"}', b'{"f":1' + b"0" * 400 + b"}"]),
        ("protobuf", None, [b"\xff", b"\x08", b"\x12\x05a"]),
    ],
    ids=["avro", "json", "json-untyped", "protobuf"],
)  # fmt: skip
def test_undecodable_values_keep_their_reason_and_bytes_in_a_column_of_their_own(
    kind, schema, bad, schema_file
):
    if schema is None:
        schema = descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()
        more = {"valueMessage": "shop.Order"}
    else:
        more = {}
    options = source(kind, valueSchemaFile=schema_file(schema), **more)
    for row, value in zip(read(options, bad), bad, strict=True):
        assert row["value"] is None
        assert row["undecodable"]["value"] == value
        assert row["undecodable"]["reason"]
    failing = source(kind, valueSchemaFile=schema_file(schema), onUndecodable="fail", **more)
    with pytest.raises(ValueUndecodable, match="orders-3: the value at offset 0 cannot be"):
        read(failing, bad[1:])


def test_json_values_are_validated_and_become_columns(schema_file):
    file = {"valueSchemaFile": schema_file(JSON_SCHEMA)}
    value = {"id": 1, "name": "é", "where": {"x": 2}, "any": [1, {}], "counts": {"a": 1},
             "list": [True]}  # fmt: skip
    (row, least) = read(source("json", **file), [json.dumps(value).encode(), b'{"id":1,"z":2}'])
    assert {**row["value"], "counts": dict(row["value"]["counts"])} == {
        **value, "any": "[1, {}]", "where": {"x": 2.0},
    }  # fmt: skip
    assert least["value"]["name"] is None
    (record,) = written(sink("json", **file), [{"id": 5, "name": "é", "list": [False]}])
    assert json.loads(record.value) == {"id": 5, "name": "é", "list": [False]}
    with pytest.raises(RowInvalid, match="less than the minimum"):
        written(sink("json", **file), [{"id": -5}])


def test_protobuf_values_become_columns_and_rows_become_messages(schema_file):
    data = descriptor_pb2.FileDescriptorSet(file=[proto_file()]).SerializeToString()
    file = {"valueSchemaFile": schema_file(data), "valueMessage": "shop.Order"}
    (record,) = written(sink("protobuf", **file), [PROTO_ROW])
    (row, empty) = read(source("protobuf", **file), [record.value, b""])
    assert row["value"] == PROTO_ROW
    assert empty["value"] == {"id": 0, "note": None, "lines": [], "at": None, "big": Decimal(0)}
    with pytest.raises(OptionInvalid, match=r"no message shop\.Else"):
        typed_schema(source("protobuf", **{**file, "valueMessage": "shop.Else"}))
    assert timestamp_pb2.DESCRIPTOR.name in str(proto_file().dependency)


@pytest.mark.parametrize(
    ("schema", "what"),
    [
        ({"type": "record", "name": "R", "fields": [{"name": "u", "type": ["int", "string"]}]},
         "a union of several types at value.u"),
        ({"type": "record", "name": "R", "fields": [{"name": "r", "type": ["null", "R"]}]},
         "recursive or unknown type R at value.r"),
        ({"type": "record", "name": "R", "fields": [
            {"name": "d", "type": {"type": "bytes", "logicalType": "decimal", "precision": 40}}]},
         "a decimal of 40 digits"),
        ({"type": "nonsense"}, "cannot be parsed"),
    ],
)  # fmt: skip
def test_a_schema_that_sql_cannot_represent_is_refused_when_the_query_is_planned(
    schema, what, schema_file
):
    with pytest.raises(OptionInvalid, match=what):
        typed_schema(source("avro", valueSchemaFile=schema_file(schema)))


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"valueFormat": "avro"}, "valueSchemaFile or schemaRegistry"),
        ({"valueFormat": "xml"}, "not 'xml'"),
        ({"valueSchemaFile": "x"}, "needs valueFormat"),
        ({"valueFormat": "avro", "schemaRegistry": "h:1"}, "http://"),
        ({"valueFormat": "avro", "schemaRegistry": "http://u:p@h"}, "schemaRegistry.user"),
        ({"valueFormat": "avro", "valueSchemaFile": "/no/such"}, "cannot be read"),
    ],
)
def test_contradictions_are_refused(options, word):
    with pytest.raises(OptionInvalid, match=word):
        typed_schema(parse_source({**SERVER, "subscribe": "t", **options}))


# --- a registry ------------------------------------------------------------------------------


@pytest.fixture
def served():
    with registry() as url:
        typed_values.cache_clear()
        yield {
            "schemaRegistry": url, "schemaRegistry.user": "me", "schemaRegistry.password": "hidden",
        }  # fmt: skip


def test_values_name_their_schema_by_prefix_or_header_and_are_resolved_into_the_columns(served):
    older = b"\0\0\0\0\1" + avro_bytes({"id": 3}, OLDER)
    defaults = {**AVRO, "fields": AVRO["fields"][:2]}
    Registry.schemas[2] = {"schema": json.dumps(defaults), "guid": GUID}
    try:
        options = source("avro", **served)
        body = avro_bytes({"id": 9, "note": "n"}, defaults)
        by_header = [
            ("other", b"x"),
            ("__value_schema_id", b"\1" + bytes.fromhex(GUID.replace("-", ""))),
        ]
        rows = read(
            options,
            [older, b"\0\0\0\0\2" + body, body, b"\0\0\0\0\x63" + body, b"bare"] + [older] * 50,
            [None, None, by_header, None, None] + [None] * 50,
        )
    finally:
        Registry.schemas[2] = {"schema": json.dumps(AVRO), "guid": GUID}
    assert [row["value"] for row in rows[:5]] == [
        {"id": 3, "note": None}, {"id": 9, "note": "n"}, {"id": 9, "note": "n"}, None, None,
    ]  # fmt: skip
    assert "no schema at /schemas/ids/99" in rows[3]["undecodable"]["reason"]
    assert "neither a prefix nor a header" in rows[4]["undecodable"]["reason"]
    assert Registry.asked.count("/schemas/ids/1") == 1


def test_rows_are_written_with_the_id_of_the_latest_version(served):
    (record,) = written(sink("avro", **served), [ORDER])
    assert record.value == b"\0\0\0\0\2" + avro_bytes(ORDER)
    (record,) = written(sink("avro", valueSchemaId="header", **served), [ORDER])
    assert record.value == avro_bytes(ORDER)
    assert record.headers == [("__value_schema_id", b"\1" + bytes.fromhex(GUID.replace("-", "")))]
    options = {"valueSubject": "proto", "valueMessage": "shop.Order", **served}
    (record,) = written(sink("protobuf", **options), [PROTO_ROW])
    assert record.value.startswith(b"\0\0\0\0\4\x02\x02\x08")  # the second message of its file
    assert read(source("protobuf", **options), [record.value])[0]["value"] == PROTO_ROW
    options = {"valueSubject": "json", **served}
    (record,) = written(sink("json", **options), [{"id": 1}])
    assert record.value == b'\0\0\0\0\3{"id":1}'
    with pytest.raises(OptionInvalid, match="valueSchemaId=prefix"):
        written(sink("json", valueSchemaId="header", **options), [{"id": 1}])


def test_a_registry_that_refuses_or_is_away_is_an_error_without_the_password(served):
    for options, error, word in (
        ({**served, "schemaRegistry.password": "wrong-one"}, OptionInvalid, "HTTP 401"),
        (
            {**served, "valueSubject": "none"},
            OptionInvalid,
            "no latest version of a subject 'none'",
        ),
        ({**served, "valueSubject": "json"}, OptionInvalid, "of type JSON"),
        ({**served, "schemaRegistry": "http://127.0.0.1:1"}, RegistryUnavailable, "did not answer"),
    ):
        parsed = source("avro", **options)
        with pytest.raises(error, match=word) as caught:
            typed_schema(parsed)
        for text in (str(caught.value), repr(parsed)):
            assert "wrong-one" not in text
            assert "hidden" not in text
