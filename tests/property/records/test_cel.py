"""Filter expressions against Google's CEL: the same value, or both refuse."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.records.cel import EvaluationFailed, Expression
from headrace.records.cel_syntax import ExpressionInvalid

cel: Any = pytest.importorskip("cel_expr_python.cel", reason="needs cel-expr-python (dev)")

NAMES = ("a", "b", "c")
GETTERS = {name: lambda subject, name=name: subject[name] for name in NAMES}
ORACLE = cel.NewEnv(variables=dict.fromkeys(NAMES, cel.Type.DYN))
TEXTS = st.text(alphabet="ab1.é \U0001f600", max_size=4)
INTS = st.one_of(st.integers(-3, 3), st.sampled_from([2**63 - 1, -(2**63), 2**62]))
DOUBLES = st.sampled_from([0.0, -0.5, 1.0, 1.5, 2.0, 1e300, -1e300])
SCALARS = st.one_of(INTS, DOUBLES, TEXTS, st.booleans(), st.none(), st.binary(max_size=3))
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from("xyz"), inner, max_size=3)
    ),
    max_leaves=6,
)


def written(value: Any) -> str:
    """A scalar as a literal of the language."""
    if isinstance(value, bool) or value is None:
        return {True: "true", False: "false", None: "null"}[value]
    if isinstance(value, str):
        return '"' + "".join(f"\\U{ord(one):08x}" for one in value) + '"'
    if isinstance(value, bytes):
        return 'b"' + "".join(f"\\x{one:02x}" for one in value) + '"'
    return repr(value).replace("e+", "e")


def _expressions(inner: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    pair = st.tuples(inner, inner)
    signs = ["==", "!=", "<", "<=", ">", ">=", "+", "-", "*", "/", "%", "in", "&&", "||"]
    methods = ["contains", "startsWith", "endsWith"]
    loops = ["all", "exists", "exists_one", "map", "filter"]
    return st.one_of(
        st.builds(lambda p, sign: f"({p[0]} {sign} {p[1]})", pair, st.sampled_from(signs)),
        st.builds(lambda p, sign: f"{p[0]} {sign} {p[1]}", pair, st.sampled_from(signs)),
        st.builds(lambda p, name: f"({p[0]}).{name}({p[1]})", pair, st.sampled_from(methods)),
        st.builds(lambda p, name: f"({p[0]}).{name}(b, {p[1]})", pair, st.sampled_from(loops)),
        st.builds(lambda one, name: f"({one}).{name}", inner, st.sampled_from("xyz")),
        st.builds(lambda one, name: f"has(({one}).{name})", inner, st.sampled_from("xyz")),
        st.builds(lambda one, name: f"{name}({one})", inner,
                  st.sampled_from(["size", "int", "string", "bytes", "!", "-", "double"])),
        st.builds(lambda p: f"({p[0]})[{p[1]}]", pair),
        st.builds(lambda p: f"[{p[0]}, {p[1]}]", pair),
        st.builds(lambda p: f'{{"x": {p[0]}, "y": {p[1]}}}', pair),
        st.builds(lambda p, q: f"({p[0]} ? {p[1]} : {q})", pair, inner),
    )  # fmt: skip


EXPRESSIONS = st.recursive(
    st.one_of(SCALARS.map(written), st.sampled_from(NAMES)), _expressions, max_leaves=8
)


def same(mine: Any, theirs: Any) -> bool:
    if type(mine) is not type(theirs):
        return False
    if isinstance(mine, list):
        return len(mine) == len(theirs) and all(map(same, mine, theirs))
    if isinstance(mine, dict):
        return mine.keys() == theirs.keys() and all(same(mine[key], theirs[key]) for key in mine)
    if isinstance(mine, float):
        return (math.isnan(mine) and math.isnan(theirs)) or repr(mine) == repr(theirs)
    return bool(mine == theirs)


def plain(value: Any) -> Any:
    """What the oracle returns, as Python has it; raises LookupError for an error."""
    if str(value.type()).startswith("ERROR") or str(value.type()) == "Type.ERROR":
        raise LookupError(str(value))
    found = value.value()
    if isinstance(found, bytearray):
        return bytes(found)
    if isinstance(found, list):
        return [plain(one) if hasattr(one, "type") else one for one in found]
    if isinstance(found, dict):
        return {
            (key.value() if hasattr(key, "type") else key): plain(one)
            if hasattr(one, "type")
            else one
            for key, one in found.items()
        }
    return found


def outcome_here(text: str, data: dict[str, Any]) -> Any:
    try:
        return Expression(text, GETTERS).evaluate(data)
    except (EvaluationFailed, ExpressionInvalid) as error:
        return LookupError(str(error))


def outcome_there(text: str, data: dict[str, Any]) -> Any:
    try:
        return plain(ORACLE.compile(text, disable_check=True).eval(data=data))
    except (LookupError, RuntimeError, ValueError) as error:
        return LookupError(str(error))


def test_the_oracle_disagrees_with_what_is_wrong() -> None:
    assert outcome_there("1 + 1 == 3", dict.fromkeys(NAMES)) is False
    assert isinstance(outcome_there("a.x", dict.fromkeys(NAMES)), LookupError)


@settings(max_examples=600, deadline=None)
@given(EXPRESSIONS, st.fixed_dictionaries(dict.fromkeys(NAMES, VALUES)))
def test_expressions_mean_what_cel_says(text: str, data: dict[str, Any]) -> None:
    mine, theirs = outcome_here(text, data), outcome_there(text, data)
    if isinstance(mine, LookupError) and isinstance(theirs, LookupError):
        return
    assert same(mine, theirs), (text, data, mine, theirs)
