"""Replay: a range of a topic once more, into another topic, filtered and reshaped by SQL.

Invariants: exactly once per job name, across restarts (`transfer.py`); key order is that of the
log. At a speed, a record is due when the largest timestamp up to it in its partition says so, so
records out of time order are never overtaken. One wrong timestamp does not hold up the rest: a
record is never later than the one after it, and pauses have a limit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.headers import without
from headrace.pipeline.jobs.history import History
from headrace.pipeline.jobs.transfer import (
    CHUNK_RECORDS,
    Copy,
    CopyReport,
    Cut,
    check_keeps_order,
    check_repeats,
    digest_of,
    run_copy,
    stored_or_new,
)
from headrace.pipeline.jobs.windows import (
    COLUMNS,
    WHOLE_LOG,
    Bounds,
    Connection,
    Window,
)
from headrace.pipeline.planning import build, larger, offset_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable

    from headrace.pipeline.catalog import TableName
    from headrace.pipeline.jobs.transfer import Chunk

GROUP: Final = "headrace-replay"
STEP_MS: Final = 2_000
"""How often a paced replay writes."""
SLICES_MAX: Final = 500_000
PAUSE_MAX_MS: Final = 3_600_000


@dataclass(frozen=True)
class ReplayConfig:
    """What to replay. `table` is an archive of the topic: what it holds is read from it, also what
    the log has deleted. `sql` selects from the view `records`; `speed` 1.0 is the original pace,
    but for pauses of more than `pause_max_ms`, and None as fast as possible; `times`: keep, now (of
    writing), or the shift in ms."""

    connection: Connection
    topic: str
    target: str
    bounds: Bounds = WHOLE_LOG
    sql: str = "SELECT * FROM records"
    speed: float | None = None
    pause_max_ms: int = PAUSE_MAX_MS
    rate_per_s: float | None = None
    times: Literal["keep", "now"] | int = "keep"
    keep_partitions: bool = False
    job: str | None = None
    to: Connection | None = None
    chunk_records: int = CHUNK_RECORDS
    table: TableName | None = None

    def __post_init__(self) -> None:
        check_repeats(self.sql)
        if self.speed is not None and self.speed <= 0:
            raise OptionInvalid(f"The speed must be more than 0, not {self.speed}.")
        is_same = self.to is None or self.to.bootstrap == self.connection.bootstrap
        if is_same and self.target == self.topic:
            raise OptionInvalid(
                f"The target is the topic itself ({self.topic}): its records would be doubled."
                " Nothing was written. Choose another topic."
            )

    @property
    def spec(self) -> str:
        """What two runs of one job have in common."""
        return digest_of(
            self.topic,
            self.target,
            self.bounds,
            self.sql,
            self.times,
            self.keep_partitions,
            None if self.to is None else self.to.bootstrap,
            *(() if self.table is None else (self.table,)),
        )

    @property
    def group(self) -> str:
        """The job's name: by default the same for the same options."""
        return f"{GROUP}.{self.job or self.spec}"


