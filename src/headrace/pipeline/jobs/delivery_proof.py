"""Proof of delivery: sent = stored = archived = acknowledged, or the list of what is missing.

Invariants: reads only. One producer's records carry a name and a sequence (the headers of named
sequences by default, or any SQL over the record); a producer's own count (`sent`) says what must be
there. The log is read once per window; the table at one snapshot; a group's progress is given by
the caller, who read it before the log, so that nothing counts as acknowledged that was not. What a
share group did with each record is read from its journals, if the caller says where (`http`).
The verdict is not decided here: `certificate.judge` derives it from the figures.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.pipeline.catalog import TableName
from headrace.pipeline.jobs import outcomes
from headrace.pipeline.jobs.certificate import sealed
from headrace.pipeline.jobs.copies import Copy, compare
from headrace.pipeline.jobs.identity import DEFAULT_PRODUCER, DEFAULT_SEQUENCE
from headrace.pipeline.jobs.letters import read_letters
from headrace.pipeline.jobs.outcomes import GroupJournal
from headrace.pipeline.jobs.producer_sequences import read_sequences
from headrace.pipeline.jobs.reconcile import Side, sides_by_offset
from headrace.pipeline.jobs.spans import SPANS_MAX, spans_by_partition
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
from headrace.pipeline.planning import Offsets, offset_of, walk
from headrace.records.tenant_names import key_of, tenant_of, with_written_keys, written_topic

if TYPE_CHECKING:
    from collections.abc import Mapping

_PLACE: Final = ["partition", "offset"]


class Sent(NamedTuple):
    """What a producer says it sent: all sequences from first to last (inclusive)."""

    first: int
    last: int


@dataclass(frozen=True)
class GroupPosition:
    """A group's progress: committed offsets, or the start offsets of a share group.

    `dead_letters`: the topics that receive what the group gives up.
    """

    group: str
    offsets: Offsets
    type: str = "consumer"
    dead_letters: tuple[str, ...] = ()
    from_start: bool = False
    """Whether a share group starts at the earliest record of a partition that is new to it."""

    @property
    def shown(self) -> str:
        """Its name in the certificate."""
        return with_written_keys(self.group)


@dataclass(frozen=True)
class DeliveryConfig:
    """What to prove. `producer` and `sequence` are SQL expressions over a record."""

    connection: Connection
    topic: str
    bounds: Bounds = WHOLE_LOG
    table: str | None = None
    groups: tuple[GroupPosition, ...] = ()
    sent: Mapping[str, Sent] | None = None
    producer: str = DEFAULT_PRODUCER
    sequence: str = DEFAULT_SEQUENCE
    bucket_ms: int | None = None
    cluster_id: str | None = None
    key: bytes | None = field(default=None, repr=False)
    http: str | None = None
    """The HTTP interface of a broker, where share groups' journals are read."""
    copies: tuple[Copy, ...] = ()
    is_numbered: bool = True
    """Whether what was sent is proven by producers' sequences."""
    is_idempotent: bool = False
    """Whether it is proven by the sequences of idempotent producers, too."""

    def has_journal(self, group: GroupPosition) -> bool:
        """Whether what the group did with each record can be read."""
        return self.http is not None and group.type == "share"


def prove_delivery(config: DeliveryConfig, *, spark: Any) -> dict[str, Any]:
    """Compare all sides now and return the certificate.

    Raises OptionInvalid if the topic or table does not exist, TopicRecreated, TableUnusable.
    """
    config = replace(config, topic=key_of(config.topic))
    cluster = config.connection.cluster
    window = resolve_window(cluster, (config.topic,), config.bounds)
    log = read_window(spark, config.connection, window)
    letters = {one.group: _letters(config, spark, one) for one in config.groups}
    records = _with_outcomes(config, _numbered(config, log), window, letters).persist()
    try:
        stored = sides_by_offset(log)
        archived, whole = _archived(config, window, log, spark, stored)
        producers = _producers(config, records, whole) if config.is_numbered else []
        groups = [_group(config, one, window, records, letters) for one in config.groups]
        body = {
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "cluster_id": config.cluster_id,
            "topic": written_topic(config.topic),
            **({"tenant": tenant} if (tenant := tenant_of(config.topic)) else {}),
            "topic_id": window.topic_ids.get(config.topic),
            "window": window.document().get(config.topic, {}),
            "numbered_by": [config.producer, config.sequence] if config.is_numbered else None,
            "stored": {str(p): _side(side) for p, side in sorted(stored.items())},
            "archived": archived,
            "producers": producers,
            "unnumbered": records.where("producer IS NULL OR sequence IS NULL").count()
            if config.is_numbered
            else 0,
            "idempotent": read_sequences(spark, config.connection, config.topic, window)
            if config.is_idempotent
            else None,
            "groups": groups,
            "copies": [
                compare(each, config.connection, config.topic, window, spark=spark)
                for each in config.copies
            ],
            "buckets": _buckets(config, records),
            "limits": [],
        }
    finally:
        records.unpersist()
    return sealed(body, config.key)


