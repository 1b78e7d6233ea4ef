"""Data quality: expectations of a topic, and the records that violate them as a table.

Invariants: reads a pinned window; the result depends on it and on `now_ms` alone. A violation names
its record's position, so it can be found, redriven or sent again. Expectations are SQL; the body of
JSON values is the column `body` if `columns` declares it.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from headrace.pipeline.catalog import TableName
from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.transfer import digest_of
from headrace.pipeline.jobs.windows import (
    TOPIC_ID_COLUMN,
    Window,
    id_sql,
    of_ids_sql,
    quoted,
    within_sql,
)
from headrace.pipeline.publishing import replace_rows

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import UnionType

SAMPLES_MAX: Final = 5
_KNOWN: Final[dict[str, tuple[type | UnionType, str]]] = {
    "name": (str, "a text"),
    "columns": (str, 'a text, such as "id BIGINT"'),
    "required": (list, 'a list, such as ["body.id"]'),
    "ranges": (dict, 'a table, such as "body.id" = [0, 1000]'),
    "unique": (list, 'a list, such as ["body.id"]'),
    "checks": (dict, 'a table, such as "has a key" = "key IS NOT NULL"'),
    "fresh_within_s": (int | float, "a number of seconds"),
}
VIOLATION_COLUMNS: Final = (
    "topic string, partition int, offset bigint, timestamp timestamp, expectation string,"
    " detail string"
)


@dataclass(frozen=True)
class Expectations:
    """What is expected of a topic's records.

    `name`: distinguishes these from others of the topic in a table of violations. `columns`: the
    body's fields, as in CREATE TABLE. `required`: SQL that must not be null. `ranges`: SQL to
    (least, most), either may be None. `unique`: SQL that no two records share. `checks`: name to
    SQL that must be true. `fresh_within_s`: age of the newest record.
    """

    name: str = ""
    columns: str | None = None
    required: tuple[str, ...] = ()
    ranges: Mapping[str, tuple[float | None, float | None]] = field(default_factory=dict)
    unique: tuple[str, ...] = ()
    checks: Mapping[str, str] = field(default_factory=dict)
    fresh_within_s: float | None = None


def parse_expectations(text: str, name: str = "") -> dict[str, Expectations]:
    """Parse a TOML file: one table per topic, of this `name` if it has none.

    Raises OptionInvalid.
    """
    try:
        document = tomllib.loads(text)
        return {
            topic: _expectations(topic, {"name": name, **_table(topic, one)})
            for topic, one in document.items()
        }
    except (tomllib.TOMLDecodeError, TypeError, ValueError) as error:
        raise OptionInvalid(f"The expectations cannot be read: {error}.") from error


def _table(topic: str, one: Any) -> dict[str, Any]:
    if not isinstance(one, dict):
        raise OptionInvalid(f"{topic} must be a table of expectations, [{topic}], not {one!r}.")
    return one


def _expectations(topic: str, one: dict[str, Any]) -> Expectations:
    for field_name, value in one.items():
        if field_name not in _KNOWN:
            raise OptionInvalid(
                f"Unknown expectation {field_name!r} of {topic} (known: {', '.join(_KNOWN)})."
            )
        kind, shape = _KNOWN[field_name]
        if not isinstance(value, kind):
            raise OptionInvalid(
                f"The expectation {field_name} of {topic} must be {shape}, not {value!r}."
            )
    ranges = {}
    for expression, bounds in one.get("ranges", {}).items():
        if not isinstance(bounds, list) or len(bounds) != 2:
            raise OptionInvalid(
                f"The range {expression!r} of {topic} must be [LEAST, MOST], not {bounds!r};"
                ' "" is no bound.'
            )
        ranges[expression] = (_bound(bounds[0]), _bound(bounds[1]))
    return Expectations(
        name=str(one["name"]),
        columns=one.get("columns"),
        required=tuple(one.get("required", ())),
        ranges=ranges,
        unique=tuple(one.get("unique", ())),
        checks=dict(one.get("checks", {})),
        fresh_within_s=one.get("fresh_within_s"),
    )


def _bound(value: Any) -> float | None:
    return None if value == "" else float(value)


@dataclass
class QualityReport:
    """Violations by expectation, with the first of each; `violations` is the whole as a frame."""

    topic: str
    expectations: str
    window: Window
    checked: int
    counts: dict[str, int]
    samples: dict[str, list[dict[str, Any]]]
    violations: Any = field(repr=False)

    @property
    def is_met(self) -> bool:
        """Whether nothing violates an expectation."""
        return not any(self.counts.values())

    def document(self) -> dict[str, Any]:
        """For --json."""
        return {
            "topic": self.topic,
            "expectations": self.expectations,
            "window": self.window.document(),
            "checked": self.checked,
            "violations": self.counts,
            "samples": self.samples,
            "is_met": self.is_met,
        }


def check_quality(
    records: Any, topic: str, expected: Expectations, window: Window, now_ms: int
) -> QualityReport:
    """Check the records of one topic. Raises Spark's AnalysisException for SQL that is wrong."""
    from pyspark.sql.functions import expr

    found = violations_of(records, topic, expected, now_ms).persist()
    try:
        names = expectation_names(expected)
        counts = dict.fromkeys(names, 0)
        for name, count in found.groupBy("expectation").count().collect():
            counts[name] = count
        samples: dict[str, list[dict[str, Any]]] = {}
        numbered = found.withColumn(
            "number",
            expr("row_number() OVER (PARTITION BY expectation ORDER BY partition, offset)"),
        )
        for row in (
            numbered.where(f"number <= {SAMPLES_MAX}").orderBy("expectation", "number").collect()
        ):
            one = {name: row[name] for name in ("partition", "offset", "detail")}
            samples.setdefault(row["expectation"], []).append(one)
        checked = records.count()
    finally:
        found.unpersist()
    return QualityReport(topic, expected.name, window, checked, counts, samples, found)


