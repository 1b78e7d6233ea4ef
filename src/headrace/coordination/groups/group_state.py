"""The groups of one shard: how they change, how they are read back, and what rebuilds them.

Invariants: `apply` is the only method that changes them, but for `OffsetReplay`, which does the
work of many records at once while a log is read. Deadlines are in one heap, with one live entry per
group: a heartbeat only ever extends a session, so it does not touch the heap; an entry that comes
up early is checked and put back.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

from headrace.coordination.groups.consumer_group import consumer_group
from headrace.coordination.groups.consumer_records import CONSUMER, ConsumerRecord
from headrace.coordination.groups.group import (
    CleanupScheduled,
    Group,
    GroupChanged,
    GroupDeadlinesPassed,
    GroupForgotten,
    GroupRecord,
    MemberSeen,
    group_from_record,
)
from headrace.coordination.groups.open_commits import OffsetPending
from headrace.coordination.groups.state_records import (
    GroupRemoved,
    GroupStored,
    OffsetRemoved,
    OffsetStored,
)
from headrace.coordination.kit.deadlines import Deadlines
from headrace.coordination.kit.machine import TransactionEnded
from headrace.coordination.kit.pieces import keys_in_pieces
from headrace.coordination.member_groups.group import MembersTouched
from headrace.coordination.member_groups.records import MemberRecordRemoved
from headrace.coordination.streams.records import STREAMS, StreamsRecord
from headrace.coordination.streams.streams_group import streams_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from uuid import UUID

    from headrace.coordination.kit.machine import KeyValue
    from headrace.coordination.member_groups.group import MemberGroup

PART_RECORDS = 500
"""About 2 ms of work to encode and append."""
_PLAIN_VALUE: Final = Struct(">hqiBq19s")
"""Version 4 without metadata, with the topic id as the only tagged field."""
_PARTITION: Final = Struct(">i")
_VERSION, _NO_METADATA, _TOPIC_ID_HEAD = 4, 1, bytes((1, 0, 16))
_KNOWN_MAX: Final = 100_000
"""Of groups and their topics: about 30 MB while a log is read."""


class GroupState:
    """See the module."""

    def __init__(self) -> None:
        self.groups: dict[str, Group] = {}
        self.rebalances_total = 0
        self.deadlines = Deadlines[str]()
        self.cleanup = CleanupScheduled(-1)
        """`at_ms` is -1 before the log is loaded."""
        self._open: dict[int, dict[str, None]] = {}
        """Producer id -> the groups in which its open transaction has committed offsets."""
        self._removals = 0
        """Removals of groups, and of offsets of groups."""
        self._last_order = 0
        """Counts transactional commits, in log order."""

    def next_deadline_ms(self) -> int | None:
        """See Machine."""
        cleanup_ms = self.cleanup.at_ms if self.groups and self.cleanup.at_ms >= 0 else None
        first_ms = self.deadlines.first_ms()
        if first_ms is None or cleanup_ms is None:
            return cleanup_ms if first_ms is None else first_ms
        return min(first_ms, cleanup_ms)

    def apply(self, record: GroupRecord) -> None:
        """See Machine."""
        if type(record) is OffsetStored:  # a million of them are read back
            self._take_offset(record)
            return
        match record:
            case MemberSeen(member, deadline_ms):
                member.deadline_ms = deadline_ms
            case OffsetStored():
                self._take_offset(record)
            case OffsetPending():
                self._take_pending(record)
            case TransactionEnded():
                self._end_transaction(record)
            case GroupChanged(group, rebalances):
                self.groups[group.group_id] = group
                self.rebalances_total += rebalances
                self._arm(group)
            case GroupStored():
                known = self.groups.get(record.group_id)
                self.groups[record.group_id] = group_from_record(record, known)
            case OffsetRemoved():
                self._remove_offset(record)
            case GroupRemoved(group_id):
                self._remove_group(group_id)
            case GroupForgotten(group_id):
                self._removals += 1
                self.groups.pop(group_id, None)
            case GroupDeadlinesPassed(now_ms):
                self._pass_deadlines(now_ms)
            case CleanupScheduled():
                self.cleanup = record
            case _:
                self._take_member_record(record)

    def _take_pending(self, pending: OffsetPending) -> None:
        """A transactional commit waits for its marker."""
        self._last_order += 1
        producer_id = pending.transaction.producer_id
        group = self._group(pending.stored.group_id)
        group.open_commits.add(producer_id, self._last_order, pending.stored)
        self._open.setdefault(producer_id, {})[group.group_id] = None

    def _remove_group(self, group_id: str) -> None:
        """The classic group's record is deleted; any other state of the group stays."""
        self._removals += 1
        known = self.groups.pop(group_id, None)
        if known is None:
            return
        rest = Group(
            group_id,
            offsets=known.offsets,
            open_commits=known.open_commits,
            consumer=known.consumer,
            streams=known.streams,
        )
        if not rest.is_forgettable():
            self.groups[group_id] = rest

    def _remove_offset(self, record: OffsetRemoved) -> None:
        known = self.groups.get(record.group_id)
        if known is not None:
            self._removals += 1
            known.offsets.pop((record.topic, record.partition), None)
            known.open_commits.remove((record.topic, record.partition))
            self._forget_if_nothing(known)

    def _group(self, group_id: str) -> Group:
        group = self.groups.get(group_id)
        if group is None:
            group = self.groups[group_id] = Group(group_id)
        return group

    def _take_member_record(
        self, record: ConsumerRecord | StreamsRecord | MembersTouched | MemberRecordRemoved
    ) -> None:
        """Apply a record of a group whose coordinator assigns; a stored one converts the group to
        its kind."""
        group = self.groups.get(record.group_id)
        managed = None if group is None else group.managed
        if isinstance(record, MembersTouched):
            if group is not None and managed is not None:
                managed.touch(record)
                self._arm(group)
        elif isinstance(record, MemberRecordRemoved):
            if group is not None and managed is not None and managed.kind.has(record.key_type):
                managed.apply(record)
                if record.key_type == managed.kind.group_key:
                    group.consumer = group.streams = None
                    self._forget_if_nothing(group)
        else:
            self._take_stored_member_record(group, record)

    def _take_stored_member_record(
        self, group: Group | None, record: ConsumerRecord | StreamsRecord
    ) -> None:
        managed = None if group is None else group.managed
        kind = CONSUMER if isinstance(record, ConsumerRecord) else STREAMS
        if managed is None or managed.kind is not kind:
            bare = self.groups[record.group_id] = Group(record.group_id)
            if kind is CONSUMER:
                managed = bare.consumer = consumer_group(record.group_id)
            else:
                managed = bare.streams = streams_group(record.group_id)
            if group is not None:
                bare.offsets, bare.open_commits = group.offsets, group.open_commits
        managed.apply(record)

    def _take_offset(self, record: OffsetStored) -> None:
        """A non-transactional commit, or a snapshot's copy of an offset in force."""
        group = self._group(record.group_id)
        place = record.topic, record.partition
        if record.is_repeated:
            record = record._replace(is_repeated=False)
        elif group.open_commits:
            group.open_commits.supersede(place)
        group.offsets[place] = record

    def _end_transaction(self, ended: TransactionEnded) -> None:
        """A marker: the transaction's commits take effect, unless later ones have."""
        for group_id in self._open.pop(ended.producer_id, ()):
            group = self.groups.get(group_id)
            if group is None:
                continue
            commits = group.open_commits.end(ended.producer_id)
            if ended.is_commit:
                for order, stored in commits:
                    place = stored.topic, stored.partition
                    group.open_commits.supersede(place, order)
                    group.offsets[place] = stored
            self._forget_if_nothing(group)

    def _forget_if_nothing(self, group: Group) -> None:
        if group.is_forgettable():
            self._removals += 1
            del self.groups[group.group_id]

    def _arm(self, group: Group) -> None:
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self.deadlines.arm(group.group_id, deadline_ms)

    def _pass_deadlines(self, now_ms: int) -> None:
        for group_id in self.deadlines.pass_until(now_ms):
            group = self.groups.get(group_id)
            if group is not None:
                self._arm(group)

    def validate(self) -> None:
        """See Machine."""
        first_ms = self.deadlines.first_ms()
        for group_id, group in self.groups.items():
            assert group.group_id == group_id
            group.validate()
            deadline_ms = group.next_deadline_ms()
            if deadline_ms is not None:
                assert first_ms is not None, "its members would never expire"
                assert first_ms <= deadline_ms

    def parts(self) -> Iterator[list[GroupRecord]]:
        """Durable records that rebuild the groups; the offsets of a group may be spread over
        several parts."""
        return _parts_of(self.groups, lambda: self._removals)


