"""Topics as users name them: exact names, or patterns such as 'orders-*'.

Invariants: a pattern never matches an internal topic; what matches nothing is an error, so that a
misspelt pattern does not look like an empty topic.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from headrace.cli.failures import NOT_FOUND, CommandFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from headrace.cli.session import CliSession

_WILD = frozenset("*?[")
_TOKEN = re.compile(r"\[!?\]?[^]]*\]|[*?.\[]")
"""Of a pattern: a set of characters, or one that means another in a regular expression."""


def is_pattern(name: str) -> bool:
    """No topic's name has these characters."""
    return not _WILD.isdisjoint(name)


def is_internal(topic: str) -> bool:
    """Whether the broker itself made the topic."""
    return topic.startswith("__")


def matching(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """Those of the `names` that a pattern matches, sorted; all if there is none."""
    return [
        name
        for name in sorted(names)
        if not patterns or any(fnmatchcase(name, pattern) for pattern in patterns)
    ]


def topics_named(session: CliSession, names: Sequence[str]) -> list[str]:
    """The topics that `names` and patterns stand for, each once. Raises CommandFailed."""
    if not any(map(is_pattern, names)):
        return list(dict.fromkeys(names))
    known = [name for name in session.cluster_metadata().topics if not is_internal(name)]
    found: dict[str, None] = {}
    for name in names:
        chosen = matching(known, [name]) if is_pattern(name) else [name]
        if not chosen:
            raise CommandFailed(
                f"no topic matches {name!r}",
                "A pattern has *, ? or [...], and does not match internal topics; see what"
                " there is: headrace topic list",
                NOT_FOUND,
            )
        found.update(dict.fromkeys(chosen))
    return list(found)


def subscription(name: str) -> str:
    """What the client library subscribes to: for a pattern, its POSIX regular expression, which
    topics that are created later match, too."""
    if not is_pattern(name):
        return name
    return f"^{_TOKEN.sub(_posix, name)}$"


def _posix(token: re.Match[str]) -> str:
    text = token[0]
    if text.startswith("[") and len(text) > 1:
        return f"[^{text[2:]}" if text.startswith("[!") else text
    return {"*": ".*", "?": ".", ".": "[.]", "[": r"\["}[text]
