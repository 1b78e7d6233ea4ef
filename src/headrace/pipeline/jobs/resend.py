"""Sends again what is missing: from a table or another topic, each record exactly once.

Invariants: a record is known by its producer's sequence, else by its content (key, value, time,
headers; equal records are counted). What the target already holds, also by an earlier run, is not
sent. Both sides are pinned before the first record is written, so a restart finds the same rows and
the sink completes them. Named sequences are kept under other header names, because a broker drops a
sequence lower than its last; a proof reads both. Records are appended: they come after those that
their producer sent later.
"""

from __future__ import annotations

from dataclasses import dataclass
from time import monotonic_ns
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.catalog import TableName
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.headers import (
    NAMED_SEQUENCE,
    RESENT,
    RESENT_PRODUCER,
    RESENT_SEQUENCE,
    header,
    without,
)
from headrace.pipeline.jobs.identity import (
    DEFAULT_PRODUCER,
    DEFAULT_SEQUENCE,
    NO_HEADERS,
    RESENT_NAMES,
    identified,
)
from headrace.pipeline.jobs.rights import check_job
from headrace.pipeline.jobs.transfer import (
    CopyReport,
    JobMarks,
    JobState,
    digest_of,
    forget,
    write_once,
)
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Bounds,
    Connection,
    Window,
    quoted,
    read_table,
    read_window,
    resolve_window,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "headrace-resend"


@dataclass(frozen=True)
class ResendConfig:
    """What to send again, from where, and how records are known.

    One of `table` and `source` (a topic). With a `certificate` (of delivery_proof), only the
    sequences that it lists as missing are sent; without, everything that the target lacks.
    """

    connection: Connection
    topic: str
    table: str | None = None
    source: str | None = None
    table_topic: str | None = None
    bounds: Bounds = WHOLE_LOG
    certificate: Mapping[str, Any] | None = None
    producer: str = DEFAULT_PRODUCER
    sequence: str = DEFAULT_SEQUENCE
    job: str | None = None
    partitions: int = 8

    def __post_init__(self) -> None:
        if (self.table is None) == (self.source is None):
            raise OptionInvalid(
                "What is sent again is from a table or from a topic. Nothing was read or written."
                " Give one of them."
            )
        if self.source == self.topic:
            raise OptionInvalid(
                f"The source is the topic itself ({self.topic}). Nothing was read or written. Give"
                " the table, or another topic."
            )

    @property
    def spec(self) -> str:
        """What a restart has in common with the first run."""
        proof = None if self.certificate is None else self.certificate.get("sha256")
        place = (self.table, self.source, self.table_topic, self.bounds)
        return digest_of(self.topic, *place, proof, self.producer, self.sequence)

    @property
    def group(self) -> str:
        """The job's name: by default the same for the same options."""
        return f"{GROUP}.{self.job or self.spec}"

    def check_rights(self) -> None:
        """Raise RightsMissing unless this client may compare the topics and write to one."""
        sources = [self.source] if self.source else []
        check_job(self.connection, self.group, sources, [self.topic])


def run_resend(config: ResendConfig, *, spark: Any) -> CopyReport:
    """Send what is missing. A run after a kill completes it; a finished job sends nothing.

    Raises LeaseHeld if the job runs on this machine, DeliveryInDoubt if another has taken it over.
    """
    marks = JobMarks(config.connection, config.group)
    with marks.lease():
        return _run_resend(config, marks, spark)


def _run_resend(config: ResendConfig, marks: JobMarks, spark: Any) -> CopyReport:
    begun_ns = monotonic_ns()
    config.check_rights()
    state, resumed = _pinned(config, spark, marks.read())
    report = CopyReport(config.group, state.window, resumed=resumed, is_done=True)
    if not state.note.get("done"):
        marks.write(state)
        named_by = digest_of(config.spec, *state.named_by(state.window))
        write_id = f"{config.group}.{named_by if state.is_by_ids else config.spec}"
        rows = _rows(missing(config, spark, state), config)
        report.by_topic = write_once(rows, config.connection, config.topic, write_id)
        marks.write(state._replace(note={**state.note, "done": True}))
        forget(config.connection, write_id)
        report.chunks, report.read = 1, state.window.size
    report.elapsed_ms = (monotonic_ns() - begun_ns) // 1_000_000
    return report


