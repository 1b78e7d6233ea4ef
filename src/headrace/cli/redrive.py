"""Redrives dead letters: what becomes of each one, and sending them back.

Invariants: a redrive moves records in transactions, together with its own offsets, so each record
is sent once, however often the command is interrupted and restarted. It stops at the dead letter
topic's end offsets at its start, so messages that fail again meanwhile are left for the next
redrive. Letters that are not sent are appended to the dead letter topic again, in the same
transaction. The order of each partition and each key is preserved; an edited letter is sent in the
place of the one that it replaces. A letter that was sent back `loop_max` times is kept.
"""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import click

from headrace.cli.client import kafka
from headrace.cli.failures import CommandFailed
from headrace.cli.output import as_written
from headrace.cli.progress import counting
from headrace.cli.transfer import (
    BATCH_RECORDS,
    UNTIL_ENDS,
    TransactionalMove,
    begin_transactions,
    messages_until,
    produce_copy,
)
from headrace.records.letters import (
    EDIT_OF,
    NAMED_SEQUENCE,
    REDRIVEN_FROM,
    REDRIVES,
    EditFinder,
    Letter,
    edit_of,
    letter_of,
    own_headers,
    redrive_of,
)
from headrace.records.tenant_names import name_in, sibling
from headrace.runtime.access import Right
from headrace.runtime.child_process import HELPER_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from headrace.cli.client import Client, Message
    from headrace.cli.session import CliSession

JOB_MARK: Final = "headrace-job-1"
"""As in `pipeline.jobs.transfer`, which commands cannot import."""
FAILED_SHOWN_MAX: Final = 100
LOOP_MAX: Final = 3
EDITS_MAX: Final = 10_000
EDITS_BYTES_MAX: Final = 256 * 1024 * 1024
"""Of edited letters, which are in memory during a redrive."""
CLAIMS_MAX: Final = 1_000_000
"""Letters that records say they are edits of: about 250 bytes of memory each."""
NO_ORIGIN: Final = "the record does not name its origin and was kept; redrive it with --to TOPIC"
Place = tuple[int, int]
"""(partition, offset) in the dead letter topic."""


@dataclass(frozen=True)
class RedriveOptions:
    """Which letters to send, where, and how fast."""

    target: str | None = None
    """None: the topic that each letter came from."""
    group: str | None = None
    reason: str | None = None
    """Text that the reason contains."""
    places: frozenset[Place] = frozenset()
    """Only these; empty: all."""
    rate: float | None = None
    """Records per second."""
    loop_max: int = LOOP_MAX

    def wants(self, letter: Letter, place: Place) -> bool:
        """Whether the letter is one of those to send."""
        return (
            (self.group is None or name_in(letter.consumer) == name_in(self.group))
            and (self.reason is None or self.reason in letter.reason)
            and (not self.places or place in self.places)
        )


class Fate(NamedTuple):
    """What becomes of one record of the dead letter topic."""

    target: str = ""
    """Empty: it is not sent."""
    partition: int = -1
    """-1: the key decides."""
    error: str = ""
    """Why it is kept although it was wanted."""
    is_dropped: bool = False
    """It is an edit, sent or kept in the place of its letter."""
    is_target_sure: bool = True
    """False: the target is what a letter says, and its producer may have written that."""


KEPT: Final = Fate()
DROPPED: Final = Fate(is_dropped=True)


