"""How a value names its schema: a prefix with an id, or a header with a GUID (Confluent's formats).

Invariants: pure. A header counts before the prefix, as in the deserializers of registries' clients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.schemas.undecodable import Undecodable

if TYPE_CHECKING:
    from collections.abc import Iterable

MAGIC: Final = 0
"""The first byte of a value with the schema's id in front (do not change: wire)."""
ID_SIZE: Final = 4
GUID_MARK: Final = 1
"""The first byte of a header with the schema's GUID (do not change: wire)."""
GUID_SIZE: Final = 16
HEADER: Final = "__value_schema_id"


class Reference(NamedTuple):
    """A value's payload, and the id or the GUID of its schema."""

    payload: bytes
    schema: int | bytes


def reference_of(value: bytes, headers: Iterable[tuple[str, bytes | None]]) -> Reference:
    """Raises Undecodable if neither a header nor a prefix names a schema."""
    for name, mark in headers:
        if name != HEADER or mark is None:
            continue
        if len(mark) == 1 + GUID_SIZE and mark[0] == GUID_MARK:
            return Reference(value, mark[1:])
    if len(value) < 1 + ID_SIZE or value[0] != MAGIC:
        raise Undecodable("neither a prefix nor a header names its schema")
    return Reference(value[1 + ID_SIZE :], int.from_bytes(value[1 : 1 + ID_SIZE], "big"))
