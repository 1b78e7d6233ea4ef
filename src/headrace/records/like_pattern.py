"""SQL's LIKE without backtracking: the cost of a match is bounded by pattern and text length.

Invariants: pure. A pattern is split at each `%` into pieces of fixed length. The first match of a
piece after the previous one is as good as any later match, so nothing is tried twice. The last
piece must match at the end of the text.
"""

from __future__ import annotations

import re


class LikePattern:
    """A pattern with `%` (any text) and `_` (any character)."""

    __slots__ = ("_last_size", "_pieces")

    def __init__(self, pattern: str, escape: str = "") -> None:
        """`escape`: a character that makes the next one literal; empty: none.

        Raises ValueError if the pattern ends with it.
        """
        pieces: list[list[str]] = [[]]
        characters = iter(pattern)
        for character in characters:
            if character == escape:
                following = next(characters, "")
                if not following:
                    raise ValueError("a pattern ends with its escape character")
                pieces[-1].append(re.escape(following))
            elif character == "%":
                pieces.append([])
            else:
                pieces[-1].append("." if character == "_" else re.escape(character))
        self._pieces = [re.compile("".join(piece), re.DOTALL) for piece in pieces]
        self._last_size = len(pieces[-1])

    def matches(self, text: str) -> bool:
        """Whether the whole text matches."""
        first, last = self._pieces[0], self._pieces[-1]
        if len(self._pieces) == 1:
            return first.fullmatch(text) is not None
        found = first.match(text)
        for piece in self._pieces[1:-1]:
            if found is None:
                return False
            found = piece.search(text, found.end())
        if found is None:
            return False
        start = len(text) - self._last_size
        return start >= found.end() and last.match(text, start) is not None
