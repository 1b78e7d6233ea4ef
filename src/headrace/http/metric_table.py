"""All metrics of a broker: one row each, from which `/metrics` and the reference page are made.

Invariants: a metric without a row here fails when it is made. Names end in their unit, counters in
`_total` (added when they are shown). What a label can hold is bounded, and the row says by what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, TypeAlias

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.samples import Exemplar

from headrace.http.metric_rows import SECTIONS
from headrace.records.tenant_names import written
from headrace.runtime.histogram import Histogram

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet

    from headrace.http.metric_rows import Row
    from headrace.runtime.figures import Figures

_Bucket: TypeAlias = tuple[str, float] | tuple[str, float, Exemplar]
_TOPIC, _GROUP = "topic", "group"
COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
ROWS: Final = {row.name: row for rows in SECTIONS.values() for row in rows}


def metric_of(figures: Figures, *, has_tenants: bool = False) -> Metric:
    """A metric, with the text of its row. Raises KeyError if it has none."""
    named = {_TOPIC, _GROUP} if has_tenants else {_TOPIC}
    row = ROWS[figures.name]
    if row.type == HISTOGRAM:
        made = HistogramMetricFamily(row.name, row.help, labels=row.labels)
        for labels, value in figures.values:
            assert isinstance(value, Histogram), row.name
            made.add_metric(_written(row, labels, named), _with_exemplars(value), value.sum_s)
        return made
    make = CounterMetricFamily if row.type == COUNTER else GaugeMetricFamily
    numbers = make(row.name, row.help, labels=row.labels)
    for labels, value in figures.values:
        assert not isinstance(value, Histogram), row.name
        numbers.add_metric(_written(row, labels, named), value)
    return numbers


def _written(row: Row, labels: Sequence[str], named: AbstractSet[str]) -> Sequence[str]:
    """Labels with names as operators write them: `acme/orders` for that of a tenant."""
    if named.isdisjoint(row.labels):
        return labels
    each = zip(row.labels, labels, strict=True)
    return [written(value) if label in named else value for label, value in each]


def _with_exemplars(durations: Histogram) -> list[_Bucket]:
    """Its buckets, each with the trace of one request in it, which OpenMetrics shows."""
    buckets: list[_Bucket] = []
    for number, (bound, total) in enumerate(durations.cumulative()):
        traced = durations.exemplars.get(number)
        if traced is None:
            buckets.append((bound, total))
        else:
            buckets.append((bound, total, Exemplar({"trace_id": traced[0]}, traced[1])))
    return buckets
