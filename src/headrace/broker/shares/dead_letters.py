"""Copies archived records to the group's dead letter topic (KIP-1191).

Invariants: a record is finished in its group only when its copy is durable, so none is lost. Each
copy has a named sequence of its own (`records.attributes`), derived from its origin and the time it
was archived, so the partition that has a copy drops a duplicate made after a crash. A copy keeps
key, value, timestamp and headers, and records its origin and the reason in headers of its own; the
record's own named sequence is dropped, and its delivery and expiry times are renamed so that they
have no effect on the copy. A record that expired from its log before it was copied has no copy, and
is finished too.

Errors: transient errors, and configuration errors that an operator can fix, are retried for as long
as this broker serves the partition. Errors in a record itself (its batch cannot be decoded, the
dead letter topic refuses it) are retried `ATTEMPTS_MAX` times, then logged, counted and skipped, so
that one record does not block its group for ever. A copy that is too large is first retried without
its value; the record stays in its own topic.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

from headrace.broker.coordinators.group_config import shared_dead_letter_topic
from headrace.broker.topics.overrides import accepts_dead_letters
from headrace.coordination.shares.commands import DeadLetteredCommand
from headrace.errors import (
    BatchCorrupt,
    BatchTooLarge,
    DataCorrupt,
    HeadraceError,
    MetadataUnavailable,
    RecordInvalid,
    Rejected,
    TopicExists,
    UnsupportedForMessageFormat,
)
from headrace.log.decoded_records import decoded_parts
from headrace.records.attributes import (
    DELAY,
    DELIVER_AT,
    EXPIRE_AT,
    PRODUCER,
    SEQUENCE,
    SETTING,
    find_header,
)
from headrace.records.batch import CONTROL, iterate_headers
from headrace.records.codec import Record, encode_batch
from headrace.records.letters import EDIT_OF, PATH, REDRIVEN_FROM, SHARE_FORMAT
from headrace.records.tenant_names import name_in

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from uuid import UUID

    from headrace.broker.topics.topic import Topic
    from headrace.broker.topics.topics import Topics
    from headrace.coordination.shares.commands import DeadLetter, ShareCommand
    from headrace.log.environment import Environment
    from headrace.log.partition_log import PartitionLog

log = logging.getLogger(__name__)

RETRY_S_MIN: Final = 0.1
RETRY_S_MAX: Final = 30.0
ATTEMPTS_MAX: Final = 5
"""For a record with an error of its own. A damaged read may come from one bad replica, so one
attempt is not enough."""
WARNING_INTERVAL_NS: Final = 60_000_000_000
"""Between two warnings about one group and topic whose configuration prevents copies."""
READ_BYTES: Final = 1024 * 1024
AT_ONCE: Final = 16
"""Concurrent copies, so that a wave of failures does not exhaust the broker's memory."""

ORIGIN_HEADERS: Final = (
    SHARE_FORMAT.topic,
    SHARE_FORMAT.partition,
    SHARE_FORMAT.offset,
    SHARE_FORMAT.consumer,
    SHARE_FORMAT.deliveries,
    SHARE_FORMAT.message,
)
"""Kafka's (KIP-1191), values in text."""
H_VALUE_OMITTED: Final = "headrace-dlq-value-omitted-bytes"
"""The size of a value that was omitted because the copy was too large. Do not change: stored."""
PATH_MAX: Final = 16
DROPPED_HEADERS: Final = frozenset(
    {*ORIGIN_HEADERS, PATH, PRODUCER, SEQUENCE, REDRIVEN_FROM, EDIT_OF}
)
RENAMED: Final = {
    DELIVER_AT: "headrace-dlq-deliver-at",
    DELAY: "headrace-dlq-delay",
    EXPIRE_AT: "headrace-dlq-expire-at",
}
"""Do not change: stored."""

AppendsCopies: TypeAlias = "Callable[[Topic, int, bytes], Awaitable[None]]"
"""Appends a batch, whose records carry named sequences, to a partition, whichever broker serves it;
returns once it is durable. Raises HeadraceError."""


class Target(NamedTuple):
    """The partition that takes copies."""

    topic: Topic
    partition: int


