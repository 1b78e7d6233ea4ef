"""The stream reader as Spark 4.1 calls it, against a broker made of two dicts."""

import logging
import pickle

import pytest

from headrace.pipeline.cluster import TopicSubscription, resolve_end, resolve_start
from headrace.pipeline.errors import NotStableYet, OptionInvalid, RecordsLost, TopicRecreated
from headrace.pipeline.options import parse_source
from headrace.pipeline.planning import build, offset_of, walk
from headrace.pipeline.stream_reader import HeadraceStreamReader


class Log:
    """What a reader asks of `Cluster`."""

    def __init__(self, first, last, **topic_ids):
        self.first, self.last, self.topic_ids = first, last, topic_ids
        self.written = None
        self.questions = 0

    def subscription_of(self, topics, pattern):
        partitions = {
            topic: dict.fromkeys(self.last[topic], 0) for topic in topics if topic in self.last
        }
        return TopicSubscription(partitions, dict(self.topic_ids))

    def recreate(self, first, last, **topic_ids):
        self.__init__(first, last, **topic_ids)

    def earliest(self, partitions):
        return build([(t, p, offset_of(self.first, t, p, 0)) for t, p, _ in walk(partitions)])

    def high_watermarks(self, partitions):
        last = self.written or self.last
        return build([(t, p, offset_of(last, t, p, 0)) for t, p, _ in walk(partitions)])

    def latest(self, partitions):
        self.questions += 1
        return build([(t, p, offset_of(self.last, t, p, 0)) for t, p, _ in walk(partitions)])


def reader_of(log, **options):
    return HeadraceStreamReader(
        parse_source({"bootstrap.servers": "h:1", "subscribe": "t", **options}), log
    )


def ranges(tasks):
    return [tuple(task.piece) for task in tasks]


def at(offset, topic_id=None, begin=None):
    """A position in the one partition of `t`, as Spark stores it."""
    begins = {} if begin is None else {"$begins": {"t": {"0": begin}}}
    return {"t": {"0": offset}} | begins | ({"$topicIds": {"t": topic_id}} if topic_id else {})


def test_a_new_stream_asks_latest_before_initial_and_is_limited_all_the_same():
    log = Log({"t": {"0": 5}}, {"t": {"0": 1_000}})
    reader = reader_of(log, maxOffsetsPerTrigger="10")
    assert reader.latestOffset() == at(15, begin=5)
    assert reader.initialOffset() == {"t": {"0": 5}}
    assert ranges(reader.partitions(at(5), at(15, begin=5))) == [("t", 0, 5, 15)]
    assert reader.latestOffset() == {"t": {"0": 25}}


def test_starting_at_latest_does_not_move_between_the_two_questions():
    log = Log({}, {"t": {"0": 40}})
    reader = reader_of(log, startingOffsets="latest")
    assert reader.latestOffset() == at(40, begin=40)
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
    end = reader.latestOffset()
    assert end == at(100, begin=0)
    log.last = {"t": {"0": 500}}
    reader.partitions({"t": {"0": 0}}, end)
    assert reader.latestOffset() == end
    assert log.questions == 2  # the end, and one check that the batch is there


def test_a_partition_that_appears_is_read_from_where_its_log_begins():
    log = Log({"t": {"1": 3}}, {"t": {"0": 10}})
    reader = reader_of(log)
    reader.partitions({"t": {"0": 10}}, {"t": {"0": 10}})
    log.last = {"t": {"0": 10, "1": 8}}
    end = reader.latestOffset()
    assert end == {"t": {"0": 10, "1": 8}, "$begins": {"t": {"1": 3}}}
    assert ranges(reader.partitions(at(10), end)) == [("t", 1, 3, 8)]
    assert reader.latestOffset() == end
    log.last = {"t": {"0": 10, "1": 9}}
    assert reader.latestOffset() == {"t": {"0": 10, "1": 9}}
    log.first = {"t": {"1": 4}}  # retention, between the first run of the batch and its replay
    with pytest.raises(RecordsLost, match="t-1: offsets 3 to 8 were requested"):
        reader_of(log).partitions(at(10), end)
    with pytest.raises(RecordsLost, match="t-1: the batch to replay was planned by an earlier"):
        reader_of(log).partitions(at(10), {"t": {"0": 10, "1": 8}})


