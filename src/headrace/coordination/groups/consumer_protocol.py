"""The embedded protocol of classic consumers: subscriptions and assignments.

Invariants: pure bytes. Reads versions 0 to 3 of Kafka's ConsumerProtocolSubscription and
ConsumerProtocolAssignment, and of later versions the fields of version 3. A broker decodes these
bytes only where members of the classic and of the new protocol share a group, and to display an
assignment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.kit.stored_bytes import INT16, INT32, StoredReader, stored_string
from headrace.errors import RecordInvalid
from headrace.records.tenant_names import DEFAULT, name_in, sibling, tenant_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

VERSION_MAX: Final = 3
_TOPIC_SIZE_MIN: Final = 6
_NULL: Final = INT32.pack(-1)
_NONE: Final = -1


class Subscription(NamedTuple):
    """The subscription that a classic consumer sends when it joins."""

    version: int
    topics: tuple[str, ...]
    owned: Mapping[str, tuple[int, ...]]
    rack: str | None


def read_subscription(data: bytes, group_id: str = "") -> Subscription | None:
    """The subscription in a member's metadata; None if it is malformed. The bytes hold names as
    the client writes them; they become keys in the tenant of the group."""
    try:
        reader = StoredReader(data)
        version = reader.int16()
        if version < 0:
            return None
        topics = tuple(
            dict.fromkeys(
                sibling(group_id, name)
                for name in [reader.string() for _ in range(reader.count(2))]
                if tenant_of(name) == DEFAULT  # a key is not a name that a client may use
            )
        )
        _skip_nullable_data(reader)
        owned = _read_partitions(reader, group_id) if version >= 1 else {}
        if version >= 2:
            reader.int32()
        rack = reader.nullable_string() if version >= 3 else None
    except RecordInvalid:
        return None
    return Subscription(version, topics, owned, rack)


def read_assignment(data: bytes, group_id: str = "") -> dict[str, tuple[int, ...]]:
    """The partitions in a member's assignment; none if it is malformed. Names: see
    `read_subscription`."""
    try:
        reader = StoredReader(data)
        if reader.int16() < 0:
            return {}
        return _read_partitions(reader, group_id)
    except RecordInvalid:
        return {}


def write_assignment(partitions: Iterable[tuple[str, Iterable[int]]], version: int = 0) -> bytes:
    """An assignment in the form that its member reads."""
    topics = list(partitions)
    parts = [INT16.pack(min(version, VERSION_MAX)), INT32.pack(len(topics))]
    for name, numbers in topics:
        listed = list(numbers)
        parts += (stored_string(name_in(name)), INT32.pack(len(listed)), *map(INT32.pack, listed))
    return b"".join((*parts, _NULL))


def write_subscription(topics: Iterable[str]) -> bytes:
    """A subscription of version 0, as tools that list a group's members read it."""
    names = list(topics)
    parts = [
        INT16.pack(0),
        INT32.pack(len(names)),
        *(stored_string(name_in(name)) for name in names),
    ]
    return b"".join((*parts, _NULL))


def _skip_nullable_data(reader: StoredReader) -> None:
    size = reader.int32()
    if size != _NONE:
        reader.raw(size)


def _read_partitions(reader: StoredReader, group_id: str) -> dict[str, tuple[int, ...]]:
    found: dict[str, tuple[int, ...]] = {}
    for _ in range(reader.count(_TOPIC_SIZE_MIN)):
        name = reader.string()
        numbers = tuple(reader.int32() for _ in range(reader.count(4)))
        if tenant_of(name) == DEFAULT:
            found[sibling(group_id, name)] = numbers
    return found
