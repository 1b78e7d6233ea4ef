"""What a reconciliation makes of rows outside the log's bounds; and what it says then."""

from dataclasses import replace

from headrace.pipeline.jobs.coverage import (
    BEFORE,
    BEYOND,
    NOWHERE,
    SINCE,
    WITHIN,
    Ends,
    sort_outside,
)
from headrace.pipeline.jobs.reconcile import PartitionProof, ReconcileReport, Side

ENDS = Ends({"t": {"0": 5}}, {"t": {"0": 90}}, {"t": {"0": 95}}, {"t": {"0": 95}})
EQUAL = Side(85, 85, 5, 89, (1, 2))


def report_of(counts, archived_to=()):
    found = sort_outside("t", dict(archived_to), ENDS, counts)
    one = PartitionProof(0, 5, 90, EQUAL, EQUAL, beyond_count=found.beyond.get(0, 0), written_to=95)
    return ReconcileReport("t", "a.t", (one,), tuple(found.problems), tuple(found.not_covered))


def test_a_proof_names_what_it_covers_and_what_not():
    counts = [("t", 0, WITHIN, 85), ("t", 0, BEFORE, 5), ("t", 0, SINCE, 2), ("u", 3, NOWHERE, 7)]
    report = report_of(counts, {"u": {"3": 7}})
    assert report.is_exact
    assert report.covers == ["t-0: offsets 5 to 90"]
    assert report.not_covered == (
        "t-0: 5 rows before the log start 5",
        "t-0: 2 rows archived during the comparison",
        "7 rows of topic u: reconcile that topic, too",
    )


def test_a_comparison_of_no_records_proves_nothing_unless_the_producers_counted_none():
    nothing = PartitionProof(0, 90, 90, Side(), Side(), written_to=90)
    report = ReconcileReport("t", "a.t", (nothing,), (), ("t-0: 90 rows before the log start",))
    assert report.is_exact
    assert not report.is_proven
    assert not ReconcileReport("t", "a.t", ()).is_proven
    counted = replace(report, partitions=(replace(nothing, published_count=0),))
    assert counted.is_proven
    assert not replace(counted, elsewhere=("rows from nowhere",)).is_proven
    assert report_of([("t", 0, WITHIN, 85)]).is_proven


def test_rows_that_cannot_be_records_of_the_log_are_problems():
    counts = [("t", 0, BEYOND, 3), ("t", 9, NOWHERE, 4), ("t", None, NOWHERE, 1), ("x", 0, 4, 6)]
    report = report_of(counts)
    assert not report.is_exact
    assert report.problems == [
        "t-0: 3 in the table at or after the log's end 90: the log was truncated, or another"
        " writer added them",
        "t-9: 4 rows in the table, but the topic has no such partition or offset",
        "t-None: 1 rows in the table, but the topic has no such partition or offset",
        "6 rows of topic x, which no archive has recorded",
    ]


def test_a_log_that_ends_before_the_archive_did_was_truncated():
    found = PartitionProof(0, 5, 90, EQUAL, EQUAL, archived_to=120, written_to=95).problems
    assert found == ["archived up to 120, but the log ends at 95: it was truncated"]
    assert PartitionProof(0, 5, 90, EQUAL, EQUAL, archived_to=95, written_to=95).problems == []
