"""What a job reads: a cluster, and pinned ranges of a topic or a table in it.

Invariants: a job resolves times to offsets once, and works on offsets only, so that a repeated run
with the same window sees the same records. Plain functions over DataFrames; nothing here writes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.pipeline.catalog import ADDED_COLUMNS, TableName
from headrace.pipeline.cluster import ClusterClient, resolve_end, resolve_start
from headrace.pipeline.errors import TopicRecreated
from headrace.pipeline.jobs.coverage import read_pinned_table
from headrace.pipeline.options import offsets_to_json, parse_source
from headrace.pipeline.planning import Offsets, build, offset_of, total, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline.position import TopicIds

COLUMNS = (
    "topic",
    "partition",
    "offset",
    "timestamp",
    "timestampType",
    "key",
    "value",
    "headers",
    "raw",
)
"""The columns that a topic and its table have in common."""
TOPIC_ID_COLUMN = "topic_id string"
"""Of tables of results, which may hold those of a topic that was deleted and recreated since."""


@dataclass(frozen=True)
class Connection:
    """Addresses of brokers, the client's settings (librdkafka's names), and more options of the
    data source for what is read, such as `objects` and `http`."""

    bootstrap: str
    client: dict[str, str] = field(default_factory=dict)
    reads: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> dict[str, str]:
        """All of a client's settings."""
        return {**self.client, "bootstrap.servers": self.bootstrap}

    @property
    def cluster(self) -> ClusterClient:
        """A client for planning."""
        return ClusterClient(self.settings)

    @property
    def options(self) -> dict[str, str]:
        """The options of the data source and of the sink."""
        return {
            "bootstrap.servers": self.bootstrap,
            **{f"kafka.{name}": value for name, value in self.client.items()},
        }


@dataclass(frozen=True)
class Bounds:
    """What a user asks for: times in milliseconds, or offsets as JSON; None: the whole log."""

    since_ms: int | None = None
    until_ms: int | None = None
    from_offsets: str | None = None
    to_offsets: str | None = None


WHOLE_LOG = Bounds()


class Window(NamedTuple):
    """[start, end) of each partition, and the ids of the topics that have these offsets."""

    start: Offsets
    end: Offsets
    topic_ids: dict[str, str]

    @property
    def size(self) -> int:
        """The number of offsets: logs with holes hold fewer records."""
        return total(self.start, self.end)

    def not_reversed(self) -> Window:
        """The window, empty where it begins after its end."""
        ends = [(t, p, max(o, offset_of(self.start, t, p, 0))) for t, p, o in walk(self.end)]
        return self._replace(end=build(ends))

    def document(self) -> dict[str, dict[str, list[int]]]:
        """{topic: {partition: [start, end]}}."""
        found: dict[str, dict[str, list[int]]] = {}
        for topic, partition, end in walk(self.end):
            pair = [offset_of(self.start, topic, partition, 0), end]
            found.setdefault(topic, {})[str(partition)] = pair
        return found

    @classmethod
    def parse(
        cls, document: Mapping[str, Mapping[str, list[int]]], topic_ids: Mapping[str, str]
    ) -> Window:
        """The inverse of `document`."""
        pairs = [(t, int(p), pair) for t, each in document.items() for p, pair in each.items()]
        return cls(
            build([(t, p, pair[0]) for t, p, pair in pairs]),
            build([(t, p, pair[1]) for t, p, pair in pairs]),
            dict(topic_ids),
        )


def resolve_window(cluster: ClusterClient, topics: tuple[str, ...], bounds: Bounds) -> Window:
    """Look up the offsets of a window. Raises OptionInvalid, BrokerUnavailable.

    A time means the first offset with at least that timestamp, in each partition. Records out of
    time order belong to the window in which their offset lies. A window that begins after its end
    is empty.
    """
    return limits(cluster, topics, bounds).not_reversed()


