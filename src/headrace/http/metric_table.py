"""All metrics of a broker: one row each, from which `/metrics` and the reference page are made.

Invariants: a metric without a row here fails when it is made. Names end in their unit, counters in
`_total` (added when they are shown). What a label can hold is bounded, and the row says by what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from headrace.http.metric_rows import SECTIONS

if TYPE_CHECKING:
    from headrace.runtime.histogram import Histogram

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
ROWS: Final = {row.name: row for rows in SECTIONS.values() for row in rows}

Family = CounterMetricFamily | GaugeMetricFamily


class Buckets(NamedTuple):
    """A histogram with the values of its labels."""

    labels: tuple[str, ...]
    histogram: Histogram


def family(name: str) -> Family:
    """An empty counter or gauge with labels."""
    row = ROWS[name]
    make = CounterMetricFamily if row.type == COUNTER else GaugeMetricFamily
    return make(row.name, row.help, labels=row.labels)


def figure(name: str, value: float) -> Metric:
    """A counter or gauge without labels."""
    row = ROWS[name]
    make = CounterMetricFamily if row.type == COUNTER else GaugeMetricFamily
    return make(row.name, row.help, value=value)


def histogram(name: str, *found: Buckets) -> Metric:
    """A histogram, with one set of buckets for each set of labels."""
    row = ROWS[name]
    assert row.type == HISTOGRAM
    made = HistogramMetricFamily(row.name, row.help, labels=row.labels)
    for labels, buckets in found:
        made.add_metric(labels, buckets.cumulative(), buckets.sum_s)
    return made
