"""Writes pins: the brokers that operators assigned to partitions.

Invariants: placement follows pins on every broker alike; a pin says who should serve a partition,
never who does. A pin that this broker has written enters its view at once, so that its next answer
knows it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from headrace.coordination.placement.rendezvous import NO_BROKER
from headrace.metadata.decoding import decode_fact
from headrace.metadata.facts import PinFact, pin_key
from headrace.metadata.store import ANY, MetadataEntry, MultiOperation

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.broker.ownership.shared_ownership import SharedOwnership
    from headrace.broker.topics.topic import Topic
    from headrace.metadata.store import MetadataStore

BUNDLE_MAX: Final = 128
"""Pins per metadata transaction."""


class Pins:
    """The pins of a cluster whose brokers may serve any partition."""

    def __init__(self, metadata: MetadataStore, ownership: SharedOwnership) -> None:
        self._metadata = metadata
        self.view = self._view = ownership.view
        self._placement = ownership.placement
        self._changed = ownership.topics_changed

    def is_draining(self, broker: int) -> bool:
        """Whether a live broker gets no partitions: it is being drained, or is stopping."""
        return not self._placement.may_own(broker)

    def moving_to(self, topic: Topic, number: int) -> int | None:
        """The broker to which a pin moves the partition; None if it is there, or not pinned to a
        broker that may own it."""
        pinned = self._view.pins.get(topic.id, {}).get(number)
        owner = self._view.owners.get((topic.id, number))
        if pinned is None or owner is None or owner.fact.broker == pinned:
            return None
        return pinned if self._placement.target(topic, number) == pinned else None

    def move_of(self, topic: Topic, number: int) -> tuple[int, int, str] | None:
        """(its live owner, the broker that is to own it, why); None if it is where it belongs."""
        owner, target = self.view.owners.get((topic.id, number)), NO_BROKER
        if owner is not None and self.view.is_alive(owner.fact):
            target = self._placement.target(topic, number)
        if owner is None or target in {NO_BROKER, owner.fact.broker}:
            return None
        source, reason = owner.fact.broker, "placed"
        if self.view.pins.get(topic.id, {}).get(number) == target:
            reason = "reassigned"
        elif not self._placement.may_own(source):
            reason = "drained"
        elif self.view.moved_to((topic.id, number)) == target:
            reason = "balanced"
        return source, target, reason

    async def write(self, targets: Sequence[tuple[Topic, int, int]]) -> None:
        """Pin partitions: (topic, partition, broker). Raises MetadataUnavailable."""
        facts: list[tuple[str, PinFact | None]] = []
        for topic, number, broker in targets:
            pinned = self._view.pins.get(topic.id, {}).get(number)
            former = pinned if self.moving_to(topic, number) is None else None
            key = pin_key(topic.id, number)
            if pinned is not None and former is None:  # under way: cancelling leads back further
                former = await self._former(key)
            facts.append((key, PinFact(broker, former=former)))
        await self._write(facts)

    async def cancel(self, topic: Topic, number: int) -> None:
        """Undo a pin that is under way: the one before it applies again, if there was one. Raises
        MetadataUnavailable."""
        key = pin_key(topic.id, number)
        former = await self._former(key)
        await self._write([(key, None if former is None else PinFact(former))])

    async def _former(self, key: str) -> int | None:
        entry = await self._metadata.get(key)
        return None if entry is None else decode_fact(PinFact, entry).former

    async def _write(self, facts: Sequence[tuple[str, PinFact | None]]) -> None:
        for start in range(0, len(facts), BUNDLE_MAX):
            bundle = [
                MultiOperation(key, None if fact is None else fact.encode(), ANY)
                for key, fact in facts[start : start + BUNDLE_MAX]
            ]
            versions = await self._metadata.multi(bundle)
            for operation, version in zip(bundle, versions, strict=True):
                value = operation.value
                entry = None if value is None else MetadataEntry(operation.key, value, version)
                self._view.take_pin(operation.key, entry)
        self._changed()
