"""Parses filter expressions: a subset of CEL (cel.dev, the language of Kubernetes and Envoy).

Invariants: pure. Length, tokens and nesting are bounded before anything is compiled. The subset has
no types but int, double, string, bytes, bool, null, list and map, no functions of time, and no
messages; what it has means what CEL means (`cel` says how it is evaluated).

    expression   or [? or : expression]          or: and (|| and)*
    and          relation (&& relation)*
    relation     sum ((< <= > >= == != in) sum)*  sum: product ((+ -) product)*
    product      unary ((* / %) unary)*           unary: (! | -)* member
    member       primary (.name | .name(...) | [expression])*
    primary      name | name(...) | literal | (expression) | [list] | {"map": ...}
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Sequence

LENGTH_MAX: Final = 2_048
TOKENS_MAX: Final = 512
DEPTH_MAX: Final = 32
INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1

_RESERVED: Final = frozenset({
    "as", "break", "const", "continue", "else", "for", "function", "if", "import",
    "let", "loop", "package", "namespace", "return", "var", "void", "while",
})  # fmt: skip
_TOKEN: Final = re.compile(
    r"(?P<space>(?:[ \t\r\n\f]+|//[^\n]*)+)"
    r"|(?P<double>\d+\.\d+(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+|\.\d+(?:[eE][+-]?\d+)?)"
    r"|(?P<int>0x[0-9a-fA-F]+|\d+)"
    r"|(?P<text>(?:[rR][bB]?|[bB][rR]?)?"
    r"(?:\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''"
    r"|\"(?:[^\"\\\r\n]|\\.)*\"|'(?:[^'\\\r\n]|\\.)*'))"
    r"|(?P<name>[A-Za-z_][A-Za-z0-9_]*)"
    r"|(?P<sign>\|\||&&|==|!=|<=|>=|[-+*/%!<>?:.,()\[\]{}])",
    re.DOTALL,
)
_ESCAPE: Final = re.compile(
    r"\\(?:x(?P<x>[0-9a-fA-F]{2})|X(?P<X>[0-9a-fA-F]{2})|u(?P<u>[0-9a-fA-F]{4})"
    r"|U(?P<U>[0-9a-fA-F]{8})|(?P<octal>[0-3][0-7]{2})|(?P<one>[abfnrtv\\?\"'`])|(?P<bad>.?))"
    r"|(?P<plain>[^\\]+)",
    re.DOTALL,
)
_ONE: Final = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_RELATIONS: Final = frozenset({"<", "<=", ">", ">=", "==", "!=", "in"})
_LEVELS: Final = (_RELATIONS, frozenset({"+", "-"}), frozenset({"*", "/", "%"}))
"""Of operators that group from the left, from the loosest to the tightest."""


class ExpressionInvalid(RequestInvalid):
    """An expression that cannot be parsed or compiled."""


class Node(NamedTuple):
    """A part of an expression."""

    kind: str
    """literal, name, select, index, call, list, map, or an operator"""
    at: int
    """Where it is in the text."""
    value: object = None
    """Of a literal; the name of the others."""
    parts: tuple[Node, ...] = ()
    has_target: bool = False
    """Of a call: whether the first part is what it is called on."""


class _Token(NamedTuple):
    kind: str
    text: str
    at: int


def parse(text: str) -> Node:
    """The expression of a text. Raises ExpressionInvalid."""
    if len(text) > LENGTH_MAX:
        raise ExpressionInvalid(
            f"an expression of {len(text)} characters: the limit is {LENGTH_MAX}"
        )
    parser = _Parser(_tokens(text))
    found = parser.expression(0)
    parser.expect("end")
    return found


def wrong(at: int, what: str) -> ExpressionInvalid:
    """The error for what stands at a place."""
    return ExpressionInvalid(f"the expression is wrong at character {at + 1}: {what}")


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            raise wrong(at, f"{text[at : at + 20]!r} is not part of the language")
        kind, word = match.lastgroup, match.group()
        if kind == "sign" or word in {"in", "true", "false", "null"}:
            kind = word
        if kind == "name" and word in _RESERVED:
            raise wrong(at, f"{word!r} is a reserved word")
        if kind != "space":
            found.append(_Token(kind, word, at))
        at = match.end()
    if len(found) > TOKENS_MAX:
        raise ExpressionInvalid(f"an expression of {len(found)} tokens: the limit is {TOKENS_MAX}")
    return [*found, _Token("end", "", len(text))]


class _Parser:
    """Recursive descent over the tokens; each level of nesting is counted."""

    def __init__(self, tokens: Sequence[_Token]) -> None:
        self._tokens = tokens
        self._next = 0

    def _peek(self) -> _Token:
        return self._tokens[self._next]

    def _take(self, *kinds: str) -> _Token | None:
        token = self._tokens[self._next]
        if token.kind not in kinds:
            return None
        self._next += 1
        return token

    def expect(self, kind: str) -> _Token:
        """The next token, which must be of this kind. Raises ExpressionInvalid."""
        token = self._take(kind)
        if token is None:
            found = self._peek()
            what = "the end" if found.kind == "end" else repr(found.text[:20])
            wanted = {"end": "the end", "name": "a name"}.get(kind, repr(kind))
            raise wrong(found.at, f"found {what} instead of {wanted}")
        return token

    def expression(self, depth: int) -> Node:
        """See the module."""
        if depth > DEPTH_MAX:
            raise wrong(self._peek().at, f"it is nested more than {DEPTH_MAX} levels deep")
        found = self._joined("||", depth)
        token = self._take("?")
        if token is None:
            return found
        then = self._joined("||", depth)
        self.expect(":")
        return Node("?", token.at, None, (found, then, self.expression(depth + 1)))

    def _joined(self, sign: str, depth: int) -> Node:
        """Operands of || or &&, as one node."""

        def operand() -> Node:
            return self._joined("&&", depth) if sign == "||" else self._level(0, depth)

        parts = [operand()]
        at = self._peek().at
        while self._take(sign):
            parts.append(operand())
        return parts[0] if len(parts) == 1 else Node(sign, at, None, tuple(parts))

    def _level(self, level: int, depth: int) -> Node:
        if level == len(_LEVELS):
            return self._unary(depth)
        found, count = self._level(level + 1, depth), 0
        while token := self._take(*_LEVELS[level]):
            count += 1
            if count > DEPTH_MAX:
                raise wrong(token.at, f"more than {DEPTH_MAX} operators in a row: use brackets")
            found = Node(token.kind, token.at, None, (found, self._level(level + 1, depth)))
        return found

    def _unary(self, depth: int) -> Node:
        signs: list[_Token] = []
        while token := self._take("!", "-"):
            signs.append(token)
        if len(signs) > DEPTH_MAX:
            raise wrong(signs[0].at, f"more than {DEPTH_MAX} signs in a row")
        if signs and signs[-1].kind == "-" and self._peek().kind in {"int", "double"}:
            negative = signs.pop()
            found = self._member(depth, self._number(negative.at, is_negative=True))
        else:
            found = self._member(depth, self._primary(depth))
        for token in reversed(signs):
            found = Node("not" if token.kind == "!" else "negate", token.at, None, (found,))
        return found

    def _member(self, depth: int, found: Node) -> Node:
        count = 0
        while token := self._take(".", "["):
            count += 1
            if count > DEPTH_MAX:
                raise wrong(token.at, f"more than {DEPTH_MAX} members in a row")
            if token.kind == "[":
                index = self.expression(depth + 1)
                self.expect("]")
                found = Node("index", token.at, None, (found, index))
                continue
            name = self.expect("name")
            if self._take("("):
                parts = (found, *self._listed(")", depth))
                found = Node("call", name.at, name.text, parts, has_target=True)
            else:
                found = Node("select", name.at, name.text, (found,))
        return found

    def _listed(self, end: str, depth: int) -> list[Node]:
        found: list[Node] = []
        while not self._take(end):
            if found:
                self.expect(",")
                if end != ")" and self._take(end):  # lists may end in a comma, arguments may not
                    break
            found.append(self.expression(depth + 1))
        return found

    def _primary(self, depth: int) -> Node:
        token = self._peek()
        if token.kind in {"int", "double"}:
            return self._number(token.at)
        self._next += token.kind != "end"
        match token.kind:
            case "text":
                return Node("literal", token.at, _literal(token))
            case "true" | "false" | "null":
                constants = {"true": True, "false": False, "null": None}
                return Node("literal", token.at, constants[token.kind])
            case "name":
                if self._take("("):
                    return Node("call", token.at, token.text, tuple(self._listed(")", depth)))
                return Node("name", token.at, token.text)
            case "(":
                found = self.expression(depth + 1)
                self.expect(")")
                return found
            case "[":
                return Node("list", token.at, None, tuple(self._listed("]", depth)))
            case "{":
                return Node("map", token.at, None, tuple(self._entries(depth)))
            case _:
                pass
        what = "it ends too early" if token.kind == "end" else f"{token.text[:20]!r} begins nothing"
        raise wrong(token.at, what)

    def _entries(self, depth: int) -> list[Node]:
        """Keys and values of a map, in turn."""
        found: list[Node] = []
        while not self._take("}"):
            if found:
                self.expect(",")
                if self._take("}"):
                    break
            found.append(self.expression(depth + 1))
            self.expect(":")
            found.append(self.expression(depth + 1))
        return found

    def _number(self, at: int, *, is_negative: bool = False) -> Node:
        token = self._peek()
        self._next += 1
        if token.kind == "double":
            value = float(token.text)
            return Node("literal", at, -value if is_negative else value)
        number = int(token.text, 16 if token.text.startswith("0x") else 10)
        number = -number if is_negative else number
        if not INT64_MIN <= number <= INT64_MAX:
            raise wrong(at, f"{token.text[:30]} has more than 64 bits")
        return Node("literal", at, number)


def _literal(token: _Token) -> str | bytes:
    """The value of a string or of bytes."""
    prefix = token.text[: len(token.text) - len(token.text.lstrip("rRbB"))].lower()
    body = token.text[len(prefix) :]
    quotes = 3 if body[:3] in {'"""', "'''"} else 1
    body = body[quotes:-quotes]
    is_bytes = "b" in prefix
    if "r" in prefix:
        return body.encode() if is_bytes else body
    parts: list[bytes] = []
    for match in _ESCAPE.finditer(body):
        kind, word = str(match.lastgroup), match.group(str(match.lastgroup))
        parts.append(_unescaped(kind, word, token.at, is_bytes=is_bytes))
    joined = b"".join(parts)
    return joined if is_bytes else joined.decode()


def _unescaped(kind: str, word: str, at: int, *, is_bytes: bool) -> bytes:
    if kind == "plain":
        return word.encode()
    if kind == "one":
        return _ONE.get(word, word).encode()
    if kind == "bad" or (is_bytes and kind in "uU"):
        raise wrong(at, f"the escape \\{word[:8] if kind == 'bad' else kind} is not known here")
    code = int(word, 8 if kind == "octal" else 16)
    if is_bytes:
        return bytes([code])
    try:
        return chr(code).encode()
    except (ValueError, OverflowError) as error:  # a half of a surrogate pair, or beyond Unicode
        raise wrong(at, f"\\{kind}{word} is not a character") from error
