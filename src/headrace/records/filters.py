"""Filters on record headers: tag expressions, and SQL92 as RocketMQ defines it.

Invariants: pure. An expression is parsed once, by recursive descent, and limited in length and
depth, so parsing cannot be made expensive; matching one record takes 3 ms at most, and `cost` says
what part of it. Matching never raises: a header that is missing, null, not UTF-8 or longer than
`VALUE_BYTES_MAX` is NULL, and so is any comparison with it. A record matches if the expression is
TRUE, not if it is FALSE or NULL.

    tags        order || invoice           * matches every record
    SQL         region = 'eu' AND (amount > 100 OR "headrace-priority" IS NULL)

    expression  term (OR term)*            term: factor (AND factor)*
    factor      NOT factor | ( expression ) | operand | predicate
    predicate   operand (= <> != < <= > >=) operand      operand [NOT] BETWEEN operand AND operand
                operand [NOT] IN (literal, ...)           operand IS [NOT] NULL
                operand [NOT] LIKE 'text' [ESCAPE 'c']
    operand     a header (name, or "name" in quotes), 'text', 1.5, TRUE, FALSE, NULL

Headers are text. Compared with a number, a header is parsed as a number, and is NULL if it is not
one; compared with TRUE or FALSE, it is parsed as a boolean. Two headers are compared as numbers if
both are numbers, otherwise as text, which has no order. TAGS and KEYS name the attribute headers.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from headrace.errors import ConfigInvalid
from headrace.records.attributes import KEYS, TAG, Headers, find_header
from headrace.records.like_pattern import LikePattern

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Truth = bool | None
    Values = Mapping[str, bytes | None]
    Predicate = Callable[[Values], Truth]
    Number = int | float

FILTER_LENGTH_MAX: Final = 2_048
TOKENS_MAX: Final = 512
DEPTH_MAX: Final = 32
TAGS_MAX: Final = 100
VALUE_BYTES_MAX: Final = 4_096
"""Longer header values are treated as NULL."""
_NAME_LENGTH_MAX: Final = 255

_ALIASES: Final = {"TAGS": TAG, "KEYS": KEYS}
_KEYWORDS: Final = frozenset(
    {"AND", "OR", "NOT", "BETWEEN", "IN", "IS", "NULL", "LIKE", "ESCAPE", "TRUE", "FALSE"}
)
_TOKEN: Final = re.compile(
    r"(?P<space>\s+)"
    r"|(?P<number>[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?(?![0-9A-Za-z_.$]))"
    r"|(?P<name>[A-Za-z_$][A-Za-z0-9_$.]*)"
    r"|(?P<text>'(?:[^']|'')*')"
    r'|(?P<quoted>"(?:[^"]|"")+")'
    r"|(?P<sign><>|<=|>=|!=|[=<>(),])"
)
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,18}(?:\.[0-9]{1,18})?")


class Filter(Protocol):
    """Selects the records that a group receives."""

    @property
    def cost(self) -> int:
        """Of one record, at worst: the characters of the expression."""
        ...

    def matches(self, headers: Headers) -> bool:
        """Whether a record with these headers matches. Never raises."""
        ...


# --- tags --------------------------------------------------------------------------------------


class TagFilter:
    """Matches records with one of these tags."""

    __slots__ = ("cost", "tags")

    def __init__(self, tags: frozenset[bytes]) -> None:
        self.tags = tags
        self.cost = 8  # as little as a short expression, however many there are

    def matches(self, headers: Headers) -> bool:
        """See Filter."""
        return find_header(headers, TAG) in self.tags


def parse_tags(text: str) -> TagFilter | None:
    """The filter for `A || B`; None for `*`, which matches every record. Raises ConfigInvalid."""
    _check_length(text)
    tags = [part.strip() for part in text.split("||")]
    if tags == ["*"]:
        return None
    if len(tags) > TAGS_MAX:
        raise ConfigInvalid(f"a tag expression has {len(tags)} tags: the limit is {TAGS_MAX}")
    for tag in tags:
        if not tag or "|" in tag or "*" in tag or any(character.isspace() for character in tag):
            raise ConfigInvalid(
                f"{tag[:40]!r} is not a tag: write tags as words with || between them, or * alone"
            )
    return TagFilter(frozenset(tag.encode() for tag in tags))


# --- SQL ---------------------------------------------------------------------------------------


class SqlFilter:
    """Matches records for which an expression is TRUE."""

    __slots__ = ("_predicate", "cost")

    def __init__(self, predicate: Predicate, cost: int) -> None:
        self._predicate = predicate
        self.cost = cost

    def matches(self, headers: Headers) -> bool:
        """See Filter."""
        return self._predicate(dict(headers)) is True


def parse_sql(text: str) -> SqlFilter:
    """The filter for an SQL92 expression. Raises ConfigInvalid with the error's position."""
    _check_length(text)
    parser = _Parser(_tokens(text))
    predicate = parser.expression(0)
    parser.expect_end()
    return SqlFilter(predicate, len(text))