def _numbered(config: DeliveryConfig, frame: Any) -> Any:
    return frame.selectExpr(
        "partition",
        "offset",
        "timestamp",
        f"cast({config.producer} AS string) AS producer",
        f"try_cast({config.sequence} AS bigint) AS sequence",
        *(
            f"{_acknowledged(config.topic, one)} AS acknowledged_{index}"
            for index, one in enumerate(config.groups)
        ),
    )


def _acknowledged(topic: str, group: GroupPosition) -> str:
    cases = " ".join(
        f"WHEN {partition} THEN offset < {committed}"
        for name, partition, committed in walk(group.offsets)
        if key_of(name) == topic
    )
    return f"CASE partition {cases} ELSE false END" if cases else "false"


# --- producers -------------------------------------------------------------------------------


def _producers(config: DeliveryConfig, records: Any, whole: Any) -> list[dict[str, Any]]:
    """The figures of each producer that stored a record or says that it sent one."""
    from pyspark.sql.functions import expr

    acknowledged = [f"acknowledged_{index}" for index in range(len(config.groups))]
    each = (
        records.where("producer IS NOT NULL AND sequence IS NOT NULL")
        .groupBy("producer", "sequence")
        .agg(expr("count(*) AS times"), *(expr(f"max({a}) AS {a}") for a in acknowledged))
        .persist()
    )
    try:
        figures = each.groupBy("producer").agg(
            expr("sum(times) AS stored"),
            expr("count(*) AS found"),
            expr("min(sequence) AS first"),
            expr("max(sequence) AS last"),
            *(expr(f"count_if({a}) AS {a}") for a in acknowledged),
        )
        found = {row["producer"]: row.asDict() for row in figures.collect()}
        sent = dict(config.sent or {})
        wanted = {
            name: sent.get(name) or Sent(found[name]["first"], found[name]["last"])
            for name in sorted({*found, *sent})
        }
        table = None if whole is None else _numbered(config, whole).select("producer", "sequence")
        gaps = _gaps(each, wanted, table)
        repeated = _repeated(each) if any(r["stored"] > r["found"] for r in found.values()) else {}
        return [
            _producer(config, name, found.get(name, _NONE_FOUND), name in sent, gaps[name])
            | {"duplicated": repeated.get(name, [])}
            for name in wanted
        ]
    finally:
        each.unpersist()


_NONE_FOUND: Final[dict[str, Any]] = {"stored": 0, "found": 0}


class _Gap(NamedTuple):
    """What a producer's range lacks; `kept` of it are in the table."""

    wanted: Sent
    inside: int
    spans: list[list[int]]
    kept: int

    @property
    def missing(self) -> int:
        return max(0, self.wanted.last - self.wanted.first + 1 - self.inside)


def _producer(
    config: DeliveryConfig, name: str, found: dict[str, Any], is_counted: bool, gap: _Gap
) -> dict[str, Any]:
    low, high = gap.wanted
    return {
        "producer": name,
        "sent": high - low + 1 if is_counted else None,
        "first": low,
        "last": high,
        "stored": found["stored"],
        "distinct": found["found"],
        "missing": gap.missing,
        "missing_spans": gap.spans,
        "missing_in_table": gap.kept,
        "duplicates": found["stored"] - found["found"],
        "unexpected": found["found"] - gap.inside,
        "acknowledged": {
            one.shown: found.get(f"acknowledged_{index}", 0)
            for index, one in enumerate(config.groups)
        },
    }


