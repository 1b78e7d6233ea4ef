"""SQL of jobs that are restarted has the same result each time."""

import pytest

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.transfer import check_repeats


@pytest.mark.parametrize(
    "sql",
    [
        "timestamp < now() - INTERVAL 30 DAYS",
        "timestamp < CURRENT_TIMESTAMP",
        "SELECT * FROM records WHERE rand() < 0.1",
        "SELECT uuid() AS key, value FROM records",
        "dt = current_date - 1",
    ],
)
def test_expressions_that_change_with_each_run_are_refused(sql):
    with pytest.raises(OptionInvalid, match="another value"):
        check_repeats("true", sql)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM records",
        "cause LIKE '%now()%' OR cause = \"rand()\"",
        "value = 'it\\'s now()'",
        "known > 3 AND uuid_of_order = 'x' AND now_seen(key)",
        "records.random.x = 1",
        "timestamp < '2013-01-31'",
    ],
)
def test_repeatable_expressions_are_accepted(sql):
    check_repeats(sql)