def limits(cluster: ClusterClient, topics: tuple[str, ...], bounds: Bounds) -> Window:
    """Where a window starts and ends in the log, the end perhaps before the start."""
    raw = {"subscribe": ",".join(topics), "bootstrap.servers": "-"}
    if bounds.since_ms is not None:
        raw["startingTimestamp"] = str(max(0, bounds.since_ms))
    if bounds.until_ms is not None:
        raw["endingTimestamp"] = str(max(0, bounds.until_ms))
    if bounds.from_offsets is not None:
        raw["startingOffsets"] = bounds.from_offsets
    if bounds.to_offsets is not None:
        raw["endingOffsets"] = bounds.to_offsets
    options = parse_source(raw)
    found = cluster.subscription_of(topics, None)
    start = resolve_start(cluster, options, found.partitions)
    end = resolve_end(cluster, options, found.partitions)
    return Window(start, end, dict(found.topic_ids))


def read_window(
    spark: Any, connection: Connection, window: Window, source: str = "headrace", **options: Any
) -> Any:
    """The records of a window. Raises TopicRecreated when it is read, if a topic's id differs."""
    reader = spark.read.format(source).options(**connection.options, **connection.reads)
    return (
        reader.option("subscribe", ",".join(sorted(window.end)))
        .option("startingOffsets", offsets_to_json(window.start))
        .option("endingOffsets", offsets_to_json(window.end))
        .option("topicIds", json.dumps(window.topic_ids))
        .options(**options)
        .load()
    )


class TablePart(NamedTuple):
    """The rows of a window in a table, the snapshot that they were read from, and the ids of the
    topics that the table holds, and up to where, as far as its archive recorded them."""

    frame: Any
    snapshot_id: int | None
    topic_ids: TopicIds
    archived_to: Offsets


def read_table(
    spark: Any, table: TableName, window: Window | None = None, snapshot_id: int | None = None
) -> TablePart:
    """Read a table at one snapshot (default: the current one), with the columns of a topic.

    Columns that an earlier version did not archive are null. Raises TopicRecreated if the table
    holds another topic's records under a name in the window.
    """
    name = table.in_spark
    pinned = read_pinned_table(spark, table)
    frame = pinned.frame
    if snapshot_id is None:
        main = spark.table(f"{name}.refs").where("name = 'main'").first()
        snapshot_id = None if main is None else int(main["snapshot_id"])
    if snapshot_id is not None:
        frame = spark.read.option("versionAsOf", snapshot_id).table(name)
    for column in set(COLUMNS) & set(ADDED_COLUMNS) - set(frame.columns):
        frame = frame.selectExpr("*", f"CAST(NULL AS {ADDED_COLUMNS[column]}) AS {column}")
    if window is not None:
        for topic, topic_id in window.topic_ids.items():
            recorded = pinned.topic_ids.get(topic, topic_id)
            if recorded != topic_id:
                raise TopicRecreated(
                    f"{name} holds the records of {topic} with id {recorded}, but the topic's id"
                    f" is {topic_id} now: it was deleted and recreated, and offsets started again."
                    " Nothing was compared or written. Use the table of the new topic.",
                    topic=topic,
                )
        frame = frame.where(within_sql(window))
    return TablePart(frame.select(*COLUMNS), snapshot_id, pinned.topic_ids, pinned.archived_to)


def within_sql(window: Window) -> str:
    """The condition that a row's position lies in the window."""
    parts = [
        f"(topic = {quoted(topic)} AND partition = {partition} AND offset >="
        f" {offset_of(window.start, topic, partition, 0)} AND offset < {end})"
        for topic, partition, end in walk(window.end)
    ]
    return " OR ".join(parts) or "false"


def id_sql(*windows: Window) -> str:
    """The id of a row's topic, as `topic_id`; NULL of topics that are in none of the windows."""
    ids = {topic: one for window in windows for topic, one in window.topic_ids.items()}
    cases = "".join(f" WHEN {quoted(topic)} THEN {quoted(one)}" for topic, one in ids.items())
    return f"cast(CASE topic{cases or ' WHEN NULL THEN NULL'} END AS string) AS topic_id"


def of_ids_sql(window: Window) -> str:
    """The condition that a row of a table of results is of these topics, not of former ones of
    their names. Rows of a version that stored no ids count as theirs."""
    ids = ", ".join(map(quoted, window.topic_ids.values())) or "NULL"
    return f"(topic_id IS NULL OR topic_id IN ({ids}))"


def quoted(text: str) -> str:
    """A string literal of Spark SQL."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
