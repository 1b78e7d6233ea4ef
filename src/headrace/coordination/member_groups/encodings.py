"""Encodings shared by the stored records of both new group protocols (KIP-848, KIP-1071).

Invariants: pure bytes. Do not change: stored. A key contains its type, a group and possibly a
member; a value begins with version 0; partitions come with the member epoch at which they were
assigned.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.kit.stored_bytes import (
    INT16,
    INT32,
    StoredReader,
    stored_string,
    tagged_fields,
    uvarint,
)
from headrace.errors import RecordInvalid

if TYPE_CHECKING:
    from collections.abc import Mapping

VALUE_VERSION: Final = 0
VERSION: Final = INT16.pack(VALUE_VERSION)
NO_TAGS: Final = b"\0"

# States of a member.
STABLE: Final = 0
UNREVOKED: Final = 1
UNRELEASED: Final = 2

_ASSIGNMENT_EPOCHS_TAG: Final = 0
_NUMBER_SIZE: Final = 4


def write_key(key_type: int, group_id: str, member_id: str | None = None) -> bytes:
    """A key, of the group or of a member."""
    key = INT16.pack(key_type) + stored_string(group_id)
    return key if member_id is None else key + stored_string(member_id)


def read_names(key: StoredReader, *, has_member: bool) -> tuple[str, str | None]:
    """(group, member) of a key whose type has been read. Raises RecordInvalid."""
    group_id = key.string()
    member_id = key.string() if has_member else None
    key.end()
    return group_id, member_id


def write_numbers(numbers: tuple[int, ...]) -> bytes:
    """Encode partition numbers."""
    return uvarint(len(numbers) + 1) + b"".join(map(INT32.pack, numbers))


def read_numbers(reader: StoredReader) -> tuple[int, ...]:
    """Decode partition numbers. Raises RecordInvalid."""
    return tuple(reader.int32() for _ in range(reader.compact_count(_NUMBER_SIZE)))


def write_epochs(epochs: Mapping[int, int]) -> bytes:
    """Encode partitions with the epochs at which they were assigned (KIP-1251), as tagged
    fields."""
    numbers = tuple(sorted(epochs))
    tags = {_ASSIGNMENT_EPOCHS_TAG: write_numbers(tuple(epochs[n] for n in numbers))}
    return write_numbers(numbers) + tagged_fields(tags)


def read_epochs(reader: StoredReader, member_epoch: int) -> dict[int, int]:
    """The inverse of `write_epochs`. Raises RecordInvalid."""
    numbers = read_numbers(reader)
    stored = reader.tagged_fields().get(_ASSIGNMENT_EPOCHS_TAG)
    epochs = () if stored is None else read_numbers(StoredReader(stored))
    if not epochs:  # written before Kafka 4.3: fence by the member's epoch only
        epochs = (member_epoch,) * len(numbers)
    if len(epochs) != len(numbers):
        raise RecordInvalid("a stored record has different numbers of partitions and epochs")
    return dict(zip(numbers, epochs, strict=True))
