"""Options of the form NAME=VALUE, and the units in which people write settings."""

from __future__ import annotations

import pytest

from headrace.cli.pairs import parse_duration_ms, setting


@pytest.mark.parametrize(
    ("text", "duration_ms"), [("90s", 90_000), ("2d", 172_800_000), ("1.5h", 5_400_000), ("5ms", 5)]
)
def test_durations(text, duration_ms):
    assert parse_duration_ms(text) == duration_ms


@pytest.mark.parametrize("text", ["", "5", "h", "5m5", "5m 5s"])
def test_malformed_durations_are_refused(text):
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_ms(text)


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("retention.ms=7d", "604800000"),
        ("retention.ms=1h30m", "5400000"),
        ("headrace.share.retry.backoff.ms=1s,10s,5m", "1000,10000,300000"),
        ("retention.bytes=10GiB", "10737418240"),
        ("log.retention.bytes=1.5 TB", "1500000000000"),
        ("producer_byte_rate=10MiB", "10485760"),
        ("stored_bytes=1KiB", "1024"),
        # As Kafka's users write them, and what is the broker's to judge.
        ("retention.ms=-1", "-1"),
        ("retention.ms=604800000", "604800000"),
        ("retention.ms=7 days", "7 days"),
        ("headrace.share.retry.backoff.ms=1000,10s", "1000,10s"),
        ("retention.bytes=10GiBB", "10GiBB"),
        ("cleanup.policy=7d", "7d"),
        ("headrace.dead.letter.topic=1GiB", "1GiB"),
        ("a=b=c", "b=c"),
    ],
)
def test_a_setting_is_sent_in_the_unit_of_its_name(given, sent):
    assert setting(given) == (given.partition("=")[0], sent)
