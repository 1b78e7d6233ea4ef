"""Which topics are to be tables, by the topics' own settings.

Invariants: reads only. A broker without these settings (Apache Kafka) has no such topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.pipeline.catalog import APPEND, UPSERT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline.cluster import ClusterClient

MODE, VALUE, WAREHOUSE = "headrace.table", "headrace.table.value", "headrace.table.warehouse"
GROUP = "headrace-tables"
"""The consumer group by which services share the topics; it commits no offsets."""


class TableSetting(NamedTuple):
    """What a topic's settings ask for."""

    mode: str
    warehouse: str
    value: str = "binary"


def setting_of(configuration: Mapping[str, str]) -> TableSetting | None:
    """The setting of a topic; None: it is no table."""
    mode, warehouse = configuration.get(MODE), configuration.get(WAREHOUSE)
    if mode not in (APPEND, UPSERT) or not warehouse:
        return None
    return TableSetting(mode, warehouse, configuration.get(VALUE, "binary"))


def tables_of(cluster: ClusterClient) -> dict[str, TableSetting]:
    """The topics that are to be tables. Raises BrokerUnavailable."""
    found = {topic: setting_of(each) for topic, each in cluster.configurations().items()}
    return {topic: setting for topic, setting in sorted(found.items()) if setting is not None}
