"""Decodes stored facts one by one: one that cannot be decoded is named by its key.

Invariants: reads values, never the store. An undecodable fact is damage of what it describes only:
the others of its kind are decoded all the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar

from headrace.errors import DataCorrupt, FormatUnsupported

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from headrace.metadata.store import MetadataEntry


class Decodable(Protocol):
    """A kind of fact."""

    @classmethod
    def decode(cls, value: bytes) -> Self:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        ...


FactT = TypeVar("FactT", bound=Decodable)
KeyT = TypeVar("KeyT")


class DamagedFact(NamedTuple):
    """A fact that cannot be decoded."""

    key: str
    version: int
    """Of its entry, from which a repair replaces it."""
    reason: str

    def __str__(self) -> str:
        return f"the fact {self.key} cannot be decoded: {self.reason}"


def decode_fact(kind: type[FactT], entry: MetadataEntry) -> FactT:
    """The fact of an entry. Raises DataCorrupt, FormatUnsupported, naming its key."""
    try:
        return kind.decode(entry.value)
    except (DataCorrupt, FormatUnsupported) as error:
        raise type(error)(f"{entry.key}: {error}", key=entry.key) from error


def decode_all(
    kind: type[FactT],
    entries: Iterable[MetadataEntry],
    key_of: Callable[[str], KeyT],
    damaged: list[DamagedFact],
) -> dict[KeyT, FactT]:
    """The facts by `key_of` their key; those that cannot be decoded are appended to `damaged`."""
    found = {}
    for entry in entries:
        try:
            key = key_of(entry.key)
            found[key] = kind.decode(entry.value)
        except (DataCorrupt, FormatUnsupported, ValueError) as error:
            damaged.append(DamagedFact(entry.key, entry.version, str(error)))
    return found
