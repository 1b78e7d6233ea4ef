"""Which tables take the place of rows, as far as that is decided without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.quality import QualityReport, store_violations
from headrace.pipeline.jobs.windows import Window

ARCHIVE = ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]


class Spark:
    """A session whose one table has these columns; notes its statements."""

    def __init__(self, columns: list[str]) -> None:
        self.columns = columns
        self.statements: list[str] = []

    def sql(self, statement: str) -> None:
        self.statements.append(statement)

    def table(self, _name: str) -> Any:
        return SimpleNamespace(columns=self.columns)


def test_violations_do_not_replace_the_records_of_an_archive():
    """With the columns that it lacks, each of its rows would be one of no expectations."""
    spark = Spark(ARCHIVE)
    window = Window({"orders": {"0": 0}}, {"orders": {"0": 9}}, {})
    found = SimpleNamespace(selectExpr=lambda *_: None)
    report = QualityReport("orders", "orders", window, 9, {}, {}, found)
    with pytest.raises(OptionInvalid, match="is for other rows: it has no column expectation"):
        store_violations(report, "headrace.archive", spark=spark)
    words = {statement.split()[0] for statement in spark.statements}
    assert words == {"CREATE"}, spark.statements
