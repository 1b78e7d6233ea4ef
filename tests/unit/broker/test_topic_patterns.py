"""Regular expressions of subscriptions: what they match, and that none holds up the broker."""

from __future__ import annotations

import asyncio
import time

import pytest

from headrace.broker.coordinators.topic_patterns import PATTERNS_MAX, TopicPatterns
from headrace.errors import RegularExpressionInvalid


class ChangingTopics:
    """The names of topics that there are."""

    def __init__(self, *names: str) -> None:
        self.names = dict.fromkeys(names)
        self.version = 1
        self.patterns = TopicPatterns(lambda: self.names, lambda: self.version)

    def change(self, *names: str) -> None:
        self.names = dict.fromkeys(names)
        self.version += 1

    def matching(self, pattern: str) -> list[str]:
        asyncio.run(self.patterns.prepare(pattern))
        return list(self.patterns.matching(pattern))


def test_a_pattern_matches_whole_names() -> None:
    world = ChangingTopics("orders", "orders-eu", "my-orders", "Orders")
    assert world.matching("orders") == ["orders"]
    assert world.matching("orders.*") == ["orders", "orders-eu"]
    assert world.matching("(?i)orders") == ["orders", "Orders"]
    assert world.matching("nothing") == []


def test_topics_that_come_are_matched_and_deleted_ones_are_forgotten() -> None:
    world = ChangingTopics("a1")
    assert world.matching("a.*") == ["a1"]
    world.change("a1", "b1", "a2")
    assert list(world.patterns.matching("a.*")) == ["a1", "a2"]
    for number in range(5_000):
        world.change(f"a{number}")
        found = world.patterns.matching("a.*")
        assert f"a{number}" in found
        assert len(found) < 1_000


@pytest.mark.parametrize(
    "pattern", ["(", "(a{1,1000}){1,1000}", "(?=a)b", r"(a)\1", "[b-a]", "(" * 900, "a" * 1_001]
)
def test_unusable_patterns_are_refused_with_the_cause(pattern: str) -> None:
    with pytest.raises(RegularExpressionInvalid, match="regular expression"):
        ChangingTopics("a").matching(pattern)


def test_a_pattern_that_would_backtrack_without_end_takes_no_time() -> None:
    names = [f"{'a' * 240}{number}" for number in range(200)]
    began = time.process_time()
    assert ChangingTopics(*names).matching("(a+)+b") == []
    assert ChangingTopics(*names).matching("(a|a)*(a|aa)*b") == []
    assert time.process_time() - began < 5


def test_patterns_are_remembered_up_to_a_bound() -> None:
    world = ChangingTopics("a")
    for number in range(PATTERNS_MAX + 10):
        world.matching(f"a{number}?")
    assert len(vars(world.patterns)["_known"]) == PATTERNS_MAX
    assert list(world.patterns.matching("a0?")) == ["a"], "one that was forgotten is matched again"


def test_a_pattern_matches_topics_of_its_own_tenant_alone() -> None:
    world = ChangingTopics("orders", "«7»orders", "«7»orders-eu", "«77»orders")
    assert world.matching(".*") == ["orders"]
    assert world.matching("«7»orders.*") == ["«7»orders", "«7»orders-eu"]
    assert world.matching("«77».*") == ["«77»orders"]
    with pytest.raises(RegularExpressionInvalid):
        world.matching("«7»a)|(?:.*")
