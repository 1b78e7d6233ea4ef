"""Checkers that nobody has seen fail are toys: right histories pass, each spoiled one is caught."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.verify.histories import MUTATIONS, SIDE_EFFECTS, Model

from headrace.verify.checkers import judge_history

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, steps=st.integers(0, 120), partitions=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_right_history_passes(seed, steps, partitions):
    verdict = judge_history(Model(random.Random(seed), partitions).run(steps))
    assert verdict.is_clean, verdict.anomalies


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_spoiled_history_is_caught_by_the_right_checkers(mutation):
    found = 0

    @given(seed=seeds, steps=st.integers(60, 150))
    @settings(max_examples=15, deadline=None, database=None)
    def attempt(seed, steps):
        nonlocal found
        chance = random.Random(seed)
        events = Model(chance).run(steps)
        expected = mutation(events, chance)
        if expected is None:
            return  # this history offers no place for it
        found += 1
        verdict = judge_history(sorted(events, key=lambda event: event["t"]))
        kinds = set(verdict.counts)
        assert expected <= kinds, verdict.anomalies
        assert kinds <= expected | SIDE_EFFECTS.get(mutation.__name__, set()), verdict.anomalies

    attempt()
    assert found, "no history offered a place for it"