def run_replay(
    config: ReplayConfig,
    *,
    spark: Any,
    on_chunk: Callable[[Chunk], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> CopyReport:
    """Replay until done or stopped. A repeated run of a finished job writes nothing."""
    return run_copy(_copy(config, spark), on_chunk=on_chunk, should_stop=should_stop)


def plan_replay(config: ReplayConfig, *, spark: Any) -> dict[str, Any]:
    """What a run would do, without writing: the window, and the number of records and rows."""
    copy = _copy(config, spark)
    state, resumed = stored_or_new(copy)
    window = state.window
    rows = copy.rows(window, state.note)
    cuts = None if copy.cuts is None else copy.cuts(window)
    return {
        "job": copy.group,
        "window": window.document(),
        "resumed": resumed,
        "read": _history(config, spark).read(window).count() if window.size else 0,
        "written": rows.count() if window.size else 0,
        "seconds_at_speed": None if not cuts else cuts[-1].due_ms / 1000,
        "pauses_cut": sum(1 for one in cuts or () if one.pause_cut_ms),
        "pauses_cut_seconds": sum(one.pause_cut_ms for one in cuts or ()) / 1000,
    }


def _copy(config: ReplayConfig, spark: Any) -> Copy:
    history = _history(config, spark)
    cuts = None
    if config.speed is not None:
        speed = config.speed

        def cuts(window: Window) -> list[Cut]:
            return slices(history.read(window), window, speed, config.pause_max_ms)

    def rows(window: Window, _: dict[str, Any]) -> Any:
        records = history.read(window)
        selected = _selected(config, records)
        check_keeps_order(selected)
        ordered = history.in_order(records, window)
        return reshape(config, selected if ordered is records else _selected(config, ordered))

    return Copy(
        config.connection,
        config.group,
        config.spec,
        window=lambda: history.resolve((config.topic,), config.bounds),
        rows=rows,
        source=config.topic,
        target=config.target,
        to=config.to,
        chunk_records=config.chunk_records,
        rate_per_s=config.rate_per_s,
        cuts=cuts,
    )


def _history(config: ReplayConfig, spark: Any) -> History:
    return History(spark, config.connection, config.table)


def _selected(config: ReplayConfig, records: Any) -> Any:
    """What the SQL selects. Raises OptionInvalid if that is no record."""
    records.select(*COLUMNS).createOrReplaceTempView("records")
    rows = records.sparkSession.sql(config.sql)
    if "value" not in rows.columns:
        raise OptionInvalid(
            f"The SQL returns the columns {', '.join(rows.columns)}, without a value. Select key,"
            " value, headers and timestamp as they shall be written; SELECT * EXCEPT (value), ..."
            " AS value keeps the others."
        )
    return rows


def reshape(config: ReplayConfig, rows: Any) -> Any:
    """The columns to write of what the SQL selects."""
    kept = [name for name in ("key", "value") if name in rows.columns]
    if "headers" in rows.columns:
        kept.append(f"{without(())} AS headers")
    if config.keep_partitions:
        kept.append("partition")
    if config.times != "now" and "timestamp" in rows.columns:
        shift = 0 if config.times == "keep" else config.times
        moved = f"timestamp + make_dt_interval(0, 0, 0, {shift / 1000:.3f})"
        kept.append("timestamp" if not shift else f"{moved} AS timestamp")
    return rows.selectExpr(*kept)


def slices(
    records: Any, window: Window, speed: float, pause_max_ms: int = PAUSE_MAX_MS
) -> list[Cut]:
    """Cut a window by time, in order of time.

    Raises OptionInvalid for more than `SLICES_MAX` slices.
    """
    from pyspark.sql.functions import expr

    width = max(1, int(STEP_MS * speed))
    in_order = "PARTITION BY topic, partition ORDER BY offset"
    timed = records.selectExpr(
        "topic",
        "partition",
        "offset",
        f"min(unix_millis(timestamp)) OVER ({in_order} ROWS BETWEEN CURRENT ROW AND 1 FOLLOWING)"
        " AS time_ms",
    ).selectExpr("*", f"max(time_ms) OVER ({in_order}) AS at")
    first = timed.agg(expr("min(at)")).first()[0]
    if first is None:
        return []
    rows = (
        timed.selectExpr("*", f"floor((coalesce(at, {first}) - {first}) / {width}) AS slice")
        .groupBy("slice", "topic", "partition")
        .agg(expr("max(offset) + 1 AS end"))
        .orderBy("slice")
        .limit(SLICES_MAX + 1)
        .collect()
    )
    if len(rows) > SLICES_MAX:
        raise OptionInvalid(
            f"At this speed the replay takes more than {SLICES_MAX} steps of {STEP_MS} ms. Replay a"
            " shorter range, or faster (--speed)."
        )
    found: list[Cut] = []
    reached, due_ms, last = window.start, 0, 0
    for row in rows:
        pause_ms = (int(row["slice"]) - last) * STEP_MS
        cut_ms = max(0, pause_ms - pause_max_ms)
        due_ms += pause_ms - cut_ms
        last = int(row["slice"])
        reached = larger(reached, build([(row["topic"], row["partition"], row["end"])]))
        if found and found[-1].due_ms == due_ms:
            cut_ms += found.pop().pause_cut_ms
        found.append(Cut(due_ms, reached, cut_ms))
    if found:  # holes at the end of a log belong to the last slice
        found[-1] = found[-1]._replace(end=larger(found[-1].end, window.end))
    return [
        one._replace(
            end=build([(t, p, offset_of(one.end, t, p, 0)) for t, p, _ in walk(window.end)])
        )
        for one in found
    ]
