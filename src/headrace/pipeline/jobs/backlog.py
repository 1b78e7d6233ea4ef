"""Backlog: lag over time, arrival and drain rates, hot keys, a forecast and advice.

Invariants: reads only, except `store_samples`. Arrivals come from the records' own timestamps, so
their history reaches back as far as the log; progress is known only from samples of a group's
offsets, so rates of a group need two of them. `forecast` and `advise` are pure.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from headrace.pipeline.catalog import TableName
from headrace.pipeline.jobs.windows import (
    TOPIC_ID_COLUMN,
    WHOLE_LOG,
    Bounds,
    Connection,
    Window,
    quoted,
    read_window,
    resolve_window,
)
from headrace.pipeline.planning import Offsets, build, larger, offset_of, walk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from headrace.pipeline.cluster import ClusterClient

BUCKETS_MAX: Final = 10_000
_HOT_SHARE: Final = 0.5
_SKEW_SHARE: Final = 0.67
SAMPLE_COLUMNS: Final = (
    "at timestamp, group_name string, topic string, partition int, committed bigint, end bigint,"
    f" {TOPIC_ID_COLUMN}"
)


class Sample(NamedTuple):
    """A group's committed offsets and the log's ends at one moment; and where the log began then,
    which samples of a table do not say."""

    at_ms: int
    committed: Offsets
    ends: Offsets
    starts: Offsets = {}  # noqa: RUF012 - never changed

    def lag(self, topic: str) -> int:
        """Records between, of one topic: those that retention has deleted are none."""
        reached = larger(self.committed, self.starts)
        return sum(
            max(0, end - offset_of(reached, topic, partition, 0))
            for name, partition, end in walk(self.ends)
            if name == topic
        )


class Forecast(NamedTuple):
    """When a backlog is empty: `empty_at_ms`, or None and why not."""

    arrival_per_s: float | None
    drain_per_s: float | None
    empty_at_ms: int | None
    verdict: str


@dataclass(frozen=True)
class BacklogConfig:
    """Which group's backlog. `samples` are in order of time; the last one is now."""

    connection: Connection
    topic: str
    group: str
    samples: tuple[Sample, ...]
    history_ms: int = 24 * 3_600_000
    bucket_ms: int = 60_000
    hot_keys: int = 10


def forecast(topic: str, samples: Sequence[Sample]) -> Forecast:
    """Extrapolate the rates between the first and the last sample."""
    last = samples[-1]
    lag = last.lag(topic)
    if lag == 0:
        return Forecast(*_rates(topic, samples), last.at_ms, "empty now")
    arrival, drain = _rates(topic, samples)
    if arrival is None or drain is None:
        return Forecast(None, None, None, "unknown: one sample has no rate; sample again later")
    if drain <= arrival:
        return Forecast(arrival, drain, None, "never at this rate")
    left_ms = int(lag / (drain - arrival) * 1000)
    return Forecast(arrival, drain, last.at_ms + left_ms, "empty")


def _rates(topic: str, samples: Sequence[Sample]) -> tuple[float | None, float | None]:
    """(arrival, drain) in offsets a second; None with fewer than two samples."""
    first, last = samples[0], samples[-1]
    elapsed_s = (last.at_ms - first.at_ms) / 1000
    if elapsed_s <= 0:
        return None, None
    arrived = drained = 0
    for name, partition, end in walk(last.ends):
        if name == topic:
            arrived += end - offset_of(first.ends, topic, partition, 0)
            now = offset_of(last.committed, topic, partition, 0)
            # What a first commit skipped was not processed.
            drained += now - offset_of(first.committed, topic, partition, now)
    return arrived / elapsed_s, drained / elapsed_s


