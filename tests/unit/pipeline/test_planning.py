"""How a read is cut, without Spark or a broker."""

import itertools

from headrace.pipeline.planning import (
    OffsetRange,
    build,
    larger,
    limited,
    ranges_between,
    split,
    total,
    walk,
)


def test_walk_orders_partitions_as_numbers_and_build_is_its_inverse():
    offsets = {"b": {"10": 1, "9": 2}, "a": {"0": 3}}
    assert list(walk(offsets)) == [("a", 0, 3), ("b", 9, 2), ("b", 10, 1)]
    assert build(walk(offsets)) == offsets


def test_larger_takes_each_partitions_maximum_and_keeps_what_one_side_names():
    assert larger({"t": {"0": 5, "1": 1}}, {"t": {"1": 9, "2": 0}, "u": {"0": 1}}) == {
        "t": {"0": 5, "1": 9, "2": 0},
        "u": {"0": 1},
    }


def test_a_limit_is_spread_by_backlog_and_starves_no_partition():
    start = {"t": {"0": 0, "1": 0, "2": 7}}
    end = {"t": {"0": 100_000, "1": 10, "2": 7}}
    assert limited(start, end, 1_000) == {"t": {"0": 999, "1": 1, "2": 7}}
    assert limited(start, end, None) == end
    assert limited(start, end, 200_000) == end


def test_a_limit_never_goes_back():
    assert limited({"t": {"0": 50}}, {"t": {"0": 40}}, 10) == {"t": {"0": 50}}


def test_limited_steps_reach_the_end_exactly():
    position, end = {"t": {"0": 0, "1": 3}}, {"t": {"0": 1_001, "1": 2_000}}
    seen = 0
    while position != end:
        following = limited(position, end, 97)
        seen += total(position, following)
        assert total(position, following) > 0
        position = following
    assert seen == 1_001 + 1_997


def test_ranges_leave_out_what_is_empty_and_begin_new_partitions_at_zero():
    assert ranges_between({"t": {"0": 5, "1": 9}}, {"t": {"0": 7, "1": 9, "2": 3}}) == [
        OffsetRange("t", 0, 5, 7),
        OffsetRange("t", 2, 0, 3),
    ]


def test_a_large_range_becomes_several_tasks_that_cover_it_exactly():
    pieces = split([OffsetRange("t", 0, 10, 1_010), OffsetRange("t", 1, 0, 3)], None, 300)
    assert [piece.size for piece in pieces] == [250, 250, 250, 250, 3]
    assert pieces[0].start == 10
    assert all(left.end == right.start for left, right in itertools.pairwise(pieces[:4]))
    assert pieces[3].end == 1_010


def test_a_minimum_of_tasks_is_met_by_cutting_the_large():
    pieces = split([OffsetRange("t", 0, 0, 900), OffsetRange("t", 1, 0, 100)], 10, None)
    assert [piece.partition for piece in pieces] == [0] * 9 + [1]
    assert split([OffsetRange("t", 0, 0, 2)], 10, None) == [
        OffsetRange("t", 0, 0, 1),
        OffsetRange("t", 0, 1, 2),
    ]
    assert split([OffsetRange("t", 0, 0, 2)], 1, None) == [OffsetRange("t", 0, 0, 2)]
    assert split([], 10, 10) == []
