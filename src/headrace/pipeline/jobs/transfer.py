"""Copies pinned ranges of topics to topics, chunk by chunk, each record exactly once.

Invariants: a job is named by its group. The group's committed offsets are the job's only state: the
offset is where the copy stands, the metadata where it ends and where the chunk that may be half
written ends. A chunk is one bounded write whose `writeId` is derived from the chunk's start, so a
chunk that is repeated after a crash is completed by the sink and not written twice. A chunk's end
is stored before its first record is written: a restart with another chunk size repeats the same
rows. Records of a partition stay in order, because nothing shuffles (`check_keeps_order`), and so
do records of a key.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import json
import logging
import re
from dataclasses import dataclass, field
from time import monotonic_ns, sleep
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from uuid import uuid4

from headrace.java.jars import cache_folder
from headrace.pipeline.errors import DeliveryInDoubt, OptionInvalid, TopicRecreated
from headrace.pipeline.jobs.rights import check_job, check_rights, missing_rights, of_writes
from headrace.pipeline.jobs.windows import Connection, Window
from headrace.pipeline.leases import hold
from headrace.pipeline.options import parse_sink
from headrace.pipeline.planning import Offsets, build, limited, offset_of, total, walk
from headrace.pipeline.target import KafkaTopics
from headrace.pipeline.written import GROUP_PREFIX, Mark
from headrace.records.cluster_ids import tenants_cluster_id
from headrace.records.tenant_names import name_in, tenant_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_log = logging.getLogger(__name__)

CHUNK_RECORDS: Final = 500_000
_RATE_CHUNK_S: Final = 2.0
_REQUEST_TIMEOUT_S: Final = 30.0
OUTPUT: Final = ("topic", "partition", "key", "value", "headers", "timestamp")
_SHUFFLES: Final = ("Exchange", "Aggregate", "Window", "Sort", "Join", "Limit", "Ordered", "Sample")
_TEXT: Final = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`[^`]*`", re.DOTALL)
_CHANGING: Final = re.compile(
    r"(?i)\b(now|current_date|current_timestamp|current_time|localtimestamp|curdate|rand|randn|random"
    r"|randstr|uniform|uuid|shuffle|unix_timestamp|monotonically_increasing_id"
    r"|spark_partition_id|input_file_name)\b\s*(?:\(|$|[^\w.(])"
)
"""Functions of Spark SQL whose result is not that of their arguments."""
_OPERATOR: Final = re.compile(r"^[\s:+*()\d-]*([A-Z]\w+)", re.MULTILINE)
"""The first word of a line of a physical plan."""


class JobState(NamedTuple):
    """What a job's group holds. `window.start` is the progress; `chunk_end` the end of the chunk
    that may be partly written; `note` what else the job pinned; `is_by_ids` whether the write of
    that chunk is named by topic ids, too, as those of version 0.2 are not."""

    spec: str
    window: Window
    chunk_end: Offsets
    note: dict[str, Any]
    is_by_ids: bool = True

    @property
    def is_done(self) -> bool:
        """Whether nothing is left."""
        return self.window.size == 0

    def named_by(self, window: Window) -> tuple[Any, ...]:
        """What distinguishes the write of a window from others of the job: a topic that was deleted
        and recreated has other records at the same offsets."""
        return (window.document(), *((window.topic_ids,) if self.is_by_ids else ()))


class JobMarks:
    """Reads and writes a job's state, for one run of it.

    A run on another machine that takes the job over, or begins it, writes its own state, so that
    this one's next write is refused.
    """

    def __init__(self, connection: Connection, group: str) -> None:
        self._connection = connection
        self.group = group
        self._run = uuid4().hex[:12]
        self._known = {self._run}
        """The runs whose state may be replaced: this one, and that of the state that was read."""

    @contextlib.contextmanager
    def lease(self) -> Iterator[None]:
        """Hold the job, of which one run at a time writes on this machine. Raises LeaseHeld."""
        folder = cache_folder() / "jobs"
        folder.mkdir(parents=True, exist_ok=True)
        cluster = self._connection.cluster
        name = digest_of(*_seen_by_tenant(cluster.cluster_id(), self.group))
        with hold(folder / f"{name}.lease", f"The job {self.group} is being run"):
            yield

    def read(self) -> JobState | None:
        """The stored state, or None. Raises DeliveryFailed, ProgressRefused."""
        with self._topics() as topics:
            found = topics.marks(self.group)
        marks = {place: (offset, _parsed(text)) for place, (offset, text) in found.items()}
        ours = {place: mark for place, mark in marks.items() if mark[1] is not None}
        if not ours:
            return None
        starts, ends, chunks, ids = [], [], [], {}
        spec, note, is_by_ids = "", {}, False
        for (topic, partition), (offset, said) in ours.items():
            assert said is not None, "filtered above"
            self._known.add(said.get("run", self._run))
            starts.append((topic, partition, offset))
            ends.append((topic, partition, int(said["end"])))
            chunks.append((topic, partition, int(said["chunk"])))
            spec, note = str(said["spec"]), dict(said["note"])
            is_by_ids = bool(said.get("by_ids"))
            if said["id"]:
                ids[topic] = str(said["id"])
        window = Window(build(starts), build(ends), ids)
        return JobState(spec, window, build(chunks), note, is_by_ids)

    def write(self, state: JobState) -> None:
        """Store the state, atomically. Raises DeliveryFailed, ProgressRefused, DeliveryInDoubt."""
        marks = {}
        for topic, partition, end in walk(state.window.end):
            start = offset_of(state.window.start, topic, partition, 0)
            said = {
                "end": end,
                "chunk": offset_of(state.chunk_end, topic, partition, start),
                "spec": state.spec,
                "id": state.window.topic_ids.get(topic),
                "note": state.note,
                "run": self._run,
                "by_ids": state.is_by_ids,
            }
            marks[topic, partition] = (start, json.dumps({_MARK: said}, separators=(",", ":")))
        with self._topics() as topics:
            self._check_is_ours(topics)
            topics.commit_marks(self.group, marks)
        self._known = {self._run}

    def _check_is_ours(self, topics: KafkaTopics) -> None:
        said = [_parsed(text) for _, text in topics.marks(self.group).values()]
        if any(one is not None and one.get("run", self._run) not in self._known for one in said):
            raise DeliveryInDoubt(
                f"Another run of the job {self.group} has taken it over, and goes on; this one has"
                " stopped. Records of the chunk that both wrote may be there twice: compare the"
                " topics (headrace pipeline reconcile, proof), and run a job once at a time."
            )

    def _topics(self) -> KafkaTopics:
        return KafkaTopics(parse_sink(self._connection.options))


_MARK: Final = "headrace-job-1"  # do not change: stored
_TARGET_ID: Final = "target_id"  # do not change: stored


def _parsed(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)[_MARK]
    except (ValueError, TypeError, KeyError):
        return None
    return dict(found)


def _seen_by_tenant(cluster_id: str, key: str) -> tuple[str, str]:
    """The cluster's id and the group as clients of its tenant see them: so a job of a tenant's user
    and one of an operator's that write the same group exclude each other."""
    return tenants_cluster_id(cluster_id, tenant_of(key)), name_in(key)


