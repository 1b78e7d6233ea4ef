"""The command in the error of a sink that may not keep its progress gives that right alone."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.pipeline.errors import ProgressRefused
from headrace.pipeline.options import SinkOptions
from headrace.pipeline.target import KafkaTopics


@pytest.mark.parametrize(
    ("group", "given"),
    [
        ("headrace-sink.my.query", "headrace-sink.my.query"),
        ("headrace-replay.again", "headrace-replay. --prefix"),
        ("headrace-sink.headrace-replay.again.0f", "headrace-sink.headrace-replay. --prefix"),
    ],
)
def test_the_right_to_a_querys_group_is_not_one_to_those_of_others(group, given):
    denied = KafkaException(KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    with KafkaTopics(SinkOptions({"sasl.username": "ann"})) as topics:
        refused = topics._marks_failed(group, "stored", denied)
    assert isinstance(refused, ProgressRefused)
    assert f"--principal User:ann --operation read --group {given};" in str(refused)
