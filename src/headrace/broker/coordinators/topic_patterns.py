"""Matches clients' regular expressions against the names of topics and transactional ids.

Invariants: a client's pattern never blocks the broker: RE2 matches in time linear in the name, with
bounded memory, and the length of a pattern is bounded. Matches are cached, and only new names are
matched; the first evaluation runs in slices between which the loop does other work. A pattern
matches the whole name, as in Kafka. A pattern is a name in a tenant, and matches that tenant's
topics alone.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import RegularExpressionInvalid
from headrace.records.tenant_names import name_in, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

PATTERN_LENGTH_MAX: Final = 1_000
"""Characters. RE2's memory limit stops short patterns that expand."""
PROGRAM_BYTES_MAX: Final = 1024 * 1024
PATTERNS_MAX: Final = 1_000
"""Cached patterns; beyond that, the least recently used one is dropped."""
FORGET_RATIO: Final = 2
SLICE_NAMES: Final = 500
"""About 5 ms."""


class TopicPatterns:
    """See the module."""

    def __init__(self, names: Callable[[], Collection[str]], version: Callable[[], int]) -> None:
        """`names()`: the existing topics; `version()` increases when they change."""
        self._names = names
        self._version = version
        self._known: dict[str, _Pattern] = {}

    async def prepare(self, pattern: str) -> None:
        """Match a pattern against all topics. Raises RegularExpressionInvalid."""
        if pattern in self._known:
            return
        compiled = _Pattern(pattern)
        names = list(self._names())
        for start in range(0, len(names), SLICE_NAMES):
            compiled.match(names[start : start + SLICE_NAMES])
            if start + SLICE_NAMES < len(names):
                await asyncio.sleep(0)
        while len(self._known) >= PATTERNS_MAX:
            del self._known[next(iter(self._known))]
        self._known[pattern] = compiled

    def matching(self, pattern: str) -> Sequence[str]:
        """The names of topics that the pattern matches; some of them may have been deleted."""
        found = self._known.pop(pattern, None)
        if found is None:
            try:
                found = _Pattern(pattern)
            except RegularExpressionInvalid:  # stored by a broker that supported it
                return ()
        self._known[pattern] = found
        version = self._version()
        if found.version != version:
            found.version = version
            found.match_all(self._names())
        return found.matched


async def matching_names(pattern: str, names: Sequence[str]) -> set[str]:
    """The names of any tenant that the whole pattern matches. Raises RegularExpressionInvalid."""
    fullmatch = compiled_pattern(pattern).fullmatch
    found: set[str] = set()
    for start in range(0, len(names), SLICE_NAMES):
        part = names[start : start + SLICE_NAMES]
        found.update(name for name in part if fullmatch(name_in(name)) is not None)
        await asyncio.sleep(0)
    return found


def compiled_pattern(pattern: str) -> Any:
    """An RE2 expression. Raises RegularExpressionInvalid."""
    import re2  # costs 70 ms, and most brokers never need it

    if len(pattern) > PATTERN_LENGTH_MAX:
        raise RegularExpressionInvalid(
            f"the regular expression has {len(pattern)} characters: use at most "
            f"{PATTERN_LENGTH_MAX}",
            limit=PATTERN_LENGTH_MAX,
        )
    options = re2.Options()
    options.max_mem = PROGRAM_BYTES_MAX
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(pattern, options=options)
    except re2.error as error:
        cause = error.args[0] if error.args else ""
        reason = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
        raise RegularExpressionInvalid(
            f"invalid regular expression {pattern[:100]!r}: {reason[:200]}; use RE2 syntax"
        ) from error


class _Pattern:
    """One pattern and its matches so far."""

    def __init__(self, pattern: str) -> None:
        self._expression: Any = compiled_pattern(name_in(pattern))
        self._tenant = tenant_of(pattern)
        self.version = -1
        self.matched: list[str] = []
        self._seen: dict[str, None] = {}

    def match_all(self, names: Collection[str]) -> None:
        """Match the new names; drop deleted ones once they outnumber the rest."""
        if len(self._seen) > FORGET_RATIO * len(names) + SLICE_NAMES:
            self._seen = dict.fromkeys(name for name in self._seen if name in names)
            self.matched = [name for name in self.matched if name in self._seen]
        self.match(names)

    def match(self, names: Iterable[str]) -> None:
        """Match the names that have not been matched yet."""
        seen, fullmatch, tenant = self._seen, self._expression.fullmatch, self._tenant
        for name in names:
            if name not in seen:
                seen[name] = None
                if tenant_of(name) == tenant and fullmatch(name_in(name)) is not None:
                    self.matched.append(name)
