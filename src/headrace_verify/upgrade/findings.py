"""What was compared, and what was wrong: plain values as written against those as read.

Invariants: pure. A newer version may know more fields of a thing than the one that wrote it;
it may not know more things.
"""

from __future__ import annotations

from typing import Any

WHOLE = {"topics", "partitions", "groups", "offsets", "facts"}
"""Under these names, what was not written must not be there."""


class Findings:
    """What was checked, and what was wrong."""

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
    """Where two plain values differ, in words."""
    if isinstance(expected, dict) and isinstance(found, dict):
        wrong = []
        for key, value in expected.items():
            if key in found:
                wrong += differences(f"{what}, {key}", value, found[key])
            else:
                wrong.append(f"{what}: {key} is not there")
        if what.rpartition(", ")[2] in WHOLE:
            wrong += [f"{what}: nobody wrote {key}" for key in found if key not in expected]
        return wrong
    if expected == found:
        return []
    if isinstance(expected, bytes):
        return [f"{what}: other bytes ({len(expected)} were written, {len(found)} are read)"]
    return [f"{what}: {found!r}, and {expected!r} was written"[:400]]