def _check_length(text: str) -> None:
    if len(text) > FILTER_LENGTH_MAX:
        raise ConfigInvalid(f"a filter of {len(text)} characters: the limit is {FILTER_LENGTH_MAX}")


class _Token(NamedTuple):
    kind: str
    """number, name, text, sign, the keyword itself, or end"""
    text: str
    at: int


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise _wrong(at, f"syntax error at {text[at : at + 20]!r}")
        kind, value = match.lastgroup, match.group()
        if kind == "name" and value.upper() in _KEYWORDS:
            kind = value = value.upper()
        elif kind == "name":
            value = _ALIASES.get(value, value)
        elif kind == "quoted":
            kind, value = "name", value[1:-1].replace('""', '"')
        elif kind == "text":
            value = value[1:-1].replace("''", "'")
        if kind == "name" and len(value) > _NAME_LENGTH_MAX:
            raise _wrong(at, f"a name is longer than {_NAME_LENGTH_MAX} characters")
        if kind != "space":
            found.append(_Token(kind, value, at))
        if len(found) > TOKENS_MAX:
            raise _wrong(at, f"a filter has more than {TOKENS_MAX} tokens")
        at = match.end()
    found.append(_Token("end", "", at))
    return found


def _wrong(at: int, problem: str) -> ConfigInvalid:
    return ConfigInvalid(f"invalid filter at character {at + 1}: {problem}")


class _Operand(NamedTuple):
    """`kind`: name, text, number, boolean or null."""

    kind: str
    name: str
    value: str | int | float | bool | None
    at: int