def run_backlog(config: BacklogConfig, *, spark: Any) -> dict[str, Any]:
    """Look at the backlog now. Raises OptionInvalid if the topic does not exist."""
    cluster = config.connection.cluster
    now = config.samples[-1]
    whole = resolve_window(cluster, (config.topic,), WHOLE_LOG)
    starts = [
        (t, p, min(max(low, offset_of(now.committed, t, p, low)), offset_of(now.ends, t, p, low)))
        for t, p, low in walk(whole.start)
    ]
    ends = [(t, p, offset_of(now.ends, t, p, low)) for t, p, low in walk(whole.start)]
    unread = Window(build(starts), build(ends), whole.topic_ids)
    since = Bounds(since_ms=now.at_ms - config.history_ms)
    recent = resolve_window(cluster, (config.topic,), since)
    backlog = read_window(spark, config.connection, unread, includeHeaders="false")
    keys = hot_keys(backlog, config.hot_keys) if unread.size else []
    oldest = _oldest(backlog) if unread.size else {}
    retention_ms, unknown = retention_of(cluster, config.topic)
    found = forecast(config.topic, config.samples)
    partitions = [
        {
            "partition": partition,
            "committed": offset_of(now.committed, config.topic, partition, -1),
            "end": end,
            "lag": end - offset_of(unread.start, config.topic, partition, 0),
            "oldest_ms": oldest.get(partition),
        }
        for _, partition, end in walk(unread.end)
    ]
    return {
        "group": config.group,
        "topic": config.topic,
        "at_ms": now.at_ms,
        "lag": unread.size,
        "partitions": partitions,
        "samples": [[one.at_ms, one.lag(config.topic)] for one in config.samples],
        "arrivals": arrivals(
            read_window(spark, config.connection, recent, includeHeaders="false"), config.bucket_ms
        ),
        "bucket_ms": config.bucket_ms,
        "hot_keys": keys,
        "forecast": found._asdict(),
        "advice": [
            *advise(unread.size, found, partitions, keys, retention_ms, now.at_ms),
            *(unknown if unread.size else []),
        ],
    }


def retention_of(cluster: ClusterClient, topic: str) -> tuple[int, list[str]]:
    """The topic's retention in ms, or -1 and why it is not known."""
    from confluent_kafka import KafkaException

    try:
        return int(cluster.configuration(topic).get("retention.ms", "-1")), []
    except KafkaException as error:
        reason = str(error.args[0].str()).rstrip(".")
        if "acl add" not in reason:  # Headrace's brokers say it themselves
            reason += f". {cluster.allowing('describe_configs', topic)}"
        return -1, [f"When retention deletes unread records is not known: {reason}"]


def arrivals(records: Any, bucket_ms: int) -> list[list[int]]:
    """[begin in ms, records, bytes of values] by time of the record; the last `BUCKETS_MAX`."""
    from pyspark.sql.functions import desc, expr

    begin = f"floor(unix_millis(timestamp) / {bucket_ms}) * {bucket_ms} AS begin_ms"
    rows = (
        records.where("timestamp IS NOT NULL")
        .selectExpr(begin, "coalesce(octet_length(value), 0) AS size")
        .groupBy("begin_ms")
        .agg(expr("count(*) AS count"), expr("sum(size) AS size"))
        .orderBy(desc("begin_ms"))
        .limit(BUCKETS_MAX)
    )
    return [[row["begin_ms"], row["count"], row["size"]] for row in rows.collect()][::-1]


def hot_keys(backlog: Any, count: int) -> list[dict[str, Any]]:
    """The keys with the most unread records."""
    from pyspark.sql.functions import desc, expr

    counted = backlog.groupBy("key").agg(expr("count(*) AS records"))
    rows = counted.selectExpr("key", "records", "sum(records) OVER () AS total")
    return [
        {
            "key": None
            if row["key"] is None
            else bytes(row["key"]).decode("utf-8", "backslashreplace")[:200],
            "records": row["records"],
            "share": row["records"] / row["total"],
        }
        for row in rows.orderBy(desc("records"), "key").limit(count).collect()
    ]


def _oldest(backlog: Any) -> dict[int, int]:
    from pyspark.sql.functions import expr

    oldest = expr("unix_millis(min_by(timestamp, offset)) AS at")
    rows = backlog.groupBy("partition").agg(oldest).collect()
    return {row["partition"]: row["at"] for row in rows if row["at"] is not None}


