"""The desk of dead letters: read them with their edits, edit one, take back what was sent back.

Invariants: a letter is never changed: an edit is a copy of it in the same partition, which names it
(`EDIT_OF`), and the newest one counts wherever letters are shown or sent back. What was taken back
is finished in every group without a delivery, and its letter is appended again, once, however often
the call is repeated. Nothing is taken back that a consumer is known to have seen or will see: a
consumer group reads the log by offset, and a log keeps its records; first deliveries are not
stored, and unknown after a change of owner. What consumers of other tenants that read the topic
have seen does not count, as the owner is not to learn of them. Reads are bounded.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.broker.services.owner_calls import checked
from headrace.broker.services.reads import AT_OFFSET, AT_START, Start
from headrace.broker.services.share_group_administration import SHARE
from headrace.errors import (
    GroupUnknown,
    HeadraceError,
    OffsetOutOfRange,
    RecordStateInvalid,
    Rejected,
    StorageUnavailable,
)
from headrace.log.visibility import READ_COMMITTED
from headrace.records.attributes import PRODUCER, SEQUENCE, find_header
from headrace.records.codec import Record, encode_batch
from headrace.records.letters import (
    EDIT_NAME,
    EDIT_OF,
    EDITED,
    NAMED_SEQUENCE,
    PATH,
    PREFIXES,
    REDRIVEN_FROM,
    REDRIVES,
    EditFinder,
    Letter,
    edit_of,
    letter_of,
    origin_of,
    redrive_of,
)
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from headrace.broker.services.group_service import GroupService
    from headrace.broker.services.owner_calls import OwnerCalls
    from headrace.broker.services.reads import Reads
    from headrace.broker.services.record_sends import RecordSends
    from headrace.broker.shares.share_partitions import SharePartitions
    from headrace.broker.topics.topic import Topic
    from headrace.records.attributes import Headers
    from headrace.runtime.clock import Clock
    from headrace.runtime.randomness import Randomness

READ_RECORDS: Final = 1_000
SCAN_RECORDS_MAX: Final = 100_000
"""Read by one call."""
GROUPS_MAX: Final = 2_000
"""Consumer groups whose offsets one call looks at."""
GROUP: Final = "{group}"
"""In a reason: where the group is named. Do not change: brokers of other versions read it."""
HIDDEN: Final = "(which you may not DESCRIBE)"
_RESERVED: Final = frozenset({*NAMED_SEQUENCE, PATH, REDRIVES, REDRIVEN_FROM, EDIT_OF, EDITED})


class LetterSent(Rejected):
    """The letter was sent back already."""


class EditRefused(Rejected):
    """What was asked is not a letter, or cannot be changed in this way."""


class Place(NamedTuple):
    """Where a record is in a topic."""

    partition: int
    offset: int

    def __str__(self) -> str:
        return f"{self.partition}:{self.offset}"


class PlacedLetter(NamedTuple):
    """A dead letter as it counts now."""

    place: Place
    record: Record
    """With its newest edit; its offset is that edit's."""
    letter: Letter


class ScannedLetter(NamedTuple):
    """One record of a dead letter topic."""

    partition: int
    record: Record
    replaces: Place | None
    """The letter that it is an edit of, if that is in the scan; else None."""


@dataclass(slots=True)
class Scan:
    """The records of a dead letter topic that were not sent back yet, up to a bound."""

    left: int
    is_complete: bool = True


@dataclass(slots=True)
class LetterChange:
    """What an edit changes; `headers`: all of the record's own, None: they stay."""

    fields: dict[str, bytes | None] = field(default_factory=dict)
    """`key` and `value`, those that change."""
    headers: list[tuple[str, bytes | None]] | None = None


class TakenBack(NamedTuple):
    """What became of one request to take a record back."""

    is_taken: bool
    reason: str = ""
    """Why it was not; names a group as GROUP, if `group` is one."""
    groups: Sequence[str] = ()
    """In which it was finished."""
    group: str = ""
    """The group that is in the way."""

    def reason_for(self, *, may_see_group: bool) -> str:
        """The reason, with or without the name of the group."""
        if not self.group:
            return self.reason
        return self.reason.replace(GROUP, self.group if may_see_group else HIDDEN, 1)


