"""Token buckets against a plain sum over every window, and precedence against Kafka's list."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordination.quotas.entities import CLIENT_ID, PRODUCER, USER, quota_of
from headrace.coordination.quotas.token_bucket import NS_PER_S, WAIT_MS_MAX, TokenBucket

RATE, BURST, LARGEST = 1_000, 1_000, 20_000
assert LARGEST / RATE * 1_000 < WAIT_MS_MAX

steps = st.lists(st.tuples(st.integers(0, 3_000), st.integers(1, LARGEST)), max_size=40)


@given(steps)
def test_over_any_window_a_client_that_waits_passes_no_more_than_its_rate_and_a_burst(wanted):
    bucket, now_ms = TokenBucket(RATE, BURST, 0), 0
    passed: list[tuple[int, int]] = []
    for pause_ms, size in wanted:
        now_ms += pause_ms
        passed.append((now_ms, size))
        now_ms += bucket.charge(size, now_ms * NS_PER_S // 1_000)
    for first in range(len(passed)):
        total = 0
        for last in range(first, len(passed)):
            total += passed[last][1]
            window_s = (passed[last][0] - passed[first][0]) / 1_000
            assert total <= RATE * window_s + BURST + passed[last][1] + 1e-6


@given(steps)
def test_a_client_below_its_rate_never_waits(wanted):
    bucket, now_ms = TokenBucket(RATE, BURST, 0), 0
    for _, size in wanted:
        part = min(size, BURST)
        now_ms += part * 1_000 // RATE + 1
        assert bucket.charge(part, now_ms * NS_PER_S // 1_000) == 0


names = st.sampled_from(["a", "b", None])
entities = st.one_of(
    st.tuples(st.tuples(st.just(CLIENT_ID), names), st.tuples(st.just(USER), names)),
    st.tuples(st.tuples(st.just(USER), names)),
    st.tuples(st.tuples(st.just(CLIENT_ID), names)),
)


@given(st.dictionaries(entities, st.integers(1, 9).map(lambda rate: {PRODUCER: float(rate)})))
def test_the_most_specific_quota_counts_in_the_order_of_kafkas_documentation(quotas):
    order = [
        {USER: "a", CLIENT_ID: "b"},
        {USER: "a", CLIENT_ID: None},
        {USER: "a"},
        {USER: None, CLIENT_ID: "b"},
        {USER: None, CLIENT_ID: None},
        {USER: None},
        {CLIENT_ID: "b"},
        {CLIENT_ID: None},
    ]
    by_parts = [(dict(entity), rates) for entity, rates in quotas.items()]
    expected = next(
        (
            (tuple(sorted((kind, {USER: "a", CLIENT_ID: "b"}[kind]) for kind in wanted)), rates)
            for wanted in order
            for parts, rates in by_parts
            if parts == wanted
        ),
        None,
    )
    found = quota_of(quotas, PRODUCER, "a", "b")
    assert found == (None if expected is None else (expected[0], expected[1][PRODUCER]))
