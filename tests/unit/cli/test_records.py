"""Records from lines, JSON and files, and back."""

from __future__ import annotations

import io
import json

import click
import pytest

from headrace.cli.failures import CommandFailed
from headrace.cli.records_in import (
    OutgoingRecord,
    Reading,
    Source,
    read_json,
    read_lines,
    read_whole,
)
from headrace.cli.records_out import as_json, as_raw, template_writer, text_writer
from headrace.cli.text import for_terminal, unescape


def reading(**changes) -> Reading:
    plain = {
        "key": None,
        "key_separator": None,
        "headers": [],
        "timestamp_ms": 0,
        "partition": -1,
    }
    return Reading(**{**plain, **changes})


def records(reader, data: bytes, **changes) -> list[OutgoingRecord]:
    return list(reader(Source("input", io.BytesIO(data)), reading(**changes), lambda size: None))


class Message:
    """What the client library hands over."""

    def __init__(self, value, key=None, headers=None, offset=7, timestamp=(1, 1_359_633_600_000)):
        self._all = (value, key, headers, offset, timestamp)

    def value(self):
        return self._all[0]

    def key(self):
        return self._all[1]

    def headers(self):
        return self._all[2]

    def offset(self):
        return self._all[3]

    def timestamp(self):
        return self._all[4]

    def topic(self):
        return "orders"

    def partition(self):
        return 2


# --- in --------------------------------------------------------------------------------------


def test_lines_are_values_without_their_line_ends():
    assert [r.value for r in records(read_lines, b"a\nb\r\n\nlast")] == [b"a", b"b", b"", b"last"]


def test_an_empty_line_may_be_a_tombstone():
    assert [r.value for r in records(read_lines, b"a\n\n", empty_is_null=True)] == [b"a", None]


def test_a_key_ends_at_the_first_separator():
    (record,) = records(read_lines, b"k:v:w\n", key_separator=b":")
    assert (record.key, record.value) == (b"k", b"v:w")


def test_a_line_without_separator_is_named_by_its_number():
    with pytest.raises(CommandFailed, match="line 2 of input has no key separator"):
        records(read_lines, b"k:v\nno\n", key_separator=b":")


def test_bytes_that_are_no_text_pass_as_they_are():
    assert records(read_lines, b"\xff\x00\n")[0].value == b"\xff\x00"


@pytest.mark.parametrize(
    ("document", "record"),
    [
        ({"value": "v"}, OutgoingRecord(None, b"v", [])),
        ({"key": "k", "value": None}, OutgoingRecord(b"k", None, [])),
        ({"key": "k"}, OutgoingRecord(b"k", None, [])),
        ({"value": {"a": [1, "é"]}}, OutgoingRecord(None, '{"a":[1,"é"]}'.encode(), [])),
        ({"value": 3, "partition": 4}, OutgoingRecord(None, b"3", [], 0, 4)),
        ({"value": "v", "timestamp": 5}, OutgoingRecord(None, b"v", [], 5)),
        ({"value": "v", "timestamp": "1970-01-01T00:00:01Z"}, OutgoingRecord(None, b"v", [], 1000)),
        ({"value_base64": "/wA="}, OutgoingRecord(None, b"\xff\x00", [])),
        ({"value": "v", "headers": {"a": "1", "b": None}},
         OutgoingRecord(None, b"v", [("a", b"1"), ("b", None)])),
        ({"value": "v", "headers": [{"key": "a", "value_base64": "/w=="}]},
         OutgoingRecord(None, b"v", [("a", b"\xff")])),
    ],
)  # fmt: skip
def test_json_lines(document, record):
    assert records(read_json, json.dumps(document).encode() + b"\n\n") == [record]


@pytest.mark.parametrize(
    "line", [b"{", b"[]", b'"text"', b'{"value_base64": "?"}', b'{"value":"v","timestamp":"soon"}',
             b'{"value":"v","headers":[1]}', b'{"value": "v", "partition": "x"}']
)  # fmt: skip
def test_a_json_line_that_cannot_be_read_is_named(line):
    with pytest.raises(CommandFailed, match=r"line 1 of input (cannot be read|is not valid JSON)"):
        records(read_json, line)


def test_options_go_before_the_document():
    given = reading(partition=1, timestamp_ms=9, headers=[("all", b"x")], key=b"fixed")
    source = Source("input", io.BytesIO(b'{"value":"v","partition":0,"timestamp":5}'))
    assert list(read_json(source, given, lambda size: None)) == [
        OutgoingRecord(b"fixed", b"v", [("all", b"x")], 9, 1)
    ]


def test_a_file_is_one_record_and_may_give_its_name_as_key():
    source = Source("some/folder/image.png", io.BytesIO(b"\x89PNG\n1"))
    (record,) = read_whole(source, reading(key_from_name=True), lambda size: None)
    assert (record.key, record.value) == (b"image.png", b"\x89PNG\n1")


def test_progress_is_reported_in_bytes():
    told: list[int] = []
    list(read_lines(Source("input", io.BytesIO(b"ab\nc")), reading(), told.append))
    assert sum(told) == 4


# --- out -------------------------------------------------------------------------------------


def text(**changes):
    plain = {"keys": False, "headers": False, "positions": False, "times": False}
    return text_writer(**{**plain, "delimiter": r"\n", "terminal": False, **changes})


def test_text_is_the_value_and_the_delimiter():
    assert text()(Message(b"v")) == b"v\n"
    assert text(delimiter=r"\0")(Message(None)) == b"\0"


def test_text_with_columns():
    message = Message(b"v", b"k", [("a", b"1"), ("b", None)])
    write = text(keys=True, headers=True, positions=True, times=True)
    assert write(message) == b"2:7\t2013-01-31T12:00:00.000Z\ta=1,b=\tk\tv\n"


def test_a_record_cannot_drive_the_terminal():
    assert text(terminal=True)(Message(b"a\x1b]0;title\x07\tb")) == b"a\\x1b]0;title\\x07\tb\n"
    assert for_terminal(b"\xff\xc2\x9b1m") == b"\\xff\\x9b1m"


def test_raw_is_the_value_alone():
    assert as_raw(Message(b"\x00\n")) == b"\x00\n"


def test_json_says_everything_and_can_be_produced_again():
    message = Message(b"v", b"\xff", [("a", b"1"), ("a", None)])
    document = json.loads(as_json(message))
    assert document == {
        "topic": "orders",
        "partition": 2,
        "offset": 7,
        "timestamp": 1_359_633_600_000,
        "timestamp_type": "create",
        "key_base64": "/w==",
        "value": "v",
        "headers": [{"key": "a", "value": "1"}, {"key": "a", "value": None}],
    }
    (record,) = records(read_json, as_json(message))
    headers = [("a", b"1"), ("a", None)]
    assert record == OutgoingRecord(b"\xff", b"v", headers, 1_359_633_600_000, 2)


def test_templates():
    write = template_writer(
        r"{topic}/{partition}@{offset} {key}={value}|{header[a]}|{size}\n", False
    )
    assert write(Message(b"v{x}", b"k", [("a", b"1")])) == b"orders/2@7 k=v{x}|1|4\n"


@pytest.mark.parametrize("template", ["no field", "{nosuch}", "{value[x]}", "{header}"])
def test_a_template_with_an_unknown_field_is_refused(template):
    with pytest.raises(click.UsageError, match="use topic, partition, offset"):
        template_writer(template, False)


def test_escapes():
    assert unescape(r"a\tb\n\\n\x41\q") == "a\tb\n\\nA\\q"
