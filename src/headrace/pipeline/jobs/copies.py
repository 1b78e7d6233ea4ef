"""Compares a topic with a copy of it elsewhere: a topic of another cluster, or a database table.

Invariants: reads only; offsets say nothing there, so records are known by their identity. The copy
is read after the window's end was pinned, and the whole log after the copy: a record on its way
counts neither as missing nor as unexpected. The verdict is `certificate.judge`'s.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.identity import (
    DEFAULT_PRODUCER,
    DEFAULT_SEQUENCE,
    identified,
    numbered,
)
from headrace.pipeline.jobs.spans import spans_by_partition
from headrace.pipeline.jobs.windows import (
    WHOLE_LOG,
    Connection,
    Window,
    read_window,
    resolve_window,
    within_sql,
)
from headrace.pipeline.planning import walk

if TYPE_CHECKING:
    from pathlib import Path

SHOWN_MAX: Final = 20
USER, PASSWORD = "HEADRACE_DATABASE_USER", "HEADRACE_DATABASE_PASSWORD"
_KNOWN_BY: Final = ["identity", "number"]
_EQUAL_BY: Final = ["identity", "same", "pair"]
_PLACE: Final = "topic, partition, offset"
_SCHEME: Final = re.compile(r"jdbc:[A-Za-z0-9+.-]+(?=:)")
_ORACLE: Final = re.compile(r"^jdbc:oracle:\w+:@", re.IGNORECASE)
"""Without a login, Oracle's URLs still have the sign that follows one."""
_LOGIN: Final = re.compile(
    r"@|(user|user_?name|user_?id|uid|password|passwd|pwd|token|secret)\d*\s*=", re.IGNORECASE
)
_DRIVERS: Final = {"jdbc:sqlite:": "org.sqlite.JDBC"}
"""Of jars that are in each session; others are found by the driver's own registration."""


@dataclass(frozen=True)
class TopicCopy:
    """A topic of any cluster. Records are known by sequence, else by their content."""

    connection: Connection
    topic: str
    producer: str = DEFAULT_PRODUCER
    sequence: str = DEFAULT_SEQUENCE

    @property
    def name(self) -> str:
        """For the certificate."""
        return f"topic {self.topic} at {self.connection.bootstrap}"

    def of_records(self, records: Any) -> Any:
        """Identity, number and content of the log's records, with their places."""
        return identified(records, self.producer, self.sequence)

    def rows(self, spark: Any) -> Any:
        """Identity, number, content and place of what the copy holds now."""
        window = resolve_window(self.connection.cluster, (self.topic,), WHOLE_LOG)
        found = self.of_records(read_window(spark, self.connection, window))
        return found.selectExpr(*_KNOWN_BY, "content", "concat(partition, ':', offset) AS place")


@dataclass(frozen=True)
class DatabaseCopy:
    """A table behind a JDBC driver. `record_id` (SQL over a record) and `row_id` (over a row) are
    equal where one is the copy of the other; the values, if given, are compared as text."""

    url: str
    table: str
    record_id: str
    row_id: str
    record_value: str | None = None
    row_value: str | None = None
    rows_where: str = "true"
    drivers: tuple[Path, ...] = field(default=())

    def __post_init__(self) -> None:
        # The message does not repeat the URL: output and logs are kept, and seen by others.
        if _LOGIN.search(_ORACLE.sub("", unquote(self.url))):
            raise OptionInvalid(
                "The database's URL holds a login (an @, or a parameter for a user or password),"
                " which would be readable in lists of processes. Nothing was read. Take it out,"
                f" and set {USER} and {PASSWORD}."
            )
        if (self.record_value is None) != (self.row_value is None):
            raise OptionInvalid(
                "Values are compared if that of a record and that of a row are given. Nothing was"
                " read. Give both, or none."
            )

    @property
    def name(self) -> str:
        """For the certificate: of the URL only the scheme, as each driver has a syntax of its own
        for what should not be shown."""
        scheme = _SCHEME.match(self.url)
        return f"table {self.table} in {scheme[0] if scheme else 'a database'}"

    def of_records(self, records: Any) -> Any:
        """See `TopicCopy.of_records`."""
        known = records.selectExpr("*", *_known(self.record_id, self.record_value))
        return numbered(known, _PLACE)

    def rows(self, spark: Any) -> Any:
        """See `TopicCopy.rows`."""
        reader = spark.read.format("jdbc").option("url", self.url).option("dbtable", self.table)
        reader = reader.option("fetchsize", "10000")
        for prefix, driver in _DRIVERS.items():
            if self.url.startswith(prefix):
                reader = reader.option("driver", driver)
        for option, variable in (("user", USER), ("password", PASSWORD)):
            if variable in os.environ:
                reader = reader.option(option, os.environ[variable])
        known = reader.load().where(self.rows_where)
        rows = known.selectExpr(*_known(self.row_id, self.row_value))
        return numbered(rows, "content").selectExpr(*_KNOWN_BY, "content", "identity AS place")


