"""The bytes of transaction markers are Kafka's."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.errors import BatchCorrupt
from headrace.records.batch import read_header
from headrace.records.codec import Record, encode_batch
from headrace.records.marker import Marker, encode_marker, read_marker

GOLDEN = Path(__file__).parents[2] / "golden" / "records" / "commit-marker.hex"


def test_a_marker_that_kafka_wrote_is_read() -> None:
    data = bytes.fromhex(GOLDEN.read_text())
    marker = read_marker(data)
    assert marker is not None
    assert marker.is_commit
    header = read_header(data)
    own = encode_marker(
        header.producer_id, header.producer_epoch, marker, header.first_timestamp_ms
    )
    assert own[61:] == data[61:], "the control record is Kafka's, byte for byte"
    assert read_header(own).attributes == header.attributes


@pytest.mark.parametrize("is_commit", [True, False])
def test_a_marker_is_read_back(is_commit) -> None:
    written = Marker(is_commit, 12)
    batch = encode_marker(2**62, 32767, written, 1_700_000_000_000)
    assert read_marker(batch) == written
    assert len(batch) == 78


def control(key: bytes | None, value: bytes | None) -> bytes:
    return encode_batch(
        [Record(0, 0, key, value)], producer_id=1, is_transactional=True, is_control=True
    )


def test_control_records_of_other_types_are_passed_over() -> None:
    assert read_marker(control(b"\0\0\0\2", b"")) is None


@pytest.mark.parametrize("value", [None, b"", b"\0\0\0"])
def test_a_damaged_marker_is_reported(value) -> None:
    with pytest.raises(BatchCorrupt):
        read_marker(control(b"\0\0\0\1", value))
    with pytest.raises(BatchCorrupt):
        read_marker(control(value, b""))
