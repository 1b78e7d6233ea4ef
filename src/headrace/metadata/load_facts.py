"""The load that brokers report, and the partitions moved because of it.

Invariants: as in `facts`. Do not change: stored.

    /load/<id>      LoadFact (ephemeral): the recent load of a live broker
    /moves/by-load  MovesFact: partitions that deviate from placement

A load is written every 30 s and read by one broker; moves are rare. All moves are in one key, so
that of two brokers that move partitions concurrently, one fails.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import PartitionKey, StoredFact

if TYPE_CHECKING:
    from collections.abc import Mapping
    from uuid import UUID

LOADS = "/load/"
MOVES_FOLDER = "/moves/"
MOVES = "/moves/by-load"
MOVES_VERSION = 1
"""Of the semantics of MOVES: a broker that follows them states this version in its BrokerFact."""
MOVES_MAX = 256


def load_key(broker_id: int) -> str:
    """The key of a broker's load."""
    return f"{LOADS}{broker_id}"


@dataclass(slots=True)
class PartitionRate:
    """The traffic of one partition, in bytes per second, in and out."""

    topic: UUID
    partition: int
    bytes_per_s: int
    unknown: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, reader: FactReader) -> PartitionRate:
        """Decode one JSON object. Raises DataCorrupt."""
        return cls(
            reader.uuid("topic", "topic id"),
            reader.integer("partition", 0),
            reader.integer("bytes_per_s", 0),
            reader.rest(),
        )


@dataclass(slots=True)
class LoadFact(StoredFact):
    """The recent load of one run of a broker: bytes per second, thousandths of a core."""

    incarnation: str
    in_bytes_per_s: int
    out_bytes_per_s: int
    cpu_permille: int
    busiest: list[PartitionRate] = field(default_factory=list)
    """The movable partitions with the most traffic."""
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def bytes_per_s(self) -> int:
        """In and out."""
        return self.in_bytes_per_s + self.out_bytes_per_s

    @classmethod
    def decode(cls, value: bytes) -> LoadFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("load", value)
        return cls(
            reader.text("incarnation"),
            reader.integer("in_bytes_per_s", 0),
            reader.integer("out_bytes_per_s", 0),
            reader.integer("cpu_permille", 0),
            [PartitionRate.read(item) for item in reader.objects("busiest", "partition's rate")],
            reader.rest(),
        )


@dataclass(slots=True)
class MovedPartition:
    """A partition, the broker that should serve it while that broker lives, and since when."""

    topic: UUID
    partition: int
    broker: int
    moved_ms: int
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> PartitionKey:
        """Topic id and partition number."""
        return self.topic, self.partition

    @classmethod
    def read(cls, reader: FactReader) -> MovedPartition:
        """Decode one JSON object. Raises DataCorrupt."""
        return cls(
            reader.uuid("topic", "topic id"),
            reader.integer("partition", 0),
            reader.integer("broker", 0),
            reader.integer("moved_ms", 0),
            reader.rest(),
        )


@dataclass(slots=True)
class MovesFact(StoredFact):
    """All partitions moved by load, from oldest to newest; at most MOVES_MAX are written."""

    moves: list[MovedPartition] = field(default_factory=list)
    unknown: dict[str, Any] = field(default_factory=dict)

    @property
    def by_partition(self) -> Mapping[PartitionKey, MovedPartition]:
        """The latest move of each partition."""
        return {move.key: move for move in self.moves}

    @classmethod
    def decode(cls, value: bytes) -> MovesFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("moves by load", value)
        moves = [MovedPartition.read(item) for item in reader.objects("moves", "moved partition")]
        return cls(moves, reader.rest())