def digest_of(*parts: Any) -> str:
    """A short name for what a job does."""
    text = json.dumps(parts, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class Cut(NamedTuple):
    """The end of a chunk, and the time, in ms since the copy began, before which it is not written.
    `pause_cut_ms`: by how much its wait was made shorter than the records' times ask for."""

    due_ms: int
    end: Offsets
    pause_cut_ms: int = 0


@dataclass(frozen=True)
class Copy:
    """One job: what it is called, what it does, and how fast.

    `rows` makes the rows to write from the records of a chunk, and the note of the first run.
    `window` is what a first run copies; a restart continues the stored one. `cuts` are successive
    chunks; None: chunks of `chunk_records`. `targets` are the topics that rows may name: rights to
    write to these are needed.
    """

    connection: Connection
    group: str
    spec: str
    window: Callable[[], Window]
    rows: Callable[[Window, dict[str, Any]], Any]
    target: str | None = None
    to: Connection | None = None
    chunk_records: int = CHUNK_RECORDS
    rate_per_s: float | None = None
    cuts: Callable[[Window], list[Cut]] | None = None
    is_repeatable: bool = False
    note: Callable[[], dict[str, Any]] = dict
    source: str = ""
    targets: Callable[[Window, dict[str, Any]], Iterable[str]] = lambda _window, _note: ()

    def check_rights(self, targets: Iterable[str]) -> None:
        """Raise RightsMissing unless this client may read the source and write to these topics."""
        reads = [self.source] if self.source else []
        if self.to is None:
            check_job(self.connection, self.group, reads, targets)
        else:
            missing = missing_rights(self.connection, reads, (), [self.group])
            check_rights(missing + missing_rights(self.to, (), targets, [of_writes(self.group)]))


class Chunk(NamedTuple):
    """Progress after a chunk: offsets read, rows written, offsets left."""

    read: int
    written: int
    left: int


@dataclass
class CopyReport:
    """The result of a run. `read` counts offsets, `written` rows, by destination."""

    group: str
    window: Window
    read: int = 0
    by_topic: dict[str, int] = field(default_factory=dict)
    chunks: int = 0
    elapsed_ms: int = 0
    resumed: bool = False
    is_done: bool = False
    late_ms_max: int = 0
    pauses_cut: int = 0
    pauses_cut_ms: int = 0

    @property
    def written(self) -> int:
        """Rows written, to all topics."""
        return sum(self.by_topic.values())

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "job": self.group,
            "window": self.window.document(),
            "read": self.read,
            "written": self.written,
            "by_topic": self.by_topic,
            "chunks": self.chunks,
            "seconds": self.elapsed_ms / 1000,
            "resumed": self.resumed,
            "done": self.is_done,
            "late_seconds_max": self.late_ms_max / 1000,
            "pauses_cut": self.pauses_cut,
            "pauses_cut_seconds": self.pauses_cut_ms / 1000,
        }


