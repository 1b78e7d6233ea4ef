"""Reserved headers."""

from __future__ import annotations

import pytest

from headrace.errors import RecordInvalid
from headrace.records import attributes


def test_without_headers_everything_has_its_default():
    assert attributes.deliver_at_ms([], 5) is None
    assert attributes.expire_at_ms([("other", b"1"), ("headrace-expire-at", None)]) is None
    assert attributes.priority([]) == attributes.PRIORITY_DEFAULT
    assert attributes.keys([]) == []
    assert attributes.read_text([], attributes.TAG) is None


def test_a_delay_counts_from_arrival_and_a_due_time_counts_first():
    headers = [("headrace-delay", b"250")]
    assert attributes.deliver_at_ms(headers, 1_000) == 1_250
    headers.append(("headrace-deliver-at", b"900"))
    assert attributes.deliver_at_ms(headers, 1_000) == 900


def test_the_last_of_doubles_counts():
    assert attributes.priority([("headrace-priority", b"1"), ("headrace-priority", b"9")]) == 9


@pytest.mark.parametrize(
    "value", [b"", b"-1", b"10", b"+5", b" 5", b"5.0", b"5e1", b"9" * 5_000, b"\xd9\xa3"]
)
def test_what_is_no_priority_is_refused_in_words(value):
    with pytest.raises(RecordInvalid, match=r"headrace-priority.*from 0 to 9"):
        attributes.priority([("headrace-priority", value)])


def test_texts_are_utf_8():
    assert attributes.keys([("headrace-keys", "a-1  bé".encode())]) == ["a-1", "bé"]
    with pytest.raises(RecordInvalid, match="UTF-8"):
        attributes.read_text([("headrace-tag", b"\xff")], attributes.TAG)
