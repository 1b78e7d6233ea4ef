"""Exactly-once writes of a micro-batch's rows to topics, however the batch is split into tasks.

Responsibilities: the protocol between a batch's tasks, its commit, and the records that an earlier
run of the batch left in the topics. Knows neither Spark nor a client: topics are reached through
`TargetTopics`.

Terms: a *run* is one execution of a micro-batch. A restart replays the batch in a new run, perhaps
split into different tasks. Within a run, a task may be attempted several times.

How it works. A row is identified by a digest of its content, never by its place in a task,
because the split into tasks changes between runs and only the content repeats. Each record
carries a header (query, batch, run, task, digest). Before a task writes to a topic, it ensures
that the topic's end offsets are committed in the query's group, with the mark
"batch:begun:run". Then:

- If no earlier run has begun the batch, every row is written. A repeated attempt first reads
  back what the task has written in this run.
- If an earlier run has begun it, a row whose digest that run has written is counted, not written.
  Equal rows may be spread over tasks differently than before, so no single task knows whether a
  copy is missing. `commit_batch` adds up the counts of all tasks, compares them with the topics,
  and writes the missing copies.
- The mark then becomes "batch:done:run:count:checksum". A replay of a completed batch writes
  nothing, and fails unless it has the same rows.

What a topic does not show as it was written cannot be recognised, so exactly-once delivery refuses
it (`TopicTraits`): compacted topics, before anything is written to them, and in topics that read
queue attributes the rows that would be delayed, held back or deduplicated by the broker.

Invariants: a task reads the end offsets before the marks, and writes only after a mark is
stored. Hence the offsets of any mark lie at or before the first record of the batch, even when
tasks store marks concurrently. Rows that differ between runs are an error, because neither
loss nor duplication could be ruled out.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple, Protocol

from headrace.pipeline.errors import DeliveryInDoubt, OptionInvalid, RowInvalid, RowsChanged
from headrace.pipeline.written import (
    CHECKSUM_MODULUS,
    COMMIT_TASK,
    Mark,
    RowToWrite,
    Stored,
    WriteIdentity,
    Written,
    batch_prefix,
    row_again,
    written_or_none,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


class Bounds(NamedTuple):
    """The log start offset and the end offset of a partition."""

    start: int
    end: int


class TopicTraits(NamedTuple):
    """What a topic does with records, as far as it matters for reading them back.

    `is_compacted`: the log drops records whose key occurs again. A replay would miss them, and
    write old values after new ones. `reads_attributes`: the broker acts on reserved headers.
    """

    is_compacted: bool = False
    reads_attributes: bool = False


class TargetTopics(Protocol):
    """The interface to the broker. Every method raises DeliveryFailed if the broker fails."""

    def bounds(self, topic: str) -> dict[int, Bounds]:
        """Return the bounds of each partition. Raises OptionInvalid if the topic does not exist."""
        ...

    def traits(self, topic: str) -> TopicTraits:
        """Return the traits of an existing topic. Raises OptionInvalid if it is not permitted."""
        ...

    def wait_settled(self, topic: str) -> dict[int, Bounds]:
        """Return the bounds once they are stable: a killed writer's last request may be in
        flight."""
        ...

    def marks(self, group: str) -> dict[tuple[str, int], tuple[int, str]]:
        """Return the group's committed offset and metadata of each partition that has one."""
        ...

    def commit_marks(self, group: str, marks: dict[tuple[str, int], tuple[int, str]]) -> None:
        """Commit offsets with metadata atomically."""
        ...

    def produce(self, rows: Sequence[RowToWrite], written: Sequence[bytes]) -> None:
        """Queue records of one topic, each with its `written` as last header, named
        WRITTEN_HEADER."""
        ...

    def flush(self) -> None:
        """Wait until all queued records are acknowledged."""
        ...

    def records(self, topic: str, partition: int, start: int, end: int) -> Iterator[Stored]:
        """Yield the records of [start, end)."""
        ...


@dataclass
class BatchMarks:
    """The marks of one micro-batch: where it begins in each topic, and which topics are done."""

    begun: dict[str, dict[int, int]] = field(default_factory=dict)
    runs: dict[str, str] = field(default_factory=dict)
    done: dict[str, Mark] = field(default_factory=dict)