class LetterOrigin(NamedTuple):
    """The origin of records, and the target of their copies."""

    topic: Topic
    partition: int
    target: Callable[[], str]
    """The dead letter topic that is currently set; empty if none is wanted any more. Raises
    MetadataUnavailable if the settings of the group cannot be read."""

    @property
    def target_text(self) -> str:
        """The same for messages."""
        try:
            return self.target()
        except MetadataUnavailable:
            return "its dead letter topic"


@dataclass(slots=True)
class _Job:
    """One letter being processed."""

    origin: LetterOrigin
    letter: DeadLetter
    data: PartitionLog
    """The origin's log in this tenure: in another tenure, the copies are another broker's task."""
    report: Callable[[ShareCommand], None]
    offset: int
    """The next offset to copy: earlier ones are copied or skipped."""
    attempts: int = 0
    """Non-transient failures at `offset`."""

    @property
    def is_served(self) -> bool:
        """Whether this broker still serves the origin, in the same tenure."""
        data = self.data
        is_same = self.origin.topic.log(self.origin.partition) is data
        return is_same and not data.is_deleted and data.failure is None

    def advance(self, offset: int) -> None:
        """Everything before `offset` is done."""
        if offset > self.offset:
            self.offset, self.attempts = offset, 0


class _Uncopyable(Exception):
    """The records up to `last` cannot be copied, because of an error of their own."""

    def __init__(self, last: int, cause: HeadraceError) -> None:
        super().__init__(str(cause))
        self.last = last


class _Misconfigured(Exception):
    """No copy can be made until an operator changes a configuration."""


