"""All metrics of a broker: one row each, from which `/metrics` and the reference page are made.

Invariants: a metric without a row here fails when it is made. Names end in their unit, counters in
`_total` (added when they are shown). What a label can hold is bounded, and the row says by what.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)

from headrace.http.metric_rows import SECTIONS
from headrace.runtime.histogram import Histogram

if TYPE_CHECKING:
    from headrace.runtime.figures import Figures

COUNTER, GAUGE, HISTOGRAM = "counter", "gauge", "histogram"
ROWS: Final = {row.name: row for rows in SECTIONS.values() for row in rows}


def metric_of(figures: Figures) -> Metric:
    """A metric, with the text of its row. Raises KeyError if it has none."""
    row = ROWS[figures.name]
    if row.type == HISTOGRAM:
        made = HistogramMetricFamily(row.name, row.help, labels=row.labels)
        for labels, value in figures.values:
            assert isinstance(value, Histogram), row.name
            made.add_metric(labels, value.cumulative(), value.sum_s)
        return made
    make = CounterMetricFamily if row.type == COUNTER else GaugeMetricFamily
    numbers = make(row.name, row.help, labels=row.labels)
    for labels, value in figures.values:
        assert not isinstance(value, Histogram), row.name
        numbers.add_metric(labels, value)
    return numbers