@pytest.mark.parametrize(
    ("starting", "begin"), [("earliest", 5), ("latest", 40), ('{"t":{"0":7}}', 7)]
)
def test_a_first_batch_is_replayed_from_where_it_began(starting, begin):
    log = Log({"t": {"0": 5}}, {"t": {"0": 40}})
    reader = reader_of(log, startingOffsets=starting)
    reader.initialOffset()
    log.last = {"t": {"0": 60}}
    end = reader.latestOffset()
    reader = reader_of(log, startingOffsets=starting)
    log.last = {"t": {"0": 90}}
    tasks = reader.partitions(reader.initialOffset(), end)
    assert ranges(tasks) == [("t", 0, begin, 60)]
    log.first = {"t": {"0": 50}}
    for replay in (reader, reader_of(log, startingOffsets=starting)):
        with pytest.raises(RecordsLost, match=f"{begin} to 60 were requested.* holds 50 to 90"):
            replay.partitions(replay.initialOffset(), end)
    accepting = reader_of(log, startingOffsets=starting, failOnDataLoss="false")
    assert ranges(accepting.partitions(accepting.initialOffset(), end)) == [("t", 0, begin, 60)]


def test_a_first_batch_of_an_earlier_version_is_replayed_where_its_start_is_known():
    log = Log({}, {"t": {"0": 90}})
    reader = reader_of(log)
    assert ranges(reader.partitions(reader.initialOffset(), at(60))) == [("t", 0, 0, 60)]
    log.first = {"t": {"0": 5}}
    named = reader_of(log, startingOffsets='{"t":{"0":7}}')
    assert ranges(named.partitions(named.initialOffset(), at(60))) == [("t", 0, 7, 60)]
    reader = reader_of(log)
    with pytest.raises(RecordsLost, match=r"It would begin at 5 now.*new checkpoint"):
        reader.partitions(reader.initialOffset(), at(60))


def test_a_stream_that_read_uncommitted_records_waits_for_their_transactions(caplog):
    log = Log({}, {"t": {"0": 40}}, t="A")
    log.written = {"t": {"0": 60}}
    reader = reader_of(log)
    assert reader.partitions(at(60, "A"), at(60, "A")) == []
    with caplog.at_level(logging.WARNING):
        assert reader.latestOffset() == reader.latestOffset() == at(60, "A")
    assert len(caplog.messages) == 1
    assert "offset 60, after the last stable offset 40" in caplog.text
    with pytest.raises(NotStableYet, match=r"a transaction is open.*read_uncommitted"):
        reader_of(log).partitions(at(30, "A"), at(60, "A"))
    log.last = {"t": {"0": 70}}
    assert reader.latestOffset() == at(70, "A")
    log.last = log.written = {"t": {"0": 50}}
    with pytest.raises(RecordsLost, match="is at offset 60, but the log ends at 50"):
        reader.latestOffset()


def test_records_that_retention_took_are_an_error_that_says_so():
    reader = reader_of(Log({"t": {"0": 50}}, {"t": {"0": 100}}))
    with pytest.raises(RecordsLost, match="offsets 20 to 60 were requested, but the log holds 50"):
        reader.partitions({"t": {"0": 20}}, {"t": {"0": 60}})


def test_a_log_that_ends_before_the_position_is_an_error_and_not_silence():
    reader = reader_of(Log({}, {"t": {"0": 4}}))
    reader.partitions({"t": {"0": 60}}, {"t": {"0": 60}})
    with pytest.raises(RecordsLost, match="is at offset 60, but the log ends at 4"):
        reader.latestOffset()


def test_positions_carry_the_ids_of_their_topics():
    reader = reader_of(Log({}, {"t": {"0": 40}}, t="A"))
    assert reader.initialOffset() == at(0, "A")
    assert reader.latestOffset() == at(40, "A", begin=0)
    (task,) = reader.partitions(at(0, "A"), at(40, "A"))
    assert (tuple(task.piece), task.topic_id) == (("t", 0, 0, 40), "A")


