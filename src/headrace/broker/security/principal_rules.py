"""`ssl.principal.mapping.rules`: from the distinguished name of a certificate to a principal.

Invariants: the rules of Kafka's SslPrincipalMapper (KIP-371), in order; the first whose pattern
matches the whole name decides. Patterns run in linear time (RE2), so neither a rule nor a
certificate can stall the broker; RE2 knows no look-around and no back-references.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final, NamedTuple

import re2

from headrace.errors import RequestInvalid

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

DEFAULT: Final = "DEFAULT"
_RULE: Final = re.compile(
    r"\s*(?:(?P<default>DEFAULT)|RULE:(?P<pattern>(?:\\.|[^\\/])*)"
    r"/(?P<replacement>(?:\\.|[^\\/])*)/(?P<case>[LU]?))\s*(?:,|\n|\Z)",
    re.DOTALL,
)
_GROUP: Final = re.compile(r"\\(.)|\$(\d)", re.DOTALL)
_NEXT_STEP: Final = (
    "write DEFAULT, or RULE:pattern/replacement/ with L or U after it for lower or upper case,"
    " separated by commas; nothing was started"
)


class PrincipalRule(NamedTuple):
    """One rule."""

    pattern: re2._Regexp | None
    """None: DEFAULT, the whole name."""
    replacement: str = ""
    case: str = ""
    """`L` or `U`: the result in lower or upper case."""

    def apply(self, name: str) -> str | None:
        """The principal's name; None if the pattern does not match the whole of `name`."""
        if self.pattern is None:
            return name
        if self.pattern.fullmatch(name) is None:
            return None
        # As Java's replaceAll: a pattern that also matches the empty end replaces that, too.
        mapped = "".join(_replaced(self.pattern, self.replacement, name))
        return {"L": mapped.lower(), "U": mapped.upper()}.get(self.case, mapped)


def _replaced(pattern: re2._Regexp, replacement: str, name: str) -> Iterator[str]:
    end = 0
    for found in pattern.finditer(name):

        def group(reference: re.Match[str], found: re2._Match = found) -> str:
            escaped, number = reference.groups()
            if escaped is not None:
                return str(escaped)
            if int(number) > pattern.groups:
                return reference.group()
            return found.group(int(number)) or ""

        yield name[end : found.start()]
        yield _GROUP.sub(group, replacement)
        end = found.end()
    yield name[end:]


def parse_rules(text: str) -> tuple[PrincipalRule, ...]:
    """Parse the setting. Raises RequestInvalid."""
    rules: list[PrincipalRule] = []
    at = 0
    while at < len(text):
        found = _RULE.match(text, at)
        if found is None:
            raise RequestInvalid(
                f"ssl.principal.mapping.rules: {text[at : at + 100]!r} is not a rule: {_NEXT_STEP}"
            )
        at = found.end()
        if found["default"]:
            rules.append(PrincipalRule(None))
            continue
        options = re2.Options()
        options.log_errors = False
        try:
            pattern = re2.compile(found["pattern"], options)
        except re2.error as error:
            raise RequestInvalid(
                f"ssl.principal.mapping.rules: the pattern {found['pattern'][:100]!r} cannot be"
                f" used ({error}): RE2's syntax has no look-around and no back-references;"
                " nothing was started"
            ) from error
        rules.append(PrincipalRule(pattern, found["replacement"], found["case"]))
    return tuple(rules) or (PrincipalRule(None),)


def mapped_name(rules: Sequence[PrincipalRule], name: str) -> str | None:
    """The principal's name of a distinguished name; None if no rule fits."""
    return next((mapped for rule in rules if (mapped := rule.apply(name)) is not None), None)