class DeadLetters:
    """The dead letters of one broker."""

    def __init__(self, environment: Environment, topics: Topics, append: AppendsCopies) -> None:
        self._append_copies = append
        self._environment = environment
        self._topics = topics
        self._slots = asyncio.Semaphore(AT_ONCE)  # noqa: TID251  # of tasks
        self._jobs: dict[tuple[UUID, int, str, int, int], _Job] = {}
        self._warned_ns: dict[tuple[str, str], int] = {}
        self.copied_total = 0
        """Records whose copy is durable."""
        self.failed_total = 0
        """Failed attempts, retried or not."""
        self.given_up_total = 0
        """Records that have no copy because none can be made."""

    def begin(
        self, origin: LetterOrigin, letter: DeadLetter, report: Callable[[ShareCommand], None]
    ) -> None:
        """Copy the records of `letter`, however long it takes; then report that they are copied.

        A letter that is already in progress, because the group's state was reloaded, is not started
        twice: its outcome goes to the new `report`. Nothing is reported once this broker no longer
        serves the partition.
        """
        topic, number = origin.topic, origin.partition
        data = topic.log(number)
        if data is None:
            return
        key = (topic.id, number, letter.group_id, letter.first, letter.last)
        job = self._jobs.get(key)
        if job is not None and job.data is data:
            job.report = report
            return
        job = self._jobs[key] = _Job(origin, letter, data, report, letter.first)
        self._environment.tasks.spawn(self._run(key, job), f"dead letters of {topic.name}")

    async def _run(self, key: tuple[UUID, int, str, int, int], job: _Job) -> None:
        try:
            if await self._persist(job):
                letter = job.letter
                job.report(DeadLetteredCommand(letter.group_id, letter.first, letter.last))
        finally:
            if self._jobs.get(key) is job:
                del self._jobs[key]

    async def _persist(self, job: _Job) -> bool:
        """Copy all of the letter; False if this broker no longer serves the partition."""
        wait_s = RETRY_S_MIN
        while job.is_served:
            before = job.offset
            try:
                if job.origin.target():
                    async with self._slots:
                        await self._copy(job)
                return True
            except _Uncopyable as error:
                if not job.is_served:
                    return False
                self.failed_total += 1
                job.attempts += 1
                if job.attempts >= ATTEMPTS_MAX:
                    self._give_up(job, error)
            except _Misconfigured as error:
                self.failed_total += 1
                self._warn_misconfigured(job, error)
            except HeadraceError as error:
                if not job.is_served:
                    return False
                self.failed_total += 1
                self._warn(job, error)
            if job.offset > before:
                wait_s = RETRY_S_MIN
            await asyncio.sleep(wait_s)
            wait_s = min(wait_s * 2, RETRY_S_MAX)
        return False

    # --- failures ----------------------------------------------------------------------------

    def _give_up(self, job: _Job, error: _Uncopyable) -> None:
        origin, letter = job.origin, job.letter
        log.error(
            "records %d to %d of %s-%d, archived by group %s (%s), cannot be copied to "
            "%s and are finished without a copy: %s; read them in their own topic before "
            "they expire",
            job.offset,
            error.last,
            origin.topic.name,
            origin.partition,
            letter.group_id,
            letter.reason,
            origin.target_text,
            error,
        )
        self.given_up_total += error.last - job.offset + 1
        job.advance(error.last + 1)

    def _warn_misconfigured(self, job: _Job, error: _Misconfigured) -> None:
        self._warn_at_times(
            job,
            "records %d to %d of %s-%d, archived by group %s, cannot be copied to %s yet "
            "(%s): they are kept and retried",
            (job.offset, job.letter.last, *self._named(job), error),
        )

    def _warn_at_times(self, job: _Job, text: str, values: tuple[object, ...]) -> None:
        """Once a minute per group and topic: all their letters have the same problem."""
        now_ns = self._environment.clock.now_ns()
        key = (job.origin.topic.name, job.letter.group_id)
        if now_ns - self._warned_ns.get(key, now_ns - WARNING_INTERVAL_NS) < WARNING_INTERVAL_NS:
            return
        recent = {
            other: at_ns
            for other, at_ns in self._warned_ns.items()
            if now_ns - at_ns < WARNING_INTERVAL_NS
        }
        self._warned_ns = {**recent, key: now_ns}
        log.warning(text, *values)

    def _warn(self, job: _Job, error: Exception) -> None:
        log.warning(
            "records %d to %d of %s-%d, archived by group %s, cannot be copied to %s yet "
            "(%s): they are kept and retried",
            job.offset,
            job.letter.last,
            job.origin.topic.name,
            job.origin.partition,
            job.letter.group_id,
            job.origin.target_text,
            error,
        )

    # --- copying -----------------------------------------------------------------------------

    async def _copy(self, job: _Job) -> None:
        letter, data = job.letter, job.data
        while job.offset <= letter.last:
            try:
                # After a failure, read one batch at a time, so that only the damaged one is
                # skipped.
                size = 1 if job.attempts else READ_BYTES
                start, fetched = await data.reader.fetch_from(job.offset, size)
            except (DataCorrupt, Rejected) as error:
                # The end of the damaged batch is unknown.
                raise _Uncopyable(letter.last, error) from error
            if not fetched.data:
                return
            job.advance(start)
            if start > letter.last:
                return  # deleted during the read
            copies, reached = await self._copies(job, bytes(fetched.data))
            if copies:
                await self._append(job, copies)
            assert reached > job.offset or copies, "a read returns at least one whole batch"
            job.advance(reached)

    async def _copies(self, job: _Job, batches: bytes) -> tuple[list[Record], int]:
        """(copies of the letter's records in `batches`, the offset up to which they reach).

        Raises _Uncopyable if the first batch cannot be decoded; a later one ends the result.
        """
        letter = job.letter
        copies: list[Record] = []
        reached = job.offset
        for at, header in iterate_headers(batches):
            if header.base_offset > letter.last:  # compaction has removed the letter's last records
                return copies, letter.last + 1
            if not header.attributes & CONTROL:
                try:
                    wanted = [
                        record
                        async for some in decoded_parts(
                            batches[at : at + header.size], job.offset, letter.last
                        )
                        for record in some
                        if job.offset <= record.offset <= letter.last
                    ]
                except (BatchCorrupt, UnsupportedForMessageFormat) as error:
                    if copies or reached > job.offset:
                        return copies, reached
                    raise _Uncopyable(min(header.last_offset, letter.last), error) from error
                copies += self._copied(job, wanted)
            reached = header.last_offset + 1
        return copies, reached

    def _copied(self, job: _Job, records: Sequence[Record]) -> list[Record]:
        """The copies of these records, except of those that have been in the dead letter topic:
        topics that are each other's dead letter topics would pass them on for ever."""
        target, copies = job.origin.target(), list[Record]()
        for record in records:
            path = path_of(record)
            if name_in(target) not in path and len(path) < PATH_MAX:
                copies.append(copy_of(record, job.origin, job.letter))
                continue
            self.given_up_total += 1
            self._warn_at_times(
                job,
                "record %d of %s-%d, given up by group %s, is not copied to %s, in which it has"
                " been (%s): it is finished; let dead letter topics form no cycle",
                (record.offset, *self._named(job), ", ".join(path)),
            )
        return copies

    @staticmethod
    def _named(job: _Job) -> tuple[str, int, str, str]:
        origin = job.origin
        return origin.topic.name, origin.partition, job.letter.group_id, origin.target_text

    async def _append(self, job: _Job, copies: list[Record]) -> None:
        """Append copies in order, in as few batches as the topic allows.

        Raises _Uncopyable if it refuses one of them.
        """
        target = await self._target(job.origin)
        try:
            await self._append_batch(target, copies)
        except (BatchTooLarge, RecordInvalid) as error:
            if len(copies) > 1:
                half = len(copies) // 2
                await self._append(job, copies[:half])
                await self._append(job, copies[half:])
                return
            await self._append_without_value(target, copies[0], error)
        self.copied_total += len(copies)
        job.advance(copies[-1].offset + 1)

    async def _append_without_value(
        self, target: Target, copy: Record, error: HeadraceError
    ) -> None:
        if not isinstance(error, BatchTooLarge) or copy.value is None:
            raise _Uncopyable(copy.offset, error) from error
        omitted = (H_VALUE_OMITTED, str(len(copy.value)).encode())
        headers = [*copy.headers, omitted]
        try:
            await self._append_batch(
                target, [Record(copy.offset, copy.timestamp_ms, copy.key, None, headers)]
            )
        except (BatchTooLarge, RecordInvalid) as again:
            raise _Uncopyable(copy.offset, again) from again

    async def _append_batch(self, target: Target, copies: list[Record]) -> None:
        await self._append_copies(target.topic, target.partition, encode_batch(copies))

    async def _target(self, origin: LetterOrigin) -> Target:
        """The partition of the dead letter topic with the origin's number, modulo their count.

        Always the same one, so that a copy that is made again after a takeover is recognised.
        Raises _Misconfigured, and what the creation of the topic raises.
        """
        name = origin.target()
        topic = self._topics.by_name.get(name)
        if topic is None:
            if await self._topics.readable.is_reserved(name):
                raise _Misconfigured(str(shared_dead_letter_topic(name)))
            try:
                # So that letters can be appended to it again as they are, by a redrive for example.
                settings = {SETTING: "ignore"}
                await self._topics.create(name, len(origin.topic.partitions), -1, settings)
            except TopicExists:
                log.debug("%s was created by another broker", name)
            except Rejected as error:
                raise _Misconfigured(f"the topic cannot be created: {error}") from error
            topic = self._topics.get(name)
        if topic.id == origin.topic.id:
            raise _Misconfigured(
                f"{name} cannot be its own dead letter topic: name another one for the"
                " group (errors.deadletterqueue.topic.name)"
            )
        if not accepts_dead_letters(topic.fact.configs):
            raise _Misconfigured(
                f"{name} has errors.deadletterqueue.group.enable=false: set it to true, or name"
                " another dead letter topic for the group"
            )
        return Target(topic, origin.partition % len(topic.partitions))