def test_a_longer_topic_that_took_the_place_of_the_former_is_an_error():
    log = Log({}, {"t": {"0": 60}}, t="A")
    reader = reader_of(log)
    reader.partitions(at(60, "A"), at(60, "A"))
    log.recreate({}, {"t": {"0": 500}}, t="B")
    message = "t was deleted and recreated: its id was A and is now B.*failOnDataLoss=false"
    with pytest.raises(TopicRecreated, match=message):
        reader.latestOffset()
    with pytest.raises(TopicRecreated, match="its id was A"):  # a batch planned before, replayed
        reader_of(log).partitions(at(60, "A"), at(70, "A"))
    with pytest.raises(TopicRecreated, match="its id was A"):
        reader_of(log).partitions(at(60, "A"), at(70, "B"))


def test_where_loss_is_accepted_the_new_topic_is_read_from_its_start(caplog):
    log = Log({"t": {"0": 3}}, {"t": {"0": 500}}, t="B")
    reader = reader_of(log, failOnDataLoss="false", maxOffsetsPerTrigger="10")
    assert reader.partitions(at(60, "A"), at(60, "A")) == []
    with caplog.at_level(logging.WARNING):
        end = reader.latestOffset()
    assert end == at(13, "B", begin=3)
    assert "its id was A and is now B" in caplog.text
    assert ranges(reader.partitions(at(60, "A"), end)) == [("t", 0, 3, 13)]
    assert reader.latestOffset() == at(23, "B")
    # The same batch after a restart, also as an earlier version stored it, and one that was
    # planned for a topic deleted since.
    restarted = reader_of(log, failOnDataLoss="false")
    assert ranges(restarted.partitions(at(60, "A"), end)) == [("t", 0, 3, 13)]
    assert ranges(restarted.partitions(at(60, "A"), at(13, "B"))) == [("t", 0, 3, 13)]
    assert restarted.partitions(at(60, "A"), at(70, "A")) == []
    assert restarted.latestOffset() == at(500, "B", begin=3)


def test_equal_offsets_of_two_topics_are_not_the_same_place():
    log = Log({"t": {"0": 3}}, {"t": {"0": 60}}, t="B")
    reader = reader_of(log, failOnDataLoss="false")
    reader.partitions(at(60, "A"), at(60, "A"))
    assert reader.latestOffset() == at(60, "B", begin=3)
    assert ranges(reader.partitions(at(60, "A"), at(60, "B"))) == [("t", 0, 3, 60)]


def test_a_checkpoint_without_ids_is_accepted_and_gets_them():
    log = Log({}, {"t": {"0": 100}}, t="A")
    reader = reader_of(log, maxOffsetsPerTrigger="10")
    assert reader.partitions(at(60), at(60)) == []
    assert reader.latestOffset() == at(70, "A")
    (task,) = reader.partitions(at(60), at(70, "A"))
    assert task.topic_id == "A"
    (task,) = reader_of(log).partitions(at(60), at(70))  # a batch that the earlier version planned
    assert task.topic_id is None
    log.recreate({}, {"t": {"0": 100}}, t="B")
    with pytest.raises(TopicRecreated):
        reader.latestOffset()


def test_where_loss_is_accepted_a_shorter_log_does_not_stop_the_stream():
    truncated = reader_of(Log({}, {"t": {"0": 40}}, t="A"), failOnDataLoss="false")
    truncated.partitions(at(60, "A"), at(60, "A"))
    assert truncated.latestOffset() == at(40, "A")
    # Without ids it is more likely another topic than a truncated one.
    unknown = reader_of(Log({}, {"t": {"0": 40}}, t="A"), failOnDataLoss="false")
    unknown.partitions(at(60), at(60))
    assert unknown.latestOffset() == at(40, "A", begin=0)
    log = Log({"t": {"0": 3}}, {"t": {"0": 40}}, t="A")
    unknown = reader_of(log, failOnDataLoss="false", maxOffsetsPerTrigger="10")
    unknown.partitions(at(60), at(60))
    end = unknown.latestOffset()
    assert end == at(13, "A", begin=3)
    assert ranges(unknown.partitions(at(60), end)) == [("t", 0, 3, 13)]
    assert truncated.partitions(at(60, "A"), at(40, "A")) == []


