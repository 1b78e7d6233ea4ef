"""The demo's streaming job: from a topic of flights to a topic of delays.

Invariants: its only notion of time is the records' own timestamps. Its output is a changelog: each
micro-batch writes the figures of every carrier and hour, and a key's latest record wins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headrace.pipeline.session import JAVA

if TYPE_CHECKING:
    from pathlib import Path

_FLIGHT = "carrier string, dep_delay double"
_DELAY = "carrier string, hour int, flights bigint, departed bigint, delay_sum double"


@dataclass(frozen=True)
class Delay:
    """One carrier in one hour of the day, New York's time."""

    carrier: str
    hour: int
    flights: int
    departed: int
    delay_sum: float

    @property
    def mean_delay(self) -> float | None:
        """Minutes after the scheduled time, or None if nothing departed."""
        return self.delay_sum / self.departed if self.departed else None


def run_delays(
    spark: Any, bootstrap: str, source: str, target: str, checkpoint: Path, batch_records: int
) -> int:
    """Stream the records of `source` into figures in `target`; returns the number of
    micro-batches."""
    from headrace.pipeline.restarts import with_restarts

    figures = _figures(spark, bootstrap, source, batch_records)

    def run() -> int:
        query = (
            figures.writeStream.format("headrace")
            # Spark supports append and complete for a Python sink, not update
            .outputMode("complete")
            .option("bootstrap.servers", bootstrap)
            .option("topic", target)
            .option("checkpointLocation", str(checkpoint))
            .start()
        )
        try:
            query.processAllAvailable()
            return len(query.recentProgress)
        finally:
            if not JAVA.is_ended:
                query.stop()

    return with_restarts(run, f"The stream from {source} to {target}")


def _figures(spark: Any, bootstrap: str, source: str, batch_records: int) -> Any:
    """The streaming frame: a key and a value for every carrier and hour."""
    from pyspark.sql.functions import col, count, expr, from_json, from_utc_timestamp, hour
    from pyspark.sql.functions import sum as total

    stream = (
        spark.readStream.format("headrace")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", source)
        .option("includeHeaders", "false")
        .option("maxOffsetsPerTrigger", str(batch_records))
        .option("pinEnd", "true")
        .load()
    )
    figures = (
        stream.select(
            from_json(col("value").cast("string"), _FLIGHT).alias("flight"),
            hour(from_utc_timestamp("timestamp", "America/New_York")).alias("hour"),
        )
        .groupBy("flight.carrier", "hour")
        .agg(
            count("*").alias("flights"),
            count("flight.dep_delay").alias("departed"),
            total(expr("coalesce(flight.dep_delay, 0)")).alias("delay_sum"),
        )
    )
    return figures.selectExpr(
        "concat_ws('/', carrier, hour) AS key",
        "to_json(struct(carrier, hour, flights, departed, delay_sum)) AS value",
    )


def read_delays(spark: Any, bootstrap: str, topic: str) -> list[Delay]:
    """Return the latest figures of every carrier and hour."""
    from pyspark.sql.functions import col, from_json, max_by

    rows = (
        spark.read.format("headrace")
        .option("bootstrap.servers", bootstrap)
        .option("subscribe", topic)
        .load()
        .groupBy("key")
        .agg(max_by(col("value").cast("string"), "offset").alias("value"))
        .select(from_json("value", _DELAY).alias("delay"))
        .select("delay.*")
        .collect()
    )
    return sorted(
        (Delay(**row.asDict()) for row in rows), key=lambda each: (each.carrier, each.hour)
    )