def _parts_of(groups: dict[str, Group], removals: Callable[[], int]) -> Iterator[list[GroupRecord]]:
    """Durable records that rebuild `groups`; `removals()` counts all removals of groups, and of
    offsets from groups.

    Each record reflects the state when its part is requested, so later changes are later in the
    log. A large group is split into several parts, and ends early if it was replaced meanwhile.
    """
    part: list[GroupRecord] = []
    for group_id in keys_in_pieces(groups, removals):
        group = groups.get(group_id)
        if group is None:
            continue
        offsets = group.offsets
        if group.record is not None:
            part.append(group.record)
        if group.managed is not None:
            yield from _member_parts(groups, group.managed, part)
        for place in keys_in_pieces(offsets, removals):
            if len(part) >= PART_RECORDS:
                yield part
                part = []
            group = groups.get(group_id)
            if group is None or group.offsets is not offsets:
                break
            stored = offsets.get(place)
            if stored is not None:
                is_open = group.open_commits and group.open_commits.is_open(place)
                part.append(stored._replace(is_repeated=True) if is_open else stored)
        if len(part) >= PART_RECORDS:
            yield part
            part = []
    yield part


def _member_parts(
    groups: dict[str, Group], members: MemberGroup[Any, Any, Any], part: list[GroupRecord]
) -> Iterator[list[GroupRecord]]:
    """Parts of a group whose coordinator assigns; the last records go into `part`."""
    for record in members.state_records():
        part.append(record)
        if len(part) >= PART_RECORDS:
            yield part[:]
            part.clear()
            group = groups.get(members.group_id)
            if group is None or group.managed is not members:
                return


