"""A job that is restarted repeats the same rows: SQL with one result, and names of writes."""

import pytest

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.jobs.transfer import JobState, check_repeats
from headrace.pipeline.jobs.windows import Window


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


def test_a_chunk_that_version_0_2_began_is_completed_under_the_name_that_it_had():
    window = Window({"t": {"0": 0}}, {"t": {"0": 5}}, {"t": "an-id"})
    begun = JobState("spec", window, window.end, {}, is_by_ids=False)
    assert begun.named_by(window) == (window.document(),)
    ours = begun._replace(is_by_ids=True)
    assert ours.named_by(window) != ours.named_by(window._replace(topic_ids={"t": "another"}))
