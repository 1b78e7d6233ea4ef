"""SQL filters against a reference that evaluates the expression's tree in another way.

Truth is a number (0, 0.5 for NULL, 1), so AND is the least and OR the greatest; LIKE is a table of
prefixes. Expressions and headers are random, and so is text that is no expression at all.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.errors import ConfigInvalid
from headrace.records.filters import parse_sql, parse_tags

unhurried = settings(deadline=None, max_examples=500)
NAMES = ("a", "b", "c-d")
VALUES = (None, b"", b"x", b"xy", b"1", b"-2.5", b"10", b"true", b"FALSE", b"\xff", b"x%y_'")
TEXTS = ("", "x", "xy", "1", "true", "x%y_'")
NUMBERS = ("1", "-2.5", "10", "0")
PATTERNS = ("", "%", "x%", "%y", "_", "x_", "%1%", "_%_", "x!%%", "%!_'", "%%")

headers = st.dictionaries(st.sampled_from(NAMES), st.sampled_from(VALUES))
names = st.sampled_from(NAMES).map(lambda name: ("name", name))
texts = st.sampled_from(TEXTS).map(lambda text: ("text", text))
numbers = st.sampled_from(NUMBERS).map(lambda number: ("number", number))
booleans = st.sampled_from((("boolean", "TRUE"), ("boolean", "FALSE")))
null = st.just(("null", "NULL"))

leaves = st.one_of(
    st.tuples(st.just("compare"), names, st.sampled_from(("=", "<>")), texts | booleans | null),
    st.tuples(
        st.just("compare"),
        names,
        st.sampled_from(("=", "<>", "<", "<=", ">", ">=")),
        numbers | names | null,
    ),
    st.tuples(st.just("null"), names, st.booleans()),
    st.tuples(st.just("between"), names, numbers, numbers | names, st.booleans()),
    st.tuples(st.just("in"), names, st.lists(texts | null, min_size=1, max_size=3), st.booleans()),
    st.tuples(st.just("like"), names, st.sampled_from(PATTERNS), st.booleans()),
    st.tuples(st.just("bare"), names | booleans | null),
)
trees = st.recursive(
    leaves,
    lambda inner: st.one_of(
        st.tuples(st.just("not"), inner),
        st.tuples(st.sampled_from(("and", "or")), inner, inner),
    ),
    max_leaves=8,
)


def show(operand):
    kind, value = operand
    if kind == "text":
        return "'" + value.replace("'", "''") + "'"
    return f'"{value}"' if kind == "name" and "-" in value else value


def sql(tree):
    match tree:
        case ("compare", left, operator, right):
            return f"{show(left)} {operator} {show(right)}"
        case ("null", name, is_negated):
            return f"{show(name)} IS {'NOT ' * is_negated}NULL"
        case ("between", name, low, high, is_negated):
            return f"{show(name)} {'NOT ' * is_negated}BETWEEN {show(low)} AND {show(high)}"
        case ("in", name, options, is_negated):
            return f"{show(name)} {'NOT ' * is_negated}IN ({', '.join(map(show, options))})"
        case ("like", name, pattern, is_negated):
            text = show(("text", pattern))
            return f"{show(name)} {'NOT ' * is_negated}LIKE {text} ESCAPE '!'"
        case ("bare", operand):
            return show(operand)
        case ("not", inner):
            return f"NOT ({sql(inner)})"
        case (operator, left, right):
            return f"({sql(left)}) {operator.upper()} ({sql(right)})"


def value_of(operand, values):
    kind, value = operand
    if kind == "null":
        return None
    if kind != "name":
        return {"number": float, "boolean": lambda text: text == "TRUE", "text": str}[kind](value)
    raw = values.get(value)
    return None if raw in {None, b"\xff"} else raw.decode()


def as_number(value):
    try:
        return value if isinstance(value, float) else float(value)
    except ValueError:
        return None


def compare(left, operator, right, values):
    one, other = value_of(left, values), value_of(right, values)
    if right[0] == "boolean":
        one = {"true": True, "false": False}.get((one or "").lower()) if one is not None else None
    elif right[0] == "number":
        one = None if one is None else as_number(one)
    elif right[0] == "name" and one is not None and other is not None:
        if as_number(one) is not None and as_number(other) is not None:
            one, other = as_number(one), as_number(other)
        elif operator not in {"=", "<>"}:
            return 0.5
    if one is None or other is None:
        return 0.5
    return float(
        {
            "=": one == other,
            "<>": one != other,
            "<": operator == "<" and one < other,
            "<=": operator == "<=" and one <= other,
            ">": operator == ">" and one > other,
            ">=": operator == ">=" and one >= other,
        }[operator]
    )


def like(text, pattern):
    units = []
    characters = iter(pattern)
    for character in characters:
        units.append(
            next(characters) if character == "!" else {"%": 0, "_": 1}.get(character, character)
        )
    reached = {0}
    for unit in units:
        if unit == 0:
            reached = {end for start in reached for end in range(start, len(text) + 1)}
        else:
            reached = {n + 1 for n in reached if n < len(text) and unit in {1, text[n]}}
    return float(len(text) in reached)


def truth(tree, values):
    match tree:
        case ("compare", left, operator, right):
            return compare(left, operator, right, values)
        case ("null", name, is_negated):
            return float((value_of(name, values) is None) != is_negated)
        case ("between", name, low, high, is_negated):
            found = min(compare(name, ">=", low, values), compare(name, "<=", high, values))
            return 1 - found if is_negated else found
        case ("in", name, options, is_negated):
            found = max(compare(name, "=", option, values) for option in options)
            return 1 - found if is_negated else found
        case ("like", name, pattern, is_negated):
            text = value_of(name, values)
            found = 0.5 if text is None else like(text, pattern)
            return 1 - found if is_negated else found
        case ("bare", ("name", name)):
            return compare(("name", name), "=", ("boolean", "TRUE"), values)
        case ("bare", operand):
            return {None: 0.5, True: 1.0, False: 0.0}[value_of(operand, values)]
        case ("not", inner):
            return 1 - truth(inner, values)
        case (operator, left, right):
            pick = min if operator == "and" else max
            return pick(truth(left, values), truth(right, values))


@unhurried
@given(trees, headers)
def test_an_expression_means_what_the_reference_says(tree, values):
    assert parse_sql(sql(tree)).matches(list(values.items())) == (truth(tree, values) == 1)


WORDS = (
    *NAMES,
    *("AND", "OR", "NOT", "IN", "IS", "NULL", "LIKE", "BETWEEN", "ESCAPE", "TRUE"),
    *("(", ")", ",", "=", "<", ">=", "<>", "'x'", "1", "-2.5"),
)


@unhurried
@given(st.one_of(st.text(max_size=60), st.lists(st.sampled_from(WORDS)).map(" ".join)), headers)
def test_any_text_is_a_filter_or_refused(text, values):
    for parse in (parse_sql, parse_tags):
        try:
            found = parse(text)
        except ConfigInvalid:
            continue
        assert found is None or found.matches(list(values.items())) in {True, False}