def test_a_topic_of_a_pattern_that_is_deleted_and_comes_back_begins_again():
    log = Log({}, {"t": {"0": 60}}, t="A")
    reader = reader_of(log, failOnDataLoss="false")
    reader.partitions(at(60, "A"), at(60, "A"))
    log.recreate({}, {})
    assert reader.latestOffset() == {}
    reader.partitions(at(60, "A"), {})
    log.recreate({"t": {"0": 3}}, {"t": {"0": 70}}, t="B")
    assert reader.latestOffset() == at(70, "B", begin=3)
    assert ranges(reader.partitions({}, at(70, "B", begin=3))) == [("t", 0, 3, 70)]


def test_the_batch_of_a_first_start_at_latest_that_cannot_be_replayed_is_an_error():
    # An earlier version stored the end of batch 0, not its start; "latest" is later now.
    reader = reader_of(Log({}, {"t": {"0": 90}}), startingOffsets="latest")
    start = reader.initialOffset()
    with pytest.raises(RecordsLost):
        reader.partitions(start, {"t": {"0": 80}})


def test_an_offset_beyond_the_end_is_an_invalid_option():
    log = Log({"t": {"0": 5}}, {"t": {"0": 90}})
    for name, resolve in (("startingOffsets", resolve_start), ("endingOffsets", resolve_end)):
        options = {"bootstrap.servers": "h:1", "subscribe": "t", name: '{"t":{"0":91}}'}
        with pytest.raises(OptionInvalid, match=f"{name} requests offset 91 of t-0.*ends at 90"):
            resolve(log, parse_source(options), at(0))
        accepting = parse_source(options | {"failOnDataLoss": "false"})
        assert resolve(log, accepting, at(0)) == at(90)
        assert resolve(log, parse_source(options | {name: '{"t":{"0":90}}'}), at(0)) == at(90)


def test_a_stream_that_ends_at_its_limit_after_one_batch_warns(caplog):
    def run(ends_asked, **options):
        caplog.clear()
        reader = reader_of(Log({}, {"t": {"0": 100}}), **options)
        for _ in range(ends_asked):
            reader.partitions(at(0), reader.latestOffset())
        reader.stop()
        return caplog.text

    assert "with 90 offsets left" in run(1, maxOffsetsPerTrigger="10")
    assert run(1) == run(1, maxOffsetsPerTrigger="100") == run(2, maxOffsetsPerTrigger="10") == ""


def test_a_task_takes_only_options_along():
    reader = reader_of(None)
    task = pickle.loads(pickle.dumps(reader))
    assert task.options == reader.options


def test_a_batch_waits_for_a_minimum_of_records_up_to_a_limit():
    log = Log({"t": {"0": 0}}, {"t": {"0": 5}})
    reader = reader_of(log, minOffsetsPerTrigger="10", maxTriggerDelay="1h")
    assert reader.latestOffset() == at(5, begin=0)  # the first batch does not wait
    reader.partitions(at(0), at(5, begin=0))
    log.last = {"t": {"0": 14}}
    assert reader.latestOffset() == at(5, begin=0)
    log.last = {"t": {"0": 15}}
    assert reader.latestOffset() == {"t": {"0": 15}}
    impatient = reader_of(log, minOffsetsPerTrigger="10", maxTriggerDelay="0ms")
    impatient.partitions(at(5), at(5))
    log.last = {"t": {"0": 6}}
    assert impatient.latestOffset() == {"t": {"0": 6}}


def test_only_assigned_partitions_are_read():
    log = Log({}, {"t": {"0": 4, "1": 5, "2": 6}})
    options = {"bootstrap.servers": "h:1", "assign": '{"t":[2,0]}'}
    reader = HeadraceStreamReader(parse_source(options), log)
    assert reader.initialOffset() == {"t": {"0": 0, "2": 0}}
    missing = parse_source({**options, "assign": '{"t":[3]}'})
    with pytest.raises(OptionInvalid, match="assign names t-3, but t has 3 partitions"):
        HeadraceStreamReader(missing, log).latestOffset()