def read_marks(topics: TargetTopics, identity: WriteIdentity, *, at_least_once: bool) -> BatchMarks:
    """Read this micro-batch's marks; with `at_least_once`, only those of this run.

    Raises DeliveryInDoubt if the query is already past the batch.
    """
    found = BatchMarks()
    committed = topics.marks(identity.group)
    for (topic, partition), (offset, metadata) in sorted(committed.items()):
        mark = Mark.parse_or_none(metadata)
        if mark is None or (at_least_once and mark.run != identity.run):
            continue
        if mark.batch > identity.batch:
            raise DeliveryInDoubt(
                f"Query {identity.query} replays batch {identity.batch}, but the sink has"
                f" already begun batch {mark.batch}: the checkpoint is older than topic"
                f" {topic}. It is no longer known which rows of the batch are written, so"
                " nothing is written. Restore the newer checkpoint; or set"
                " delivery=atLeastOnce until the query has passed that batch, which writes"
                " its rows again; or start with a new checkpoint."
            )
        if mark.batch < identity.batch:
            continue
        if mark.is_done:
            found.done[topic] = mark
        else:
            found.begun.setdefault(topic, {})[partition] = offset
            found.runs[topic] = mark.run
    return found


@dataclass
class TopicReport:
    """What one task, or a whole batch, found and wrote in one topic.

    `deferred` counts, by digest, the rows that an earlier run has written; `count` and `checksum`
    cover all rows.
    """

    count: int = 0
    checksum: int = 0
    deferred: Counter[bytes] = field(default_factory=Counter)

    def add(self, other: TopicReport) -> None:
        """Add another task's report."""
        self.count += other.count
        self.checksum = (self.checksum + other.checksum) % CHECKSUM_MODULUS
        self.deferred.update(other.deferred)


@dataclass
class TaskReport:
    """A task's report to the batch's commit. `written_count` covers this attempt only."""

    identity: WriteIdentity
    written_count: int = 0
    topics: dict[str, TopicReport] = field(default_factory=dict)


@dataclass
class _Topic:
    """A task's view of one topic."""

    report: TopicReport
    is_done: bool = False
    reads_attributes: bool = False
    earlier: set[bytes] = field(default_factory=set)
    own: Counter[bytes] = field(default_factory=Counter)

    def is_due(self, digest: bytes) -> bool:
        """Whether the next row with this digest is to be written, which is then taken for done."""
        if digest in self.earlier:
            self.report.deferred[digest] += 1
            return False
        if self.own[digest] > 0:
            self.own[digest] -= 1
            return False
        return True


class TaskDelivery:
    """The rows of one attempt of one task."""

    def __init__(
        self, topics: TargetTopics, identity: WriteIdentity, *, at_least_once: bool = False
    ) -> None:
        # Imported late: where the compiled core is used, that is decided before.
        from headrace.pipeline.row_encoding import encode_rows

        self._encode_rows = encode_rows
        self._target = topics
        self._identity = identity
        self._at_least_once = at_least_once
        self._topics: dict[str, _Topic] = {}
        self._written_count = 0
        self._header = batch_prefix(identity) + f"{identity.run}/{identity.task}/".encode()

    def send(self, rows: Iterable[RowToWrite]) -> None:
        """Write the rows that are not written yet.

        Raises OptionInvalid if a topic does not exist or is compacted, RowInvalid for a row that
        the broker would not append as it is, DeliveryFailed, DeliveryInDoubt.
        """
        for name, run in groupby(rows, itemgetter(0)):
            if name not in self._topics:
                self._topics[name] = self._open(name)
            self._send(self._topics[name], list(run))

    def _send(self, topic: _Topic, rows: list[RowToWrite]) -> None:
        digests, written, checksum = self._encode_rows(rows, self._header)
        topic.report.count += len(rows)
        topic.report.checksum += checksum
        if topic.is_done:
            return
        if topic.reads_attributes:
            for row in rows:
                if row.headers:
                    _check_attributes(row)
        if topic.earlier or topic.own:
            due = [index for index, digest in enumerate(digests) if topic.is_due(digest)]
            rows, written = [rows[index] for index in due], [written[index] for index in due]
        self._written_count += len(rows)
        self._target.produce(rows, written)

    def finish(self) -> TaskReport:
        """Wait for the acknowledgements. Raises DeliveryFailed, RowsChanged."""
        self._target.flush()
        for name, topic in self._topics.items():
            if left := topic.own.total():
                raise _rows_changed(
                    self._identity,
                    f"an earlier attempt of task {self._identity.task} wrote {left} records"
                    f" to topic {name} that are not among the task's rows any more",
                )
            topic.report.checksum %= CHECKSUM_MODULUS
        reports = {name: topic.report for name, topic in self._topics.items()}
        return TaskReport(self._identity, self._written_count, reports)

    def _open(self, name: str) -> _Topic:
        identity = self._identity
        bounds = self._target.bounds(name)  # before the marks: see the module's invariants
        traits = TopicTraits()
        if not self._at_least_once:
            traits = self._target.traits(name)
            _check_traits(name, traits)
        marks = read_marks(self._target, identity, at_least_once=self._at_least_once)
        topic = _Topic(TopicReport(), bool(marks.done), traits.reads_attributes)
        if topic.is_done:
            return topic
        if name not in marks.begun:
            mark = Mark(identity.batch, identity.run).encode()
            self._target.commit_marks(
                identity.group,
                {(name, number): (each.end, mark) for number, each in bounds.items()},
            )
            return topic
        is_first = marks.runs[name] == identity.run and identity.attempt == 0
        # At least once: all rows again, in their order, whatever of them is in the topic.
        if is_first or self._at_least_once:
            return topic
        for written, _ in read_back(self._target, identity, name, marks.begun[name]):
            if written.run == identity.run:
                topic.own[written.digest] += written.task == identity.task
            else:
                topic.earlier.add(written.digest)
        return topic


