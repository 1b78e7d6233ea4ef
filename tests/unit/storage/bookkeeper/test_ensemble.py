"""Which bookies a ledger gets, and which it does not."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.errors import StorageUnavailable
from headrace.storage.bookkeeper.ensemble import BookiePool
from headrace.storage.bookkeeper.quorum import Quorum

SECOND = 1_000_000_000


def pool(count: int, racks=None) -> BookiePool:
    made = BookiePool(racks or {}, quarantine_first_ms=5_000, quarantine_max_ms=20_000)
    made.set_writable(f"b{number}" for number in range(count))
    return made


def choose(made: BookiePool, quorum: Quorum, now_ns: int = 0, seed: int = 0):
    return made.choose_ensemble(quorum, now_ns, random.Random(seed).randrange)


def test_with_few_bookies_the_ensemble_shrinks_and_the_ack_quorum_does_not():
    wanted = Quorum(5, 3, 2)
    assert choose(pool(9), wanted)[0] == wanted
    assert choose(pool(3), wanted)[0] == (3, 3, 2)
    assert choose(pool(2), wanted)[0] == (2, 2, 2)
    with pytest.raises(StorageUnavailable):
        choose(pool(1), wanted)


def test_every_bookie_gets_its_share():
    made = pool(4)
    counts = {f"b{number}": 0 for number in range(4)}
    below = random.Random(0).randrange
    for _ in range(1_000):
        for bookie in made.choose_ensemble(Quorum(2, 2, 2), 0, below)[1]:
            counts[bookie] += 1
    assert all(400 < count < 600 for count in counts.values())


@given(st.integers(2, 4), st.integers(1, 3), st.integers(0, 1_000))
def test_bookies_beside_each_other_lie_in_different_racks(rack_count, per_rack, seed):
    count = rack_count * per_rack
    made = pool(count, {f"b{number}": f"/r{number % rack_count}" for number in range(count)})
    size = min(3, count)
    _, bookies = made.choose_ensemble(
        Quorum(size, min(2, size), 1), 0, random.Random(seed).randrange
    )
    racks = [int(bookie[1:]) % rack_count for bookie in bookies]
    assert len(set(bookies)) == size
    if rack_count >= size:
        assert len(set(racks)) == size
    else:
        # Two racks cannot take turns around a ring of three: one pair shares a rack.
        assert (
            sum(one == other for one, other in zip(racks, [*racks[1:], *racks[:1]], strict=True))
            == 1
        )


def test_a_spare_bookie_takes_the_rack_that_was_lost():
    racks = {"b0": "/x", "b1": "/y", "b2": "/z", "b3": "/x", "b4": "/y"}
    made = pool(5, racks)
    for seed in range(20):
        below = random.Random(seed).randrange
        ensemble = ["b0", "b1", "b2"]
        assert made.choose_spare(ensemble, 1, set(ensemble), 0, below) == "b4"
    assert made.choose_spare(["b0"], 0, {f"b{n}" for n in range(5)}, 0, below) is None


def test_a_failing_bookie_is_quarantined_longer_each_time_until_it_registers_again():
    made = pool(3)
    ends = []
    now = 0
    for _ in range(4):
        made.failed("b0", now)
        made.failed("b0", now)  # of many requests at once: one failure
        length = next(s for s in range(60) if not made.is_quarantined("b0", now + s * SECOND))
        ends.append(length)
        now += length * SECOND
    assert ends == [5, 10, 20, 20]
    made.failed("b0", now)
    made.set_writable(["b1", "b2"])
    made.set_writable(["b0", "b1", "b2"])
    assert not made.is_quarantined("b0", now)


def test_quarantined_bookies_get_ledgers_only_as_a_last_resort_and_read_only_ones_never():
    made = pool(5)
    made.failed("b0", 0)
    made.set_read_only(["b1"])
    for seed in range(20):
        assert set(choose(made, Quorum(3, 3, 2), seed=seed)[1]) == {"b2", "b3", "b4"}
    made.set_writable(["b0", "b1", "b2"])
    assert choose(made, Quorum(3, 3, 2))[0] == (2, 2, 2), "a read-only bookie gets no slot"


def test_a_bookie_that_is_away_gets_a_slot_that_every_entry_can_do_without():
    made = pool(3)
    made.failed("b0", 0)
    quorum, bookies = choose(made, Quorum(3, 3, 2))
    assert quorum == (3, 3, 2)
    assert sorted(bookies) == ["b0", "b1", "b2"]
    made.set_writable(["b1", "b2"])
    assert choose(made, Quorum(3, 3, 2))[0] == (2, 2, 2), "of b0 nothing is known any more"
    made.set_known(["b0", "b1", "b2", "b3"])
    quorum, bookies = choose(made, Quorum(3, 3, 2))
    assert quorum == (3, 3, 2)
    assert bookies[2] == "b0", "those that are there get the first slots"
    assert choose(made, Quorum(4, 4, 2))[0] == (4, 4, 2)
    assert choose(made, Quorum(3, 2, 2))[0] == (2, 2, 2), "all copies are needed"
    with pytest.raises(StorageUnavailable):
        choose(made, Quorum(3, 3, 3))


def test_a_bookie_that_failed_once_is_free_when_it_answers_and_later_serves_its_time():
    made = pool(3)
    made.failed("b0", 0)
    made.await_answer("b0")
    assert made.is_quarantined("b0", 100 * SECOND), "it has not answered"
    assert made.answered("b0", 100 * SECOND) == 0
    assert not made.is_quarantined("b0", 100 * SECOND)
    now = 101 * SECOND
    made.failed("b0", now)
    made.await_answer("b0")
    assert made.answered("b0", now + SECOND) == 4 * SECOND
    assert made.is_quarantined("b0", now + 4 * SECOND)
    assert not made.is_quarantined("b0", now + 5 * SECOND)
    later = now + 100 * SECOND
    made.failed("b0", later)
    assert made.answered("b0", later) == 0, "that was long ago"


def test_a_slots_own_bookie_goes_first():
    made = pool(5)
    for seed in range(20):
        below = random.Random(seed).randrange
        assert made.choose_spare(["b0", "b1", "b2"], 1, {"b0", "b2"}, 0, below) == "b1"
        assert made.choose_spare(["b0", "b1", "b2"], 1, {"b0", "b1", "b2"}, 0, below) != "b1"


@given(st.integers(1, 6), st.integers(1, 6), st.integers(1, 6), st.sets(st.integers(0, 5)))
def test_quorums_count_as_their_definition_says(first, second, third, slots):
    ack, write, size = sorted((first, second, third))
    quorum = Quorum(size, write, ack)
    slots = {slot % size for slot in slots}
    sets = [set(quorum.slots(entry)) for entry in range(size)]
    assert all(len(one) == write for one in sets)
    assert all(
        quorum.holds(slot, entry) == (slot in sets[entry])
        for entry in range(size)
        for slot in range(size)
    )
    assert quorum.can_acknowledge_without(slots) == all(len(one - slots) >= ack for one in sets)
    assert quorum.is_covered(slots) == all(len(one - slots) < ack for one in sets)
