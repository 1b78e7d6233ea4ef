"""Reserved headers."""

from __future__ import annotations

import pytest

from headrace.errors import BatchCorrupt, RecordInvalid
from headrace.records import attributes
from headrace.records.attributes import NamedSequence, RecordAttributes, scan_records
from headrace.records.batch import read_header
from headrace.records.codec import Headers, Record, encode_batch, payload_of
from headrace.records.compression import ZSTD


def test_without_headers_everything_has_its_default():
    assert attributes.expire_at_ms([("other", b"1"), ("headrace-expire-at", None)]) is None
    assert attributes.priority([]) == attributes.PRIORITY_DEFAULT
    assert attributes.keys([]) == []
    assert attributes.tag([]) is None
    assert attributes.parse_trace_parent(None) is None
    assert attributes.read_text([], attributes.MESSAGE_ID) is None


def test_the_last_of_doubles_counts():
    assert attributes.priority([("headrace-priority", b"1"), ("headrace-priority", b"9")]) == 9


@pytest.mark.parametrize(
    "value", [b"", b"-1", b"10", b"+5", b" 5", b"5.0", b"5e1", b"9" * 5_000, b"\xd9\xa3"]
)
def test_invalid_priorities_are_refused_with_the_allowed_range(value):
    with pytest.raises(RecordInvalid, match=r"headrace-priority.*from 0 to 9"):
        attributes.priority([("headrace-priority", value)])


def test_texts_are_utf_8():
    assert attributes.keys([("headrace-keys", "a-1  bé".encode())]) == ["a-1", "bé"]
    with pytest.raises(RecordInvalid, match="UTF-8"):
        attributes.read_text([("headrace-message-id", b"\xff")], attributes.MESSAGE_ID)


TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def test_a_malformed_traceparent_is_ignored():
    def parsed(value: bytes) -> attributes.TraceParent | None:
        return attributes.parse_trace_parent(value)

    expected = ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
    assert parsed(TRACE) == expected
    assert parsed(b"01" + TRACE[2:] + b"-more") == expected
    for bad in (
        b"",
        TRACE + b"-more",
        b"ff" + TRACE[2:],
        TRACE.upper(),
        TRACE.replace(b"4bf92f3577b34da6a3ce929d0e0e4736", b"0" * 32),
        TRACE.replace(b"00f067aa0ba902b7", b"0" * 16),
        b"01" + TRACE[2:] + b"-" + b"x" * 1_000,
    ):
        assert parsed(bad) is None


def _scan(headers: list[Headers], codec: int = 0) -> list[RecordAttributes]:
    batch = encode_batch([Record(0, 1, b"k", b"v", one) for one in headers], codec=codec)
    header = read_header(batch)
    return scan_records(payload_of(batch, header), header, 1_000)


@pytest.mark.parametrize("codec", [0, ZSTD])
def test_a_scan_names_the_records_that_admission_has_to_look_at(codec):
    headers: list[Headers] = [
        [],
        [("headrace-delay", b"5"), ("other", b"headrace-delay")],
        [("other", b"headrace-deliver-at")],
        [("headrace-producer", b"p"), ("headrace-sequence", b"7")],
        [("headrace-priority", b"3")],
        [("headrace-deliver-at", b"99"), ("headrace-delay", b"5")],
        [("headrace-unknown", b"\xff")],
        [("headrace-delay", None)],
        [],
    ]
    assert _scan(headers, codec) == [
        RecordAttributes(1, 1_005, None),
        RecordAttributes(3, None, NamedSequence("p", 7)),
        RecordAttributes(5, 99, None),
    ]


@pytest.mark.parametrize(
    ("name", "value", "allowed"),
    [
        ("headrace-deliver-at", b"soon", "a number from 0 to 9007199254740991"),
        ("headrace-deliver-at", b"9007199254740992", "a number from 0 to 9007199254740991"),
        ("headrace-delay", b"9007199254740991", "a number from 0 to 3162240000000"),
        ("headrace-expire-at", b"-1", "a number from 0"),
        ("headrace-sequence", b"1.5", "a number from 0"),
        ("headrace-tag", b"a|b", "without '|'"),
        ("headrace-tag", b"a b", "one word"),
        ("headrace-tag", b"", "1 to 255 bytes"),
        ("headrace-keys", b"k" * 4_097, "1 to 4096 bytes"),
        ("headrace-keys", b"k " * 65, "at most 64 words"),
        ("headrace-message-group", b" ", "not blank"),
        ("headrace-message-id", b"a\nb", "without control characters"),
        ("headrace-producer", b"p" * 256, "1 to 255 bytes"),
    ],
)
def test_a_malformed_attribute_is_refused_with_its_record_and_what_is_allowed(name, value, allowed):
    with pytest.raises(RecordInvalid) as caught:
        _scan([[], [(name, value)]])
    message = str(caught.value)
    assert message.startswith(f"record 1 of the batch: header {name} holds '")
    assert allowed in message
    assert len(message) < 300
    assert [index for index, _ in caught.value.fields["record_errors"]] == [1]


@pytest.mark.parametrize("name", ["headrace-producer", "headrace-sequence"])
def test_a_named_sequence_takes_both_headers(name):
    with pytest.raises(RecordInvalid, match="set both, or neither"):
        _scan([[(name, b"1")]])


def test_a_batch_that_is_cut_is_corrupt():
    batch = encode_batch([Record(0, 1, b"k", b"v", [("headrace-delay", b"5")])] * 2)
    header = read_header(batch)
    payload = payload_of(batch, header)
    for size in range(payload.rindex(b"headrace-") + 10, len(payload)):
        with pytest.raises(BatchCorrupt):
            scan_records(payload[:size], header, 0)
