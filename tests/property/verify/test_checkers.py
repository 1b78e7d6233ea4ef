"""Checkers: correct histories pass, and each spoiled one is caught."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.property.verify.histories import MUTATIONS, SIDE_EFFECTS, Model

from headrace_verify.checkers import check_events

seeds = st.integers(0, 2**32 - 1)


@given(seed=seeds, steps=st.integers(0, 120), partitions=st.integers(1, 3))
@settings(max_examples=60, deadline=None)
def test_a_right_history_passes(seed, steps, partitions):
    verdict = check_events(Model(random.Random(seed), partitions).run(steps))
    assert verdict.is_clean, verdict.anomalies


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda mutation: mutation.__name__)
def test_a_spoiled_history_is_caught_by_the_right_checkers(mutation):
    found = 0

    @given(seed=seeds, steps=st.integers(60, 150))
    @settings(max_examples=15, deadline=None, database=None)
    def attempt(seed, steps):
        nonlocal found
        rng = random.Random(seed)
        events = Model(rng).run(steps)
        expected = mutation(events, rng)
        if expected is None:
            return  # this history offers no place for it
        found += 1
        verdict = check_events(sorted(events, key=lambda event: event["t"]))
        kinds = set(verdict.counts)
        assert expected <= kinds, verdict.anomalies
        assert kinds <= expected | SIDE_EFFECTS.get(mutation.__name__, set()), verdict.anomalies

    attempt()
    assert found, "no history offered a place for it"


def member(*polls, kind="librdkafka-member", committed=None):
    """A history of one member of a group, which polls these runs of offsets of one partition."""
    place = {"topic": "t", "part": 0}
    events = [{"p": "m", "k": "ok", "f": "note", "what": "started", "kind": kind}]
    for value in range(1, 11):
        events.append({"p": "p", "k": "invoke", "f": "send", **place, "value": value})
        events.append(
            {"p": "p", "k": "ok", "f": "send", **place, "value": value, "offset": value - 1}
        )
    if committed is not None:
        whose = {"p": "n", "f": "commit", "op": 1, "group": "g", "member": "n", "gen": 1}
        events.append({**whose, "k": "invoke", "offs": [["t", 0, committed]]})
        events.append({**whose, "k": "ok"})
    events.append({"p": "m", "k": "ok", "f": "assign", "group": "g", "member": "m", "gen": 2})
    events[-1]["parts"] = [["t", 0]]
    for first, end in polls:
        records = [[0, offset, offset + 1] for offset in range(first, end)]
        events.append(
            {"p": "m", "k": "ok", "f": "poll", "topic": "t", "recs": records, "group": "g"}
        )
    for at, event in enumerate(events):
        event["t"], event["since"] = at, at - 1
    verdict = check_events(events)
    return [kind for kind in verdict.counts if "poll" in kind], verdict.excused


def test_only_librdkafka_fetches_of_a_revoked_partition_are_excused() -> None:
    excused = {"fetched while given up": 1}
    assert member((0, 5), (0, 10)) == ([], excused), "nothing was committed: it begins at the start"
    assert member((0, 5), (2, 10), committed=2) == ([], excused)
    assert member((0, 5), (8, 10), committed=8) == ([], excused), "the rest of it was thrown away"
    back, skip = "external non-monotonic poll", "external poll skip"
    assert member((0, 5), (0, 10), kind="aiokafka-member") == ([back], {})
    assert member((0, 5), (1, 10)) == ([back], {}), "no place where a group would begin"
    assert member((0, 5), (8, 10)) == ([skip], {})
    assert member((3, 5), (0, 10)) == ([back], {}), "it asks for the log's start"
    assert member((0, 3), (3, 5), (0, 10)) == ([back], {}), "the queue is cut off at once"
    assert member((0, 5), (0, 7), (0, 10)) == ([back], excused), "once"