def _check_traits(name: str, traits: TopicTraits) -> None:
    if traits.is_compacted:
        raise OptionInvalid(
            f"Topic {name} is compacted (cleanup.policy), so a replay cannot see all that was"
            " written, and could write an old value of a key after the new one. Nothing was"
            " written to it. Set delivery=atLeastOnce: a replayed batch is then written again"
            " completely, so that the last record of each key is right (keep the rows of a key in"
            " one task, in order). Or write to a topic with cleanup.policy=delete.",
            topic=name,
        )


def _check_attributes(row: RowToWrite) -> None:
    # Imported late: it takes longer to load than the rest of a task, for few topics.
    from headrace.records import attributes

    for header, effect in (
        (attributes.DELAY, "is delivered later"),
        (attributes.DELIVER_AT, "is delivered later"),
        (attributes.HALF, "is invisible until it is committed"),
        (attributes.PRODUCER, "is dropped if its sequence is not higher than that of another"),
    ):
        if attributes.find_header(row.headers, header) is not None:
            raise RowInvalid(
                f"A row for topic {row.topic} has the header {header}, which this topic reads"
                f" (headrace.message.attributes): such a record {effect}, so the sink cannot see"
                " whether it was written, and exactly-once delivery is not possible. The batch is"
                " not committed. Set delivery=atLeastOnce, which may write it again; or remove the"
                f" header: filter(headers, h -> h.key <> '{header}'); or write to a topic that"
                " does not read attributes.",
                topic=row.topic,
                header=header,
            )


def read_back(
    topics: TargetTopics, identity: WriteIdentity, name: str, begun: dict[int, int]
) -> Iterator[tuple[Written, Stored]]:
    """Yield the records of this micro-batch in a topic, from all its runs.

    Partitions without a mark were added after the batch began and are read from their start. Raises
    DeliveryInDoubt if the log no longer reaches back to where the batch began.
    """
    prefix = batch_prefix(identity)
    for number, (start, end) in sorted(topics.wait_settled(name).items()):
        begin = begun.get(number, 0)
        if begin < start or begin > end:
            raise DeliveryInDoubt(
                f"Batch {identity.batch} of query {identity.query} began at offset {begin} of"
                f" {name}-{number}, but the log holds {start} to {end}: retention deleted"
                " records, or the topic was deleted and recreated. It cannot be determined"
                " which rows of the batch are written, so nothing is written. Set"
                " delivery=atLeastOnce for one run, which writes the batch again, or start"
                " with a new checkpoint."
            )
        for record in topics.records(name, number, begin, end):
            written = written_or_none(prefix, record)
            if written is not None:
                yield written, record


