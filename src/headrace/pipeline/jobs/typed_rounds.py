"""A round of typed values: rows for the table, and what cannot be decoded for its side table.

Invariants: the topic is read once in a round, and kept until it is committed, so that each record
is decided on once, whatever is registered meanwhile. The side table is committed first. A round
that is repeated decides again, perhaps by another version of the schema: what it finds undecodable
is added unless the side table holds that very record, so nothing is there twice, or nowhere.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.pipeline.catalog import load_table_or_none, read_progress, recorded_topic_ids
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.layout import ensure_side_table, fitted, side_table
from headrace.pipeline.planning import Offsets, offset_of, walk
from headrace.pipeline.position import recreated, recreated_topics
from headrace.pipeline.publishing import Publisher
from headrace.pipeline.typed.options import parse_typed
from headrace.pipeline.typed.values import as_options
from headrace.schemas.registry import LATEST, latest_version

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from headrace.pipeline.catalog import TableName
    from headrace.pipeline.warehouse import Warehouse

_LEFT_OUT = "undecodable"
_PLACE = ("topic", "partition", "offset")


def pinned_values(values: Mapping[str, str], topics: tuple[str, ...]) -> dict[str, str]:
    """The options of typed values with the version of the schema that is the latest now, so that
    the driver and all workers use the same. Raises OptionInvalid, RegistryUnavailable."""
    typed = parse_typed({name.lower(): value for name, value in values.items()})
    if typed is None or typed.registry is None or typed.version != LATEST:
        return dict(values)
    if len(topics) != 1:
        raise OptionInvalid("A table of typed values is of one topic: name a table for each.")
    subject = typed.subject or f"{topics[0]}-value"
    with as_options():
        return {**values, "valueSchemaVersion": latest_version(typed.registry, subject)}


class TypedRounds:
    """The rounds of one table."""

    def __init__(self, spark: Any, table: TableName, catalog: Any, place: Warehouse) -> None:
        self._spark = spark
        self._table = table
        self._catalog = catalog
        self._place = place

    @contextmanager
    def split(
        self, frame: Any, start: Offsets, end: Offsets, properties: Mapping[str, str]
    ) -> Iterator[Any]:
        """Commit what cannot be decoded, and yield the other rows as the table takes them.

        Raises TableUnusable if the table cannot hold the schema, TableMoved, TopicRecreated if the
        side table is of an earlier topic of that name.
        """
        from pyspark import StorageLevel

        # A checkpoint, not a cache: what is lost of it is not read again, the round fails.
        kept = frame.localCheckpoint(eager=True, storageLevel=StorageLevel.DISK_ONLY)
        try:
            self._keep_undecodable(kept, start, end, properties)
            rows = kept.where(f"{_LEFT_OUT} IS NULL").drop(_LEFT_OUT)
            yield fitted(self._spark, self._table, rows)
        finally:
            kept._jdf.queryExecution().logical().rdd().unpersist(False)  # noqa: SLF001 - no other way

    def _keep_undecodable(
        self, kept: Any, start: Offsets, end: Offsets, properties: Mapping[str, str]
    ) -> None:
        rows = kept.where(f"{_LEFT_OUT} IS NOT NULL")
        if rows.isEmpty():
            return
        side = side_table(self._table)
        present = load_table_or_none(self._catalog, side)
        progress = None if present is None else read_progress(present)
        reached = {} if progress is None else progress.offsets
        if progress is not None:
            ids = recorded_topic_ids(properties)
            for topic in recreated_topics(progress.topic_ids, ids):
                raise recreated(
                    topic,
                    progress.topic_ids,
                    ids,
                    f"{side.in_spark} holds records of the old topic, whose places are those of"
                    " new ones. Nothing was written: rename or drop that table, too, or archive"
                    " into a new one.",
                )
        if any(offset_of(reached, t, p, 0) > offset for t, p, offset in walk(start)):
            held = self._spark.table(side.in_spark).where(_from(start))
            rows = rows.join(held.select(*_PLACE), list(_PLACE), "left_anti")
            if rows.isEmpty():
                return
        ensure_side_table(self._spark, self._catalog, self._place, self._table)
        rows = rows.withColumns({"reason": rows[_LEFT_OUT].reason, "value": rows[_LEFT_OUT].value})
        Publisher(self._spark, side, self._catalog).commit(
            rows.drop(_LEFT_OUT),
            start,
            end,
            since_snapshot_id=None if progress is None else progress.snapshot_id,
            properties=properties,
        )


def _from(start: Offsets) -> str:
    """A predicate on the rows that a round from `start` can hold."""
    return " OR ".join(
        f"(topic = '{topic}' AND partition = {partition} AND offset >= {offset})"
        for topic, partition, offset in walk(start)
    )
