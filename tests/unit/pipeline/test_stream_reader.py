"""The stream reader as Spark 4.1 calls it, against a broker made of two dicts."""

import pickle

import pytest

from headrace.pipeline.errors import RecordsLost
from headrace.pipeline.options import parse_source
from headrace.pipeline.planning import build, offset_of, walk
from headrace.pipeline.source import HeadraceStreamReader


class Log:
    """What a reader asks of `Cluster`."""

    def __init__(self, first, last):
        self.first, self.last = first, last
        self.questions = 0

    def partitions_of(self, topics, pattern):
        return {topic: dict.fromkeys(self.last[topic], 0) for topic in topics}

    def earliest(self, partitions):
        return build([(t, p, offset_of(self.first, t, p, 0)) for t, p, _ in walk(partitions)])

    def latest(self, partitions):
        self.questions += 1
        return build([(t, p, offset_of(self.last, t, p, 0)) for t, p, _ in walk(partitions)])


def reader_of(log, **options):
    return HeadraceStreamReader(
        parse_source({"bootstrap.servers": "h:1", "subscribe": "t", **options}), log
    )


def ranges(tasks):
    return [tuple(task.piece) for task in tasks]


def test_a_new_stream_asks_latest_before_initial_and_is_limited_all_the_same():
    log = Log({"t": {"0": 5}}, {"t": {"0": 1_000}})
    reader = reader_of(log, maxOffsetsPerTrigger="10")
    assert reader.latestOffset() == {"t": {"0": 15}}
    assert reader.initialOffset() == {"t": {"0": 5}}
    assert ranges(reader.partitions({"t": {"0": 5}}, {"t": {"0": 15}})) == [("t", 0, 5, 15)]
    assert reader.latestOffset() == {"t": {"0": 25}}


def test_starting_at_latest_does_not_move_between_the_two_questions():
    log = Log({}, {"t": {"0": 40}})
    reader = reader_of(log, startingOffsets="latest")
    assert reader.latestOffset() == {"t": {"0": 40}}
    log.last = {"t": {"0": 50}}
    assert reader.initialOffset() == {"t": {"0": 40}}


def test_a_restarted_stream_learns_its_position_from_an_empty_batch():
    reader = reader_of(Log({}, {"t": {"0": 100}}), maxOffsetsPerTrigger="10")
    assert reader.partitions({"t": {"0": 60}}, {"t": {"0": 60}}) == []
    assert reader.latestOffset() == {"t": {"0": 70}}


def test_a_replayed_batch_is_planned_as_it_was():
    reader = reader_of(Log({}, {"t": {"0": 100}}), maxOffsetsPerTrigger="10")
    assert ranges(reader.partitions({"t": {"0": 60}}, {"t": {"0": 75}})) == [("t", 0, 60, 75)]
    assert reader.latestOffset() == {"t": {"0": 85}}


def test_a_pinned_end_lets_a_live_topic_go_idle():
    log = Log({}, {"t": {"0": 100}})
    reader = reader_of(log, pinEnd="true")
    assert reader.latestOffset() == {"t": {"0": 100}}
    log.last = {"t": {"0": 500}}
    reader.partitions({"t": {"0": 0}}, {"t": {"0": 100}})
    assert reader.latestOffset() == {"t": {"0": 100}}
    assert log.questions == 2  # the end, and one check that the batch is there


def test_a_partition_that_appears_is_read_from_where_its_log_begins():
    log = Log({"t": {"1": 3}}, {"t": {"0": 10}})
    reader = reader_of(log)
    reader.partitions({"t": {"0": 10}}, {"t": {"0": 10}})
    log.last = {"t": {"0": 10, "1": 8}}
    assert reader.latestOffset() == {"t": {"0": 10, "1": 8}}
    tasks = reader.partitions({"t": {"0": 10}}, {"t": {"0": 10, "1": 8}})
    assert [task.piece.partition for task in tasks] == [1]


def test_records_that_retention_took_are_an_error_that_says_so():
    reader = reader_of(Log({"t": {"0": 50}}, {"t": {"0": 100}}))
    with pytest.raises(RecordsLost, match="offsets 20 to 60 were asked for, the log holds 50"):
        reader.partitions({"t": {"0": 20}}, {"t": {"0": 60}})


def test_a_topic_made_anew_is_an_error_and_not_silence():
    reader = reader_of(Log({}, {"t": {"0": 4}}))
    reader.partitions({"t": {"0": 60}}, {"t": {"0": 60}})
    with pytest.raises(RecordsLost, match="stands at 60, the log ends at 4"):
        reader.latestOffset()


def test_the_batch_of_a_first_start_at_latest_that_cannot_be_replayed_is_an_error():
    # The checkpoint holds the end of batch 0, not its start; after the crash "latest" is later.
    reader = reader_of(Log({}, {"t": {"0": 90}}), startingOffsets="latest")
    start = reader.initialOffset()
    with pytest.raises(RecordsLost):
        reader.partitions(start, {"t": {"0": 80}})


def test_a_task_takes_only_options_along():
    reader = reader_of(None)
    task = pickle.loads(pickle.dumps(reader))
    assert task.options == reader.options