def commit_batch(
    topics: TargetTopics, reports: Iterable[TaskReport], *, at_least_once: bool = False
) -> int:
    """Complete a micro-batch whose tasks have all finished, and mark it done.

    Returns the number of records written here. Raises RowsChanged if an earlier run has written
    other rows, DeliveryInDoubt if a row is written twice.
    """
    identity: WriteIdentity | None = None
    merged: dict[str, TopicReport] = {}
    for each in reports:
        identity = each.identity._replace(task=COMMIT_TASK)
        for name, report in each.topics.items():
            merged.setdefault(name, TopicReport()).add(report)
    if identity is None:
        return 0
    marks = read_marks(topics, identity, at_least_once=at_least_once)
    if marks.done:
        _check_done(identity, merged, marks.done)
        return 0
    completed = 0
    for name, begun in marks.begun.items():
        if marks.runs[name] != identity.run:
            report = merged.get(name, TopicReport())
            completed += _complete(topics, identity, name, begun, report)
    topics.flush()
    if merged:
        topics.commit_marks(identity.group, _done_marks(identity, merged))
    return completed


def _done_marks(
    identity: WriteIdentity, merged: dict[str, TopicReport]
) -> dict[tuple[str, int], tuple[int, str]]:
    """Marks go to partition 0, which every topic has."""
    done = Mark(identity.batch, identity.run, is_done=True)
    return {
        (name, 0): (0, done._replace(row_count=each.count, checksum=each.checksum).encode())
        for name, each in merged.items()
    }


def _check_done(
    identity: WriteIdentity, merged: dict[str, TopicReport], done: dict[str, Mark]
) -> None:
    for name in sorted(merged.keys() | done.keys()):
        report, mark = merged.get(name, TopicReport()), done.get(name, Mark(identity.batch, ""))
        if (report.count, report.checksum) != (mark.row_count, mark.checksum):
            raise _rows_changed(
                identity,
                f"{mark.row_count} rows were written to topic {name} and the batch was"
                f" completed; now it has {report.count} rows for that topic, "
                + ("and other ones" if report.count == mark.row_count else "another number"),
            )


def _complete(
    topics: TargetTopics,
    identity: WriteIdentity,
    name: str,
    begun: dict[int, int],
    report: TopicReport,
) -> int:
    """Write the missing copies of deferred rows to the topic; returns their number."""
    earlier: Counter[bytes] = Counter()
    own_count = 0
    for written, _ in read_back(topics, identity, name, begun):
        if written.run == identity.run:
            own_count += 1
        else:
            earlier[written.digest] += 1
    if surplus := earlier - report.deferred:
        raise _rows_changed(
            identity,
            f"an earlier run wrote {surplus.total()} records to topic {name} that are not"
            " among its rows any more (or its writer was still running)",
        )
    expected = report.count - report.deferred.total()
    if own_count != expected:
        raise DeliveryInDoubt(
            f"Batch {identity.batch} of query {identity.query} has written {own_count}"
            f" records to topic {name} in this run, but {expected} were expected: a task ran"
            " twice at the same time. Set spark.speculation=false, stop all workers of"
            " earlier runs, then restart."
        )
    missing = report.deferred - earlier
    wanted = missing.total()
    if not wanted:
        return 0
    from headrace.pipeline.row_encoding import encoded

    header = batch_prefix(identity) + f"{identity.run}/{COMMIT_TASK}/".encode()
    for written, record in read_back(topics, identity, name, begun):
        for _ in range(missing.pop(written.digest, 0)):
            row = row_again(name, written, record)
            end = encoded(row.partition, row.timestamp_ms, written.digest)
            topics.produce([row], [header + end])
    if missing:
        raise DeliveryInDoubt(
            f"Batch {identity.batch} of query {identity.query}: {missing.total()} records"
            f" were deleted from topic {name} while the batch was being completed. Restart"
            " the query."
        )
    return wanted


def _rows_changed(identity: WriteIdentity, what: str) -> RowsChanged:
    return RowsChanged(
        f"Replay of batch {identity.batch} of query {identity.query}: {what}. A replay"
        " must produce the same rows, so the batch is not committed. Use no random or"
        " current-time functions in the query, and change it only between batches. To"
        " continue with the current rows, set delivery=atLeastOnce for one run: it"
        " writes them all, in addition to the earlier ones."
    )