class _Parser:
    """A recursive descent parser; `depth` is the nesting level."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self) -> _Token:
        token = self._tokens[self._next]
        self._next = min(self._next + 1, len(self._tokens) - 1)
        return token

    def _takes(self, kind: str, text: str | None = None) -> bool:
        token = self._peek()
        if token.kind != kind or (text is not None and token.text != text):
            return False
        self._take()
        return True

    def _expect(self, kind: str, text: str | None = None) -> _Token:
        token = self._peek()
        if not self._takes(kind, text):
            raise self._unexpected(token, text or kind)
        return token

    @staticmethod
    def _unexpected(token: _Token, wanted: str) -> ConfigInvalid:
        found = "end of filter" if token.kind == "end" else repr(token.text[:20])
        return _wrong(token.at, f"expected {wanted}, found {found}")

    def expect_end(self) -> None:
        """Raises ConfigInvalid unless all tokens are consumed."""
        if self._peek().kind != "end":
            raise self._unexpected(self._peek(), "AND, OR or the end")

    def expression(self, depth: int) -> Predicate:
        """Terms joined by OR."""
        if depth > DEPTH_MAX:
            raise _wrong(self._peek().at, f"it is nested more than {DEPTH_MAX} levels deep")
        terms = [self._term(depth)]
        while self._takes("OR"):
            terms.append(self._term(depth))
        return terms[0] if len(terms) == 1 else _decided(terms, by=True)

    def _term(self, depth: int) -> Predicate:
        factors = [self._factor(depth)]
        while self._takes("AND"):
            factors.append(self._factor(depth))
        return factors[0] if len(factors) == 1 else _decided(factors, by=False)

    def _factor(self, depth: int) -> Predicate:
        negations = 0
        while self._takes("NOT"):
            negations += 1
        if self._takes("sign", "("):
            predicate = self.expression(depth + 1)
            self._expect("sign", ")")
        else:
            predicate = self._predicate()
        return _negated(predicate) if negations % 2 else predicate

    def _predicate(self) -> Predicate:
        left = self._operand()
        token = self._peek()
        if token.kind == "sign" and token.text in _COMPARISONS:
            self._take()
            return _comparison(token, left, self._operand())
        if self._takes("IS"):
            is_negated = self._takes("NOT")
            self._expect("NULL")
            return _negated(_is_null(left)) if is_negated else _is_null(left)
        is_negated = self._takes("NOT")
        if self._takes("BETWEEN"):
            low = self._operand()
            self._expect("AND")
            predicate = _decided(
                [
                    _comparison(_Token("sign", ">=", token.at), left, low),
                    _comparison(_Token("sign", "<=", token.at), left, self._operand()),
                ],
                by=False,
            )
        elif self._takes("IN"):
            predicate = self._in(left)
        elif self._takes("LIKE"):
            predicate = self._like(left)
        elif is_negated:
            raise self._unexpected(self._peek(), "BETWEEN, IN or LIKE")
        else:
            return _as_boolean(left)
        return _negated(predicate) if is_negated else predicate

    def _operand(self) -> _Operand:
        token = self._take()
        match token.kind:
            case "name":
                return _Operand("name", token.text, None, token.at)
            case "text":
                return _Operand("text", "", token.text, token.at)
            case "number":
                return _Operand("number", "", _number(token.text), token.at)
            case "TRUE" | "FALSE":
                return _Operand("boolean", "", token.kind == "TRUE", token.at)
            case "NULL":
                return _Operand("null", "", None, token.at)
            case _:
                raise self._unexpected(token, "a header, a text or a number")

    def _in(self, left: _Operand) -> Predicate:
        self._expect("sign", "(")
        equals = _Token("sign", "=", left.at)
        options = [_comparison(equals, left, self._operand())]
        while self._takes("sign", ","):
            options.append(_comparison(equals, left, self._operand()))
        self._expect("sign", ")")
        return _decided(options, by=True)

    def _like(self, left: _Operand) -> Predicate:
        pattern = self._expect("text")
        escape = ""
        if self._takes("ESCAPE"):
            token = self._expect("text")
            escape = token.text
            if len(escape) != 1 or escape in "%_":
                raise _wrong(token.at, "ESCAPE takes one character other than % and _")
        if left.kind != "name":
            raise _wrong(left.at, "the left operand of LIKE must be a header")
        try:
            like = LikePattern(pattern.text, escape)
        except ValueError as error:
            raise _wrong(pattern.at, str(error)) from error
        name = left.name

        def predicate(values: Values) -> Truth:
            text = _text(values, name)
            return None if text is None else like.matches(text)

        return predicate


# --- predicates --------------------------------------------------------------------------------


def _decided(parts: Sequence[Predicate], *, by: bool) -> Predicate:
    """OR and AND: a part that is `by` decides; otherwise one that is unknown does."""

    def predicate(values: Values) -> Truth:
        found: Truth = not by
        for part in parts:
            truth = part(values)
            if truth is by:
                return by
            if truth is None:
                found = None
        return found

    return predicate


def _negated(inner: Predicate) -> Predicate:
    def predicate(values: Values) -> Truth:
        truth = inner(values)
        return None if truth is None else not truth

    return predicate


def _constant(truth: Truth) -> Predicate:
    return lambda _values: truth


def _is_null(operand: _Operand) -> Predicate:
    if operand.kind != "name":
        return _constant(operand.kind == "null")
    name = operand.name
    return lambda values: _text(values, name) is None


def _as_boolean(operand: _Operand) -> Predicate:
    if operand.kind == "null":
        return _constant(None)
    if operand.kind == "boolean":
        return _constant(operand.value is True)
    if operand.kind == "name":
        name = operand.name
        return lambda values: _boolean(_text(values, name))
    raise _wrong(operand.at, "a text or a number is not a condition: compare it with something")


_COMPARISONS: Final[dict[str, Callable[[Number, Number], bool]]] = {
    "=": lambda left, right: left == right,
    "<>": lambda left, right: left != right,
    "!=": lambda left, right: left != right,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_MIRRORED: Final = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _comparison(sign: _Token, left: _Operand, right: _Operand) -> Predicate:
    operator = sign.text
    if left.kind != "name" and right.kind == "name":
        left, right, operator = right, left, _MIRRORED.get(operator, operator)
    is_ordered = operator in _MIRRORED
    if is_ordered and {left.kind, right.kind} & {"text", "boolean"}:
        raise _wrong(sign.at, f"{operator} compares numbers: texts support only = and <>")
    if "null" in {left.kind, right.kind}:
        return _constant(None)
    if left.kind != "name":
        if left.kind != right.kind:
            raise _wrong(sign.at, f"cannot compare a {left.kind} with a {right.kind}")
        is_equal = left.value == right.value
        if left.kind == "number":
            return _constant(_compared(operator, left.value, right.value))
        return _constant(is_equal == (operator == "="))
    return _header_comparison(operator, left.name, right)


def _compared(operator: str, left: object, right: object) -> Truth:
    if isinstance(left, int | float) and isinstance(right, int | float):
        return _COMPARISONS[operator](left, right)
    return None


def _header_comparison(operator: str, name: str, right: _Operand) -> Predicate:
    value = right.value
    if right.kind == "number":
        return lambda values: _compared(operator, _number_or_none(_text(values, name)), value)
    is_equality = operator == "="
    if right.kind == "name":
        return lambda values: _two_headers(operator, _text(values, name), _text(values, right.name))
    if right.kind == "boolean":

        def of_boolean(values: Values) -> Truth:
            found = _boolean(_text(values, name))
            return None if found is None else (found == value) == is_equality

        return of_boolean

    def of_text(values: Values) -> Truth:
        found = _text(values, name)
        return None if found is None else (found == value) == is_equality

    return of_text


def _two_headers(operator: str, left: str | None, right: str | None) -> Truth:
    if left is None or right is None:
        return None
    one, other = _number_or_none(left), _number_or_none(right)
    if one is not None and other is not None:
        return _COMPARISONS[operator](one, other)
    return None if operator in _MIRRORED else (left == right) == (operator == "=")


# --- values ------------------------------------------------------------------------------------


def _text(values: Values, name: str) -> str | None:
    value = values.get(name)
    if value is None or len(value) > VALUE_BYTES_MAX:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return None


def _number(text: str) -> Number:
    return float(text) if "." in text else int(text)


def _number_or_none(text: str | None) -> Number | None:
    return _number(text) if text is not None and _NUMBER.fullmatch(text) else None


def _boolean(text: str | None) -> Truth:
    if text is None:
        return None
    return {"true": True, "false": False}.get(text.lower())
