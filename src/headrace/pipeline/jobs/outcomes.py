"""What became of each record in a share group, by the group's journal.

Invariants: reads only. A record that was acknowledged once stays acknowledged, whatever came later;
otherwise its last outcome counts. What a compacted journal does not tell is `unknown`, never
guessed; dead letters tell some of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.journal_source import JOURNAL_FORMAT

if TYPE_CHECKING:
    from headrace.pipeline.jobs.windows import Connection, Window

ACKNOWLEDGED: Final = "acknowledged"
FILTERED: Final = "filtered"
"""Excluded by the group's own filter: finished without a delivery."""
DEAD: Final = "dead"
"""Given up, expired, or finished without an acknowledgement."""
FAILED: Final = "failed"
"""Delivered, and not finished."""
SKIPPED: Final = "skipped"
"""The group's start was moved past it."""
BEFORE: Final = "before"
"""Stored before the group's first start."""
UNDELIVERED: Final = "undelivered"
"""No outcome of a delivery is known; one may be in progress."""
UNKNOWN: Final = "unknown"
"""Finished; the journal was compacted since and does not tell how."""
ALL: Final = (ACKNOWLEDGED, FILTERED, DEAD, FAILED, SKIPPED, BEFORE, UNDELIVERED, UNKNOWN)
_OUTCOMES: Final = (
    "'acknowledged', 'filtered', 'delivery_failed', 'given_up', 'archived', 'finished'"
)
_PLACE: Final = ["partition", "offset"]


@dataclass(frozen=True)
class GroupJournal:
    """Where the journals of a share group are read: a broker's HTTP interface."""

    connection: Connection
    http: str
    group: str

    def changes(self, spark: Any, topic: str) -> Any:
        """The group's changes in the topic. Raises when it is read; see `JournalReader`."""
        reader = spark.read.format(JOURNAL_FORMAT).options(**self.connection.options)
        return reader.options(subscribe=topic, http=self.http, groups=self.group).load()


def with_outcomes(records: Any, changes: Any, topic: str, window: Window, letters: Any) -> Any:
    """`records` (partition, offset, ...) with the columns `outcome` and `attempts`.

    `letters`: partition and offset of the group's dead letters, if all of them are known, else
    None; they tell what a compacted journal does not.
    """
    bounds = _bounds(records.sparkSession, topic, window)
    of_records = (
        changes.where(f"event IN ({_OUTCOMES})")
        .join(bounds.hint("broadcast"), "partition")
        .selectExpr(
            "partition", "event", "deliveries", "position",
            "greatest(first_offset, begin) AS low", "least(last_offset, end - 1) AS high",
        )
        .where("low <= high")
        .selectExpr("partition", "event", "deliveries", "position",
                    "explode(sequence(low, high)) AS offset")
    )  # fmt: skip
    last = of_records.groupBy(*_PLACE).agg(*_aggregates())
    found = records.join(last, _PLACE, "left").join(
        _starts(changes).hint("broadcast"), "partition", "left"
    )
    outcome = _OUTCOME
    if letters is not None:
        known = letters.distinct().selectExpr("*", "true AS is_letter")
        found = found.join(known, _PLACE, "left")
        outcome = (
            f"CASE {_OUTCOME} WHEN 'unknown'"
            f" THEN IF(is_letter, '{DEAD}', '{ACKNOWLEDGED}') ELSE {_OUTCOME} END"
        )
    kept = [f"`{name}`" for name in records.columns]
    return found.selectExpr(*kept, f"{outcome} AS outcome", "coalesce(tried, 0) AS attempts")


def _aggregates() -> list[Any]:
    from pyspark.sql.functions import expr

    return [
        expr("bool_or(event = 'acknowledged') AS is_done"),
        expr("max_by(event, position) AS final"),
        expr("max(position) AS final_at"),
        expr("max(deliveries) AS tried"),
    ]


def _starts(changes: Any) -> Any:
    """What is known of each partition's start: the group's first one, whether the journal was
    compacted, and the last move."""
    from pyspark.sql.functions import expr

    moves = "event IN ('reset', 'moved')"
    return changes.groupBy("partition").agg(
        expr("min_by(last_offset + 1, position) FILTER (WHERE event = 'opened') AS opened"),
        expr("max(last_offset + 1) FILTER (WHERE event = 'opened') AS snapshot"),
        expr("bool_or(event = 'compacted') AS is_compacted"),
        expr("max(last_offset + 1) FILTER (WHERE event = 'moved') AS moved"),
        expr("max_by(last_offset + 1, position) FILTER (WHERE event = 'reset') AS reset"),
        expr("max(position) FILTER (WHERE event = 'reset') AS reset_at"),
        expr(f"count_if({moves}) AS moves"),
    )


_OUTCOME: Final = f"""(CASE
    WHEN is_done THEN '{ACKNOWLEDGED}'
    WHEN reset_at > coalesce(final_at, -1) AND offset < reset THEN '{SKIPPED}'
    WHEN reset_at > coalesce(final_at, -1) AND offset >= coalesce(moved, 0) THEN '{UNDELIVERED}'
    WHEN final = 'filtered' THEN '{FILTERED}'
    WHEN final IN ('given_up', 'archived') THEN '{DEAD}'
    WHEN final = 'finished' THEN '{UNKNOWN}'
    WHEN offset < moved THEN '{SKIPPED}'
    WHEN final IS NULL AND offset < opened AND is_compacted THEN '{UNKNOWN}'
    WHEN final IS NULL AND offset < opened THEN '{BEFORE}'
    WHEN offset < snapshot THEN '{UNKNOWN}'
    WHEN final = 'delivery_failed' THEN '{FAILED}'
    ELSE '{UNDELIVERED}' END)"""


def _bounds(spark: Any, topic: str, window: Window) -> Any:
    pairs = window.document().get(topic, {})
    rows = [(int(number), begin, end) for number, (begin, end) in sorted(pairs.items())]
    return spark.createDataFrame(rows, "partition int, begin bigint, end bigint")
