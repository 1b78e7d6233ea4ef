"""Rates, lag and forecasts between two refreshes."""

from __future__ import annotations

from rich.console import Console

from headrace.cli.group_listing import GroupListed
from headrace.cli.positions import Partition
from headrace.cli.top import Sample, _screen, facts_of

A, B = Partition("a", 0), Partition("b", 0)
READER = GroupListed("reader", "Stable", "consumer")


def sample(at_s: float, a: int, b: int, **offsets: dict[Partition, int]) -> Sample:
    return Sample(at_s, {A: a, B: b}, offsets, [READER], 1)


def test_the_first_refresh_has_no_rates():
    facts = facts_of(None, sample(1.0, 5, 0, reader={A: 2}))
    assert [row["written_per_s"] for row in facts["topics"]] == [None, None]
    (group,) = facts["groups"]
    assert (group["lag"], group["read_per_s"], group["empty_in_s"]) == (3, None, None)


def test_rates_and_the_time_until_a_group_has_read_everything():
    before, now = sample(1.0, 100, 7, reader={A: 0}), sample(3.0, 120, 7, reader={A: 80})
    facts = facts_of(before, now)
    assert [(row["topic"], row["written_per_s"]) for row in facts["topics"]] == [
        ("a", 10.0),
        ("b", 0.0),
    ]
    (group,) = facts["groups"]
    assert (group["lag"], group["read_per_s"], group["empty_in_s"]) == (40, 40.0, 1.3)
    (group,) = facts_of(before, sample(3.0, 200, 7, reader={A: 80}))["groups"]
    assert group["empty_in_s"] is None, "it is written faster than it is read"
    (group,) = facts_of(before, sample(3.0, 100, 7, reader={A: 100}))["groups"]
    assert (group["lag"], group["empty_in_s"]) == (0, 0.0)


def test_a_screen_of_80_columns_cuts_no_word(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    facts = facts_of(sample(1.0, 0, 7, reader={A: 0}), sample(3.0, 5, 7, reader={A: 0}))
    console = Console(width=80)
    with console.capture() as shown:
        console.print(_screen(facts))
    assert "1 broker, 2 topics, 1 group " in shown.get()
    assert "never" in shown.get()
    assert "\u2026" not in shown.get()


def test_recreated_topics_and_reset_groups_have_no_negative_rate():
    before, now = sample(1.0, 100, 7, reader={A: 90}), sample(2.0, 3, 7, reader={A: 0})
    facts = facts_of(before, now)
    assert {row["written_per_s"] for row in facts["topics"]} == {0.0}
    assert facts["groups"][0]["read_per_s"] == 0.0
