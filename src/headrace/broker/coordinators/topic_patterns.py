"""Regular expressions of clients, matched against the names of topics and transactional ids.

Invariants: a pattern of a client never holds up the broker: RE2 matches in time linear in the name,
with bounded memory, and a pattern's length is bounded. Which names a pattern matches is kept, and
only names that are new are matched; the first time this is done in slices between which others get
their turn. A pattern matches a whole name, as in Kafka.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Final

from headrace.errors import RegularExpressionInvalid

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

PATTERN_LENGTH_MAX: Final = 1_000
"""Characters. RE2's memory bound ends what is short and expands."""
PROGRAM_BYTES_MAX: Final = 1024 * 1024
PATTERNS_MAX: Final = 1_000
"""Patterns that are remembered; beyond, the one that was used longest ago is forgotten."""
FORGET_RATIO: Final = 2
SLICE_NAMES: Final = 500
"""About 5 ms."""


class TopicPatterns:
    """See the module."""

    def __init__(self, names: Callable[[], Collection[str]], version: Callable[[], int]) -> None:
        """`names()`: the topics that there are; `version()` rises when they change."""
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
            except RegularExpressionInvalid:  # was stored by a broker that could use it
                return ()
        self._known[pattern] = found
        version = self._version()
        if found.version != version:
            found.version = version
            found.match_all(self._names())
        return found.matched


async def matching_names(pattern: str, names: Sequence[str]) -> set[str]:
    """Of `names`, those that the whole pattern matches. Raises RegularExpressionInvalid."""
    compiled = _Pattern(pattern)
    for start in range(0, len(names), SLICE_NAMES):
        compiled.match(names[start : start + SLICE_NAMES])
        await asyncio.sleep(0)
    return set(compiled.matched)


class _Pattern:
    """One pattern, and what it has matched so far."""

    def __init__(self, pattern: str) -> None:
        import re2  # costs 70 ms, which most brokers never need

        if len(pattern) > PATTERN_LENGTH_MAX:
            raise RegularExpressionInvalid(
                f"the regular expression has {len(pattern)} characters: at most"
                f" {PATTERN_LENGTH_MAX} are taken",
                limit=PATTERN_LENGTH_MAX,
            )
        options = re2.Options()
        options.max_mem = PROGRAM_BYTES_MAX
        options.log_errors = False
        options.never_capture = True
        try:
            self._expression: Any = re2.compile(pattern, options=options)
        except re2.error as error:
            cause = error.args[0] if error.args else ""
            told = cause.decode(errors="replace") if isinstance(cause, bytes) else str(cause)
            raise RegularExpressionInvalid(
                f"the regular expression {pattern[:100]!r} cannot be used: {told[:200]};"
                " its syntax is that of RE2"
            ) from error
        self.version = -1
        self.matched: list[str] = []
        self._seen: dict[str, None] = {}

    def match_all(self, names: Collection[str]) -> None:
        """Match what is new among all names; forget deleted ones once they are the most."""
        if len(self._seen) > FORGET_RATIO * len(names) + SLICE_NAMES:
            self._seen = dict.fromkeys(name for name in self._seen if name in names)
            self.matched = [name for name in self.matched if name in self._seen]
        self.match(names)

    def match(self, names: Iterable[str]) -> None:
        """Match what has not been matched yet."""
        seen, fullmatch = self._seen, self._expression.fullmatch
        for name in names:
            if name not in seen:
                seen[name] = None
                if fullmatch(name) is not None:
                    self.matched.append(name)
