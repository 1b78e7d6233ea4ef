"""How far the tables of topics are: what brokers and tables themselves say, without Spark.

Invariants: reads only. A table that cannot be read is a line with its problem.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.errors import HeadraceError
from headrace.pipeline.catalog import (
    COMPLETE_PROPERTY,
    OFFSETS_PROPERTY,
    load_table_or_none,
    open_catalog,
    read_progress,
    table_of_topic,
)
from headrace.pipeline.cluster import ClusterClient
from headrace.pipeline.jobs.table_settings import TableSetting, tables_of
from headrace.pipeline.planning import build, offset_of, total, walk
from headrace.pipeline.warehouse import Place, Warehouse

if TYPE_CHECKING:
    from collections.abc import Sequence


class TableStatus(NamedTuple):
    """One topic's table. `pending` counts offsets that are not in it; None: not known. `lag_s` is
    how long the first record of the last commit had waited for it at most; None: it was there
    before the service."""

    topic: str
    mode: str
    value: str
    table: str
    pending: int | None = None
    committed_at: str | None = None
    problem: str | None = None
    lag_s: float | None = None


def status_of(client: dict[str, str], warehouse: Place, topics: Sequence[str]) -> list[TableStatus]:
    """The tables of these topics, or of all that are enabled.

    Raises BrokerUnavailable, OptionInvalid.
    """
    cluster, place = ClusterClient(client), Warehouse.at(warehouse)
    enabled = tables_of(cluster)
    found = []
    for topic in topics or list(enabled):
        if topic not in enabled:
            found.append(TableStatus(topic, "none", "", ""))
            continue
        setting = enabled[topic]
        try:
            found.append(_status(cluster, place, topic, setting))
        except HeadraceError as error:
            found.append(TableStatus(topic, *setting, "", problem=str(error)))
    return found


def _status(
    cluster: ClusterClient, place: Warehouse, topic: str, setting: TableSetting
) -> TableStatus:
    name = table_of_topic(place, topic)
    present = load_table_or_none(open_catalog(place), name) if place.is_there else None
    partitions = cluster.partitions_of((topic,), None)
    first, end = cluster.earliest(partitions), cluster.latest(partitions)
    if present is None:
        pending = total(first, end)
        return TableStatus(topic, *setting, name.in_spark, pending, None, "no table yet")
    progress = read_progress(present)
    reached = build(
        [(t, p, max(low, offset_of(progress.offsets, t, p, low))) for t, p, low in walk(first)]
    )
    snapshot = present.current_snapshot()
    committed_at = (
        None
        if snapshot is None
        else datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC).isoformat(timespec="seconds")
    )
    pending = total(reached, end)
    return TableStatus(topic, *setting, name.in_spark, pending, committed_at, None, _lag_s(present))


def _lag_s(table: Any) -> float | None:
    """Of the last round: maintenance makes snapshots, too."""
    each = table.current_snapshot()
    while each is not None:
        summary = {} if each.summary is None else each.summary.additional_properties
        if COMPLETE_PROPERTY in summary:
            waited_ms: int = each.timestamp_ms - int(summary[COMPLETE_PROPERTY])
            return waited_ms / 1000
        if OFFSETS_PROPERTY in summary or each.parent_snapshot_id is None:
            return None
        each = table.metadata.snapshot_by_id(each.parent_snapshot_id)
    return None
