"""What the data source may be told."""

import pytest

from headrace.pipeline.errors import OptionInvalid
from headrace.pipeline.options import offsets_to_json, parse_sink, parse_source

SERVER = {"bootstrap.servers": "127.0.0.1:9092"}


def test_defaults_read_everything_and_fail_on_loss():
    options = parse_source({**SERVER, "subscribe": "a, b"})
    assert options.topics == ("a", "b")
    assert (options.starting, options.ending) == ("earliest", "latest")
    assert options.fail_on_data_loss
    assert options.include_headers


def test_names_come_in_any_case_and_kafka_settings_go_to_the_client_as_they_are():
    options = parse_source(
        {"KAFKA.bootstrap.servers": "h:1", "kafka.isolation.level": "read_uncommitted",
         "SUBSCRIBE": "t", "MaxOffsetsPerTrigger": "5"}
    )  # fmt: skip
    assert options.client == {"bootstrap.servers": "h:1", "isolation.level": "read_uncommitted"}
    assert options.offsets_per_trigger_max == 5


def test_offsets_survive_the_way_through_json():
    offsets = {"t": {"0": 23, "1": -2}}
    options = parse_source(
        {**SERVER, "subscribe": "t", "startingOffsets": offsets_to_json(offsets)}
    )
    assert options.starting == offsets


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"subscribe": "t"}, "bootstrap.servers"),
        (SERVER, "subscribe"),
        ({**SERVER, "subscribe": "t", "subscribePattern": "t.*"}, "exactly one"),
        ({**SERVER, "subscribe": "t", "startingOffset": "earliest"}, "startingoffset"),
        ({**SERVER, "subscribe": "t", "startingOffsets": "first"}, "earliest"),
        ({**SERVER, "subscribe": "t", "startingOffsets": "[1]"}, "JSON"),
        (
            {**SERVER, "subscribe": "t", "startingOffsets": '{"t":{"0":-3}}'},
            "-3 of t-0 is neg",
        ),
        ({**SERVER, "subscribe": "t", "endingOffsets": '{"t":{"1":-9}}'}, "-9 of t-1 is neg"),
        ({**SERVER, "subscribe": "t", "topicIds": "[]"}, "topicIds"),
        ({**SERVER, "subscribe": "t", "includeHeaders": "yes"}, "includeheaders"),
        ({**SERVER, "subscribe": "t", "minPartitions": "0"}, "minpartitions"),
        (
            {**SERVER, "subscribe": "t", "startingOffsets": "latest", "startingTimestamp": "1"},
            "both",
        ),
    ],
)
def test_a_wrong_option_is_named(options, word):
    with pytest.raises(OptionInvalid, match=word):
        parse_source(options)


def test_the_sink_has_its_own_options():
    options = parse_sink({**SERVER, "topic": "t", "sortRows": "true", "checkpointLocation": "/x"})
    assert (options.topic, options.sort_rows, options.write_id) == ("t", True, None)
    with pytest.raises(OptionInvalid, match="subscribe"):
        parse_sink({**SERVER, "subscribe": "t"})