def stored_or_new(copy: Copy, marks: JobMarks | None = None) -> tuple[JobState, bool]:
    """The job's state, and whether it was stored: then the run continues it.

    `marks` are those of a run that writes. Raises OptionInvalid if the job is unfinished and was
    started with other options, TopicRecreated if what it wrote was deleted with the target.
    """
    target = _target_id(copy)
    state = (marks or JobMarks(copy.connection, copy.group)).read()
    if state is not None and not (state.is_done and copy.is_repeatable):
        if state.spec != copy.spec:
            what = "has run" if state.is_done else "was started, and not finished,"
            raise OptionInvalid(
                f"The job {copy.group} {what} with other options."
                " Nothing was written. Repeat it with the options of its first run, or give this"
                " one a name of its own (--job)."
            )
        if state.note.get(_TARGET_ID, target) != target:
            raise TopicRecreated(
                f"The target {copy.target} was deleted and recreated since the job {copy.group}"
                " began, and lacks what was written before. Nothing was written. Give the job a new"
                " name (--job), under which it begins again.",
                topic=copy.target or "",
            )
        return state, True
    window = copy.window()
    note = copy.note() if target is None else {**copy.note(), _TARGET_ID: target}
    return JobState(copy.spec, window, window.start, note), False


def _target_id(copy: Copy) -> str | None:
    """The id of the one topic that a job writes to, if it is one."""
    if copy.target is None:
        return None
    return (copy.to or copy.connection).cluster.topic_id_or_none(copy.target)