Copy = TopicCopy | DatabaseCopy


def _known(identity: str, value: str | None) -> list[str]:
    content = "NULL" if value is None else value
    return [f"cast({identity} AS string) AS identity", f"cast({content} AS string) AS content"]


def compare(
    copy: Copy, connection: Connection, topic: str, window: Window, *, spark: Any
) -> dict[str, Any]:
    """The figures of a copy: what of the window is not there, there twice, different, or more.

    Raises OptionInvalid if a topic does not exist, and what Spark raises for SQL and databases.
    """
    rows = copy.rows(spark).persist()
    try:
        row_count = rows.count()
        whole = resolve_window(connection.cluster, (topic,), WHOLE_LOG)
        log = copy.of_records(read_window(spark, connection, whole)).persist()
        try:
            inside = log.where(within_sql(window))
            figures = _figures(inside, log, rows)
        finally:
            log.unpersist()
    finally:
        rows.unpersist()
    is_whole = not any(start for _topic, _partition, start in walk(whole.start))
    return {"copy": copy.name, "rows": row_count, "log_is_whole": is_whole, **figures}


def _figures(inside: Any, log: Any, rows: Any) -> dict[str, Any]:
    known = _paired(inside.where("identity IS NOT NULL"), _PLACE)
    there = _paired(rows.where("identity IS NOT NULL"), "place")
    # Equal ones first: of one identity, the copies may be in another order. Only what is left over
    # on both sides is taken for changed.
    rest = known.join(there.select(*_EQUAL_BY), _EQUAL_BY, "left_anti")
    rest_there = there.join(known.select(*_EQUAL_BY), _EQUAL_BY, "left_anti")
    rest = numbered(rest.drop("number"), _PLACE)
    rest_there = numbered(rest_there.drop("number"), "content").select(*_KNOWN_BY)
    missing = rest.join(rest_there, _KNOWN_BY, "left_anti")
    differing = rest.join(rest_there, _KNOWN_BY, "left_semi")
    surplus = rows.where("identity IS NOT NULL").join(
        log.select(*_KNOWN_BY), _KNOWN_BY, "left_anti"
    )
    identities = log.select("identity").distinct()
    repeated = surplus.join(identities, "identity", "left_semi")
    more = surplus.join(identities, "identity", "left_anti")
    return {
        "records": known.count(),
        "unidentified": inside.where("identity IS NULL").count(),
        "missing": missing.count(),
        "missing_spans": spans_by_partition(missing),
        "differing": differing.count(),
        "differing_spans": spans_by_partition(differing),
        "repeated": repeated.count(),
        "repeated_shown": _places(repeated),
        "surplus": more.count(),
        "surplus_shown": _places(more),
        "rows_unidentified": rows.where("identity IS NULL").count(),
    }


def _paired(frame: Any, order: str) -> Any:
    """Add the number of a row among those of its identity and content, which may be NULL."""
    same = frame.selectExpr("*", "coalesce(concat('=', content), '-') AS same")
    return numbered(same, order, by="identity, same", name="pair")


def _places(rows: Any) -> list[str]:
    shown = rows.select("place").orderBy("place").limit(SHOWN_MAX)
    return [row["place"] for row in shown.collect()]
