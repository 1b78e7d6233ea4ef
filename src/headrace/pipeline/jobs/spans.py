"""Ranges of consecutive offsets, of places that are listed one by one."""

from __future__ import annotations

from typing import Any, Final

SPANS_MAX: Final = 1_000
"""Ranges listed by producer or partition; counts are always exact."""


def spans_by_partition(places: Any) -> dict[str, list[list[int]]]:
    """The ranges (inclusive) of consecutive offsets, by partition; `SPANS_MAX` in all."""
    from pyspark.sql.functions import expr

    islands = places.distinct().selectExpr(
        "partition",
        "offset",
        "offset - row_number() OVER (PARTITION BY partition ORDER BY offset) AS island",
    )
    rows = (
        islands.groupBy("partition", "island")
        .agg(expr("min(offset) AS low"), expr("max(offset) AS high"))
        .orderBy("partition", "low")
        .limit(SPANS_MAX)
    )
    found: dict[str, list[list[int]]] = {}
    for row in rows.collect():
        found.setdefault(str(row["partition"]), []).append([row["low"], row["high"]])
    return found
