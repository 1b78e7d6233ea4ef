"""Which topics are to be tables, by the topics' own settings.

Invariants: reads only. Where tables lie is the service's own option: whoever may alter a topic must
not choose where another process writes. A broker without these settings (Apache Kafka) has no such
topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from headrace.pipeline.catalog import APPEND, UPSERT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from headrace.pipeline.cluster import ClusterClient

MODE, VALUE = "headrace.table", "headrace.table.value"
GROUP = "headrace-tables"
"""The consumer group by which services share the topics; it commits no offsets."""


class TableSetting(NamedTuple):
    """What a topic's settings ask for."""

    mode: str
    value: str = "binary"


def setting_of(configuration: Mapping[str, str]) -> TableSetting | None:
    """The setting of a topic; None: it is not a table."""
    mode = configuration.get(MODE)
    if mode not in (APPEND, UPSERT):
        return None
    return TableSetting(mode, configuration.get(VALUE, "binary"))


def tables_of(cluster: ClusterClient) -> dict[str, TableSetting]:
    """The topics that are to be tables. Raises BrokerUnavailable."""
    found = {topic: setting_of(each) for topic, each in cluster.configurations().items()}
    return {topic: setting for topic, setting in sorted(found.items()) if setting is not None}
