"""Offsets that transactions have committed in one group and that await their markers.

Invariants: of all commits for one partition, the one whose record is last in the log wins, wherever
its marker is. So a non-transactional commit supersedes earlier transactional commits, and a marker
supersedes everything before its own commit. A superseded commit stays open, without a value, until
its marker arrives: the partition is unstable until then.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from headrace.coordination.groups.state_records import OffsetStored
    from headrace.coordination.kit.machine import InTransaction

OffsetKey = tuple[str, int]
"""(topic, partition)"""


class OffsetPending(NamedTuple):
    """Durable, in a transaction's batch: an offset that takes effect if the transaction commits."""

    transaction: InTransaction
    stored: OffsetStored


class _Open(NamedTuple):
    order: int
    """Increases with the position in the log."""
    stored: OffsetStored | None
    """None: a later commit of the same partition is already in force."""


class OpenCommits:
    """See the module."""

    __slots__ = ("_by_producer",)

    def __init__(self) -> None:
        self._by_producer: dict[int, dict[OffsetKey, _Open]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OpenCommits) and self.picture() == other.picture()

    __hash__ = None  # type: ignore[assignment]  # mutable

    def picture(self) -> dict[OffsetKey, tuple[list[int], list[tuple[int, OffsetStored]]]]:
        """By partition: the producers whose commit is superseded, and the open ones, in order."""
        shown: dict[OffsetKey, tuple[list[int], list[tuple[int, OffsetStored]]]] = {}
        for place in sorted(self.places()):
            found = sorted(
                (commits[place].order, producer_id)
                for producer_id, commits in self._by_producer.items()
                if place in commits
            )
            idle, in_force = shown[place] = [], []
            for _, producer_id in found:
                stored = self._by_producer[producer_id][place].stored
                if stored is None:
                    idle.append(producer_id)
                else:
                    in_force.append((producer_id, stored))
            idle.sort()
        return shown

    def places(self) -> set[OffsetKey]:
        """Every partition with an open commit."""
        return {place for commits in self._by_producer.values() for place in commits}

    def is_open(self, place: OffsetKey) -> bool:
        """Whether an open transaction has committed an offset here."""
        return any(place in commits for commits in self._by_producer.values())

    def in_force(self) -> Iterator[OffsetStored]:
        """Each commit that is not superseded."""
        for commits in self._by_producer.values():
            for commit in commits.values():
                if commit.stored is not None:
                    yield commit.stored

    def add(self, producer_id: int, order: int, stored: OffsetStored) -> None:
        """A transaction has committed an offset."""
        commits = self._by_producer.setdefault(producer_id, {})
        commits[stored.topic, stored.partition] = _Open(order, stored)

    def supersede(self, place: OffsetKey, order: int | None = None) -> None:
        """A later commit supersedes what is open here (before `order`; None: all of it)."""
        for commits in self._by_producer.values():
            found = commits.get(place)
            if found is not None and (order is None or found.order < order):
                commits[place] = _Open(found.order, None)

    def remove(self, place: OffsetKey) -> None:
        """The offset here is deleted, including open commits."""
        for producer_id, commits in list(self._by_producer.items()):
            if commits.pop(place, None) is not None and not commits:
                del self._by_producer[producer_id]

    def end(self, producer_id: int) -> list[tuple[int, OffsetStored]]:
        """Remove a producer's transaction; returns the commits that would take effect, with their
        order."""
        commits = self._by_producer.pop(producer_id, {})
        return [
            (found.order, found.stored) for found in commits.values() if found.stored is not None
        ]
