"""The findings of an inspection: damage, unreadable parts, and notes.

Invariants: values only. A finding names the file and the position, the cause, the effect on topics,
partitions and offsets, and the next step. The values of `kind` are stable: scripts match them.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any

RESTORE = "restore the file from a backup, or the records from another copy"
WHOLE_FOLDER = "the broker does not start on this folder, and none of its partitions are served"


class Severity(StrEnum):
    """The severity of a finding."""

    DAMAGE = "damage"
    """Stored data is wrong or missing."""
    UNREADABLE = "unreadable"
    """Could not be checked: a newer format, or a file that cannot be read."""
    NOTE = "note"
    """Normal, but worth knowing."""


@dataclass(slots=True, frozen=True)
class RecordRange:
    """The records that a finding affects, as far as known. Offsets are inclusive."""

    ledger: int | None = None
    topic: str | None = None
    partition: int | None = None
    first_offset: int | None = None
    last_offset: int | None = None

    @property
    def log_name(self) -> str | None:
        """`orders-0`, or None."""
        return None if self.topic is None else f"{self.topic}-{self.partition}"


@dataclass(slots=True, frozen=True)
class Finding:
    """One finding."""

    severity: Severity
    kind: str
    file: str
    """Path within the data folder."""
    position: int | None
    """Byte position in the file; None if it concerns the whole file."""
    cause: str
    effect: str
    next_step: str
    place: RecordRange = RecordRange()

    def as_json(self) -> dict[str, Any]:
        """Return the fields of one JSON line; unknown ones are omitted."""
        found: dict[str, Any] = {"type": str(self.severity)}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name in {"severity", "place"} or value is None or value == "":
                continue
            found[item.name] = value
        for item in fields(self.place):
            value = getattr(self.place, item.name)
            if value is not None:
                found[item.name] = value
        return found


def damage(
    kind: str,
    file: str,
    position: int | None,
    cause: str,
    effect: str,
    next_step: str = RESTORE,
    place: RecordRange | None = None,
) -> Finding:
    """Build a finding of damage."""
    return Finding(
        Severity.DAMAGE, kind, file, position, cause, effect, next_step, place or RecordRange()
    )


def unreadable(kind: str, file: str, cause: str, next_step: str) -> Finding:
    """Build a finding that something could not be checked."""
    effect = "it was not checked, and what depends on it may be damaged"
    return Finding(Severity.UNREADABLE, kind, file, None, cause, effect, next_step)


def note(
    kind: str, file: str, cause: str, effect: str = "", place: RecordRange | None = None
) -> Finding:
    """Build a note."""
    return Finding(Severity.NOTE, kind, file, None, cause, effect, "", place or RecordRange())
