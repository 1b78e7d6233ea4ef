"""Filters over headers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from headrace.errors import ConfigInvalid
from headrace.records.filters import (
    DEPTH_MAX,
    FILTER_LENGTH_MAX,
    TAGS_MAX,
    TOKENS_MAX,
    VALUE_BYTES_MAX,
    parse_sql,
    parse_tags,
)

if TYPE_CHECKING:
    from headrace.records.codec import Headers

HEADERS: Headers = [
    ("region", b"us"),
    ("region", b"eu"),
    ("amount", b"100.5"),
    ("count", b"7"),
    ("paid", b"TRUE"),
    ("nothing", None),
    ("binary", b"\xff"),
    ("long", b"x" * (VALUE_BYTES_MAX + 1)),
    ("headrace-tag", b"order"),
    ("headrace-keys", b"k1 k2"),
    ("it's", b"50% off_"),
]


@pytest.mark.parametrize(
    ("expression", "is_wanted"),
    [
        ("*", True),
        ("order", True),
        (" invoice || order ", True),
        ("invoice", False),
        ("Order", False),
    ],
)
def test_tags(expression, is_wanted):
    found = parse_tags(expression)
    assert (found is None or found.matches(HEADERS)) == is_wanted
    if found is not None:
        assert not found.matches([])


@pytest.mark.parametrize("expression", ["", "a||", "a|b", "a b", "a || *", "**", "||"])
def test_malformed_tags_are_refused(expression):
    with pytest.raises(ConfigInvalid, match="is not a tag"):
        parse_tags(expression)


TRUE = (
    "region = 'eu'",
    "region <> 'us' AND count = 7",
    "'eu' = region",
    "100 < amount",
    "amount > 100 and amount <= 100.50",
    "amount BETWEEN 100 AND 101",
    "count NOT BETWEEN 8 AND 9",
    "region IN ('de', 'eu')",
    "count IN (1, 7)",
    "region NOT IN ('de', 'us')",
    "nothing IS NULL",
    "binary IS NULL",
    "long IS NULL",
    "absent IS NULL AND region IS NOT NULL",
    "paid",
    "paid = TRUE",
    "NOT paid = FALSE",
    "absent = 1 OR paid",
    "TAGS = 'order' AND KEYS LIKE '%k2'",
    "\"headrace-tag\" = 'order'",
    "\"it's\" LIKE '50!% off!_' ESCAPE '!'",
    "region LIKE '__'",
    "region LIKE '%'",
    "\"it's\" LIKE '5%o_f%'",
    "NOT (region = 'us' OR count > 7)",
    "region = 'eu' OR region = 'us' AND count = 0",
    "count < amount",
    "1 = 1",
    "'a' <> 'b'",
    "NOT NOT NOT region = 'us'",
    "count = 7.0",
    "amount > -5",
)
NOT_TRUE = (
    "region = 'EU'",
    "absent = 1",
    "NOT absent = 1",
    "absent <> 1",
    "NOT (absent = 1 AND paid)",
    "region > 5",
    "NOT region > 5",
    "region NOT IN ('de', NULL)",
    "count = NULL",
    "NULL",
    "FALSE",
    "region = count",
    "region < region",
    "region LIKE '_'",
    "binary LIKE '%'",
    "region LIKE 'e'",
    "count NOT BETWEEN 1 AND absent",
    "amount",
)


@pytest.mark.parametrize("expression", TRUE)
def test_an_expression_that_is_true_wants_the_record(expression):
    assert parse_sql(expression).matches(HEADERS)


@pytest.mark.parametrize("expression", NOT_TRUE)
def test_an_expression_that_is_false_or_null_does_not(expression):
    assert not parse_sql(expression).matches(HEADERS)


@pytest.mark.parametrize(
    ("expression", "problem"),
    [
        ("", "character 1: expected a header, a text or a number, found end of filter"),
        ("a =", "found end of filter"),
        ("a = 'x", "syntax error"),
        ("a == 1", "found '='"),
        ("a = 1 b", "expected AND, OR or the end, found 'b'"),
        ("(a = 1", "expected \\)"),
        ("a = 1)", "found '\\)'"),
        ("a > 'x'", "compares numbers"),
        ("'x'", "not a condition"),
        ("1", "not a condition"),
        ("a NOT = 1", "expected BETWEEN, IN or LIKE"),
        ("a IN ()", "expected "),
        ("a LIKE 5", "expected text"),
        ("a LIKE 'x' ESCAPE '%'", "other than % and _"),
        ("a LIKE 'x!' ESCAPE '!'", "ends with its escape"),
        ("'x' LIKE 'x'", "must be a header"),
        ("1 = 'a'", "cannot compare a number with a text"),
        ("a = 1a", "syntax error"),
        ("a; DROP", "syntax error"),
        ("a BETWEEN 1 OR 2", "expected AND"),
        ("a = 1234567890123456789", "syntax error"),
    ],
)
def test_a_malformed_expression_is_refused_with_its_place(expression, problem):
    with pytest.raises(ConfigInvalid, match=problem):
        parse_sql(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "a" * (FILTER_LENGTH_MAX + 1),
        "(" * (DEPTH_MAX + 2) + "a" + ")" * (DEPTH_MAX + 2),
        "a IN (" + "1," * (TOKENS_MAX // 2) + "1)",
        "a" * 300 + " = 1",
    ],
)
def test_hostile_expressions_are_refused(expression):
    with pytest.raises(ConfigInvalid):
        parse_sql(expression)


def test_many_tags_are_refused_and_the_deepest_expression_is_taken():
    with pytest.raises(ConfigInvalid, match=f"limit is {TAGS_MAX}"):
        parse_tags(" || ".join(f"t{n}" for n in range(TAGS_MAX + 1)))
    deepest = "(" * DEPTH_MAX + "count = 7" + ")" * DEPTH_MAX
    assert parse_sql(deepest).matches(HEADERS)
    assert not parse_sql("NOT " * 501 + "count = 7").matches(HEADERS)


def test_a_pattern_that_would_make_others_backtrack_takes_no_time():
    pattern = "%a" * 500 + "%b"
    value = b"a" * VALUE_BYTES_MAX
    assert not parse_sql(f"h LIKE '{pattern}'").matches([("h", value)])
    assert parse_sql(f"h LIKE '{pattern}'").matches([("h", value[:-1] + b"b")])