@dataclass
class Outcome:
    """The result of a redrive."""

    sent: Counter[str] = field(default_factory=Counter)
    kept: int = 0
    edited: int = 0
    unsure: Counter[str] = field(default_factory=Counter)
    """Of those sent, by topic: letters whose producers may have chosen it."""
    failed: list[dict[str, str]] = field(default_factory=list)
    failed_count: int = 0
    note: Callable[[dict[str, Any]], None] = lambda _row: None
    """Notified of each letter that is sent, or that had to be kept."""

    def add(self, message: Message, fate: Fate, placed: str = "", *, is_edited: bool) -> None:
        """Count one letter; `placed`: where it was stored, if it was sent."""
        if fate.is_dropped and not fate.error:
            return
        row: dict[str, Any] = {"letter": f"{message.partition()}:{message.offset()}"}
        if fate.target:
            self.sent[fate.target] += 1
            self.edited += is_edited
            if not fate.is_target_sure:
                self.unsure[fate.target] += 1
            self.note({**row, "outcome": "sent", "to": placed or fate.target,
                       **({"edited": True} if is_edited else {})})  # fmt: skip
            return
        self.kept += not fate.is_dropped
        if fate.error:
            self.failed_count += 1
            outcome = "dropped" if fate.is_dropped else "kept"
            self.note({**row, "outcome": outcome, "error": fate.error})
            if len(self.failed) < FAILED_SHOWN_MAX:
                place = f"{message.topic()}-{row['letter']}"
                self.failed.append({"record": place, "error": fate.error})

    def shown(self, *, is_dry_run: bool) -> dict[str, Any]:
        """The result as JSON."""
        found: dict[str, Any] = {"dry_run": is_dry_run, "sent": dict(self.sent), "kept": self.kept}
        if self.edited:
            found["edited"] = self.edited
        if self.unsure:
            found["origin_unverified"] = dict(self.unsure)
        if self.failed_count:
            found |= {"failed": self.failed, "failed_count": self.failed_count}
        return found


# --- reading ---------------------------------------------------------------------------------


def assigned(session: CliSession, topic: str, group: str) -> tuple[Client, dict[int, int]]:
    """Return (a consumer of the whole topic from the group's offsets on, end offset by
    partition)."""
    numbers = session.partitions_of(topic)
    consumer = session.consumer(
        {
            "group.id": group,
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            **UNTIL_ENDS,
            "auto.offset.reset": "earliest",
        }
    )
    library = kafka()
    parts = [library.TopicPartition(topic, number) for number in numbers]
    try:
        committed = consumer.committed(parts, timeout=session.timeout_s)
        ends: dict[int, int] = {}
        for part in committed:
            low, high = consumer.get_watermark_offsets(part, timeout=session.timeout_s)
            part.offset = max(part.offset, low)
            if part.offset < high:
                ends[part.partition] = high
    except library.KafkaException as error:
        consumer.close()
        raise session.failure(error.args[0], f"read {topic!r}", *_reading(topic)) from None
    consumer.assign([part for part in committed if part.partition in ends])
    return consumer, ends


class Edits:
    """The edits among the records of a topic.

    The topic is read three times: to note which letters have edits by what the records say, to
    confirm that against those letters, and to send them. So a record that falsely says that it is
    an edit (see `EditFinder`) counts for no limit of edits, and is a letter.
    """

    def __init__(self, topic: str, starts: dict[int, int]) -> None:
        """`starts`: where the redrive begins, by partition."""
        self._topic = topic
        self._starts = starts
        self._newest: dict[Place, Message] = {}
        """By the letter that they replace."""
        self._claimed: dict[int, set[int]] = {}
        self._claims = 0
        self._finders: dict[int, EditFinder] = {}
        self._bytes = 0

    def note(self, message: Message) -> None:
        """Note which letter a record says it is an edit of. Raises CommandFailed if there are too
        many of them."""
        number, offset = message.partition(), message.offset()
        place = edit_of(headers_of(message))
        if place is None or place[0] != number or place[1] >= offset:
            return
        claimed = self._claimed.setdefault(number, set())
        self._claims += place[1] not in claimed
        claimed.add(place[1])
        if self._claims > CLAIMS_MAX:
            raise CommandFailed(
                f"records of {self._topic} say that they are edits of more than {CLAIMS_MAX:,}"
                " letters, which cannot be checked at once; nothing was sent",
                "Check who may write to the topics that its letters come from, and delete the"
                f" oldest letters: headrace topic trim {self._topic} --before POSITION",
            )

    def places(self) -> dict[int, int]:
        """Where the letters that are to be checked begin, by partition."""
        return {number: min(claimed) for number, claimed in self._claimed.items()}

    def confirm(self, message: Message) -> None:
        """Remember a record, the next one of its partition, if it is an edit of a letter that is
        not sent yet. Raises CommandFailed if there are too many."""
        place = self.replaced(message)
        if place is None or self.is_sent(place):
            return
        former = self._newest.get(place)
        self._newest[place] = message
        self._bytes += _size(message) - (0 if former is None else _size(former))
        if len(self._newest) > EDITS_MAX or self._bytes > EDITS_BYTES_MAX:
            raise CommandFailed(
                f"more than {EDITS_MAX:,} letters of {self._topic} are edited, or they are too"
                " large; nothing was sent",
                "Delete the oldest letters, which are done with: headrace topic trim"
                f" {self._topic} --before POSITION",
            )

    def replaced(self, message: Message) -> Place | None:
        """The letter that a record is an edit of; None: it is a letter itself."""
        number = message.partition()
        finder = self._finders.get(number)
        if finder is None:
            finder = EditFinder(number, self._claimed.get(number, ()))
            self._finders[number] = finder
        offset = finder.replaced_by(message.offset(), headers_of(message))
        return None if offset is None else (number, offset)

    def is_sent(self, place: Place) -> bool:
        """Whether a letter was sent back before."""
        return place[1] < self._starts.get(place[0], 0)

    def content(self, message: Message) -> Message:
        """What counts of a letter: its newest edit, or itself."""
        return self._newest.get((message.partition(), message.offset()), message)


