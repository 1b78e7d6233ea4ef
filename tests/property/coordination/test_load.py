"""Moves by load: nothing gets worse, everything comes to rest, and what may not move stays."""

from __future__ import annotations

from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st

from headrace.coordination.placement.load import BrokerLoad, choose_move, overloaded

THRESHOLD, GAIN = 150, 10


def keys(count):
    return [(UUID(int=number % 3), number) for number in range(count)]


@st.composite
def clusters(draw):
    """Partitions with their rates and owners, and which may not be moved."""
    brokers = draw(st.lists(st.integers(0, 20), min_size=1, max_size=6, unique=True))
    rates = draw(st.lists(st.integers(0, 10**8) | st.integers(0, 5), max_size=24))
    partitions = dict(zip(keys(len(rates)), rates, strict=True))
    owners = {key: draw(st.sampled_from(brokers)) for key in partitions}
    fixed = draw(st.sets(st.sampled_from(sorted(partitions, key=str)))) if partitions else set()
    return brokers, partitions, owners, fixed


def loads_of(brokers, partitions, owners, fixed):
    loads = {}
    for broker in brokers:
        mine = {key: rate for key, rate in partitions.items() if owners[key] == broker}
        movable = {key: rate for key, rate in mine.items() if key not in fixed}
        loads[broker] = BrokerLoad(sum(mine.values()), movable)
    return loads


def spread(loads):
    carried = [load.bytes_per_s for load in loads.values()]
    return max(carried) - min(carried)


@given(clusters())
def test_steady_loads_come_to_rest_and_no_move_widens_the_spread(cluster):
    brokers, partitions, owners, fixed = cluster
    before = dict(owners)
    moves = 0
    while True:
        loads = loads_of(brokers, partitions, owners, fixed)
        source = overloaded(loads, THRESHOLD)
        move = None if source is None else choose_move(loads, source, GAIN)
        if move is None:
            break
        moves += 1
        # Each takes a 50th of the mean's square from the sum of squares: n * n of them at most.
        assert moves <= 50 * len(brokers) ** 2, "it does not come to rest"
        assert owners[move.partition] == move.source != move.target
        owners[move.partition] = move.target
        after = loads_of(brokers, partitions, owners, fixed)
        assert spread(after) <= spread(loads)
        pair = (move.source, move.target)
        busier = max(after[broker].bytes_per_s for broker in pair)
        assert busier < loads[move.source].bytes_per_s
        assert min(after[broker].bytes_per_s for broker in pair) > loads[move.target].bytes_per_s
    assert all(owners[key] == before[key] for key in fixed)


@given(clusters())
def test_where_it_rests_no_single_move_to_the_idlest_would_gain_a_tenth(cluster):
    brokers, partitions, owners, fixed = cluster
    loads = loads_of(brokers, partitions, owners, fixed)
    source = overloaded(loads, THRESHOLD)
    if source is None:
        mean = sum(partitions.values()) / len(brokers)
        assert (
            len(brokers) == 1
            or max(load.bytes_per_s for load in loads.values()) <= mean * THRESHOLD / 100
        )
        return
    assert loads[source].bytes_per_s == max(load.bytes_per_s for load in loads.values())
    if choose_move(loads, source, GAIN) is None:
        have, idlest = (
            loads[source].bytes_per_s,
            min(load.bytes_per_s for broker, load in loads.items() if broker != source),
        )
        mean = sum(partitions.values()) / len(brokers)
        for rate in loads[source].movable.values():
            assert max(have - rate, idlest + rate) > have - max(1, mean * GAIN / 100)


@given(clusters(), st.randoms())
def test_brokers_that_see_the_same_loads_choose_the_same_move(cluster, rng):
    brokers, partitions, owners, fixed = cluster
    loads = loads_of(brokers, partitions, owners, fixed)
    shuffled = list(loads.items())
    rng.shuffle(shuffled)
    other = {}
    for broker, load in shuffled:
        items = list(load.movable.items())
        rng.shuffle(items)
        other[broker] = BrokerLoad(load.bytes_per_s, dict(items))
    source = overloaded(loads, THRESHOLD)
    assert overloaded(other, THRESHOLD) == source
    if source is not None:
        assert choose_move(other, source, GAIN) == choose_move(loads, source, GAIN)


def test_of_two_hot_partitions_at_one_broker_one_goes_to_the_idlest():
    (a, b, c) = keys(3)
    loads = {
        1: BrokerLoad(210, {a: 100, b: 110}),
        2: BrokerLoad(30, {c: 30}),
        3: BrokerLoad(10, {}),
    }
    assert overloaded(loads, THRESHOLD) == 1
    assert choose_move(loads, 1, GAIN) == (b, 1, 3) or choose_move(loads, 1, GAIN) == (a, 1, 3)


def test_one_partition_that_is_all_of_the_load_stays_where_it_is():
    (a,) = keys(1)
    loads = {1: BrokerLoad(1_000, {a: 1_000}), 2: BrokerLoad(0, {})}
    assert overloaded(loads, THRESHOLD) == 1
    assert choose_move(loads, 1, GAIN) is None, "it would only be hot elsewhere"