def run_copy(
    copy: Copy,
    *,
    on_chunk: Callable[[Chunk], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CopyReport:
    """Copy until done or stopped; a run after a kill continues, a run after the end does nothing.

    Raises what the source and the sink raise: RecordsLost, TopicRecreated, RowInvalid, RowsChanged;
    LeaseHeld if the job runs on this machine, DeliveryInDoubt if another has taken it over.
    """
    marks = JobMarks(copy.connection, copy.group)
    with marks.lease():
        return _run_copy(copy, marks, on_chunk, should_stop)


def _run_copy(
    copy: Copy,
    marks: JobMarks,
    on_chunk: Callable[[Chunk], None],
    should_stop: Callable[[], bool],
) -> CopyReport:
    copy.check_rights([] if copy.target is None else [copy.target])
    state, resumed = stored_or_new(copy, marks)
    if copy.target is None and not state.is_done:
        copy.check_rights(copy.targets(state.window, state.note))
    if resumed and not state.is_done:
        marks.write(state)  # now: later it would undo what another run has done since
    begun_ns = monotonic_ns()
    report = CopyReport(copy.group, state.window, resumed=resumed)
    for due_ms, end, pause_cut_ms in _chunks(copy, state):
        if should_stop() or not _wait_until(begun_ns, due_ms, should_stop):
            break
        report.pauses_cut += pause_cut_ms > 0
        report.pauses_cut_ms += pause_cut_ms
        state = state._replace(chunk_end=end)
        marks.write(state)
        chunk = state.window._replace(end=end)
        write_id = f"{copy.group}.{digest_of(copy.spec, *state.named_by(chunk))}"
        written = write_once(
            copy.rows(chunk, state.note), copy.to or copy.connection, copy.target, write_id
        )
        state = state._replace(window=state.window._replace(start=end), is_by_ids=True)
        marks.write(state)
        forget(copy.to or copy.connection, write_id)
        report.read += chunk.size
        for topic, count in written.items():
            report.by_topic[topic] = report.by_topic.get(topic, 0) + count
        report.chunks += 1
        elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
        if copy.cuts is not None:
            report.late_ms_max = max(report.late_ms_max, elapsed_ms - due_ms)
        on_chunk(Chunk(chunk.size, sum(written.values()), state.window.size))
        if copy.rate_per_s:
            _wait_until(begun_ns, int(report.written / copy.rate_per_s * 1000), should_stop)
    report.elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
    report.is_done = state.is_done
    return report


def _chunks(copy: Copy, state: JobState) -> Iterator[Cut]:
    """The chunks to write. A pinned chunk comes first."""
    window = state.window
    if total(window.start, state.chunk_end):
        yield Cut(0, state.chunk_end)
        window = window._replace(start=state.chunk_end)
    if copy.cuts is not None:
        for cut in copy.cuts(window):
            if total(window.start, cut.end):
                yield cut
                window = window._replace(start=cut.end)
    size = copy.chunk_records
    if copy.rate_per_s:
        size = max(1, min(size, int(copy.rate_per_s * _RATE_CHUNK_S)))
    while window.size:
        end = limited(window.start, window.end, size)
        yield Cut(0, end)
        window = window._replace(start=end)


def _wait_until(begun_ns: int, due_ms: int, should_stop: Callable[[], bool]) -> bool:
    """Wait; False if the job is to stop before that time."""
    while (left_ms := due_ms - (monotonic_ns() - begun_ns) // 1_000_000) > 0:
        if should_stop():
            return False
        sleep(min(left_ms, 500) / 1000)
    return True


def write_once(rows: Any, to: Connection, target: str | None, write_id: str) -> dict[str, int]:
    """Write rows to topics exactly once per `write_id`; returns their number by topic."""
    rows = rows.select(*(name for name in OUTPUT if name in rows.columns))
    writer = rows.write.format("headrace").options(**to.options).option("writeId", write_id)
    if target is not None:
        writer = writer.option("topic", target)
    writer.mode("append").save()
    with KafkaTopics(parse_sink(to.options)) as topics:
        stored = topics.marks(f"{GROUP_PREFIX}.{write_id}")
    found = [(topic, Mark.parse_or_none(text)) for (topic, _), (_, text) in stored.items()]
    return {topic: mark.row_count for topic, mark in found if mark is not None and mark.is_done}


def forget(to: Connection, write_id: str) -> None:
    """Delete the sink's marks of a finished write, which the job's own state is past."""
    from confluent_kafka import KafkaException

    group = f"{GROUP_PREFIX}.{write_id}"
    admin = to.cluster.admin  # a client that is freed answers nothing
    asked = admin.delete_consumer_groups([group], request_timeout=_REQUEST_TIMEOUT_S)
    try:
        asked[group].result(_REQUEST_TIMEOUT_S)
    except (KafkaException, TimeoutError) as error:
        # Not permitted, or no rows and so no marks: they expire by themselves.
        _log.debug("group %s is left: %s", group, error)


def check_repeats(*expressions: str) -> None:
    """Raise OptionInvalid if SQL gives another result when a restart evaluates it again."""
    for sql in expressions:
        found = _CHANGING.search(_TEXT.sub("''", sql))
        if found:
            raise OptionInvalid(
                f"{found[1]} has another value when the job is restarted, so that records could be"
                " lost or sent twice. Nothing was written. Use a literal, such as"
                " TIMESTAMP '2013-01-31 12:00:00'."
            )


def check_keeps_order(frame: Any) -> None:
    """Raise OptionInvalid if the query moves rows between tasks or out of their order."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text):
        frame.explain()
    operators = set(_OPERATOR.findall(text.getvalue()))
    found = sorted(one for one in operators if any(word in one for word in _SHUFFLES))
    if found:
        raise OptionInvalid(
            "The SQL aggregates, joins, sorts, limits or repartitions rows"
            f" ({', '.join(found)}), so the order of keys would be lost, and a restart could not"
            " repeat it. Nothing was written. Use WHERE and expressions over one record; for"
            " aggregates write a pipeline (docs/PIPELINE.md, ETL)."
        )