def _size(message: Message) -> int:
    """Bytes of the key and the value."""
    return len(message.key() or b"") + len(message.value() or b"")


def scan(session: CliSession, topic: str) -> Iterator[tuple[Message, Message]]:
    """Yield all letters of the topic that were not sent back yet, and what counts of each: its
    newest edit, or itself."""
    consumer, ends = assigned(session, topic, redrive_of(topic))
    try:
        if not ends:
            return
        edits = _learned(topic, consumer, ends)
        for bundle in messages_until(consumer, ends):
            for message in bundle:
                place = edits.replaced(message)
                if place is None or edits.is_sent(place):
                    yield message, edits.content(message)
    finally:
        consumer.close()


def _learned(topic: str, consumer: Client, ends: dict[int, int]) -> Edits:
    """The edits, after two readings; the consumer starts again."""
    assignment = consumer.assignment()
    edits = Edits(topic, {one.partition: one.offset for one in assignment})
    for bundle in messages_until(consumer, ends):
        for message in bundle:
            edits.note(message)
    places = edits.places()
    if places:
        # A letter that was sent before is before the start; one that is deleted proves nothing.
        part_of = kafka().TopicPartition
        consumer.assign([part_of(topic, number, first) for number, first in places.items()])
        for bundle in messages_until(consumer, {number: ends[number] for number in places}):
            for message in bundle:
                edits.confirm(message)
    consumer.assign(assignment)
    return edits