def advise(
    lag: int,
    found: Forecast,
    partitions: list[dict[str, Any]],
    keys: list[dict[str, Any]],
    retention_ms: int,
    now_ms: int,
) -> list[str]:
    """What follows from the figures; empty if nothing does."""
    advice: list[str] = []
    if not lag:
        return advice
    if found.drain_per_s is not None and found.arrival_per_s is not None:
        advice += _rate_advice(found.arrival_per_s, found.drain_per_s, partitions)
    if keys and keys[0]["key"] is not None and keys[0]["share"] > _HOT_SHARE:
        advice.append(
            f"The key {keys[0]['key']!r} has {keys[0]['share']:.0%} of the backlog. In order of"
            " keys one consumer has to process it: more consumers do not help. Park it (headrace"
            " backlog park) or split the key."
        )
    largest = max(partitions, key=lambda one: int(one["lag"]))
    if len(partitions) > 2 and largest["lag"] > _SKEW_SHARE * lag:
        advice.append(
            f"Partition {largest['partition']} has {largest['lag'] / lag:.0%} of the backlog: see"
            " whether its consumer is stuck, and how keys are spread."
        )
    oldest = min(
        (one["oldest_ms"] for one in partitions if one["oldest_ms"] is not None), default=None
    )
    if retention_ms > 0 and oldest is not None:
        expires_ms = oldest + retention_ms
        if found.empty_at_ms is None or found.empty_at_ms > expires_ms:
            left_s = max(0, expires_ms - now_ms) // 1000
            advice.append(
                f"Retention starts to delete unread records in {_lasting(left_s)}. Raise"
                " retention.ms, or archive the topic."
            )
    return advice


def _lasting(seconds: int) -> str:
    """In the largest unit of which there are two at least."""
    units = ((86_400, "days"), (3_600, "hours"), (60, "minutes"))
    size, unit = next((one for one in units if seconds >= 2 * one[0]), (1, "s"))
    return f"{seconds // size:,} {unit}"


def _rate_advice(arrival: float, drain: float, partitions: list[dict[str, Any]]) -> list[str]:
    if drain == 0:
        stuck = next((one for one in partitions if one["lag"]), partitions[0])
        place = f"{stuck['partition']}:{max(0, stuck['committed'])}"
        return [
            "The group does not advance: see whether its consumers run (headrace group describe),"
            f" and whether they fail on the record at {place} (headrace trace)."
        ]
    if drain > arrival:
        return []
    times = arrival / drain
    return [
        f"{arrival:,.1f} records arrive and {drain:,.1f} are processed a second: the group needs"
        f" more than {times:.1f} times its consumers. {len(partitions)} partitions allow at most"
        f" {len(partitions)} consumers of a consumer group; a share group has no such limit."
    ]


def store_samples(config: BacklogConfig, table: str, *, spark: Any) -> None:
    """Append the samples of this run to a table."""
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {TableName.parse(table).namespace_in_spark}")
    spark.sql(f"CREATE TABLE IF NOT EXISTS {table} ({SAMPLE_COLUMNS}) USING iceberg")
    if "topic_id" not in spark.table(table).columns:  # an earlier version made it
        spark.sql(f"ALTER TABLE {table} ADD COLUMNS ({TOPIC_ID_COLUMN})")
    topic_id = config.connection.cluster.topic_id_or_none(config.topic)
    rows = [
        (one.at_ms, config.group, t, p, offset_of(one.committed, t, p, -1), end, topic_id)
        for one in config.samples
        for t, p, end in walk(one.ends)
    ]
    columns = SAMPLE_COLUMNS.replace("at timestamp", "at_ms bigint")
    frame = spark.createDataFrame(rows, columns)
    frame.selectExpr("timestamp_millis(at_ms) AS at", "* EXCEPT (at_ms)").writeTo(table).append()


def stored_samples(
    spark: Any, table: str, group: str, topic: str, since_ms: int, topic_id: str | None = None
) -> tuple[Sample, ...]:
    """The samples of earlier runs, in order of time; none if there is no table. With `topic_id`,
    none of a former topic of this name."""
    if not spark.catalog.tableExists(table):
        return ()
    from pyspark.sql.functions import desc, expr

    place = "struct(partition, committed, end)"
    held = spark.table(table)
    if topic_id is not None and "topic_id" in held.columns:
        held = held.where(f"coalesce(topic_id, {quoted(topic_id)}) = {quoted(topic_id)}")
    rows = (
        held.where(f"group_name = {quoted(group)} AND topic = {quoted(topic)}")
        .where(f"at >= timestamp_millis({since_ms})")
        .groupBy("at")
        .agg(expr(f"collect_list({place}) AS places"))
        .selectExpr("unix_millis(at) AS at_ms", "places")
        .orderBy(desc("at_ms"))
        .limit(BUCKETS_MAX)
    )
    found = []
    for row in reversed(rows.collect()):
        ends = {str(one["partition"]): one["end"] for one in row["places"]}
        committed = {
            str(one["partition"]): one["committed"]
            for one in row["places"]
            if one["committed"] >= 0
        }
        found.append(Sample(row["at_ms"], {topic: committed}, {topic: ends}))
    return tuple(found)