def _gaps(each: Any, wanted: dict[str, Sent], table: Any) -> dict[str, _Gap]:
    """Compare what is stored with the range of each producer."""
    if not wanted:
        return {}
    spark = each.sparkSession
    rows = [(name, low, high) for name, (low, high) in wanted.items()]
    ranges = spark.createDataFrame(rows, "producer string, low bigint, high bigint")
    inside = each.join(ranges.hint("broadcast"), "producer").where("sequence BETWEEN low AND high")
    counts = {row[0]: row[1] for row in inside.groupBy("producer").count().collect()}
    gaps = {name: _Gap(one, counts.get(name, 0), [], 0) for name, one in wanted.items()}
    if not any(gap.missing for gap in gaps.values()):
        return gaps
    edges = ranges.selectExpr("producer", "explode(array(low - 1, high + 1)) AS sequence")
    spans = (
        edges.union(inside.select("producer", "sequence"))
        .selectExpr(
            "producer",
            "sequence + 1 AS begin",
            "lead(sequence) OVER (PARTITION BY producer ORDER BY sequence) - 1 AS end",
        )
        .where("end >= begin")
        .selectExpr("*", "row_number() OVER (PARTITION BY producer ORDER BY begin) AS number")
        .where(f"number <= {SPANS_MAX}")
    )
    for row in spans.orderBy("producer", "begin").collect():
        gaps[row["producer"]].spans.append([row["begin"], row["end"]])
    if table is not None:
        lost = (
            table.distinct()
            .join(ranges.hint("broadcast"), "producer")
            .where("sequence BETWEEN low AND high")
            .join(each.select("producer", "sequence"), ["producer", "sequence"], "left_anti")
        )
        for name, kept in lost.groupBy("producer").count().collect():
            gaps[name] = gaps[name]._replace(kept=kept)
    return gaps


def _repeated(each: Any) -> dict[str, list[int]]:
    """The first sequences of each producer that are stored more than once."""
    numbered = each.where("times > 1").selectExpr(
        "producer",
        "sequence",
        "row_number() OVER (PARTITION BY producer ORDER BY sequence) AS number",
    )
    found: dict[str, list[int]] = {}
    shown = numbered.where(f"number <= {SPANS_MAX}").orderBy("producer", "sequence")
    for row in shown.collect():
        found.setdefault(row["producer"], []).append(row["sequence"])
    return found


# --- table -----------------------------------------------------------------------------------


def _archived(
    config: DeliveryConfig, window: Window, log: Any, spark: Any, stored: dict[int, Side]
) -> tuple[dict[str, Any] | None, Any]:
    """The table's figures within the window, and all of its rows of the topic."""
    if config.table is None:
        return None, None
    name = TableName.parse(config.table)
    part = read_table(spark, name, window)
    whole = read_table(spark, name, None, part.snapshot_id)
    sides = sides_by_offset(part.frame)
    missing: dict[str, Any] = {}
    surplus: dict[str, Any] = {}
    if sides != stored:
        here, there = log.select("partition", "offset"), part.frame.select("partition", "offset")
        missing = spans_by_partition(here.join(there, _PLACE, "left_anti"))
        surplus = spans_by_partition(there.join(here, _PLACE, "left_anti"))
    figures = {
        "table": name.in_spark,
        "snapshot_id": part.snapshot_id,
        "partitions": {str(p): _side(side) for p, side in sorted(sides.items())},
        "missing": missing,
        "surplus": surplus,
    }
    return figures, whole.frame.where(f"topic = {quoted(config.topic)}")


def _side(side: Side) -> dict[str, Any]:
    return {
        "count": side.count,
        "distinct": side.distinct,
        "first": side.first,
        "last": side.last,
        "fingerprint": list(side.fingerprint),
    }


# --- groups ----------------------------------------------------------------------------------


def _letters(config: DeliveryConfig, spark: Any, group: GroupPosition) -> Any:
    """Where the group's dead letters of the topic come from; None if no topic of them is known.

    A redriven letter is a record of its own; the one that was given up stays given up.
    """
    if not group.dead_letters:
        return None
    letters = read_letters(spark, config.connection, group.dead_letters)
    mine = letters.where(
        f"origin_topic = {quoted(config.topic)} AND consumer = {quoted(group.group)}"
    )
    return mine.selectExpr("origin_partition AS partition", "origin_offset AS offset").distinct()


def _letters_known(config: DeliveryConfig, group: GroupPosition) -> bool:
    return bool(group.dead_letters) and _are_complete(config, group.dead_letters)


