"""What the sequences of idempotent producers prove: sent = stored, without a header.

Invariants: reads headers of batches only (`headrace-batches`), and decides nothing: `certificate`
does. In a partition, a producer numbers its records from 0 in each epoch, without gaps (KIP-98),
and a batch keeps its offsets and sequences when records are removed from it. So every sequence up
to the last one stored was sent. One that no batch has was stored and deleted, or is lost: at most
as many of a gap can have been deleted as there are offsets, between its neighbours, that are not in
the log any more or lie before the window. The rest was never stored.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.batches_source import BATCHES_FORMAT
from headrace.pipeline.cluster import is_compacted
from headrace.pipeline.jobs.spans import SPANS_MAX
from headrace.pipeline.jobs.windows import Connection, Window, read_window
from headrace.pipeline.planning import offset_of, walk

if TYPE_CHECKING:
    from collections.abc import Iterable

_RUN: Final = ("partition", "producer_id", "producer_epoch")
_SEQUENCES: Final = 1 << 31
"""Sequences wrap to 0 after the last of them."""
_COUNTS: Final = {
    "sent": "max(end)",
    "stored": "sum(size - repeated)",
    "aborted": "sum(IF(is_aborted, size, 0))",
    "removed": "sum(IF(is_aborted, 0, size - records))",
    "repeated": "sum(repeated)",
    "never_stored": "sum(greatest(0, gap - before - hole))",
    "absent": "sum(greatest(0, least(gap - before, hole)))",
    "earlier": "sum(least(gap, before))",
}
"""Of one producer, epoch and partition. `removed` are records that batches do not hold any more, or
never did, because they were delayed or duplicates of named sequences. What of a gap is `absent` may
have been in offsets that the log lacks, what is `earlier` before the window."""
_FAULTS: Final = ("never_stored", "absent", "repeated")


def read_sequences(
    spark: Any, connection: Connection, topic: str, window: Window
) -> dict[str, Any]:
    """The figures of all idempotent producers of a topic. Raises TopicRecreated, OptionInvalid."""
    batches = read_window(spark, connection, window, BATCHES_FORMAT)
    figures = compare_sequences(batches, topic, window)
    return figures | {"is_compacted": is_compacted(connection.cluster.configuration(topic))}


def compare_sequences(batches: Any, topic: str, window: Window) -> dict[str, Any]:
    """The figures of the producers in a frame of the topic's batches in the window."""
    from pyspark.sql.functions import expr

    numbered = _numbered(batches, _begins(topic, window)).persist()
    try:
        runs = numbered.groupBy(*_RUN).agg(
            *(expr(f"{how} AS {name}") for name, how in _COUNTS.items()),
            expr("min(base_offset) AS first_offset"),
            expr("max(last_offset) AS last_offset"),
        )
        faults = " + ".join(_FAULTS)
        totals = runs.agg(
            expr("count(*) AS runs"),
            expr(f"count_if({faults} > 0) AS faulty"),
            *(expr(f"coalesce(sum({name}), 0) AS {name}") for name in _COUNTS),
        ).first()
        shown = runs.orderBy(expr(faults).desc(), *_RUN).limit(SPANS_MAX).collect()
        return {
            "runs": _with_spans([row.asDict() for row in shown], numbered),
            "totals": totals.asDict(),
            "without_producer": batches.where("producer_id < 0 AND NOT is_control")
            .agg(expr("coalesce(sum(records), 0)"))
            .first()[0],
        }
    finally:
        numbered.unpersist()


def _begins(topic: str, window: Window) -> str:
    """SQL: the window's first offset in a batch's partition."""
    cases = " ".join(
        f"WHEN {partition} THEN {offset_of(window.start, topic, partition, 0)}"
        for name, partition, _ in walk(window.end)
        if name == topic
    )
    return f"CASE partition {cases} ELSE 0 END" if cases else "0"


def _numbered(batches: Any, window_begin: str) -> Any:
    """The batches of idempotent producers, each with what lies between it and the last sequence
    before it: `gap` sequences, `hole` offsets of the log, `before` offsets before the window."""
    run = f"PARTITION BY {', '.join(_RUN)}"
    by_sequence = f"OVER ({run} ORDER BY begin, base_offset)"
    placed = batches.selectExpr("*", f"{window_begin} AS window_begin").selectExpr(
        "*",
        "greatest(0, base_offset - coalesce(lag(last_offset + 1) OVER (PARTITION BY partition"
        " ORDER BY base_offset), window_begin)) AS hole_before",
    )
    placed = placed.selectExpr(
        "*", "sum(hole_before) OVER (PARTITION BY partition ORDER BY base_offset) AS holes"
    ).where("producer_id >= 0 AND NOT is_control")
    # Where sequences wrap, the next one is about 2^31 lower than expected.
    stepped = placed.selectExpr(
        "*",
        "last_offset - base_offset + 1 AS size",
        "base_sequence - lag(base_sequence + last_offset - base_offset + 1)"
        f" OVER ({run} ORDER BY base_offset) AS step",
    ).selectExpr(
        "*",
        f"CASE WHEN step < -{_SEQUENCES // 2} THEN 1 WHEN step > {_SEQUENCES // 2} THEN -1"
        " ELSE 0 END AS wraps",
    )
    unwrapped = stepped.selectExpr(
        "*",
        f"base_sequence + {_SEQUENCES} * sum(wraps) OVER ({run} ORDER BY base_offset) AS begin",
    ).selectExpr("*", "begin + size AS end")
    return unwrapped.selectExpr(
        "*",
        "coalesce(max(end) OVER"
        f" ({run} ORDER BY begin, base_offset ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0)"
        " AS covered",
        f"greatest(0, holes - coalesce(lag(holes) {by_sequence}, 0)) AS hole",
        f"IF(row_number() {by_sequence} = 1, window_begin, 0) AS before",
    ).selectExpr(
        "*",
        "greatest(0, begin - covered) AS gap",
        "greatest(0, least(end, covered) - begin) AS repeated",
    )


def _with_spans(runs: list[dict[str, Any]], numbered: Any) -> list[dict[str, Any]]:
    """Each run with the `gaps` in which its faults are, ranges of sequences (inclusive);
    `SPANS_MAX` in all. A gap that may all lie before the window takes none of their room."""
    found: dict[tuple[int, ...], list[list[int]]] = {}
    if any(_faults(run) for run in runs):
        gaps = numbered.where("gap > before").orderBy(*_RUN, "begin").limit(SPANS_MAX)
        for row in gaps.select(*_RUN, "covered", "begin").collect():
            found.setdefault(tuple(row[:3]), []).append([row["covered"], row["begin"] - 1])
    return [run | {"gaps": found.get(_key(run), [])} for run in runs]


def _faults(run: dict[str, Any]) -> int:
    counts: Iterable[int] = (run[name] for name in _FAULTS)
    return sum(counts)


def _key(run: dict[str, Any]) -> tuple[int, ...]:
    return tuple(run[name] for name in _RUN)