class Sent(NamedTuple):
    """A letter that was sent back, and where its record is now."""

    letter: Place
    topic: Topic
    place: Place


class LetterDesk:
    """See the module."""

    def __init__(
        self,
        calls: OwnerCalls,
        reads: Reads,
        sends: RecordSends,
        groups: GroupService,
        shares: SharePartitions,
        clock: Clock,
        randomness: Randomness,
    ) -> None:
        self._calls = calls
        self._reads = reads
        self._sends = sends
        self._groups = groups
        self._shares = shares
        self._clock = clock
        self._randomness = randomness
        calls.offer("letters.take_back", self._take_back_here)

    # --- reading -----------------------------------------------------------------------------

    async def redriven(self, topic: Topic) -> dict[int, int]:
        """Where redrives of the topic ended, by partition."""
        try:
            offsets = await self._groups.offsets(redrive_of(topic.name))
        except GroupUnknown:
            return {}
        return {one.partition: one.offset for one in offsets if one.topic == topic.name}

    async def scan(self, topic: Topic, scan: Scan) -> AsyncIterator[ScannedLetter]:
        """The records that were not sent back, partition by partition, letters and edits."""
        starts = await self.redriven(topic)
        for number in range(len(topic.partitions)):
            async for one in self._scan_partition(topic, number, starts.get(number), scan):
                yield one

    async def _scan_partition(
        self, topic: Topic, number: int, first: int | None, scan: Scan
    ) -> AsyncIterator[ScannedLetter]:
        start = Start(AT_START) if first is None else Start(AT_OFFSET, first)
        edits = EditFinder(number)
        while True:
            wanted = min(READ_RECORDS, scan.left)
            try:
                found = await self._reads.read(topic, number, start, wanted, READ_COMMITTED)
            except OffsetOutOfRange:  # what was sent back is deleted by now
                start = Start(AT_START)
                continue
            for record in found.records:
                scan.left -= 1
                replaced = edits.replaced_by(record.offset, record.headers)
                yield ScannedLetter(
                    number, record, None if replaced is None else Place(number, replaced)
                )
            if found.next_offset >= found.end_offset:
                return
            if scan.left == 0 or found.is_empty:
                scan.is_complete = False
                return
            start = Start(AT_OFFSET, found.next_offset)

    async def letters(
        self,
        topic: Topic,
        scan: Scan,
        wanted: Callable[[Record, Letter], bool],
        after: Place,
        count_max: int,
    ) -> list[PlacedLetter]:
        """The first letters after a place that are `wanted`, with their newest edits."""
        found: dict[Place, Record] = {}
        edits: dict[Place, int] = {}
        async for one in self.scan(topic, scan):
            replaced = one.replaces
            place = Place(one.partition, one.record.offset)
            if replaced is not None:
                edits[replaced] = one.record.offset
                continue
            is_due = len(found) < count_max and place > after
            if is_due and wanted(one.record, letter_of(one.record.headers)):
                found[place] = one.record
        letters = []
        for place, original in found.items():
            edit, record = edits.get(place), original
            if edit is not None:
                record = await self._record(topic, Place(place.partition, edit))
            letters.append(PlacedLetter(place, record, letter_of(record.headers)))
        return letters

    async def _record(self, topic: Topic, place: Place) -> Record:
        """Raises OffsetOutOfRange if there is none."""
        start = Start(AT_OFFSET, place.offset)
        found = await self._reads.read(topic, place.partition, start, 1, READ_COMMITTED)
        if not found.records or found.records[0].offset != place.offset:
            raise OffsetOutOfRange(f"{topic.name} has no record at {place}: list its dead letters")
        return found.records[0]

    async def letter(self, topic: Topic, place: Place) -> PlacedLetter:
        """The letter at a place with its newest edit. Raises OffsetOutOfRange, LetterSent,
        EditRefused for an edit, StorageUnavailable if the edits are too many to be read."""
        topic.check_partition(place.partition)
        start = (await self.redriven(topic)).get(place.partition, 0)
        if place.offset < start:
            raise LetterSent(
                f"the letter at {place} of {topic.name} was sent back already, as all before"
                f" {place.partition}:{start}"
            )
        record = await self._record(topic, place)
        original = await self._edited_by(topic, place, record)
        if original is not None and original.offset >= start:
            raise EditRefused(
                f"the record at {place} of {topic.name} is an edit of {original}: name that"
            )
        scan = Scan(SCAN_RECORDS_MAX)
        async for one in self._scan_partition(topic, place.partition, place.offset, scan):
            if one.replaces == place:
                record = one.record
        if not scan.is_complete:
            raise StorageUnavailable(
                f"there are more than {SCAN_RECORDS_MAX} records after {place} of {topic.name}, any"
                " of which may be an edit of it: send back or purge some letters first"
            )
        return PlacedLetter(place, record, letter_of(record.headers))

    async def _edited_by(self, topic: Topic, place: Place, record: Record) -> Place | None:
        """The letter that the record at a place is an edit of; None: it is a letter."""
        claimed = edit_of(record.headers)
        if claimed is None or claimed[0] != place.partition or claimed[1] >= place.offset:
            return None
        original = Place(*claimed)
        try:
            letter = await self._record(topic, original)
        except OffsetOutOfRange:
            return None
        is_edit = origin_of(letter.headers) == origin_of(record.headers)
        return original if is_edit else None

    # --- editing -----------------------------------------------------------------------------

    async def edit(
        self, topic: Topic, place: Place, change: LetterChange, who: str, *, is_dry_run: bool
    ) -> tuple[PlacedLetter, Record, list[str]]:
        """Edit a letter; returns it as it was, as it is, and what changed.

        Raises what `letter` raises, EditRefused if nothing would change.
        """
        before = await self.letter(topic, place)
        after, changed = _edited(before, change, who, self._clock.now_ms())
        if not is_dry_run:
            name = f"{EDIT_NAME}{topic.id.hex}-{place}/{self._randomness.uuid().hex}"
            await self._append(topic, place.partition, after, name)
        return before, after, changed

    async def _append(self, topic: Topic, number: int, record: Record, name: str) -> None:
        """Append a copy once, however often it is called with this name."""
        headers = [one for one in record.headers if one[0] not in NAMED_SEQUENCE]
        headers += [(PRODUCER, name.encode()), (SEQUENCE, b"0")]
        copy = replace(record, offset=0, headers=headers)
        await self._sends.append_copies(topic, number, encode_batch([copy]))

    # --- taking back -------------------------------------------------------------------------

    async def take_back(
        self, letters: Topic, sent: Sequence[Sent], *, is_dry_run: bool
    ) -> list[TakenBack]:
        """Take back records that were sent back and not delivered yet; their letters are letters
        again. One outcome for each; of a dry run, what it would be."""
        readers: dict[str, dict[int, list[tuple[str, int]]]] = {}
        outcomes = []
        for one in sent:
            try:
                if one.topic.name not in readers:
                    readers[one.topic.name] = await self._readers(one.topic.name)
                by_offset = readers[one.topic.name].get(one.place.partition, [])
                outcomes.append(await self._take_one_back(letters, one, by_offset, is_dry_run))
            except HeadraceError as error:
                outcomes.append(TakenBack(is_taken=False, reason=str(error)))
        return outcomes

    async def _readers(self, name: str) -> dict[int, list[tuple[str, int]]]:
        """The consumer groups with offsets in a topic, by partition. Raises HeadraceError."""
        listed = await self._groups.list([], [])
        if listed.failed:
            raise next(iter(listed.failed.values()))
        others = [one.group_id for one in listed.groups if one.group_type != SHARE]
        if len(others) > GROUPS_MAX:
            raise StorageUnavailable(
                f"there are more than {GROUPS_MAX} consumer groups, and who has read {name} cannot"
                " be looked up: nothing was taken back"
            )
        found: dict[int, list[tuple[str, int]]] = {}
        for group in others:
            try:
                offsets = await self._groups.offsets(group)
            except GroupUnknown:
                continue
            for one in offsets:
                if one.topic == name:
                    found.setdefault(one.partition, []).append((group, one.offset))
        return found

    async def _take_one_back(
        self, letters: Topic, one: Sent, readers: Sequence[tuple[str, int]], is_dry_run: bool
    ) -> TakenBack:
        record = await self._record(one.topic, one.place)
        origin = find_header(record.headers, REDRIVEN_FROM)
        if origin != f"{name_in(letters.name)}-{one.letter}".encode():
            return TakenBack(
                is_taken=False,
                reason=f"the record at {one.place} of {one.topic.name} is not the letter at"
                f" {one.letter} of {letters.name}",
            )
        for group, offset in readers:
            seen = "has read it" if offset > one.place.offset else "will read it"
            return TakenBack(
                is_taken=False,
                reason=f"consumer group {GROUP} {seen}: it reads the log by offset, and a log keeps"
                " its records",
                group=group,
            )
        letter = await self._record(letters, one.letter)  # before anything is changed
        outcome = await self._ask_to_take(one, is_dry_run=True)
        if is_dry_run or not outcome.is_taken:
            return outcome
        # The letter first: what fails in between may be handled twice, and is never lost.
        again = replace(record, headers=_as_letter(record, letter))
        name = f"take-back/{letters.id.hex}-{one.letter}/{one.topic.id.hex}-{one.place}"
        await self._append(letters, one.letter.partition, again, name)
        outcome = await self._ask_to_take(one, is_dry_run=False)
        if outcome.is_taken:
            return outcome
        also = f"; its letter is in {letters.name} again as well: purge it"
        return outcome._replace(reason=outcome.reason + also)

    async def _ask_to_take(self, one: Sent, *, is_dry_run: bool) -> TakenBack:
        """The answer of the owner of its partition."""
        asked = [one.place.offset, int(is_dry_run)]
        answer = await self._calls.ask_partition(
            "letters.take_back", one.topic, one.place.partition, asked
        )
        groups, reason = checked(answer, list | tuple, str)
        if not reason:
            return TakenBack(is_taken=True, groups=groups)
        return TakenBack(is_taken=False, reason=reason, group=groups[0] if groups else "")

    async def _take_back_here(self, topic: Topic, number: int, asked: Any) -> tuple[Any, str]:
        """(the groups in which the record is finished now, ""), or (the group in the way, if it is
        one, why it is not)."""
        offset, dry = checked(asked, int, int)
        try:
            groups = await self._shares.take_back(topic, number, offset, is_dry_run=bool(dry))
        except GroupUnknown:
            return [], f"no share group has begun on {topic.name}-{number}: it stays in the log"
        except RecordStateInvalid as refused:
            group = refused.fields["group"]
            return [group], str(refused).replace(f"group {group}", f"group {GROUP}", 1)
        return groups, ""


