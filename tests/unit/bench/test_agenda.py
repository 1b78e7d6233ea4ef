"""One system at a time, round by round, all of it in the time that was promised."""

from __future__ import annotations

from headrace_bench.agenda import SideName, turns
from headrace_bench.growth import SERIES
from headrace_bench.loads import AS_IT_COMES, LOADS, QUEUE_LOADS
from headrace_bench.side_by_side import chosen_systems
from headrace_bench.workloads import SYNCED, UNSYNCED

SIDES = [SideName(one.name, p) for one in chosen_systems(()) for p in (SYNCED, UNSYNCED)]


def agenda(rounds=2, sides=SIDES):
    return turns(LOADS, SERIES, sides, rounds, 1.0)


def test_two_rounds_of_everything_fit_twenty_minutes():
    assert sum(turn.seconds for turn in agenda()) <= 20 * 60


def test_two_rounds_of_all_queues_fit_twelve_minutes():
    assert sum(turn.seconds for turn in turns(QUEUE_LOADS, [], SIDES, 2, 1.0)) <= 12 * 60


def test_a_queue_is_measured_on_each_system_as_it_comes():
    found = turns(QUEUE_LOADS, [], SIDES, 1, 1.0)
    assert [turn.side for turn in found] == [SideName(*one) for one in AS_IT_COMES.items()]
    assert all([step.what for step in turn.steps] == list(QUEUE_LOADS) for turn in found)


def test_rates_are_of_ten_seconds_after_a_warm_up():
    for load in LOADS:
        assert load.window.warmup_s > 0
        assert load.window.seconds >= 10 or load.kind == "latency"


def test_each_round_gives_each_side_one_turn_in_the_same_order():
    assert [(turn.number, turn.side) for turn in agenda()] == [
        (number, side) for number in (1, 2) for side in SIDES
    ]


def test_each_consume_follows_its_produce_in_the_same_turn():
    for turn in agenda(rounds=5):
        kinds = [step.what for step in turn.steps if hasattr(step.what, "kind")]
        for index, load in enumerate(kinds):
            if load.kind == "consume":
                before = kinds[index - 1]
                assert (before.kind, before.record_bytes) == ("produce", load.record_bytes)


def test_series_are_measured_on_the_unsynced_kafka_protocol_sides_only():
    growing = {
        str(turn.side)
        for turn in agenda()
        for step in turn.steps
        if step.title.startswith(tuple(one.title for one in SERIES))
    }
    assert growing == {"headrace/unsynced", "kafka/unsynced"}
    (turn,) = turns([], SERIES, [SideName("headrace", UNSYNCED)], 1, 1.0)
    assert len(turn.steps) == sum(len(one.values) for one in SERIES)


def test_every_load_is_in_the_first_round():
    seen = {step.what.name for turn in agenda(rounds=1) for step in turn.steps}
    assert seen == {one.name for one in (*LOADS, *SERIES)}