def expectation_names(expected: Expectations) -> list[str]:
    """The names under which violations are listed."""
    return [
        *(["schema"] if expected.columns else []),
        *(f"required: {sql}" for sql in expected.required),
        *(f"range: {sql}" for sql in expected.ranges),
        *(f"unique: {sql}" for sql in expected.unique),
        *expected.checks,
        *(["fresh"] if expected.fresh_within_s is not None else []),
    ]


def violations_of(records: Any, topic: str, expected: Expectations, now_ms: int) -> Any:
    """One row for each violation, with `VIOLATION_COLUMNS`."""
    frame = records
    rules: list[tuple[str, str, str]] = []
    readable = "true"
    if expected.columns is not None:
        ddl = quoted(f"{expected.columns}, _corrupt string")
        options = "map('mode', 'PERMISSIVE', 'columnNameOfCorruptRecord', '_corrupt')"
        text = "make_valid_utf8(cast(value AS string))"
        frame = frame.selectExpr("*", f"from_json({text}, {ddl}, {options}) AS body")
        broken = "value IS NOT NULL AND (body IS NULL OR body._corrupt IS NOT NULL)"
        rules.append(("schema", broken, f"substring({text}, 1, 200)"))
        readable = f"value IS NOT NULL AND NOT ({broken})"
    rules += [
        (f"required: {sql}", f"({readable}) AND ({sql}) IS NULL", "'null'")
        for sql in expected.required
    ]
    for sql, (least, most) in expected.ranges.items():
        outside = [f"({sql}) < {least}"] if least is not None else []
        outside += [f"({sql}) > {most}"] if most is not None else []
        rules.append((f"range: {sql}", " OR ".join(outside) or "false", f"cast({sql} AS string)"))
    for index, sql in enumerate(expected.unique):
        order = "ORDER BY partition, offset"
        frame = frame.selectExpr("*", f"({sql}) AS same_{index}").selectExpr(
            "*", f"row_number() OVER (PARTITION BY same_{index} {order}) AS copy_{index}"
        )
        again = f"same_{index} IS NOT NULL AND copy_{index} > 1"
        rules.append((f"unique: {sql}", again, f"cast(same_{index} AS string)"))
    rules += [
        (name, f"({readable}) AND NOT coalesce({sql}, false)", quoted(sql))
        for name, sql in expected.checks.items()
    ]
    listed = ", ".join(
        f"CASE WHEN {broken} THEN named_struct('name', {quoted(name)}, 'detail', {detail}) END"
        for name, broken, detail in rules
    )
    empty = "cast(array() AS array<struct<name: string, detail: string>>)"
    found = frame.selectExpr(
        "topic",
        "partition",
        "offset",
        "timestamp",
        f"explode({f'array_compact(array({listed}))' if rules else empty}) AS broken",
    ).selectExpr(
        "topic",
        "partition",
        "offset",
        "timestamp",
        "broken.name AS expectation",
        "broken.detail AS detail",
    )
    if expected.fresh_within_s is not None:
        found = found.unionByName(_stale(records, topic, expected.fresh_within_s, now_ms))
    return found


def _stale(records: Any, topic: str, within_s: float, now_ms: int) -> Any:
    """A row without a position if the newest record is older than it may be, or there is none."""
    oldest_ms = int(now_ms - within_s * 1000)
    return (
        records.selectExpr("max(timestamp) AS timestamp")
        .where(f"timestamp IS NULL OR unix_millis(timestamp) < {oldest_ms}")
        .selectExpr(
            f"{quoted(topic)} AS topic",
            "cast(NULL AS int) AS partition",
            "cast(NULL AS bigint) AS offset",
            "timestamp",
            "'fresh' AS expectation",
            f"concat('the newest record is of ', coalesce(cast(timestamp AS string), 'never'),"
            f" ', and may be {within_s:g} s old') AS detail",
        )
    )


def store_violations(report: QualityReport, table: str, *, spark: Any) -> None:
    """Put the violations into a table; they replace those of the same expectations and offsets,
    whatever range of the topic was checked, and what an earlier run said of all of this range.

    Rows of a version that did not store the expectations' name count as theirs.
    """
    window, name = (
        quoted(digest_of(report.topic, report.window.document())),
        quoted(report.expectations),
    )
    rows = report.violations.selectExpr(
        "*", f"{window} AS window", f"{name} AS expectations", id_sql(report.window)
    )
    replaced = (
        f"(expectations IS NULL OR expectations = {name})"
        f" AND {of_ids_sql(report.window)} AND (window = {window} OR {within_sql(report.window)})"
    )
    replace_rows(
        rows, TableName.parse(table), f"{VIOLATION_COLUMNS}, window string", replaced,
        spark=spark, added=f"expectations string, {TOPIC_ID_COLUMN}",
    )  # fmt: skip
