"""Volatile records of share groups: state that is not stored, and safe to lose in a crash."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.coordination.shares.commands import RecordOrder
    from headrace.coordination.shares.config import ShareConfig


class Locked(NamedTuple):
    """Volatile: `owner` has [first, last] until `until_ms`, delivered `deliveries` times."""

    number: int
    first: int
    last: int
    deliveries: int
    owner: str
    until_ms: int
    is_together: bool = False
    """Whether some may have been delivered together with earlier ones of their keys."""
    is_attempt: bool = False
    """Whether the member may ask for them again (RepeatCommand)."""


class Ended(NamedTuple):
    """Volatile: deliveries to `owner` ended at `now_ms`, by a settlement of this kind or
    LOCK_EXPIRED; their locks would have lasted until `until_ms`."""

    number: int
    owner: str
    first: int
    last: int
    kind: int
    until_ms: int
    now_ms: int


class RowsLearned(NamedTuple):
    """Volatile: the rows of all records from `rows_from` to `rows_end`."""

    number: int
    rows: tuple[RecordOrder, ...]
    rows_from: int
    rows_end: int


class ShareGroupConfigured(NamedTuple):
    """Volatile: the group's settings."""

    number: int
    config: ShareConfig


class Claimed(NamedTuple):
    """Volatile: only `owner` gets records of the partition until `until_ms`; empty: unclaimed."""

    number: int
    owner: str
    until_ms: int


class ShareTimePassed(NamedTuple):
    """Volatile: records that waited until `now_ms` may be delivered."""

    now_ms: int


VolatileRecord = Locked | Ended | RowsLearned | ShareGroupConfigured | Claimed | ShareTimePassed
