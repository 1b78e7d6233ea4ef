"""The records of the journal of a partition's lite topics, and their encoding (`docs/FORMAT.md`).

Invariants: a group is opened once, under a number that is never reused; its progress in a lite
topic is one record under the name, which holds all of it. Which client subscribes to what, and what
is being delivered, is not stored. Integers are unsigned LEB128.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.kit.stored_bytes import get_varint, put_varint
from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from headrace.coordination.shares.config import ShareConfig
    from headrace.coordination.shares.lite_commands import LiteRow

VERSION: Final = 0
"""First byte of each value. Do not change: stored."""
OPENED: Final = b"\x00"
PROGRESS: Final = b"\x01"
EXPIRED: Final = b"\x02"
"""First byte of each key; the group's number follows, except after EXPIRED, then the name of the
lite topic. Do not change: stored."""


class Progress(NamedTuple):
    """What a group has done in one lite topic."""

    position: int = 0
    """Everything before it is finished."""
    finished: tuple[int, ...] = ()
    """Finished offsets after the first unfinished one, ascending."""
    counts: tuple[tuple[int, int], ...] = ()
    """(offset, deliveries that have ended) of unfinished records, ascending."""
    at_ms: int = 0
    """Nothing is delivered before; 0: no delay."""


class LiteOpened(NamedTuple):
    """The group has this number in the journal."""

    number: int
    group_id: str


class LiteRemoved(NamedTuple):
    """The group is deleted on this partition."""

    number: int


class LiteProgress(NamedTuple):
    """The group's progress in a lite topic; None: there are no records of it any more."""

    number: int
    name: str
    progress: Progress | None


class LiteExpired(NamedTuple):
    """The records of the lite topic before `end` have expired; None: the log has deleted them."""

    name: str
    end: int | None


StoredLite = LiteOpened | LiteRemoved | LiteProgress | LiteExpired


class Delivery(NamedTuple):
    """A record that a member has until `until_ms`, delivered `deliveries` times."""

    member: str
    """Empty: it was given up, and waits for its copy in the dead letter topic."""
    until_ms: int
    deliveries: int
    is_attempt: bool = False


class LiteDelivering(NamedTuple):
    """Volatile: the records of a lite topic that are being delivered, by offset."""

    number: int
    name: str
    deliveries: Mapping[int, Delivery]


class LiteConfigured(NamedTuple):
    """Volatile: a group's settings, and when lite topics expire."""

    number: int
    config: ShareConfig
    expiration_ms: int


class LiteLearned(NamedTuple):
    """Volatile: the records of lite topics up to `end`."""

    rows: Sequence[LiteRow]
    end: int


class LiteForgotten(NamedTuple):
    """Volatile: no records of these (lite topic, first offset, last one) are there any more."""

    parts: Sequence[tuple[str, int, int]]


class LiteEmptied(NamedTuple):
    """Volatile: these lite topics have no records any more. They are orphans now if groups have
    progress in them, and no longer if they have none."""

    names: Sequence[str]


class LiteStart(NamedTuple):
    """Volatile: the log begins here."""

    offset: int


class LiteSubscribed(NamedTuple):
    """Volatile: what a client subscribes to, until `until_ms`."""

    number: int
    client: str
    added: Sequence[str]
    removed: Sequence[str]
    until_ms: int
    stay: str = ""
    """Of the names that are added."""


class LiteLeft(NamedTuple):
    """Volatile: the client has ended."""

    number: int
    client: str


class LiteSettled(NamedTuple):
    """Volatile: the member has settled this record so."""

    number: int
    member: str
    offset: int
    kind: int


class LiteKept(NamedTuple):
    """Volatile: a lite topic that is in use at `now_ms` does not expire yet."""

    name: str
    now_ms: int


class LiteTimePassed(NamedTuple):
    """Volatile: deadlines up to `now_ms` were looked at."""

    now_ms: int


VolatileLite = (
    LiteDelivering
    | LiteConfigured
    | LiteLearned
    | LiteForgotten
    | LiteEmptied
    | LiteStart
    | LiteSubscribed
    | LiteLeft
    | LiteSettled
    | LiteKept
    | LiteTimePassed
)
LiteRecord = StoredLite | VolatileLite


def encode(record: StoredLite) -> tuple[bytes, bytes | None]:
    """The (key, value) of a record."""
    if isinstance(record, LiteExpired):
        return EXPIRED + record.name.encode(), _numbers(record.end)
    key = bytearray(PROGRESS if isinstance(record, LiteProgress) else OPENED)
    put_varint(key, record.number)
    if isinstance(record, LiteRemoved):
        return bytes(key), None
    if isinstance(record, LiteOpened):
        return bytes(key), bytes((VERSION,)) + record.group_id.encode()
    key += record.name.encode()
    if record.progress is None:
        return bytes(key), None
    position, finished, counts, at_ms = record.progress
    numbers = [position, at_ms, len(finished)]
    reached = position
    for offset in finished:
        numbers.append(offset - reached)
        reached = offset
    reached = position
    for offset, count in counts:
        numbers += (offset - reached, count)
        reached = offset
    return bytes(key), _numbers(*numbers)


def _numbers(*numbers: int | None) -> bytes | None:
    value = bytearray((VERSION,))
    for number in numbers:
        if number is None:
            return None
        put_varint(value, number)
    return bytes(value)


def decode(key: bytes, value: bytes | None) -> StoredLite | None:
    """The inverse of `encode`; None for what a newer version wrote. Raises RecordInvalid."""
    try:
        return _decode(key, value)
    except (IndexError, UnicodeDecodeError) as error:
        raise RecordInvalid(f"a record of a journal of lite topics is damaged: {error}") from error


def _decode(key: bytes, value: bytes | None) -> StoredLite | None:
    if value is not None and value[0] != VERSION:
        return None
    if key[:1] == EXPIRED:
        return LiteExpired(key[1:].decode(), None if value is None else get_varint(value, 1)[0])
    number, at = get_varint(key, 1)
    if key[:1] == OPENED:
        if value is None:
            return LiteRemoved(number)
        return LiteOpened(number, value[1:].decode())
    if key[:1] != PROGRESS:
        return None
    progress = None if value is None else _decode_progress(value)
    return LiteProgress(number, key[at:].decode(), progress)


def _decode_progress(value: bytes) -> Progress:
    numbers: list[int] = []
    at = 1
    while at < len(value):
        number, at = get_varint(value, at)
        numbers.append(number)
    position, at_ms, count = numbers[:3] if len(numbers) >= 3 else (0, 0, len(numbers) + 1)
    rest = numbers[3:]
    if count > len(rest) or (len(rest) - count) % 2:
        raise RecordInvalid("a group's progress in a lite topic ends too early")
    finished: list[int] = []
    reached = position
    for step in rest[:count]:
        reached += step
        finished.append(reached)
    counts: list[tuple[int, int]] = []
    reached = position
    for step, deliveries in zip(rest[count::2], rest[count + 1 :: 2], strict=True):
        reached += step
        counts.append((reached, deliveries))
    return Progress(position, tuple(finished), tuple(counts), at_ms)