class Plan:
    """What becomes of each letter, decided from the topic's records and the options."""

    def __init__(
        self, session: CliSession, topic: str, options: RedriveOptions, edits: Edits
    ) -> None:
        self._session = session
        self._topic = topic
        self._options = options
        self._edits = edits
        self._counts: dict[str, int] = {}
        self._has_origin = False

    def content(self, message: Message) -> Message:
        """What counts of a letter: its newest edit, or itself."""
        return self._edits.content(message)

    def fate(self, message: Message) -> Fate:
        """What becomes of one record, the next one of its partition."""
        edited = self._edits.replaced(message)
        if edited is not None:
            if not self._edits.is_sent(edited):
                return DROPPED
            error = f"it edits the letter at {edited[0]}:{edited[1]}, which was sent before"
            return Fate(error=error, is_dropped=True)
        letter = letter_of(headers_of(message))
        place = message.partition(), message.offset()
        # Whoever wrote the letter: it names a topic of its own tenant.
        origin = letter.topic and sibling(message.topic(), name_in(letter.topic))
        target = self._options.target or origin
        self._has_origin |= bool(letter.topic)
        if not self._options.wants(letter, place):
            return KEPT
        if not target:
            return Fate(error=NO_ORIGIN)
        if letter.redrives >= self._options.loop_max:
            return Fate(
                error=f"it was sent back {letter.redrives} times already and was kept; mend its"
                f" cause, then raise --loop-max"
            )
        count = self._count(target)
        if not count:
            return Fate(error=f"there is no topic {target}, and it was kept; create it, or --to")
        is_moved = target != origin or self.content(message).key() != message.key()
        number = -1 if is_moved or letter.partition >= count else letter.partition
        is_sure = letter.is_origin_sure or self._options.target is not None
        return Fate(target, number, is_target_sure=is_sure)

    def _count(self, target: str) -> int:
        """Partitions of a topic; 0: there is none."""
        if target not in self._counts:
            try:
                self._counts[target] = len(self._session.partitions_of(target))
            except CommandFailed:
                self._counts[target] = 0
        return self._counts[target]

    def check(self, fates: list[Fate], outcome: Outcome) -> None:
        """Raises CommandFailed if nothing shows that the topic holds dead letters at all."""
        is_wanted = any(fate.error == NO_ORIGIN for fate in fates)
        if is_wanted and not self._has_origin and not outcome.sent:
            raise CommandFailed(
                f"no record at the beginning of {self._topic} names its origin; nothing was sent",
                "Specify a dead letter topic, or the target topic with --to TOPIC",
            )


def unverified(letters: Mapping[str, int]) -> str:
    """A warning; `letters`: how many by topic, as in `Outcome.unsure`."""
    topics = ", ".join(f"{name} ({count:,})" for name, count in sorted(letters.items()))
    return (
        f"The origin of letters of Kafka Connect is not verified: {topics}. Connect keeps what a"
        " record's producer has written in its headers, so that may have chosen the topic: check"
        " these letters, or choose the topic with --to TOPIC"
    )


def headers_of(message: Message) -> list[tuple[str, bytes | None]]:
    """A message's headers."""
    return list(message.headers() or [])


# --- redriving -------------------------------------------------------------------------------


def plan_redrive(
    session: CliSession, topic: str, options: RedriveOptions, outcome: Outcome
) -> None:
    """Count what a redrive would do; change nothing."""
    consumer, ends = assigned(session, topic, redrive_of(topic))
    try:
        if not ends:
            return
        plan = Plan(session, topic, options, _learned(topic, consumer, ends))
        for bundle in messages_until(consumer, ends):
            for message in bundle:
                is_edited = plan.content(message) is not message
                outcome.add(message, plan.fate(message), is_edited=is_edited)
    finally:
        consumer.close()


def _reading(topic: str) -> tuple[Right, ...]:
    return Right("read", "topic", topic), Right("read", "group", redrive_of(topic))


def _refuse_unfinished_job(session: CliSession, topic: str) -> None:
    """Raises CommandFailed while a redrive by SQL is unfinished: its next run would repeat what
    this one sends, because its state, which stands beside the offsets, would be overwritten."""
    library = kafka()
    numbers = session.partitions_of(topic)
    consumer = session.consumer({"group.id": redrive_of(topic), "enable.auto.commit": False})
    try:
        parts = [library.TopicPartition(topic, number) for number in numbers]
        found = consumer.committed(parts, timeout=session.timeout_s)
    except library.KafkaException as error:
        raise session.failure(error.args[0], f"read {topic!r}", *_reading(topic)) from None
    finally:
        consumer.close()
    # A partition without a committed offset has a negative one.
    left = sum(max(_job_end(part.metadata) - max(part.offset, 0), 0) for part in found)
    if left:
        raise CommandFailed(
            f"a redrive of {topic} by `headrace pipeline dead redrive` is unfinished: {left:,} "
            "records are left, and nothing was sent",
            "Repeat that command with its options until it is done, then this one",
        )


def _job_end(metadata: str | None) -> int:
    """Where the job ends whose state is stored with an offset; -1: there is none."""
    try:
        return int(json.loads(metadata or "")[JOB_MARK]["end"])
    except (ValueError, TypeError, KeyError):
        return -1