def plan_resend(config: ResendConfig, *, spark: Any) -> dict[str, Any]:
    """What a run would send, without writing."""
    state, resumed = _pinned(config, spark, JobMarks(config.connection, config.group).read())
    is_done = bool(state.note.get("done"))
    return {
        "job": config.group,
        "resumed": resumed,
        "finished": is_done,
        "missing": 0 if is_done else missing(config, spark, state).count(),
    }


def _pinned(config: ResendConfig, spark: Any, stored: JobState | None) -> tuple[JobState, bool]:
    if stored is not None:
        if stored.spec != config.spec:
            raise OptionInvalid(
                f"The job {config.group} was started with other options. Nothing was written."
                " Repeat it with these, or give this one a name of its own (--job)."
            )
        # What is stored of a topic is deleted with it: a recreated one is compared from its start.
        if {config.topic, config.source} - {None} <= stored.window.end.keys():
            return stored, True
    cluster = config.connection.cluster
    window = resolve_window(cluster, (config.topic,), WHOLE_LOG)
    note: dict[str, Any] = {}
    if config.source is not None:
        theirs = resolve_window(cluster, (config.source,), config.bounds)
        ids = window.topic_ids | theirs.topic_ids
        window = Window(window.start | theirs.start, window.end | theirs.end, ids)
    elif config.table is not None:
        note["snapshot"] = read_table(spark, TableName.parse(config.table)).snapshot_id
    return JobState(config.spec, window, window.start, note), False


def missing(config: ResendConfig, spark: Any, state: JobState) -> Any:
    """The records of the source that the target does not hold."""
    target = _known(config, read_window(spark, config.connection, _of(state, config.topic)))
    source = _known(config, _source(config, spark, state))
    # Of a numbered record one copy is enough; of equal ones as many as there are.
    source = source.where("sequence IS NULL OR number = 1")
    if config.certificate is not None:
        spans = _spans(config.certificate, spark).hint("broadcast")
        inside = "sequence BETWEEN low AND high"
        source = source.join(spans, "producer").where(inside).drop("low", "high")
    return source.join(target.select("identity", "number"), ["identity", "number"], "left_anti")


def _source(config: ResendConfig, spark: Any, state: JobState) -> Any:
    if config.source is not None:
        return read_window(spark, config.connection, _of(state, config.source))
    assert config.table is not None, "checked by _pinned"
    part = read_table(spark, TableName.parse(config.table), None, state.note.get("snapshot"))
    return part.frame.where(f"topic = {quoted(config.table_topic or config.topic)}")


def _of(state: JobState, topic: str) -> Window:
    window = state.window
    ids = {name: one for name, one in window.topic_ids.items() if name == topic}
    return Window({topic: window.start[topic]}, {topic: window.end[topic]}, ids)


def _known(config: ResendConfig, frame: Any) -> Any:
    return identified(frame, config.producer, config.sequence)


def _spans(certificate: Mapping[str, Any], spark: Any) -> Any:
    """The missing sequences of a certificate. Raises OptionInvalid if it does not list them all."""
    rows = []
    for one in certificate["producers"]:
        listed = sum(high - low + 1 for low, high in one["missing_spans"])
        if listed != one["missing"]:
            raise OptionInvalid(
                f"The certificate lists {listed} of {one['missing']} missing sequences of"
                f" {one['producer']}. Nothing was written. Send without the certificate: then the"
                " source and the topic are compared."
            )
        rows += [(one["producer"], low, high) for low, high in one["missing_spans"]]
    return spark.createDataFrame(rows, "producer string, low bigint, high bigint")


def _rows(found: Any, config: ResendConfig) -> Any:
    """The rows to write, in the order of their source."""
    names = {*NAMED_SEQUENCE, *RESENT_NAMES}
    place = header(RESENT, "concat(topic, '-', partition, ':', offset)")
    numbered = ", ".join(
        [header(RESENT_PRODUCER, "producer"), header(RESENT_SEQUENCE, "cast(sequence AS string)")]
    )
    added = (
        f"CASE WHEN producer IS NOT NULL AND sequence IS NOT NULL THEN array({place}, {numbered})"
        f" ELSE array({place}) END"
    )
    return (
        found.repartition(config.partitions, "topic", "partition")
        .sortWithinPartitions("topic", "partition", "offset")
        .selectExpr(
            "key",
            "value",
            f"concat(coalesce({without(names)}, {NO_HEADERS}), {added}) AS headers",
            "timestamp",
        )
    )
