"""The reference page of metrics, generated from their table.

python -m headrace.cli.metrics_reference > docs/reference/metrics.md
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from headrace.http.metric_rows import SECTIONS
from headrace.http.metric_table import COUNTER, HISTOGRAM
from headrace.runtime.histogram import BOUNDS_NS

if TYPE_CHECKING:
    from headrace.http.metric_rows import Row

_HEAD = f"""\
# Metrics

Generated from `headrace.http.metric_rows`; do not edit.

`/metrics` shows the figures of one broker in Prometheus' text format, and in OpenMetrics to
clients that accept it. It is served at the HTTP address and at `--admin-address`
([CONFIGURATION](../CONFIGURATION.md#open-health-and-metrics-to-the-network)). Counters begin at 0
when a broker starts. A scrape loads no data and waits for none: what is not in memory has no
series. The last column says what limits the number of series. Histograms have buckets from
{BOUNDS_NS[0] // 1000} microseconds to {BOUNDS_NS[-1] // 10**9} seconds, and `_bucket`, `_sum` and
`_count` as usual.
"""


def page() -> str:
    """The page, as Markdown."""
    lines = [_HEAD]
    for title, rows in SECTIONS.items():
        lines += [f"## {title}", "", "| metric | type | labels | meaning | series |"]
        lines += ["|---|---|---|---|---|", *map(_line, rows), ""]
    return "\n".join(lines).rstrip() + "\n"


def shown_names(row: Row) -> list[str]:
    """The names of its series."""
    if row.type == HISTOGRAM:
        return [f"{row.name}_{part}" for part in ("bucket", "sum", "count")]
    return [f"{row.name}_total" if row.type == COUNTER else row.name]


def _line(row: Row) -> str:
    name = row.name if row.type == HISTOGRAM else shown_names(row)[0]
    labels = ", ".join(f"`{label}`" for label in row.labels)
    return f"| `{name}` | {row.type} | {labels} | {row.help} | {row.bound or 'one'} |"


if __name__ == "__main__":
    print(page(), end="")
