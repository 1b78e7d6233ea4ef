"""What changes a share group and is not stored: a crash forgets it, and nothing is lost."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from headrace.coordination.shares.commands import Row
    from headrace.coordination.shares.config import ShareConfig


class Locked(NamedTuple):
    """Volatile: [first, last] is `owner`'s until `until_ms`, delivered `deliveries` times."""

    number: int
    first: int
    last: int
    deliveries: int
    owner: str
    until_ms: int


class RowsLearned(NamedTuple):
    """Volatile: what is known of the records up to `rows_end`."""

    number: int
    rows: tuple[Row, ...]
    rows_end: int


class Configured(NamedTuple):
    """Volatile: the group's settings."""

    number: int
    config: ShareConfig


class Claimed(NamedTuple):
    """Volatile: the records of the partition are `owner`'s alone until `until_ms`; empty: free."""

    number: int
    owner: str
    until_ms: int


class TimePassed(NamedTuple):
    """Volatile: what waited until `now_ms` may be delivered."""

    now_ms: int


VolatileRecord = Locked | RowsLearned | Configured | Claimed | TimePassed
