"""Compares plain values as written with those read back, and reports differences.

Invariants: pure. A newer version may know more fields of an object than the one that wrote it, but
no more objects.
"""

from __future__ import annotations

from typing import Any

WHOLE = {"topics", "partitions", "groups", "offsets", "facts"}
"""Keys below which no additional entries are allowed."""


class Findings:
    """The number of comparisons, and the failures."""

    def __init__(self, where: str) -> None:
        self.where = where
        self.wrong: list[str] = []
        self.skipped: list[str] = []
        self.checked = 0

    def same(self, what: str, expected: Any, found: Any) -> None:
        """Compare plain values."""
        self.checked += 1
        self.wrong += [f"{self.where}: {one}" for one in differences(what, expected, found)[:5]]


def differences(what: str, expected: Any, found: Any) -> list[str]:
    """The differences of two plain values, as text."""
    if isinstance(expected, dict) and isinstance(found, dict):
        wrong = []
        for key, value in expected.items():
            if key in found:
                wrong += differences(f"{what}, {key}", value, found[key])
            else:
                wrong.append(f"{what}: {key} is missing")
        if what.rpartition(", ")[2] in WHOLE:
            wrong += [f"{what}: {key} is unexpected" for key in found if key not in expected]
        return wrong
    if isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        pairs = enumerate(zip(expected, found, strict=True))
        return [one for at, (a, b) in pairs for one in differences(f"{what}[{at}]", a, b)]
    if expected == found:
        return []
    if isinstance(expected, bytes):
        return [f"{what}: different bytes ({len(expected)} were written, {len(found)} are read)"]
    return [f"{what}: {found!r}, but {expected!r} was written"[:400]]
