"""SQL's LIKE without backtracking: the cost of a match is bounded by the lengths of its two texts.

Invariants: pure. A pattern is cut into pieces at its `%`. A piece has a fixed length, and the first
place where it is found, after the piece before it, is as good as any later one; so nothing is tried
twice. The last piece has to be where the text ends.
"""

from __future__ import annotations

import re


class LikePattern:
    """A pattern with `%` (any text) and `_` (any character)."""

    __slots__ = ("_last_size", "_pieces")

    def __init__(self, pattern: str, escape: str = "") -> None:
        """`escape`: a character that takes the meaning from the next one, empty: none.

        Raises ValueError where nothing follows it.
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
        """Whether the whole text is of the pattern."""
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
