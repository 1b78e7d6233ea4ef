"""Filters of records by an expression: what they see, what they refuse, what they may cost."""

from __future__ import annotations

import time

import pytest

from headrace.errors import RequestInvalid
from headrace.records.cel_syntax import DEPTH_MAX, LENGTH_MAX
from headrace.records.record_filter import Candidate, RecordFilter

ORDER = b'{"amount": 120, "items": [{"id": 3, "tags": ["a"]}], "note": null}'


def record(value: bytes | None = ORDER, key: bytes | None = b"k1", **headers: bytes) -> Candidate:
    return Candidate("orders", 2, 7, 1_000, key, value, [*headers.items()])


@pytest.mark.parametrize(
    "text",
    [
        "value.amount > 100",
        "value.items.exists(one, one.id == 3 && 'a' in one.tags)",
        "key.startsWith('k') && headers.region == 'eu'",
        'headers["region"] in ["eu", "us"] && partition == 2 && offset == 7',
        "topic == 'orders' && timestamp_ms == 1000 && value_bytes > 10",
        "has(value.amount) && !has(value.price) && value.note == null",
        r"text.matches('\"amount\": \\d{3}')",
        "value.price > 3 || value.amount == 120.0",
        "size(value.items) == 1 ? value.items[0].id == 3 : false",
        "value.items.map(one, one.id * 2) == [6]",
    ],
)
def test_a_record_matches_by_what_it_holds(text: str) -> None:
    assert RecordFilter(text).matches(record(region=b"eu"))
    assert not RecordFilter(f"!({text})").matches(record(region=b"eu"))


def test_values_that_are_no_json_are_text_or_bytes() -> None:
    assert RecordFilter("value == 'plain'").matches(record(b"plain"))
    assert RecordFilter("value == '{broken'").matches(record(b"{broken"))
    assert RecordFilter(r"value == b'\xff'").matches(record(b"\xff"))
    assert RecordFilter("value == null && key == null").matches(record(None, None))


def test_a_record_without_a_truth_value_does_not_match_and_is_counted() -> None:
    condition = RecordFilter("value.price > 3")
    assert not condition.matches(record())
    assert not condition.matches(record(b"text"))
    assert condition.failures == 2
    assert condition.first_failure == "there is no field 'price'"
    number = RecordFilter("1 + 1")
    assert not number.matches(record())
    assert "neither true nor false" in number.first_failure


@pytest.mark.parametrize("text", ["value.matches('a')", "int(value) == 1", "double(value) == 1.0"])
def test_a_value_that_is_no_text_of_unicode_breaks_no_search(text: str) -> None:
    condition = RecordFilter(text)
    assert not condition.matches(record(b'"\\ud800"'))
    assert condition.failures == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("value.amount >", "it ends too early"),
        ("valeu.amount > 1", "there is no 'valeu': use value, text, key"),
        ("value.__class__.mro()", "no function 'mro'"),
        ("open('/etc/passwd')", "no function 'open'"),
        ("text.matches('(')", "not a regular expression"),
        ("text.matches(key)", "written as a string"),
        (r"text.matches('\\pL{1000}')", "not a regular expression"),
        ("value ! 3", "instead of the end"),
        ("99999999999999999999 == 1", "more than 64 bits"),
        ("1u == 1", "instead of the end"),
        ("for == 1", "reserved word"),
        ("has(value)", "takes one field"),
        ("(" * (DEPTH_MAX + 2) + "true" + ")" * (DEPTH_MAX + 2), "nested more than"),
        ("x" * (LENGTH_MAX + 1), "the limit is"),
        ("[" + "1," * 300 + "]", "tokens"),
    ],
)
def test_malformed_expressions_are_refused_with_the_reason(text: str, reason: str) -> None:
    with pytest.raises(RequestInvalid) as refused:
        RecordFilter(text)
    assert reason in str(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        "value.all(a, value.all(b, value.all(c, a + b + c > 0)))",
        "value.map(a, value.map(b, value)) == []",
        "value.exists(a, value.map(b, value) == [])",
        "value.map(a, text + text + text).size() < 0",
        "value.exists(a, text.matches('(x+x+)+y'))",
        "value.exists(a, text + text == text)",
    ],
)
def test_no_expression_runs_for_long(text: str) -> None:
    many = b"[" + b",".join([b"1"] * 20_000) + b"]"
    begun_ns = time.process_time_ns()
    condition = RecordFilter(text)
    assert not condition.matches(record(many))
    assert (time.process_time_ns() - begun_ns) / 1e9 < 2
    assert condition.failures == 1
    assert "steps" in condition.first_failure


def test_needles_are_what_every_match_holds() -> None:
    text = "key == 'k1' && headers['a'].contains('b') && value.x == 'c' && text.endsWith('d')"
    assert RecordFilter(text).needles == [b"k1", b"b", b"d"]
    assert RecordFilter("key == 'k1' || key == 'k2'").needles == []