def _edited(
    before: PlacedLetter, change: LetterChange, who: str, now_ms: int
) -> tuple[Record, list[str]]:
    """(the edit, what it changes). Raises EditRefused."""
    record = before.record
    parts = {"key": record.key, "value": record.value}
    changed = [name for name, data in change.fields.items() if data != parts[name]]
    kept = [one for one in record.headers if _is_kept(one[0])]
    own = editable_headers(record.headers)
    if change.headers is not None:
        for name, _ in change.headers:
            if _is_kept(name) or name in _RESERVED:
                raise EditRefused(f"the header {name[:100]} says where the letter came from")
        if change.headers != own:
            changed.append("headers")
            own = change.headers
    if not changed:
        raise EditRefused("the letter is as wanted already: nothing would change")
    parts |= change.fields
    noted = f"{who} {now_ms} {','.join(changed)}".encode()
    headers = [*own, *kept, (EDIT_OF, str(before.place).encode()), (EDITED, noted)]
    return replace(record, key=parts["key"], value=parts["value"], headers=headers), changed


def editable_headers(headers: Headers) -> list[tuple[str, bytes | None]]:
    """The headers that an edit may replace: the record's own ones."""
    return [one for one in headers if not _is_kept(one[0]) and one[0] not in _RESERVED]


def _is_kept(name: str) -> bool:
    """Whether a header says what a letter is, and stays when it is edited."""
    return name.startswith(PREFIXES) or name in {PATH, REDRIVES, EDITED}


def _as_letter(record: Record, letter: Record) -> list[tuple[str, bytes | None]]:
    """The headers of a record that was sent back and is a letter again."""
    kept = [one for one in letter.headers if one[0].startswith(PREFIXES)]
    kept += [one for one in letter.headers if one[0] in {PATH, REDRIVES}]
    own = [one for one in record.headers if one[0] not in {REDRIVES, REDRIVEN_FROM}]
    return [*own, *kept]
