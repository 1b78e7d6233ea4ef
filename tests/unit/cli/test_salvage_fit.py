"""A topic that would not keep salvaged records is recognized by its settings."""

from __future__ import annotations

import pytest

from headrace.broker.topics.topic_config import DEFINITIONS
from headrace.cli.salvage_fit import misfits

DEFAULTS = {name: one.default for name, one in DEFINITIONS.items()}
KEEPING = DEFAULTS | {"retention.ms": "-1"}
"""What `headrace topic create NAME --set retention.ms=-1` has."""


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        ({}, {}, {}),
        ({}, {"retention.ms": "604800000"}, {"retention.ms": "-1"}),
        ({"retention.ms": "5"}, {"retention.ms": "4"}, {"retention.ms": "5"}),
        ({"retention.ms": "5"}, {"retention.ms": "5"}, {}),
        ({"retention.ms": "-1"}, {"retention.ms": "5"}, {"retention.ms": "-1"}),
        ({}, {"retention.bytes": "5"}, {"retention.bytes": "-1"}),
        ({}, {"cleanup.policy": "compact"}, {"cleanup.policy": "delete"}),
        ({"cleanup.policy": "compact"}, {}, {"cleanup.policy": "compact"}),
        ({"cleanup.policy": "compact"}, {"cleanup.policy": "compact", "retention.ms": "5"}, {}),
        ({"cleanup.policy": "compact, delete"}, {"cleanup.policy": "delete,compact"}, {}),
        ({"max.message.bytes": "9000000"}, {}, {"max.message.bytes": "9000000"}),
        ({}, {"max.message.bytes": "9000000"}, {}),
        ({}, {"message.timestamp.type": "LogAppendTime"}, {"message.timestamp.type": "CreateTime"}),
        (
            {"headrace.message.attributes": "read"},
            {},
            {"headrace.message.attributes": "ignore"},
        ),
        (
            {"headrace.message.type": "delay"},
            {"headrace.message.type": "delay", "headrace.message.attributes": "ignore"},
            {"headrace.message.type": "auto"},
        ),
        ({"headrace.record.validation": "header"}, {"headrace.message.attributes": "ignore"}, {}),
    ],
)
def test_misfits_are_the_settings_a_target_must_change(source, target, expected) -> None:
    assert misfits(source, KEEPING | target) == expected
    # with which it fits
    assert misfits(source, KEEPING | target | expected) == {}


def test_settings_that_a_broker_of_another_kind_lacks_are_not_asked_for() -> None:
    target = {name: value for name, value in KEEPING.items() if not name.startswith("headrace.")}
    assert misfits({"headrace.message.attributes": "read"}, target) == {}
