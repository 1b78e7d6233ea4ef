"""Which copies are missing, by a ledger's metadata, against counting them one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.storage.bookkeeper.ledger_metadata import Ensemble, LedgerMetadata
from headrace.storage.bookkeeper.quorum import Quorum
from headrace.storage.bookkeeper.replication import missing_copies

NAMES = [f"b{number}" for number in range(6)]


@st.composite
def ledgers(draw):
    ack, write, size = sorted(draw(st.tuples(*[st.integers(1, 5)] * 3)))
    firsts = [0, *sorted(draw(st.sets(st.integers(1, 40), max_size=3)))]
    ensembles = [Ensemble(first, tuple(draw(st.permutations(NAMES))[:size])) for first in firsts]
    return LedgerMetadata(Quorum(size, write, ack), tuple(ensembles))


@given(ledgers(), st.integers(-1, 60), st.sets(st.sampled_from(NAMES)))
def test_copies_on_bookies_that_are_away_are_missing(metadata, last, present):
    last = max(last, metadata.ensembles[-1].first_entry - 1)
    closed = metadata.closed(last, 0)
    found = missing_copies(closed, present)
    lacking = [
        bookie
        for entry in range(last + 1)
        for bookie in closed.bookies_of(entry)
        if bookie not in present
    ]
    assert found.copies == len(lacking)
    assert set(lacking) <= set(found.machines), (
        "a bookie of the ensemble may hold none of few entries"
    )
    assert not set(found.machines) & present


@given(ledgers(), st.integers(0, 60), st.integers(0, 60))
def test_the_bookies_of_entries_are_those_of_their_ensembles(metadata, first, count):
    entries = range(first, first + count + 1)
    ensembles = [metadata.ensemble_of(entry) for entry in entries]
    wanted = {bookie for ensemble in ensembles for bookie in ensemble}
    assert metadata.bookies_between(first, entries[-1]) == sorted(wanted)


@given(ledgers(), st.sets(st.sampled_from(NAMES)))
def test_of_a_ledger_that_is_written_the_bookies_count_and_its_last_entries_do_not(
    metadata, present
):
    found = missing_copies(metadata, present)
    assert set(found.machines) >= set(metadata.last_ensemble.bookies) - present
    last = metadata.last_ensemble.first_entry - 1
    assert found.copies == missing_copies(metadata.closed(last, 0), present).copies
