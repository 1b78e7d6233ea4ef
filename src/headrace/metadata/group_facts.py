"""Metadata of groups: settings, and topics for which share groups have state.

Invariants: changes when a group is created, configured or deleted, never with its consumption.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import UUID

from headrace.errors import DataCorrupt
from headrace.metadata.fact_json import FactReader
from headrace.metadata.facts import GROUPS, StoredFact

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def group_key(group_id: str) -> str:
    """The key of a group's settings. The id is hex-encoded, as it may contain any character."""
    return GROUPS + group_id.encode().hex()


def group_of_key(key: str) -> str:
    """The group id in a key under GROUPS. Raises DataCorrupt."""
    try:
        return bytes.fromhex(key[len(GROUPS) :]).decode()
    except ValueError as error:
        raise DataCorrupt(f"{key!r} is not the key of a group: remove it", key=key) from error


@dataclass(slots=True)
class GroupFact(StoredFact):
    """A group: settings that override the defaults, and its share group topics."""

    configs: dict[str, str]
    share_topics: str | None = None
    """The ids of the topics for which it has share group state, in hexadecimal, comma-separated; of
    one that another tenant shares, that of its owner's topic, with whose partitions the state is
    kept."""
    unknown: dict[str, Any] = field(default_factory=dict)
    share_partitions: str | None = None
    """How many partitions each had when the group began on it: id=count, comma-separated. Those
    added later are consumed from their start."""

    @classmethod
    def decode(cls, value: bytes) -> GroupFact:
        """Decode stored bytes. Raises DataCorrupt, FormatUnsupported."""
        reader = FactReader.parse("group", value)
        configs, topics = reader.texts("configs"), reader.text_or_none("share_topics")
        partitions = reader.text_or_none("share_partitions")
        fact = cls(configs, topics, reader.rest(), partitions)
        try:
            fact.topics()
            fact.partitions()
        except ValueError:
            raise reader.corrupt(f"has invalid topics {fact.share_topics!r}") from None
        return fact

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing, so that it may be deleted."""
        return not (self.configs or self.share_topics or self.unknown)

    def topics(self) -> tuple[UUID, ...]:
        """The topics for which it has share group state."""
        return tuple(UUID(hex=text) for text in (self.share_topics or "").split(",") if text)

    def partitions(self) -> dict[UUID, int]:
        """How many partitions the topics had when the group began on them, as far as known."""
        pairs = [text.split("=", 1) for text in (self.share_partitions or "").split(",") if text]
        return {UUID(hex=topic): int(count) for topic, count in pairs}

    def with_topics(self, topics: Sequence[UUID], partitions: Mapping[UUID, int]) -> GroupFact:
        """A copy with these topics; `partitions`: the counts of new ones."""
        text = ",".join(topic.hex for topic in topics)
        known = {**self.partitions(), **partitions}
        counts = ",".join(f"{topic.hex}={known[topic]}" for topic in topics if topic in known)
        return GroupFact(self.configs, text or None, self.unknown, counts or None)
