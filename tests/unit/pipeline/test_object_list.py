"""How a read is cut between ledgers in object storage."""

from random import Random

from headrace.log.ledger_objects import LedgerPlace
from headrace.pipeline.object_list import TASK_BYTES, _cut, places_of
from headrace.pipeline.planning import OffsetRange


def places(*sizes):
    return [
        LedgerPlace("c", at, 10 * at, 10 * at + 10, 1, size, False) for at, size in enumerate(sizes)
    ]


def test_a_range_is_cut_after_ledgers_of_the_size_of_a_task():
    half = TASK_BYTES // 2
    found = _cut(OffsetRange("t", 0, 5, 77), places(half, half, TASK_BYTES, 1, 1, half, half))
    assert [(one.start, one.end) for one in found] == [(5, 20), (20, 30), (30, 70), (70, 77)]
    assert _cut(OffsetRange("t", 0, 5, 77), []) == [OffsetRange("t", 0, 5, 77)]
    whole = OffsetRange("t", 0, 0, 10)  # no empty task after the last ledger
    assert _cut(whole, places(TASK_BYTES)) == [whole]


def test_a_part_has_the_ledgers_of_its_offsets():
    rng, every = Random(3), places(*[1] * 40)
    for _ in range(200):
        start, end = sorted(rng.sample(range(450), 2))
        wanted = [one for one in every if one.base_offset < end and one.end_offset > start]
        assert places_of(OffsetRange("t", 0, start, end), every) == wanted