_Known = tuple[dict[tuple[str, int], OffsetStored], str, str]


class OffsetReplay:
    """Fast replay of committed offsets in their usual encoding, a million at a time.

    It gives the same state as decoding and applying each record, and leaves all other records to
    that. Cached groups are dropped at every record that is not a plain offset, since it may replace
    the group; a group with open transactions is never cached. It lives as long as one log is read.

    How it works: records of one group and topic share all of the key except its last four bytes, so
    one lookup finds both names; a value without metadata has a fixed size and is unpacked at once;
    its end, the topic id, is looked up.
    """

    def __init__(
        self,
        state: GroupState,
        decode: Callable[[bytes | None, bytes | None], GroupRecord | None],
    ) -> None:
        self._state = state
        self._decode = decode
        self._known: dict[bytes, _Known] = {}
        self._topic_ids: dict[bytes, UUID] = {}

    def __call__(self, records: list[KeyValue]) -> None:
        """Apply the next records of the log, in order."""
        known, topic_ids = self._known, self._topic_ids
        size, unpack, partition_of = _PLAIN_VALUE.size, _PLAIN_VALUE.unpack, _PARTITION.unpack
        new = tuple.__new__
        for key, value in records:
            # Inlined: a call would cost a tenth of the budget per record.
            if value is not None and len(value) == size and key is not None:
                found = known.get(key[:-4])
                if found is not None:
                    version, offset, epoch, metadata, at_ms, tags = unpack(value)
                    if tags in topic_ids and version == _VERSION and metadata == _NO_METADATA:
                        offsets, group_id, topic = found
                        (number,) = partition_of(key[-4:])
                        topic_id = topic_ids[tags]
                        offsets[topic, number] = new(
                            OffsetStored,
                            (group_id, topic, number, offset, epoch, "", at_ms, topic_id, False),
                        )
                        continue
            self._apply(key, value)

    def _apply(self, key: bytes | None, value: bytes | None) -> None:
        state = self._state
        record = self._decode(key, value)
        if record is None:
            return
        state.apply(record)
        if type(record) is not OffsetStored:
            self.forget()
            return
        group = state.groups[record.group_id]
        assert key is not None
        if not group.open_commits and key[:2] == b"\0\x01":
            if len(self._known) >= _KNOWN_MAX:
                self._known.clear()
            self._known[key[:-4]] = group.offsets, record.group_id, record.topic
        if record.topic_id is not None and not record.is_repeated:
            if len(self._topic_ids) >= _KNOWN_MAX:
                self._topic_ids.clear()
            self._topic_ids[_TOPIC_ID_HEAD + record.topic_id.bytes] = record.topic_id

    def forget(self) -> None:
        """Something else was applied to the state."""
        self._known.clear()
