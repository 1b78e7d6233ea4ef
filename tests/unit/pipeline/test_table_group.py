"""What the archive of a table commits for brokers, and when."""

from concurrent.futures import Future

import pytest

from headrace.pipeline.catalog import Progress, TableName
from headrace.pipeline.errors import RecordsLost
from headrace.pipeline.jobs.archive import ArchiveConfig, _Archive
from headrace.pipeline.jobs.table_group import TableGroup
from headrace.pipeline.position import StreamPosition
from headrace.records.table_marks import TableMark

IDS = {"t": "A"}


class Cluster:
    """Keeps what is committed; its logs are empty before `high`."""

    def __init__(self, high=0):
        self.high = high
        self.commits = []

    def allowing(self, *_):
        return ""

    def commit(self, group, offsets):
        self.commits.append(
            [(at, TableMark.decode_or_none(metadata) is not None) for *_, at, metadata in offsets]
        )
        done = Future()
        done.set_exception(RuntimeError("only this test has seen it"))
        return done

    def earliest(self, partitions):
        return {"t": {"0": 0}}

    def high_watermarks(self, partitions):
        return {topic: {"0": self.high} for topic in partitions}


def progress_to(end):
    return Progress({"t": {"0": end}}, 7, IDS)


def log_to(end):
    return StreamPosition({"t": {"0": end}}, IDS)


@pytest.fixture
def cluster():
    return Cluster()


@pytest.fixture
def group(cluster):
    return TableGroup(cluster, TableName.parse("a.t"), "append")


def test_a_mark_is_withdrawn_when_the_log_ends_before_the_table(cluster, group):
    progress = progress_to(100)
    for end in (100, 100, 80, 80, 120):
        group.commit(progress, {"t": {"0": 100}}, log_to(end))
    assert cluster.commits == [[(100, True)], [(80, False)], [(100, True)]]


def test_a_partition_that_the_table_lacks_has_no_mark(cluster, group):
    group.commit(Progress({}, 7, IDS), {"t": {"0": 3}}, log_to(10))
    assert cluster.commits == [[(3, False)]]


def archive(cluster, group, **options):
    found = _Archive.__new__(_Archive)  # without Spark
    found._config = ArchiveConfig("", "t", "", "a.t", **options)
    found._cluster, found._group = cluster, group
    return found


def test_a_run_that_fails_because_the_log_lost_its_end_withdraws_the_mark(cluster, group):
    cluster.high = 80
    with pytest.raises(
        RecordsLost, match="the table ends at offset 100, but the log holds 0 to 80"
    ):
        archive(cluster, group)._start(progress_to(100), log_to(80))
    assert cluster.commits == [[(80, False)]]


def test_records_of_open_transactions_that_are_in_the_table_stay_marked(cluster, group):
    cluster.high = 100
    start, written = archive(cluster, group)._start(progress_to(100), log_to(80))
    group.commit(progress_to(100), start, written)
    assert cluster.commits == [[(100, True)]]


def test_an_archive_that_may_lose_data_waits_for_the_end_of_the_table(cluster, group):
    cluster.high = 80
    start, _ = archive(cluster, group, fail_on_data_loss=False)._start(progress_to(100), log_to(80))
    assert start == {"t": {"0": 100}}