def redrive_letters(
    session: CliSession,
    topic: str,
    options: RedriveOptions,
    outcome: Outcome,
    note_done: Callable[[int, int], None] = lambda _done, _total: None,
) -> None:
    """Send dead letters back. Raises CommandFailed."""
    session.partitions_of(topic)
    producer = session.producer(
        {
            "transactional.id": redrive_of(topic),
            "transaction.timeout.ms": 60_000,
            "partitioner": "murmur2_random",
        }
    )
    _refuse_unfinished_job(session, topic)
    # A running redrive can commit no more from here on.
    begin_transactions(session, producer, redrive_of(topic))
    consumer, ends = assigned(session, topic, redrive_of(topic))
    move = TransactionalMove(
        session, consumer, producer, "redrive of this topic", "send dead letters back"
    )
    try:
        if not ends:
            return
        plan = Plan(session, topic, options, _learned(topic, consumer, ends))
        starts = {p.partition: p.offset for p in consumer.assignment()}
        left = sum(ends[number] - max(start, 0) for number, start in starts.items())
        done = 0
        with counting(f"redrive {topic}", left) as show_done:
            for bundle in messages_until(consumer, ends):
                for part in _paced(bundle, options.rate):
                    _send(move, producer, plan, part, outcome)
                    done += len(part)
                    show_done(len(part))
                    note_done(done, left)
    finally:
        consumer.close()


def _paced(bundle: list[Message], rate: float | None) -> Iterator[list[Message]]:
    """The parts of a bundle, at most so many a second: one transaction each."""
    size = BATCH_RECORDS if rate is None else min(BATCH_RECORDS, max(1, int(rate / 2)))
    for at in range(0, len(bundle), size):
        part, begun_s = bundle[at : at + size], time.monotonic()
        yield part
        if rate is not None:
            time.sleep(max(len(part) / rate - (time.monotonic() - begun_s), 0.0))


def _send(
    move: TransactionalMove,
    producer: Client,
    plan: Plan,
    bundle: list[Message],
    outcome: Outcome,
) -> None:
    """Send a bundle and its offsets in one transaction, then say what became of each."""
    fates = [plan.fate(message) for message in bundle]
    plan.check(fates, outcome)
    pairs = zip(bundle, fates, strict=True)
    fate_of = {(one.partition(), one.offset()): fate for one, fate in pairs}
    placed: dict[Place, str] = {}

    def copy(message: Message) -> None:
        place = message.partition(), message.offset()
        fate, content = fate_of[place], plan.content(message)
        if fate.is_dropped:
            return
        if not fate.target:
            names = {*NAMED_SEQUENCE, EDIT_OF}
            headers = [one for one in headers_of(content) if one[0] not in names]
            produce_copy(producer, message.topic(), content, message.partition(), headers)
            return

        def delivered(error: object, stored: Message) -> None:
            if error is None:
                placed[place] = f"{stored.topic()}-{stored.partition()}:{stored.offset()}"

        headers = _sent_headers(message, content)
        produce_copy(producer, fate.target, content, fate.partition, headers, delivered)

    move.send(bundle, copy)
    for message, fate in zip(bundle, fates, strict=True):
        place = message.partition(), message.offset()
        is_edited = plan.content(message) is not message
        outcome.add(message, fate, placed.get(place, ""), is_edited=is_edited)


def _sent_headers(message: Message, content: Message) -> list[tuple[str, bytes | None]]:
    """The record's own headers, the updated redrive count, and which letter it was."""
    count = letter_of(headers_of(message)).redrives + 1
    place = f"{name_in(message.topic())}-{message.partition()}:{message.offset()}"
    return [
        *own_headers(headers_of(content)),
        (REDRIVES, str(count).encode()),
        (REDRIVEN_FROM, place.encode()),
    ]


def print_line(row: dict[str, Any]) -> None:
    """One JSON line, at once. A broker that started the command writes topics for its client."""
    is_for_broker = HELPER_VARIABLE in os.environ
    click.echo(json.dumps(row if is_for_broker else as_written(row)))
