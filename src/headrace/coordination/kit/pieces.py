"""Iterates over the keys of a large dictionary that changes while a snapshot is written.

Invariants: a million keys are never copied at once. A key that is present throughout is yielded at
least once.

How it works: a dictionary preserves insertion order, which a new value of an existing key does not
change. So keys are copied in pieces from one iterator. After keys were added or removed, a new
iterator continues where the last one stopped; each removal may have moved later keys down by one,
so it starts that much earlier. It skips keys from the nearer end, at about 12 ns per key.
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Key = TypeVar("Key")

PIECE_KEYS = 10_000
"""Copied at once: about 0.2 ms."""


def keys_in_pieces(keys: dict[Key, Any], removals: Callable[[], int]) -> Iterator[Key]:
    """The keys in order. `removals()` counts all removals from the dictionary so far; it may
    overcount, in which case keys are yielded again."""
    at, size, seen = 0, len(keys), removals()
    rest: Iterator[Key] | None = iter(keys)
    while True:
        removed = removals()
        if removed != seen or len(keys) != size:
            at = max(at - (removed - seen), 0)
            rest, size, seen = None, len(keys), removed
        if rest is None and at <= size // 2:
            rest = islice(keys, at, None)
        if rest is None:
            left = size - at
            piece = list(islice(reversed(keys), max(left - PIECE_KEYS, 0), max(left, 0)))
            piece.reverse()
        else:
            piece = list(islice(rest, PIECE_KEYS))
        if not piece:
            return
        at += len(piece)
        yield from piece
