"""Whatever is lost of a log, no transaction is taken for what it was not."""

from __future__ import annotations

from typing import NamedTuple

from hypothesis import given
from hypothesis import strategies as st

from headrace.inspection.outcomes import Outcomes
from headrace.log.aborted_index import AbortedIndex

PRODUCERS = 2


class Written(NamedTuple):
    """One batch of a log, at its offset."""

    producer: int
    is_commit: bool | None
    """None: a record."""


batches = st.lists(
    st.builds(Written, st.integers(0, PRODUCERS - 1), st.sampled_from([None, None, True, False])),
    max_size=30,
)


def truth(log: list[Written], offset: int) -> bool | None:
    ends = (b.is_commit for b in log[offset:] if b.producer == log[offset].producer)
    return next((is_commit for is_commit in ends if is_commit is not None), None)


def index_of(log: list[Written], first: int, end: int) -> AbortedIndex:
    index, begun = AbortedIndex(), dict[int, int]()
    for offset, batch in enumerate(log[:end]):
        if batch.is_commit is None:
            begun.setdefault(batch.producer, offset)
            continue
        start = begun.pop(batch.producer, None)
        if batch.is_commit is False and start is not None and offset >= first:
            index.add(batch.producer, start, offset, 0)
    return index


def told(log: list[Written], lost: set[int], ledgers: list[tuple[int, int, bool]]) -> Outcomes:
    outcomes = Outcomes()
    for first, end, has_footer in ledgers:
        if has_footer:
            outcomes.add_index(first, end, index_of(log, first, end))
    for offset, batch in enumerate(log):
        if offset in lost:
            outcomes.add_lost(offset, offset)
        elif batch.is_commit is not None:
            outcomes.add_marker(batch.producer, offset, is_commit=batch.is_commit)
    return outcomes


@given(
    batches,
    st.sets(st.integers(0, 29), max_size=8),
    st.lists(st.tuples(st.integers(1, 12), st.booleans()), min_size=4, max_size=8),
)
def test_an_answer_is_that_of_the_whole_log(log, lost, sizes) -> None:
    ledgers, first = [], 0
    for size, has_footer in sizes:
        ledgers.append((first, first + size, has_footer))
        first += size
    outcomes = told(log, lost, ledgers)
    for offset, batch in enumerate(log):
        if batch.is_commit is not None:
            continue
        found, expected = outcomes.is_committed(batch.producer, offset), truth(log, offset)
        assert found in {expected, None}
        if not lost:
            assert found is expected


def test_a_footer_decides_where_markers_are_lost() -> None:
    """Of two transactions of one producer, the first one's marker is lost."""
    for first, second in ((False, True), (True, False)):
        log = [Written(0, None), Written(0, first), Written(0, None), Written(0, second)]
        outcomes = told(log, {1}, [(0, 4, True)])
        assert [outcomes.is_committed(0, at) for at in (0, 2)] == [first, second]
        outcomes = told(log, {1}, [])
        assert [outcomes.is_committed(0, at) for at in (0, 2)] == [None, second]
