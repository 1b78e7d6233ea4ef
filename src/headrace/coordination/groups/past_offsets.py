"""The offsets that groups had committed in one topic at an earlier time, from the log of a shard.

Invariants: pure; the state at that time is what the records that were written until then make of
`GroupState`, so transactions, deletions and expiry count as they did. Nothing is guessed. Where the
log has a record of a partition from before that time, all later ones follow, and the state is
exact. Otherwise, a log that was trimmed may still have a snapshot's copy of the commit, which says
when that was taken, and that none came between. But a transaction's commit takes effect at its
marker, which the copy does not mention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from headrace.coordination.groups.group_state import GroupState
from headrace.coordination.groups.open_commits import OffsetPending
from headrace.coordination.groups.state_records import OffsetRemoved, OffsetStored, decode
from headrace.coordination.kit.machine import decode_or_none
from headrace.coordination.kit.stored_bytes import stored_string

if TYPE_CHECKING:
    from collections.abc import Iterable
    from uuid import UUID

    from headrace.coordination.kit.machine import InTransaction, KeyValue, TransactionEnded

COMMITTED: Final = "committed"
NONE: Final = "none"
"""The group had none."""
TRIMMED: Final = "trimmed"
"""Unknown: a snapshot has replaced the records of that time."""
IN_TRANSACTION: Final = "in_transaction"
"""Unknown: a snapshot does not say whether a transaction that committed it had ended by then."""
TOO_LARGE: Final = "too_large"
"""Unknown: the log has more records than are read for one answer."""
_PARTITION_BYTES: Final = 4

Place = tuple[str, int]
"""(group, partition)"""


class PastOffset(NamedTuple):
    """What is known of a group's offset in one partition at that time."""

    group: str
    partition: int
    state: str
    offset: int = -1
    """Where it is COMMITTED."""
    committed_ms: int = -1


class PastOffsets:
    """Takes the records of a log, in order, each with the time at which it was written."""

    def __init__(
        self, topic: str, topic_id: UUID, at_ms: int, transaction_ms_max: int, group: str = ""
    ) -> None:
        """`transaction_ms_max`: how long a transaction may be open. `group`: empty for all."""
        self._topic, self._topic_id, self._group = topic, topic_id, group
        self._key_part = stored_string(topic)
        self._at_ms = at_ms
        self._transaction_ms_max = transaction_ms_max
        self._state = GroupState()
        self._seen: set[Place] = set()
        self._removed: set[Place] = set()
        """Whose last record until then deletes the offset."""
        self._next: dict[Place, OffsetStored | OffsetRemoved] = {}
        """The first record since then: it may copy an earlier commit."""
        self._is_past = False
        """Whether a record was written since then."""

    def take(self, records: Iterable[KeyValue], written_ms: int) -> None:
        """The records of a batch that belongs to no transaction."""
        is_before = self._is_before(written_ms)
        for key, value in records:
            record = self._mine(key, value)
            if record is None:
                continue
            place = record.group_id, record.partition
            if not is_before:
                self._next.setdefault(place, record)
                continue
            self._state.apply(record)
            if isinstance(record, OffsetRemoved):
                self._removed.add(place)
            else:
                self._removed.discard(place)

    def take_pending(
        self, transaction: InTransaction, key: bytes | None, value: bytes | None, written_ms: int
    ) -> None:
        """A record of a transaction."""
        record = self._mine(key, value)
        if self._is_before(written_ms) and isinstance(record, OffsetStored):
            self._state.apply(OffsetPending(transaction, record))

    def end(self, ended: TransactionEnded, written_ms: int) -> None:
        """The marker of a transaction."""
        if self._is_before(written_ms):
            self._state.apply(ended)

    def _is_before(self, written_ms: int) -> bool:
        is_before = written_ms <= self._at_ms
        self._is_past |= not is_before
        return is_before

    def _mine(self, key: bytes | None, value: bytes | None) -> OffsetStored | OffsetRemoved | None:
        """The record, if it is of an offset of the group in the topic; None: it is not."""
        end = self._key_part
        if key is None or key[-_PARTITION_BYTES - len(end) : -_PARTITION_BYTES] != end:
            return None
        record = decode_or_none(decode, key, value)
        if not isinstance(record, OffsetStored | OffsetRemoved):
            return None
        if record.topic != self._topic or self._group not in {"", record.group_id}:
            return None
        self._seen.add((record.group_id, record.partition))
        return record

    def found(self, *, is_whole: bool, is_cut: bool) -> list[PastOffset]:
        """All that the log names, in order. `is_whole`: it begins with the shard's first record;
        `is_cut`: it has more records than were taken."""
        if is_cut and not self._is_past:
            return [PastOffset(*place, TOO_LARGE) for place in sorted(self._seen)]
        return [self._known(place, is_whole, is_cut) for place in sorted(self._seen)]

    def _known(self, place: Place, is_whole: bool, is_cut: bool) -> PastOffset:
        group_id, number = place
        group = self._state.groups.get(group_id)
        stored = None if group is None else group.offsets.get((self._topic, number))
        if stored is None:
            if is_whole or place in self._removed:
                return PastOffset(*place, NONE)
            stored = self._copied(place)
            if stored is None:
                return PastOffset(*place, TOO_LARGE if is_cut else TRIMMED)
            is_open = group is not None and group.open_commits.is_open((self._topic, number))
            if is_open or self._at_ms < stored.timestamp_ms + self._transaction_ms_max:
                return PastOffset(*place, IN_TRANSACTION)
        if stored.topic_id not in {None, self._topic_id}:  # of an earlier topic of that name
            return PastOffset(*place, NONE)
        return PastOffset(*place, COMMITTED, stored.offset, stored.timestamp_ms)

    def _copied(self, place: Place) -> OffsetStored | None:
        """The commit of before that time which the first record since then copies."""
        record = self._next.get(place)
        if isinstance(record, OffsetStored) and record.timestamp_ms <= self._at_ms:
            return record
        return None
