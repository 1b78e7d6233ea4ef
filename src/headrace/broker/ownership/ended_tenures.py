"""What this broker knows of its tenures that are over.

Invariants: in memory only. No epoch is begun twice in one incarnation: steps of its log may still
be running, and would mistake the new log's facts for their own. What was acknowledged in a tenure
is there in the next one, or the metadata have lost changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.log.ledger_chain import Acknowledged

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.broker.ownership.cluster_view import Owner
    from headrace.log.partition_log import PartitionLog
    from headrace.metadata.facts import PartitionKey


class _Ended(NamedTuple):
    epoch: int
    acknowledged: Acknowledged


class EndedTenures:
    """By partition, the last tenure here."""

    def __init__(self) -> None:
        self._by_key: dict[PartitionKey, _Ended] = {}

    def __iter__(self) -> Iterator[PartitionKey]:
        return iter(self._by_key)

    def note(self, key: PartitionKey, log: PartitionLog) -> None:
        """The tenure of this log is over."""
        known, end = log.tenure.acknowledged, log.high_watermark
        if end > known.end_offset:
            holders = (one for one in reversed(log.segments) if one.base_offset < end)
            holder = next(holders, None)
            known = Acknowledged(None if holder is None else holder.ledger, end)
        self._by_key[key] = _Ended(log.leader_epoch, known)

    def end_all_of(self, incarnation: str, owners: Mapping[PartitionKey, Owner]) -> None:
        """The registration of this incarnation, the broker's own, has been absent: the facts that
        name it no longer keep others from claiming, even if no log has served them yet."""
        for key, owner in owners.items():
            if owner.fact.incarnation == incarnation:
                self.end(key, owner.fact.leader_epoch)

    def end(self, key: PartitionKey, epoch: int) -> None:
        """The tenure with this epoch is over, whether or not a log has served it."""
        if not self.is_over(key, epoch):
            self._by_key[key] = _Ended(epoch, self.acknowledged(key))

    def forget(self, key: PartitionKey) -> None:
        """The partition was deleted."""
        self._by_key.pop(key, None)

    def is_over(self, key: PartitionKey, epoch: int) -> bool:
        """Whether the tenure with this epoch is over, or one after it."""
        return key in self._by_key and self._by_key[key].epoch >= epoch

    def acknowledged(self, key: PartitionKey) -> Acknowledged:
        """What was acknowledged here."""
        return self._by_key[key].acknowledged if key in self._by_key else Acknowledged()
