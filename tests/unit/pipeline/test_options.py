"""Options of the data source."""

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


def test_an_operators_names_of_tenants_topics_become_those_of_kafkas_protocol():
    offsets = {"startingOffsets": '{"acme/a":{"0":1}}', "topicIds": '{"acme/a":"id"}'}
    options = parse_source({**SERVER, "subscribe": "acme/a, b", **offsets})
    assert options.topics == ("«acme»a", "b")
    assert (options.starting, options.topic_ids) == ({"«acme»a": {"0": 1}}, {"«acme»a": "id"})
    times = {"startingOffsetsByTimestamp": '{"acme/a":{"0":5}}'}
    options = parse_source({**SERVER, "assign": '{"acme/a":[0]}', **times})
    assert (options.assigned, options.starting_times_ms) == (
        {"«acme»a": [0]},
        {"«acme»a": {"0": 5}},
    )
    assert parse_sink({**SERVER, "topic": "acme/a"}).topic == "«acme»a"


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
        (
            {
                **SERVER,
                "subscribe": "t",
                "startingOffsetsByTimestamp": '{"t":{"0":1}}',
                "startingTimestamp": "1",
            },
            "both",
        ),
        ({**SERVER, "subscribe": "t", "assign": '{"t":[0]}'}, "exactly one"),
        ({**SERVER, "assign": '{"t":0}'}, "assign must be JSON"),
        ({**SERVER, "assign": '{"t":[-1]}'}, "negative"),
        ({**SERVER, "subscribe": "t", "startingOffsetsByTimestamp": "5"}, "must be JSON"),
        ({**SERVER, "subscribe": "t", "maxTriggerDelay": "soon"}, "15m"),
        (
            {**SERVER, "subscribe": "t", "minOffsetsPerTrigger": "9", "maxOffsetsPerTrigger": "8"},
            "larger",
        ),
        ({**SERVER, "subscribe": "t", "maxOffsetPerTrigger": "8"}, "mean maxOffsetsPerTrigger"),
        ({**SERVER, "subscribe": "t", "includeHeader": "true"}, "Did you mean includeHeaders"),
        # As Spark gives those of CREATE TABLE.
        ({**SERVER, "subscribe": "t", "option.subscribe": "t"}, "CREATE TEMPORARY VIEW"),
        ({**SERVER, "subscribe": "t", "fetchOffset.numRetries": "3"}, "stallTimeoutMs. Remove it"),
        ({**SERVER, "subscribe": "t", "xyz": "3"}, "begin with kafka"),
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


def test_options_of_sparks_own_connector_are_taken_under_their_names():
    options = parse_source({
        "kafka.bootstrap.servers": "h:1", "assign": '{"a":[0,2],"b":[1]}',
        "startingOffsetsByTimestamp": '{"a":{"0":5}}', "minOffsetsPerTrigger": "3",
        "startingOffsetsByTimestampStrategy": "ERROR", "maxTriggerDelay": "2m",
        "maxRecordsPerPartition": "7", "kafka.max.partition.fetch.bytes": "9",
    })  # fmt: skip
    assert options.assigned == {"a": [0, 2], "b": [1]}
    assert options.topics == ("a", "b")
    assert options.starting_times_ms == {"a": {"0": 5}}
    assert options.is_start_time_required
    assert (options.offsets_per_trigger_min, options.trigger_delay_ms_max) == (3, 120_000)
    assert options.records_per_task_max == 7
    assert options.client["fetch.message.max.bytes"] == "9"


def test_a_login_of_the_java_client_is_understood_and_shown_nowhere():
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    jaas = f'{module} required username="al\\"ice" password="s=3;cret";'
    options = parse_source({**SERVER, "subscribe": "t", "kafka.sasl.jaas.config": jaas})
    assert options.client["sasl.username"] == 'al"ice'
    assert options.client["sasl.password"] == "s=3;cret"
    assert "s=3;cret" not in repr(options)
    wrong = {**SERVER, "subscribe": "t", "kafka.sasl.jaas.config": "Krb5LoginModule s=3;cret"}
    with pytest.raises(OptionInvalid, match=r"kafka.sasl.password") as caught:
        parse_source(wrong)
    assert "s=3;cret" not in str(caught.value)


def test_settings_that_only_java_has_are_refused_with_what_to_set_instead():
    for name, instead in (
        ("ssl.truststore.location", "ssl.ca.location"),
        ("ssl.keystore.location", "ssl.certificate.location"),
        ("auto.offset.reset", "startingOffsets"),
    ):
        with pytest.raises(OptionInvalid, match=instead):
            parse_source({**SERVER, "subscribe": "t", f"kafka.{name}": "x"})
    pem = {"kafka.ssl.truststore.location": "/ca.pem", "kafka.ssl.truststore.type": "PEM"}
    options = parse_source({**SERVER, "subscribe": "t", **pem})
    assert options.client["ssl.ca.location"] == "/ca.pem"
