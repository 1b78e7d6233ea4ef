"""How far named producers have come."""

from __future__ import annotations

import pytest

from headrace.errors import DataCorrupt
from headrace.log import named_sequences
from headrace.log.footer import Footer, decode_footer, encode_footer
from headrace.log.named_sequences import NamedSequences
from headrace.log.offset_index import OffsetIndex
from headrace.log.producer_state import ProducerState
from headrace.records.attributes import NamedSequence


def _apply(state: NamedSequences, offset: int, *named: tuple[str, int], safe: int = 0) -> None:
    state.apply([NamedSequence(*one) for one in named], offset, safe)


def test_a_sequence_is_new_only_above_the_highest_of_its_name():
    state = NamedSequences()
    _apply(state, 10, ("a", 5), ("b", 0))
    assert state.find(NamedSequence("a", 5)) == 10
    assert state.find(NamedSequence("a", 0)) == 10
    assert state.find(NamedSequence("a", 6)) is None
    assert state.find(NamedSequence("c", 0)) is None


def test_failed_appends_leave_no_trace():
    state = NamedSequences()
    _apply(state, 10, ("a", 5))
    _apply(state, 11, ("a", 6), ("b", 1))
    _apply(state, 12, ("a", 9), safe=11)
    state.truncate(11)
    assert state.find(NamedSequence("a", 5)) == 10
    assert state.find(NamedSequence("a", 6)) is None
    assert state.find(NamedSequence("b", 1)) is None


def test_the_name_that_was_used_least_recently_goes_first(monkeypatch):
    monkeypatch.setattr(named_sequences, "NAMES_MAX", 2)
    state = NamedSequences()
    _apply(state, 1, ("a", 1))
    _apply(state, 2, ("b", 1))
    _apply(state, 3, ("a", 2))
    _apply(state, 4, ("c", 1))
    assert (len(state), state.evicted_total) == (2, 1)
    assert state.find(NamedSequence("b", 1)) is None
    assert state.find(NamedSequence("a", 2)) == 3
    state.truncate(4)  # the append that took its place failed
    assert state.find(NamedSequence("b", 1)) == 2


def test_a_footer_keeps_them_in_a_section_that_older_versions_skip():
    producers = ProducerState()
    _apply(producers.named, 7, ("é", 3), ("b", 2**53 - 1))
    data = encode_footer(Footer(8, 1, OffsetIndex(), producers))
    found = decode_footer(data).producers.named
    assert found.find(NamedSequence("é", 3)) == 7
    assert found.find(NamedSequence("b", 2**53 - 1)) == 7
    assert found.encode() == producers.named.encode()
    assert b"\x00\x07\x00\x00" in data  # tag 7, not required
    without = encode_footer(Footer(8, 1, OffsetIndex(), ProducerState()))
    assert not len(decode_footer(without).producers.named)


def test_damaged_sections_are_reported():
    state = NamedSequences()
    _apply(state, 7, ("abc", 3))
    data = state.encode()
    assert NamedSequences.decode(data + b"later").encode() == data
    for bad in (data[:-1], b"\x00\x00\x00\x02" + data[4:], b""):
        with pytest.raises(DataCorrupt):
            NamedSequences.decode(bad)


def test_names_come_back_in_their_order_of_use_when_many_appends_fail(monkeypatch):
    monkeypatch.setattr(named_sequences, "NAMES_MAX", 3)
    state = NamedSequences()
    _apply(state, 1, ("a", 1), ("b", 1), ("c", 1))
    before = state.encode()
    _apply(state, 2, ("d", 1), ("a", 2), ("b", 2))
    _apply(state, 3, ("d", 2), ("a", 3), ("e", 1))
    state.truncate(2)
    assert state.encode() == before