def _with_outcomes(
    config: DeliveryConfig, records: Any, window: Window, letters: Mapping[str, Any]
) -> Any:
    """What the journals say of each record: `outcome_<n>`, `attempts_<n>`, and `acknowledged_<n>`
    by them."""
    for index, group in enumerate(config.groups):
        if not config.has_journal(group) or config.http is None:
            continue
        journal = GroupJournal(config.connection, config.http, group.group)
        changes = journal.changes(records.sparkSession, config.topic)
        # what a compacted journal does not tell, letters do, if all records were the group's
        is_told = group.from_start and _letters_known(config, group)
        known = letters[group.group] if is_told else None
        found = outcomes.with_outcomes(records, changes, config.topic, window, known)
        flag = f"acknowledged_{index}"
        records = found.selectExpr(
            *(name for name in records.columns if name != flag),
            f"outcome = '{outcomes.ACKNOWLEDGED}' AS {flag}",
            f"outcome AS outcome_{index}",
            f"attempts AS attempts_{index}",
        )
    return records


def _group(
    config: DeliveryConfig,
    group: GroupPosition,
    window: Window,
    records: Any,
    letters: Mapping[str, Any],
) -> dict[str, Any]:
    index = config.groups.index(group)
    flag = f"acknowledged_{index}"
    finished = records.where(flag)
    figures = {
        "group": group.shown,
        "type": group.type,
        "from_start": group.from_start,
        "letters_known": _letters_known(config, group),
        "unknown": [
            str(partition)
            for topic, partition, _ in walk(window.end)
            if offset_of(group.offsets, topic, partition, -1) < 0
        ],
    }
    if config.has_journal(group):
        return figures | _by_journal(records, index)
    mine = letters[group.group]
    dead = None if mine is None else mine.join(records.select(*_PLACE), _PLACE)
    dead_count = 0 if dead is None else dead.count()
    finished_count = finished.count()
    shown = [] if dead is None else dead.orderBy(*_PLACE).limit(10).collect()
    return figures | {
        "finished": finished_count,
        "acknowledged": finished_count - dead_count,
        "dead": dead_count,
        "dead_shown": ", ".join(f"{config.topic}-{row[0]}:{row[1]}" for row in shown),
        "unfinished": spans_by_partition(
            records.where(f"NOT {flag}").select("partition", "offset")
        ),
    }


def _by_journal(records: Any, index: int) -> dict[str, Any]:
    """The figures of a share group whose journal was read."""
    from pyspark.sql.functions import expr

    outcome, attempts = f"outcome_{index}", f"attempts_{index}"
    counted = records.groupBy(outcome).agg(
        expr("count(*) AS records"),
        expr(f"count_if({attempts} > 0) AS delivered"),
        expr(f"count_if({attempts} > 1) AS redelivered"),
    )
    found = {row[outcome]: row for row in counted.collect()}
    counts = {name: found[name]["records"] if name in found else 0 for name in outcomes.ALL}
    return {
        "acknowledged": counts[outcomes.ACKNOWLEDGED],
        "journal": {
            "delivered": sum(row["delivered"] for row in found.values()),
            "redelivered": sum(row["redelivered"] for row in found.values()),
            "records": counts,
            "spans": {
                name: spans_by_partition(records.where(f"{outcome} = '{name}'").select(*_PLACE))
                for name in outcomes.ALL
                if counts[name] and name not in (outcomes.ACKNOWLEDGED, outcomes.FILTERED)
            },
        },
    }


def _are_complete(config: DeliveryConfig, topics: tuple[str, ...]) -> bool:
    """Whether nothing has been deleted from dead letter topics."""
    window = resolve_window(config.connection.cluster, topics, WHOLE_LOG)
    return not any(offset for _topic, _partition, offset in walk(window.start))


def _buckets(config: DeliveryConfig, records: Any) -> list[dict[str, Any]]:
    """Records by time of the record and producer."""
    if config.bucket_ms is None:
        return []
    from pyspark.sql.functions import expr

    width = config.bucket_ms
    flags = [f"acknowledged_{index}" for index in range(len(config.groups))]
    rows = (
        records.selectExpr(
            f"floor(unix_millis(timestamp) / {width}) * {width} AS begin_ms", "producer", *flags
        )
        .groupBy("begin_ms", "producer")
        .agg(expr("count(*) AS stored"), *(expr(f"count_if({flag}) AS {flag}") for flag in flags))
        .orderBy("begin_ms", "producer")
    )
    return [
        {
            "begin_ms": row["begin_ms"],
            "producer": row["producer"],
            "stored": row["stored"],
            "acknowledged": {
                one.shown: row[flag] for one, flag in zip(config.groups, flags, strict=True)
            },
        }
        for row in rows.limit(SPANS_MAX * 10).collect()
    ]
