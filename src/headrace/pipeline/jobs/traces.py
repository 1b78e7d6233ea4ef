"""Traces as a table: the life of each message, latencies by topic, group and hour, slow outliers.

Invariants: reads only. An event is a fact with a time and a place: a record's timestamp is when it
was stored; what groups did comes from the caller, who asks the brokers. A message is known by its
`headrace-message-id`, or by the SQL `message`, across topics; without one by its first position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from uuid import uuid4

from headrace.pipeline.jobs.headers import number_header, text_header
from headrace.pipeline.jobs.search import MESSAGE_ID
from headrace.pipeline.jobs.transfer import digest_of
from headrace.pipeline.jobs.windows import (
    TOPIC_ID_COLUMN,
    Window,
    id_sql,
    of_ids_sql,
    quoted,
    within_sql,
)
from headrace.pipeline.publishing import replace_rows
from headrace.records.letters import FORMATS, REDRIVES
from headrace.records.tenant_names import CLOSE, OPEN

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from headrace.pipeline.catalog import TableName

EVENT_COLUMNS: Final = (
    "message string, topic string, partition int, offset bigint, event string, at_ms bigint,"
    " group_name string, attempt int"
)
DEFAULT_MESSAGE: Final = text_header(MESSAGE_ID)
OF_RECORDS: Final = ("stored", "redriven", "dead_letter_stored")
"""The events that records themselves tell; all others are from the brokers."""
_DONE_IS: Final = ["topic", "partition", "offset", "event", "at_ms", "group_name", "attempt"]
"""What makes an event of the brokers this one and no other, by whatever name of its message."""
_WRITTEN_TOPIC: Final = rf"regexp_replace(topic, '^{OPEN}([^{CLOSE}]*){CLOSE}', '$1/')"
"""The topic as operators write it."""
PERCENTILES: Final = (0.5, 0.95, 0.99)


@dataclass(frozen=True)
class TraceConfig:
    """`topic` is where messages begin; latencies are counted from there."""

    topic: str
    message: str = DEFAULT_MESSAGE
    outliers: int = 20


def stored_events(records: Any, config: TraceConfig) -> Any:
    """One event for each record of any topic: stored, redriven, or in a dead letter topic."""
    dead = f"{text_header(*(one.topic for one in FORMATS))} IS NOT NULL"
    return records.where("timestamp IS NOT NULL").selectExpr(
        f"coalesce(cast({config.message} AS string),"
        f" concat({_WRITTEN_TOPIC}, '-', partition, ':', offset)) AS message",
        "topic",
        "partition",
        "offset",
        f"""CASE WHEN {dead} THEN 'dead_letter_stored'
            WHEN {number_header(REDRIVES)} > 0 THEN 'redriven' ELSE 'stored' END AS event""",
        "unix_millis(timestamp) AS at_ms",
        "cast(NULL AS string) AS group_name",
        "cast(NULL AS int) AS attempt",
    )


def group_events(spark: Any, traces: Iterable[tuple[str, Mapping[str, Any]]]) -> Any:
    """The brokers' traces, as (message, answer of GET .../trace), without what records say."""
    rows = [
        (
            message,
            event["topic"],
            event["partition"],
            event.get("offset"),
            event["event"],
            event["at_ms"],
            event.get("group"),
            event.get("attempt"),
        )
        for message, answer in traces
        for event in answer["events"]
        if "at_ms" in event and event["event"] not in OF_RECORDS
    ]
    return spark.createDataFrame(rows, EVENT_COLUMNS)


def sampled_positions(records: Any, config: TraceConfig, count: int) -> list[tuple[str, int, int]]:
    """(message, partition, offset) of at most `count` records, the same ones each time."""
    rows = (
        stored_events(records, config)
        .where(f"topic = {quoted(config.topic)}")
        .selectExpr("message", "partition", "offset", "xxhash64(partition, offset) AS place")
        .orderBy("place")
        .limit(count)
    )
    return [(row["message"], row["partition"], row["offset"]) for row in rows.collect()]


def latencies(events: Any, config: TraceConfig) -> Any:
    """Each event after a message was first stored, with `latency_ms` and the hour it began in."""
    from pyspark.sql.functions import expr

    begun = (
        events.where(f"topic = {quoted(config.topic)} AND event = 'stored'")
        .groupBy("message")
        .agg(expr("min(at_ms) AS begun_ms"))
    )
    return (
        events.join(begun, "message")
        .where(f"NOT (topic = {quoted(config.topic)} AND event = 'stored' AND at_ms = begun_ms)")
        .selectExpr(
            "*",
            "at_ms - begun_ms AS latency_ms",
            "floor(begun_ms / 3600000) * 3600000 AS hour_ms",
        )
    )


def summarize(events: Any, config: TraceConfig) -> dict[str, Any]:
    """Percentiles by event, topic, group and hour, and the slowest messages."""
    from pyspark.sql.functions import desc, expr

    found = latencies(events, config).persist()
    try:
        listed = ", ".join(map(str, PERCENTILES))
        rows = (
            found.groupBy("event", "topic", "group_name", "hour_ms")
            .agg(
                expr("count(*) AS count"),
                expr(f"percentile(latency_ms, array({listed})) AS percentiles"),
                expr("max(latency_ms) AS slowest_ms"),
            )
            .orderBy("event", "topic", "group_name", "hour_ms")
            .limit(10_000)
        )
        by_hour = [
            {
                "event": row["event"],
                "topic": row["topic"],
                "group": row["group_name"],
                "hour_ms": row["hour_ms"],
                "count": row["count"],
                **{
                    f"p{round(100 * each)}_ms": value
                    for each, value in zip(PERCENTILES, row["percentiles"], strict=True)
                },
                "slowest_ms": row["slowest_ms"],
            }
            for row in rows.collect()
        ]
        slow = found.orderBy(desc("latency_ms"), "message").limit(config.outliers)
        return {
            "topic": config.topic,
            "latencies": by_hour,
            "slow": [row.asDict() for row in slow.drop("hour_ms").collect()],
        }
    finally:
        found.unpersist()


def store_events(stored: Any, done: Any, table: TableName, *windows: Window, spark: Any) -> None:
    """Put events into a table, each of them once, whatever ranges of their topics it has seen.

    `windows` are what the records were read from, the range that was asked for first: the records'
    events, `stored`, replace those of these ranges. What the brokers say was `done` replaces the
    same events alone, because each run asks for a sample of messages, and brokers forget.
    """
    view = f"headrace_{uuid4().hex}"
    once = done.dropDuplicates(_DONE_IS)
    once.selectExpr(*(f"{name} AS done_{name}" for name in _DONE_IS)).createOrReplaceTempView(view)
    same = " AND ".join(f"done_{name} <=> {name}" for name in _DONE_IS)
    of_records = ", ".join(map(quoted, OF_RECORDS))
    ranges = " OR ".join(f"({of_ids_sql(one)} AND ({within_sql(one)}))" for one in windows)
    again = f"EXISTS (SELECT 1 FROM {view} WHERE {same})"  # noqa: S608 - names of ours
    replaced = f"(event IN ({of_records}) AND ({ranges})) OR {again}"
    run = quoted(digest_of(windows[0].document()))
    rows = stored.unionByName(once).selectExpr("*", f"{run} AS window", id_sql(*windows))
    try:
        replace_rows(
            rows, table, f"{EVENT_COLUMNS}, window string", replaced,
            spark=spark, added=TOPIC_ID_COLUMN,
        )  # fmt: skip
    finally:
        spark.catalog.dropTempView(view)
