"""A million producers of a partition are forgotten in slices, between which others have turns."""

from __future__ import annotations

from random import Random

import pytest
from tests.kit.records import batch

from headrace.log.footer import Footer, decode_footer, encode_in_steps
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_encoding import COARSE_MS, SLICE
from headrace.log.producer_state import ProducerState
from headrace.records.batch import read_header

COUNT = 3 * SLICE


def remembering(seen_ms: list[int]) -> ProducerState:
    """Producers 0, 1 ..., each last seen at that time."""
    state = ProducerState()
    for producer_id, at_ms in enumerate(seen_ms):
        of = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 0}
        state.apply(read_header(batch(b"x", **of)), producer_id, at_ms, 0)
    return state


@pytest.mark.parametrize("spread_ms", [1, 50, COARSE_MS, 40 * COARSE_MS])
@pytest.mark.parametrize("count", [1, SLICE, COUNT - 7, COUNT, 2 * COUNT])
def test_the_longest_idle_are_dropped(spread_ms: int, count: int) -> None:
    rng = Random(spread_ms + count)
    seen_ms = [1_000_000 + rng.randrange(spread_ms) for _ in range(COUNT)]
    state = remembering(seen_ms)
    assert sum(state.drop_idle(count, 2**60, 2**62)) == min(count, COUNT)
    kept = sorted(seen_ms[number] for number in range(COUNT) if number in state)
    assert kept == sorted(seen_ms)[count:]


def test_no_step_looks_at_more_than_a_slice() -> None:
    state = remembering([number // 10 for number in range(COUNT)])
    dropped = list(state.drop_idle(COUNT - 5, 2**60, 2**62))
    assert max(dropped) <= SLICE
    assert len(dropped) >= COUNT // SLICE
    state = remembering([0] * COUNT)
    left = []
    for now_ns in (0, 10):
        for _ in state.expire(1, now_ns, 10):
            left.append(len(state))
    assert left == [COUNT] * 3 + [2 * SLICE, SLICE, 0]


def test_those_that_are_seen_meanwhile_stay() -> None:
    state = remembering([0] * COUNT)
    steps = state.drop_idle(COUNT // 2, 2**60, 2**62)
    assert next(steps) == 0
    for producer_id in range(COUNT // 2):
        of = {"producer_id": producer_id, "producer_epoch": 0, "base_sequence": 1}
        state.apply(read_header(batch(b"x", **of)), producer_id, 5_000_000, 0)
    assert sum(steps) <= COUNT // 2
    assert all(producer_id in state for producer_id in range(COUNT // 2))


def test_they_are_described_in_slices_with_what_changes_meanwhile() -> None:
    state = remembering([0] * COUNT)
    steps = state.describe()
    described = next(steps)
    assert sum(state.drop_idle(COUNT, 2**60, 2**62)) == COUNT
    of = {"producer_id": COUNT - 1, "producer_epoch": 1, "base_sequence": 0}
    state.apply(read_header(batch(b"x", **of)), COUNT, 5, 0)
    parts = [described, *steps]
    assert [len(one) for one in parts] == [SLICE, 0, 1]
    assert [one.producer_id for one in described] == [*range(SLICE)]
    assert (parts[-1][0].producer_id, parts[-1][0].epoch) == (COUNT - 1, 1)


@pytest.mark.parametrize("room", [2**63, 150 * SLICE])
def test_they_are_encoded_in_slices(room: int) -> None:
    """Those that were last seen, if there is no room for all, however many change meanwhile."""
    state = remembering([*range(COUNT)])
    count = min(COUNT, room // 139)
    steps = encode_in_steps(Footer(COUNT, 1, OffsetIndex(), state.snapshot()), room)
    taken = 0
    try:
        while True:
            next(steps)
            taken += 1
            assert sum(state.drop_idle(SLICE // 2, 2**60, 2**62)) <= SLICE // 2
    except StopIteration as done:
        found = decode_footer(done.value).producers
    assert taken >= COUNT // SLICE
    assert len(found) in {count, count - 1}
    assert COUNT - 1 in found
    assert len(state) < COUNT