def path_of(record: Record) -> list[str]:
    """The topics that have given the record up before it came to its own."""
    for name in (PATH, SHARE_FORMAT.topic):  # only the last one, in a copy by another system
        value = find_header(record.headers, name)
        if value:
            return value.decode(errors="replace").split(",")
    return []


def copy_of(record: Record, origin: LetterOrigin, letter: DeadLetter) -> Record:
    """The dead letter of one record."""
    said = (
        name_in(origin.topic.name),  # clients of its tenant read it
        origin.partition,
        record.offset,
        name_in(letter.group_id),
        letter.deliveries,
        letter.reason,
    )
    kept = [
        (RENAMED.get(name, name), value)
        for name, value in record.headers
        if name not in DROPPED_HEADERS
    ]
    headers = [
        (name, str(value).encode()) for name, value in zip(ORIGIN_HEADERS, said, strict=True)
    ]
    group = sha256(letter.group_id.encode()).hexdigest()[:32]
    place = f"{origin.topic.id.hex}-{origin.partition}-{record.offset}"
    named = f"dead-letter/{place}/{group}/{letter.given_up_ms}"
    path = ",".join([*path_of(record), name_in(origin.topic.name)])
    headers += [(PATH, path.encode())]
    headers += [(PRODUCER, named.encode()), (SEQUENCE, b"0")]
    return Record(record.offset, record.timestamp_ms, record.key, record.value, [*kept, *headers])
