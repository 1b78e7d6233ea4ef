"""Names of logs as people know them.

Invariants: text only. The number of a companion log is stored, and says nothing to a reader.
"""

from __future__ import annotations

from headrace.metadata.facts import COMPANION_SHIFT, CompanionKind, partition_of_companion

_TITLES = {
    CompanionKind.SHARES: "share groups of",
    CompanionKind.TIMERS: "delayed messages of",
    CompanionKind.LITE: "lite topics of",
}


def log_title(name: str) -> str:
    """`topic-number`; what it has and of which partition, for the name of a companion log."""
    topic, _, text = name.rpartition("-")
    number = int(text) if text.isdecimal() else 0
    kind = number >> COMPANION_SHIFT
    if not kind:
        return name
    what = _TITLES[CompanionKind(kind)] if kind in _TITLES else "companion of"
    return f"{what} {topic}-{partition_of_companion(number)}"
