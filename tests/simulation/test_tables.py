"""What the only client of a compacted topic takes for a fault."""

from __future__ import annotations

import pytest

from headrace.records.codec import Record
from headrace_verify.simulation.table import RETENTION_S, Table


@pytest.mark.parametrize(
    ("is_calendar_set", "age_s", "is_fault"),
    [(False, RETENTION_S - 1, True), (False, RETENTION_S, False), (True, 1.0, False)],
)
def test_a_tombstone_that_is_gone(is_calendar_set, age_s, is_fault):
    table = Table("t", is_calendar_set=is_calendar_set)
    table.acknowledged(0, [Record(0, 1, b"a", None)], 100.0)
    problems = table.problems([], 100.0 + age_s)
    assert [one.split(":")[0] for one in problems] == ["a lost key"] * is_fault


def test_a_value_that_is_gone_is_a_fault_whatever_calendars_say():
    table = Table("t", is_calendar_set=True)
    table.acknowledged(0, [Record(0, 1, b"a", b"x")], 100.0)
    assert table.problems([], 1_000.0)
