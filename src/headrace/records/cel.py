"""Evaluates filter expressions: `cel_syntax` parses them, here they become closures.

Invariants: pure; nothing of Python can be reached from an expression. Evaluation is bounded by
steps, which count every part that is evaluated, in loops too, and the bytes that are compared or
scanned; so no expression can hold a broker. An expression that meets what it cannot evaluate (a
field that is absent, a text compared with a number) gives an error, as CEL prescribes: `&&` and
`||` give their value nevertheless where the other side decides it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import inf, isfinite, nan
from typing import TYPE_CHECKING, Any, Final

import re2

from headrace.records.cel_syntax import (
    INT64_MAX,
    INT64_MIN,
    Node,
    parse,
    wrong,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

STEPS_MAX: Final = 10_000
"""Of one evaluation: some 2 to 5 ms."""
PATTERN_BYTES_MAX: Final = 256 * 1024
"""Of a compiled regular expression: short patterns can expand."""
SCANNED_BYTES_A_STEP: Final = 1_024
MATCHED_BYTES_A_STEP: Final = 128
TEXT_LENGTH_MAX: Final = 1 << 20
"""Of a text that an expression makes."""
_DIGITS: Final = re2.compile(r"-?[0-9]{1,19}")
_NUMBER: Final = re2.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")

Value = Any
"""int, float, str, bytes, bool, None, a list of values, or a dict with texts as keys."""


class EvaluationFailed(Exception):
    """The expression has no value here; the message says why."""


class Frame:
    """One evaluation: its subject, the variables of loops, and the steps that are left."""

    __slots__ = ("names", "steps", "subject")

    def __init__(self, subject: Any) -> None:
        self.subject = subject
        self.names: list[Value] = []
        self.steps = STEPS_MAX

    def spend(self, steps: int) -> None:
        """Raises EvaluationFailed when too much was done."""
        self.steps -= steps
        if self.steps < 0:
            raise EvaluationFailed(f"it takes more than {STEPS_MAX} steps")


Part = Callable[[Frame], Value]
Getters = Mapping[str, Callable[[Any], Value]]


class Expression:
    """A compiled expression."""

    def __init__(self, text: str, getters: Getters) -> None:
        """`getters`: how the value of each variable is taken from a subject.

        Raises ExpressionInvalid.
        """
        self.text = text
        self.tree = parse(text)
        self._part = _Compiler(getters).part(self.tree, ())

    def evaluate(self, subject: Any) -> Value:
        """The value for a subject. Raises EvaluationFailed."""
        return self._part(Frame(subject))


# --- operators -----------------------------------------------------------------------------------


def _kind(value: Value) -> str:
    names = {int: "int", float: "double", str: "string", bytes: "bytes", bool: "bool",
             type(None): "null", list: "list", dict: "map"}  # fmt: skip
    return names.get(type(value), type(value).__name__)


def _no_overload(sign: str, *values: Value) -> EvaluationFailed:
    return EvaluationFailed(f"{sign} has no meaning for {' and '.join(map(_kind, values))}")


def _is_number(value: Value) -> bool:
    return type(value) is int or type(value) is float


def equal(frame: Frame, left: Value, right: Value) -> bool:
    """CEL's equality: values of different kinds differ, numbers are compared as numbers."""
    if type(left) is not type(right):
        return _is_number(left) and _is_number(right) and bool(left == right)
    if type(left) is list:
        frame.spend(min(len(left), len(right)) + 1)
        return len(left) == len(right) and all(map(equal, [frame] * len(left), left, right))
    if type(left) is dict:
        frame.spend(min(len(left), len(right)) + 1)
        return left.keys() == right.keys() and all(
            equal(frame, one, right[name]) for name, one in left.items()
        )
    if type(left) is str or type(left) is bytes:
        frame.spend(min(len(left), len(right)) // SCANNED_BYTES_A_STEP)
    return bool(left == right)


def _ordered(sign: str, compare: Callable[[Value, Value], bool]) -> Callable[..., Value]:
    def apply(frame: Frame, left: Value, right: Value) -> bool:
        kind = type(left)
        if not (_is_number(left) and _is_number(right)) and (
            kind is not type(right) or kind not in {str, bytes, bool}
        ):
            raise _no_overload(sign, left, right)
        if kind is str or kind is bytes:
            frame.spend(min(len(left), len(right)) // SCANNED_BYTES_A_STEP)
        return bool(compare(left, right))

    return apply


def _contains(frame: Frame, item: Value, within: Value) -> bool:
    if type(within) is dict and type(item) in {str, int, float, bool}:
        return type(item) is str and item in within
    if type(within) is not list:
        raise _no_overload("in", item, within)
    frame.spend(len(within))
    return any(equal(frame, item, one) for one in within)


def _int64(value: int) -> int:
    if not INT64_MIN <= value <= INT64_MAX:
        raise EvaluationFailed("an integer has more than 64 bits")
    return value


def _add(frame: Frame, left: Value, right: Value) -> Value:
    kind = type(left)
    if kind is not type(right) or kind not in {int, float, str, bytes, list}:
        raise _no_overload("+", left, right)
    if kind is int:
        return _int64(left + right)
    if kind is float:
        return left + right
    length = len(left) + len(right)
    frame.spend(length if kind is list else length // 64)
    if length > TEXT_LENGTH_MAX:
        raise EvaluationFailed(f"it makes a {_kind(left)} of {length} elements")
    return left + right


def _divide(left: float, right: float) -> float:
    if right != 0:
        return left / right
    if left == 0 or left != left:
        return nan
    is_negative = str(left).startswith("-") != str(right).startswith("-")
    return -inf if is_negative else inf


def _quotient(left: int, right: int) -> int:
    if right == 0:
        raise EvaluationFailed("an integer is divided by zero")
    quotient = abs(left) // abs(right)
    return _int64(quotient if (left < 0) == (right < 0) else -quotient)


def _calculated(
    sign: str,
    of_ints: Callable[[int, int], int],
    of_doubles: Callable[[float, float], float] | None,
) -> Callable[..., Value]:
    def apply(_frame: Frame, left: Value, right: Value) -> Value:
        kind = type(left)
        if kind is type(right):
            if kind is int:
                return _int64(of_ints(left, right))
            if kind is float and of_doubles is not None:
                return of_doubles(left, right)
        raise _no_overload(sign, left, right)

    return apply


_BINARY: Final[Mapping[str, Callable[..., Value]]] = {
    "==": equal,
    "!=": lambda frame, left, right: not equal(frame, left, right),
    "<": _ordered("<", operator.lt),
    "<=": _ordered("<=", operator.le),
    ">": _ordered(">", operator.gt),
    ">=": _ordered(">=", operator.ge),
    "in": _contains,
    "+": _add,
    "-": _calculated("-", operator.sub, operator.sub),
    "*": _calculated("*", operator.mul, operator.mul),
    "/": _calculated("/", _quotient, _divide),
    "%": _calculated("%", lambda a, b: a - _quotient(a, b) * b, None),
}


def _negated(_frame: Frame, value: Value) -> Value:
    if type(value) is int:
        return _int64(-value)
    if type(value) is float:
        return -value
    raise _no_overload("-", value)


def _inverted(_frame: Frame, value: Value) -> bool:
    if type(value) is not bool:
        raise _no_overload("!", value)
    return not value


def _selected(_frame: Frame, value: Value, name: str) -> Value:
    if type(value) is not dict:
        raise EvaluationFailed(f"a {_kind(value)} has no field {name[:60]!r}")
    try:
        return value[name]
    except KeyError:
        raise EvaluationFailed(f"there is no field {name[:60]!r}") from None


def _indexed(frame: Frame, value: Value, index: Value) -> Value:
    if type(value) is dict and type(index) is str:
        return _selected(frame, value, index)
    if type(index) is float and index.is_integer():
        index = int(index)
    if type(value) is not list or type(index) is not int:
        raise _no_overload("[]", value, index)
    if not 0 <= index < len(value):
        raise EvaluationFailed(f"there is no element {index}")
    return value[index]


# --- functions -----------------------------------------------------------------------------------


def _size(_frame: Frame, value: Value) -> int:
    if type(value) not in {str, bytes, list, dict}:
        raise _no_overload("size", value)
    return len(value)


def _of_texts(name: str, apply: Callable[[str, str], bool]) -> Callable[..., Value]:
    def called(frame: Frame, value: Value, other: Value) -> bool:
        if type(value) is not str or type(other) is not str:
            raise _no_overload(name, value, other)
        frame.spend(len(value) // SCANNED_BYTES_A_STEP)
        return apply(value, other)

    return called


def _compiled(pattern: str, at: int) -> Any:
    options = re2.Options()
    options.max_mem = PATTERN_BYTES_MAX
    options.log_errors = False
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        raise wrong(at, f"{pattern[:40]!r} is not a regular expression (RE2)") from error


def _matches(_frame: Frame, _value: Value, _pattern: Value) -> bool:
    """Its pattern is compiled with the expression: see `_matching`."""
    raise AssertionError("compiled otherwise")


def _as_int(_frame: Frame, value: Value) -> int:
    if type(value) is int or type(value) is bool:
        return int(value)
    if type(value) is float and isfinite(value) and abs(value) < 2**63:
        return int(value)
    if type(value) is str and _DIGITS.fullmatch(value):
        return _int64(int(value))
    raise EvaluationFailed(f"this {_kind(value)} is not an int")


def _as_double(frame: Frame, value: Value) -> float:
    if _is_number(value):
        try:
            return float(value)
        except OverflowError:  # an integer of a message with more than 1,000 bits
            raise EvaluationFailed("an integer has more than 64 bits") from None
    if type(value) is str and len(value) < 400 and _NUMBER.fullmatch(value):
        frame.spend(1)
        return float(value)
    raise EvaluationFailed(f"this {_kind(value)} is not a double")


def _as_string(frame: Frame, value: Value) -> str:
    if type(value) is str:
        return value
    if type(value) is bool:
        return "true" if value else "false"
    if type(value) is bytes:
        frame.spend(len(value) // 64)
        try:
            return value.decode()
        except UnicodeDecodeError:
            raise EvaluationFailed("these bytes are no UTF-8") from None
    if type(value) is int:
        return str(_int64(value))
    if type(value) is float:
        return repr(value).removesuffix(".0")
    raise _no_overload("string", value)


def _as_bytes(frame: Frame, value: Value) -> bytes:
    if type(value) is str:
        frame.spend(len(value) // 64)
        return value.encode(errors="surrogatepass")
    if type(value) is bytes:
        return value
    raise _no_overload("bytes", value)


_FUNCTIONS: Final[Mapping[tuple[str, int], Callable[..., Value]]] = {
    ("size", 1): _size,
    ("contains", 2): _of_texts("contains", operator.contains),
    ("startsWith", 2): _of_texts("startsWith", str.startswith),
    ("endsWith", 2): _of_texts("endsWith", str.endswith),
    ("matches", 2): _matches,
    ("int", 1): _as_int,
    ("double", 1): _as_double,
    ("string", 1): _as_string,
    ("bytes", 1): _as_bytes,
}
"""By name and how many values they take, the target included."""
_PLAIN: Final = frozenset({"size", "int", "double", "string", "bytes", "matches"})
"""Those that are called without a target."""
_METHODS: Final = frozenset({"size", "contains", "startsWith", "endsWith", "matches"})
_LOOPS: Final = frozenset({"all", "exists", "exists_one", "map", "filter"})


# --- compilation ---------------------------------------------------------------------------------


def count_nodes(node: Node) -> int:
    """How many parts an expression has: what one evaluation of it costs."""
    return 1 + sum(map(count_nodes, node.parts))


class _Compiler:
    """Makes closures. `names`: the variables of the loops around a part, from the outermost."""

    def __init__(self, getters: Getters) -> None:
        self._getters = getters

    def part(self, node: Node, names: Sequence[str]) -> Part:
        """The closure of a node. Raises ExpressionInvalid."""
        match node.kind:
            case "literal":
                value = node.value
                return lambda _frame: value
            case "name":
                return self._name(node, names)
            case "call":
                return self._call(node, names)
            case "&&" | "||":
                return _decided([self.part(one, names) for one in node.parts],
                                by=node.kind == "||")  # fmt: skip
            case "?":
                return self._choice(node, names)
            case "select":
                target, field = self.part(node.parts[0], names), str(node.value)
                return lambda frame: _selected(frame, target(frame), field)
            case "list":
                parts = [self.part(one, names) for one in node.parts]
                return lambda frame: [one(frame) for one in parts]
            case "map":
                return self._map(node, names)
            case _:
                return self._operator(node, names)

    def _operator(self, node: Node, names: Sequence[str]) -> Part:
        one_sided = {"not": _inverted, "negate": _negated}.get(node.kind)
        if one_sided is not None:
            inner = self.part(node.parts[0], names)
            return lambda frame: one_sided(frame, inner(frame))
        apply = _indexed if node.kind == "index" else _BINARY[node.kind]
        left, right = (self.part(one, names) for one in node.parts)
        return lambda frame: apply(frame, left(frame), right(frame))

    def _name(self, node: Node, names: Sequence[str]) -> Part:
        name = str(node.value)
        if name in names:
            index = len(names) - 1 - [*reversed(names)].index(name)
            return lambda frame: frame.names[index]
        getter = self._getters.get(name)
        if getter is None:
            raise wrong(node.at, f"there is no {name[:40]!r}: use {', '.join(self._getters)}")
        return lambda frame: getter(frame.subject)

    def _map(self, node: Node, names: Sequence[str]) -> Part:
        parts = [self.part(one, names) for one in node.parts]
        pairs = [*zip(parts[::2], parts[1::2], strict=True)]

        def made(frame: Frame) -> Value:
            found: dict[str, Value] = {}
            for key, value in pairs:
                name = key(frame)
                if type(name) is not str or name in found:
                    raise EvaluationFailed("the keys of a map must be different strings")
                found[name] = value(frame)
            return found

        return made

    def _choice(self, node: Node, names: Sequence[str]) -> Part:
        condition, then, other = (self.part(one, names) for one in node.parts)

        def chosen(frame: Frame) -> Value:
            found = condition(frame)
            if type(found) is not bool:
                raise _no_overload("?:", found)
            return then(frame) if found else other(frame)

        return chosen

    def _call(self, node: Node, names: Sequence[str]) -> Part:
        name = str(node.value)
        if name == "has" and not node.has_target:
            return self._has(node, names)
        if node.has_target and name in _LOOPS:
            return self._loop(node, names)
        apply = _FUNCTIONS.get((name, len(node.parts)))
        if apply is None or name not in (_METHODS if node.has_target else _PLAIN):
            known = ", ".join(sorted(_METHODS | _PLAIN | _LOOPS | {"has"}))
            raise wrong(
                node.at, f"no function {name[:40]!r} takes these arguments; there are {known}"
            )
        parts = [self.part(one, names) for one in node.parts]
        if name == "matches":
            return _matching(parts[0], node.parts[1])
        if len(parts) == 1:
            (only,) = parts
            return lambda frame: apply(frame, only(frame))
        first, second = parts
        return lambda frame: apply(frame, first(frame), second(frame))

    def _has(self, node: Node, names: Sequence[str]) -> Part:
        if len(node.parts) != 1 or node.parts[0].kind != "select":
            raise wrong(node.at, "has() takes one field, such as has(value.amount)")
        selected = node.parts[0]
        target, field = self.part(selected.parts[0], names), str(selected.value)

        def found(frame: Frame) -> bool:
            value = target(frame)
            if type(value) is not dict:
                raise EvaluationFailed(f"a {_kind(value)} has no fields")
            return field in value

        return found

    def _loop(self, node: Node, names: Sequence[str]) -> Part:
        kind, (target, *given) = str(node.value), node.parts
        counts = {2, 3} if kind == "map" else {2}
        if len(given) not in counts or given[0].kind != "name":
            raise wrong(node.at, f"{kind}() takes the name of a variable and an expression")
        inner = [*names, str(given[0].value)]
        bodies = [self.part(one, inner) for one in given[1:]]
        cost = sum(map(count_nodes, given[1:]))
        elements = self.part(target, names)
        run = _LOOP_RUNS[kind]

        def looped(frame: Frame) -> Value:
            found = elements(frame)
            if type(found) not in {list, dict}:
                raise _no_overload(kind, found)
            depth = len(frame.names)

            def each() -> Iterable[Value]:
                for one in found:
                    frame.spend(cost)
                    del frame.names[depth:]
                    frame.names.append(one)
                    yield one

            try:
                return run(frame, each(), bodies)
            finally:
                del frame.names[depth:]

        return looped


def _decided(parts: Sequence[Part], *, by: bool) -> Part:
    """|| and &&."""
    operator = "||" if by else "&&"
    return lambda frame: _decide(frame, parts, operator, by=by)


def _decide(frame: Frame, parts: Iterable[Part], operator: str, *, by: bool) -> bool:
    """A part that is `by` decides; an error counts only where none does."""
    failed: EvaluationFailed | None = None
    for part in parts:
        try:
            found = part(frame)
        except EvaluationFailed as error:
            if frame.steps < 0:
                raise
            failed = error
            continue
        if type(found) is not bool:
            failed = _no_overload(operator, found)
        elif found == by:
            return by
    if failed is not None:
        raise failed
    return not by


def _matching(target: Part, pattern: Node) -> Part:
    """matches(): its pattern is compiled once, since that takes up to a third of a second."""
    if pattern.kind != "literal" or type(pattern.value) is not str:
        raise wrong(pattern.at, "matches() takes a regular expression that is written as a string")
    compiled = _compiled(pattern.value, pattern.at)

    def value(frame: Frame) -> bool:
        text = target(frame)
        if type(text) is not str:
            raise _no_overload("matches", text, "")
        frame.spend(len(text) // MATCHED_BYTES_A_STEP)
        return compiled.search(text) is not None

    return value


# --- loops ---------------------------------------------------------------------------------------


def _quantified(*, by: bool) -> Callable[..., Value]:
    operator = "exists" if by else "all"

    def run(frame: Frame, each: Iterable[Value], bodies: Sequence[Part]) -> bool:
        return _decide(frame, (bodies[0] for _ in each), operator, by=by)

    return run


def _truth(frame: Frame, body: Part) -> bool:
    found = body(frame)
    if type(found) is not bool:
        raise _no_overload("a condition", found)
    return found


def _exactly_one(frame: Frame, each: Iterable[Value], bodies: Sequence[Part]) -> bool:
    return sum(_truth(frame, bodies[0]) for _ in each) == 1


def _mapped(frame: Frame, each: Iterable[Value], bodies: Sequence[Part]) -> list[Value]:
    return [bodies[-1](frame) for _ in each if len(bodies) == 1 or _truth(frame, bodies[0])]


def _filtered(frame: Frame, each: Iterable[Value], bodies: Sequence[Part]) -> list[Value]:
    return [one for one in each if _truth(frame, bodies[0])]


_LOOP_RUNS: Final[Mapping[str, Callable[..., Value]]] = {
    "all": _quantified(by=False),
    "exists": _quantified(by=True),
    "exists_one": _exactly_one,
    "map": _mapped,
    "filter": _filtered,
}
